"""The model for TensorFlow: `python savedmodel.py arrays.npz DIRECTORY`. Hash and scaling are part of the graph.

export.py runs it. It is a program of its own because TensorFlow and JAX need not be in one process.
"""

import importlib
import os
import sys

import numpy as np
import transform

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = importlib.import_module("tensorflow")  # not by `import`: the recipe does without, and is not to be said to need it


def words_of(texts):
    """As transform.words_of: bytes 1 to 8 and 9 to 16 of each text."""
    raw = tf.io.decode_raw(texts, tf.uint8, fixed_length=transform.LONGEST)
    words = tf.bitcast(tf.reshape(raw, (-1, len(transform.CATEGORIES), 2, 8)), tf.uint64)
    return words[..., 0], words[..., 1]


def mixed(words):
    """As transform.mixed."""
    xor, right = tf.bitwise.bitwise_xor, tf.bitwise.right_shift
    shift = [tf.constant(bits, tf.uint64) for bits in (30, 27, 31)]
    words = xor(words, right(words, shift[0])) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    words = xor(words, right(words, shift[1])) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor(words, right(words, shift[2]))


def buckets_of(texts, buckets):
    """As transform.buckets_of."""
    first, second = words_of(texts)
    half, none = tf.constant(32, tf.uint64), tf.constant(0, tf.uint64)
    hashed = mixed(tf.bitwise.bitwise_xor(first, tf.constant(transform.COLUMN)))
    hashed = tf.where(tf.equal(second, none), hashed, mixed(tf.bitwise.bitwise_xor(hashed, second)))
    hashed = tf.bitwise.right_shift(tf.bitwise.right_shift(hashed, half) * tf.constant(buckets, tf.uint64), half)
    return tf.cast(hashed, tf.int32) + np.arange(len(transform.CATEGORIES), dtype=np.int32) * np.int32(buckets)


class WideDeep(tf.Module):
    def __init__(self, arrays):
        super().__init__()
        self.buckets = int(arrays["buckets"])
        self.held = {name: tf.Variable(value, name=name) for name, value in arrays.items() if name != "buckets"}

    def __call__(self, **columns):
        numbers = tf.stack([columns[name] for name in transform.NUMBERS], axis=1)
        buckets = buckets_of(tf.stack([columns[name] for name in transform.CATEGORIES], axis=1), self.buckets)
        scaled = (tf.sign(numbers) * tf.math.log1p(tf.abs(numbers)) - self.held["mean"]) / self.held["deviation"]
        scaled = tf.where(tf.math.is_nan(scaled), tf.zeros_like(scaled), scaled)
        values = tf.concat(
            [tf.reshape(tf.gather(self.held["embedding"], buckets), (tf.shape(buckets)[0], -1)), scaled], 1
        )
        layers = sum(name.startswith("weights_") for name in self.held)
        for number in range(layers):
            values = values @ self.held[f"weights_{number}"] + self.held[f"bias_{number}"]
            values = tf.nn.relu(values) if number < layers - 1 else values
        logit = values + tf.reduce_sum(tf.gather(self.held["wide"], buckets), axis=1, keepdims=True)
        return {"probabilities": tf.sigmoid(tf.concat([-logit, logit], axis=1))}


def main():
    with np.load(sys.argv[1]) as file:
        net = WideDeep({name: file[name] for name in file.files})
    kinds = {**dict.fromkeys(transform.NUMBERS, tf.float32), **dict.fromkeys(transform.CATEGORIES, tf.string)}
    columns = {name: tf.TensorSpec((None,), kind, name=name) for name, kind in kinds.items()}
    predict = tf.function(net.__call__).get_concrete_function(**columns)
    tf.saved_model.save(net, sys.argv[2], signatures=predict)


if __name__ == "__main__":
    main()
