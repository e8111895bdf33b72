"""From a row of Criteo's columns to what the network takes: the one place for it, in training and in serving.

A category becomes a bucket of its column by a hash of its text; a number becomes its logarithm, scaled by the mean
and the deviation of the training rows. An empty category is a category of its own; an empty number is the mean.
"""

import json
import os

import numpy as np

NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
LONGEST = 16
"""Characters of a category at most: two words of eight bytes."""

COLUMN = (np.arange(1, len(CATEGORIES) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).reshape(1, -1)


def mixed(words):
    """Every bit of a 64-bit word depends on every other."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def buckets_of(first, second, buckets):
    """Rows x 26 bucket numbers, each column's behind those of the column before it.

    first, second: bytes 1 to 8 and 9 to 16 of each category as little-endian words, zeros behind its end. `second`
    may be None where no category is that long.
    """
    hashed = mixed(first ^ COLUMN)
    if second is not None:
        hashed = np.where(second == 0, hashed, mixed(hashed ^ second))
    hashed >>= np.uint64(32)
    hashed *= np.uint64(buckets)
    hashed >>= np.uint64(32)
    return hashed.astype(np.int32) + np.arange(len(CATEGORIES), dtype=np.int32) * np.int32(buckets)


def words_of(texts):
    """The two words of each of an array of texts or bytes."""
    padded = np.char.encode(texts, "utf-8") if np.asarray(texts).dtype.kind == "U" else np.asarray(texts, np.bytes_)
    if padded.dtype.itemsize > LONGEST:
        raise ValueError(f"a category has {padded.dtype.itemsize} characters; at most {LONGEST} are taken")
    words = np.ascontiguousarray(padded.astype(f"S{LONGEST}")).view("<u8").reshape(*padded.shape, 2)
    return words[..., 0], words[..., 1]


def logarithms(numbers):
    """What is scaled instead of the numbers themselves: counts, most small, some huge."""
    numbers = np.asarray(numbers, np.float32)
    return np.sign(numbers) * np.log1p(np.abs(numbers))


def scaled(numbers, mean, deviation):
    """Numbers for the network; nan, an empty number, becomes 0: the mean."""
    return np.nan_to_num((logarithms(numbers) - mean) / deviation, copy=False).astype(np.float32, copy=False)


class Transform:
    """What a server does before the net: the columns of a row, as a client sends them, become buckets and numbers."""

    def __init__(self, directory):
        with open(os.path.join(directory, "files", "scale.json"), encoding="utf-8") as file:
            told = json.load(file)
        self.buckets = told["buckets"]
        self.scale = {name: np.array(told[name], np.float32) for name in ("mean", "deviation")}

    def before(self, inputs):
        texts = np.stack([inputs[name] for name in CATEGORIES], axis=1)
        numbers = np.stack([inputs[name] for name in NUMBERS], axis=1)
        kind = np.bytes_ if texts.size and isinstance(texts.flat[0], bytes) else np.str_
        words = words_of(texts.astype(kind))
        return {"buckets": buckets_of(*words, self.buckets), "numbers": scaled(numbers, **self.scale)}
