"""Text to features: one way for the reviews that are trained on and for those that a server is asked about.

What `prepare` learned from the training reviews is kept in two plain files beside the data and beside every
model: `features.json` (tokeniser and words) and `ngrams.npz` (for the model `bow`: every known n-gram and its
log-count ratio). `load` reads them, `Features.rows` turns texts into numbers. Nothing here trains.
"""

import functools
import hashlib
import itertools
import json
import os
import re
from array import array
from dataclasses import dataclass

try:
    import numpy as np
except ModuleNotFoundError:
    raise SystemExit("this recipe needs numpy: pip install numpy") from None

TOKEN = r"[a-z0-9']+|[!?.,;:()\"]"
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
LONGEST = 3
"""Words in an n-gram."""
WORD_BITS = 21
"""An n-gram is one 64-bit number: three word ids side by side."""
FILES = ("features.json", "ngrams.npz")
TINY = 1e-6
"""Below it a row has no length."""
AT_ONCE = 2000
"""Reviews that are worked on at a time, to bound memory."""


@dataclass(frozen=True)
class Rows:
    """Rows of different lengths: row i is ids[starts[i]:starts[i + 1]]."""

    ids: np.ndarray
    starts: np.ndarray

    def __len__(self):
        return len(self.starts) - 1

    @property
    def row_of_id(self):
        """For every id the number of its row."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def take(self, which):
        """The rows with these numbers."""
        parts = [self.ids[self.starts[i] : self.starts[i + 1]] for i in which]
        return join(parts)

    def part(self, begin, end):
        starts = self.starts[begin : end + 1]
        return Rows(self.ids[starts[0] : starts[-1]], starts - starts[0])


def join(parts):
    """Rows from a list of arrays, one for each."""
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Rows(np.concatenate(parts) if parts else np.empty(0, np.int32), starts)


@dataclass(frozen=True)
class Features:
    """What was learned from the training reviews, and what it makes of a text."""

    model: str
    """`bow`: the ids of a row are its known n-grams, each once; `bigru`: they are its words, in order."""
    token: str
    words: tuple
    """Word number i has the id FIRST_WORD + i."""
    ngrams: np.ndarray
    """Packed n-grams in ascending order; the place of one here is its id."""
    ratios: np.ndarray
    """For every n-gram log(share in positive reviews / share in negative ones)."""

    @property
    def ids(self):
        """How many ids there are: every id of a row is below."""
        return len(self.ngrams) if self.model == "bow" else FIRST_WORD + len(self.words)

    @property
    def fingerprint(self):
        """The same for the same features: a model says with which it was trained."""
        digest = hashlib.sha256(json.dumps([self.model, self.token, *self.words]).encode())
        digest.update(self.ngrams.tobytes() + self.ratios.tobytes())
        return digest.hexdigest()[:16]

    @functools.cached_property
    def number(self):
        """Word -> id."""
        return {word: FIRST_WORD + place for place, word in enumerate(self.words)}

    def rows(self, texts):
        """Texts to rows of ids, ready for the model."""
        pattern = re.compile(self.token)
        flat, starts = array("i"), [0]
        for text in texts:
            flat.extend(map(self.number.get, tokens(text, pattern), itertools.repeat(UNKNOWN)))
            starts.append(len(flat))
        words = Rows(np.array(flat, np.int32), np.array(starts, np.int64))
        return known_ngrams(words, self.ngrams) if self.model == "bow" else words

    def values(self, rows):
        """For every id its row and its input: the ratio, the inputs of a row scaled to length 1."""
        row, values = rows.row_of_id, self.ratios[rows.ids]
        lengths = np.sqrt(np.bincount(row, values * values, len(rows))).astype(np.float32)
        return row, values / np.maximum(lengths, TINY)[row]

    def phrase(self, ngram):
        """The words of an n-gram: its number holds their ids side by side."""
        packed, words = int(self.ngrams[ngram]), []
        while packed:
            packed, word = divmod(packed, 1 << WORD_BITS)
            words.append(self.words[word - FIRST_WORD])
        return " ".join(reversed(words))


def last_words(rows, length):
    """The last words of every row, PADDING in front of short ones."""
    ids = np.full((len(rows), length), PADDING, np.int32)
    for row in range(len(rows)):
        words = rows.ids[rows.starts[row] : rows.starts[row + 1]][-length:]
        ids[row, length - len(words) :] = words
    return ids


def tokens(text, pattern):
    """Words in lower case and punctuation marks. HTML line breaks are spaces."""
    return pattern.findall(text.lower().replace("<br />", " "))


def packed_ngrams(words):
    """All n-grams of up to three known words as numbers, and for each the row it stands in."""
    ids, row, known = words.ids.astype(np.int64), words.row_of_id, words.ids != UNKNOWN
    packed, rows = [], []
    key, good = np.zeros(len(ids), np.int64), np.ones(len(ids), bool)
    for length in range(1, min(LONGEST, len(ids)) + 1):
        end = len(ids) - length + 1
        key = key[:end] << WORD_BITS | ids[length - 1 :]
        good = good[:end] & known[length - 1 :] & (row[:end] == row[length - 1 :])
        packed.append(key[good])
        rows.append(row[:end][good])
    return (np.concatenate(packed), np.concatenate(rows)) if packed else (key, row)


def known_ngrams(words, ngrams):
    """Rows of words to rows of n-gram ids: the known ones, each once, ascending."""
    ids, lengths = [], []
    for begin in range(0, len(words), AT_ONCE):
        part = words.part(begin, min(begin + AT_ONCE, len(words)))
        packed, row = packed_ngrams(part)
        place = np.searchsorted(ngrams, packed)
        found = place < len(ngrams)
        found[found] = ngrams[place[found]] == packed[found]
        pairs = np.sort(row[found] << 32 | place[found])
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        ids.append((pairs & 0xFFFFFFFF).astype(np.int32))
        lengths.append(np.bincount(pairs >> 32, minlength=len(part)))
    starts = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
    return Rows(np.concatenate(ids) if ids else np.empty(0, np.int32), starts)


def save(features, directory):
    """Writes the two files, each under a temporary name first."""
    os.makedirs(directory, exist_ok=True)
    told = {"model": features.model, "token": features.token, "words": features.words}
    written = [os.path.join(directory, f"{name}.{os.getpid()}.new") for name in FILES]
    with open(written[0], "w", encoding="utf-8") as file:
        json.dump(told, file, ensure_ascii=False, indent=0)
    with open(written[1], "wb") as file:
        np.savez(file, ngrams=features.ngrams, ratios=features.ratios)
    for name, path in zip(FILES, written, strict=True):
        os.replace(path, os.path.join(directory, name))


def load(directory):
    """The features that were saved in a directory."""
    try:
        with open(os.path.join(directory, FILES[0]), encoding="utf-8") as file:
            told = json.load(file)
        with np.load(os.path.join(directory, FILES[1]), allow_pickle=False) as arrays:
            return Features(told["model"], told["token"], tuple(told["words"]), arrays["ngrams"], arrays["ratios"])
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: `python prepare.py` writes it beside the shards") from None
    except Exception as error:  # numpy and zipfile have many ways to say that a file is damaged
        raise SystemExit(f"{directory}: {' and '.join(FILES)} are damaged: {error}") from None
