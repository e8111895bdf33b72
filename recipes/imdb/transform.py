"""What stands before the served model: a review becomes numbers exactly as the training reviews did.

A copy of this file lies in the model's bundle, with features.py and what `prepare` learned beside it.
"""

import importlib.util
import os

import numpy as np

WORDS_MOST = 12
"""Words and phrases that an explanation names."""


class Transform:
    def __init__(self, directory):
        self.directory, files = directory, os.path.join(directory, "files")
        spec = importlib.util.spec_from_file_location("imdb_features", os.path.join(files, "features.py"))
        self.code = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.code)
        self.features = self.code.load(files)
        self.weights = None
        with open(os.path.join(files, "length")) as file:
            self.length = int(file.read())

    def before(self, inputs):
        rows = self.features.rows(map(str, inputs["text"]))
        if self.features.model != "bow":
            return {"ids": self.code.last_words(rows, self.length)}
        row, values = self.features.values(rows)
        width = max(int(np.diff(rows.starts).max(initial=0)), 1)
        ids, padded = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), np.float32)
        place = np.arange(len(rows.ids)) - rows.starts[row]
        ids[row, place], padded[row, place] = rows.ids, values
        return {"ids": ids, "values": padded}

    def explain(self, inputs):
        """For every review the words and phrases that weighed most: above 0 for, below 0 against."""
        if self.features.model != "bow":
            return [[] for _ in inputs["text"]]
        if self.weights is None:
            from longboat.runtime import tensors

            self.weights = tensors.read(os.path.join(self.directory, "weights.safetensors"))[0]["weights"]
        rows = self.features.rows(map(str, inputs["text"]))
        row, values = self.features.values(rows)
        weighed = values * self.weights[rows.ids]
        told = []
        for number in range(len(rows)):
            mine = np.flatnonzero(row == number)
            most = mine[np.argsort(-np.abs(weighed[mine]))][:WORDS_MOST]
            told.append([[self.features.phrase(rows.ids[place]), float(weighed[place])] for place in most])
        return told
