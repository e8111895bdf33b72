"""A linear model on n-grams whose inputs are naive Bayes log-count ratios (after Wang and Manning's NB-SVM).

The ratios were counted once over all training reviews, so every trainer sees the rare n-grams as the others do, and
the average of their models is worth about one model trained on everything. Weights start at the same small number:
plain naive Bayes. Logistic loss, AdaGrad: n-grams are rare, and each has a learning rate of its own.
"""

import numpy as np
from features import TINY

START = 0.3
RATE = 0.4
SHARDS = 2 / 3
"""The rate grows with this power of the number of shards: averaging shrinks what one shard alone has found."""


class Bow:
    def __init__(self, features):
        self.features, self.ratios = features, features.ratios
        self.gradient = np.zeros(features.ids, np.float32)

    def new(self, seed):
        """The weights at which every trainer starts. Nothing is drawn from the seed: naive Bayes is the start."""
        return {"weights": np.full(len(self.ratios), START, np.float32), "bias": np.zeros(1, np.float32)}

    def begin(self, arrays):
        """The state of a training that starts from these weights."""
        squares = {f"{name} squares": np.full_like(value, TINY) for name, value in arrays.items()}
        return {name: value.copy() for name, value in arrays.items()} | squares

    def arrays(self, state):
        return {"weights": state["weights"], "bias": state["bias"]}

    def step(self, state, rows, labels, rate, parts, batch):
        """One step of AdaGrad on the rows of a batch; gives the mean loss."""
        row, values = self.features.values(rows)
        sign = np.where(labels == 1, 1.0, -1.0)
        scores = np.bincount(row, values * state["weights"][rows.ids], len(rows)) + state["bias"]
        loss = np.logaddexp(0, -sign * scores)
        slope = (-sign * -np.expm1(-loss)).astype(np.float32)
        rate = np.float32(RATE * parts**SHARDS * rate)
        np.add.at(self.gradient, rows.ids, values * slope[row])
        update(state, "weights", rows.ids, self.gradient[rows.ids], rate)
        self.gradient[rows.ids] = 0
        update(state, "bias", slice(None), slope.sum(keepdims=True), rate / 10)
        return float(loss.mean())

    def probabilities(self, arrays, rows):
        """For every row the probability that it is a positive review."""
        row, values = self.features.values(rows)
        scores = np.bincount(row, values * arrays["weights"][rows.ids], len(rows)) + arrays["bias"]
        return 0.5 * (1 + np.tanh(scores / 2))


def update(state, name, where, gradient, rate):
    """AdaGrad. An id that stands in several rows of the batch is written more than once, with the same number."""
    state[f"{name} squares"][where] += gradient * gradient
    state[name][where] -= rate * gradient / np.sqrt(state[f"{name} squares"][where])
