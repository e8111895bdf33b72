"""Cuts the reviews into shards: `python prepare.py --n_container 5 --savedir data` leaves data/0.npz to data/4.npz.

A fifth of the reviews is held out (data/held-out.jsonl), chosen by a hash of the text and the seed. From the others
alone come the words, the n-grams and their ratios (data/features.json, data/ngrams.npz), and the shards.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
from array import array
from collections import defaultdict

import files
import numpy as np
import reviews
from features import FIRST_WORD, TOKEN, UNKNOWN, Features, Rows, known_ngrams, packed_ngrams, save, tokens

SEEN = 3
"""Words and n-grams must be seen so often."""


def shuffled(texts, seed):
    """Numbers of the texts in an order that the seed and the texts alone decide."""
    return sorted(range(len(texts)), key=lambda i: hashlib.blake2b(f"{seed} {texts[i]}".encode()).digest())


def count_words(texts, most):
    """(words from the commonest on, the texts as rows of word ids). `most`: how many words, 0 for all."""
    pattern, number, flat, starts = re.compile(TOKEN), defaultdict(itertools.count().__next__), array("i"), [0]
    for text in texts:
        flat.extend(map(number.__getitem__, tokens(text, pattern)))
        starts.append(len(flat))
    flat, names = np.array(flat, np.int32), list(number)
    counts = np.bincount(flat, minlength=len(names))
    chosen = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= SEEN][: most or None]
    ids = np.full(len(names), UNKNOWN, np.int32)
    ids[chosen] = np.arange(FIRST_WORD, FIRST_WORD + len(chosen))
    return tuple(names[i] for i in chosen), Rows(ids[flat], np.array(starts, np.int64))


def count_ngrams(words, labels):
    """(n-grams in ascending order, their log-count ratios, the rows as n-gram ids)."""
    every = np.sort(packed_ngrams(words)[0])
    first = np.flatnonzero(np.diff(every, prepend=-1))
    ngrams = every[first[np.diff(first, append=len(every)) >= SEEN]]
    rows = known_ngrams(words, ngrams)
    positive = labels[rows.row_of_id] == 1
    for_, against = (1.0 + np.bincount(rows.ids[chosen], minlength=len(ngrams)) for chosen in (positive, ~positive))
    return ngrams, np.log(for_ / for_.sum() * against.sum() / against).astype(np.float32), rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n_container", type=int, default=5, help="shards to make, one for each trainer (5)")
    parser.add_argument("--savedir", default="data", help="directory for the shards (data)")
    parser.add_argument("--mode", choices=("split", "copy"), default="split", help="copy: all reviews in each shard")
    parser.add_argument("--model", choices=("bow", "bigru"), default="bow", help="the model that is to be trained")
    parser.add_argument("--words", type=int, default=20000, help="bigru: how many words it knows (20000)")
    parser.add_argument("--reviews", default="", help="a CSV file with the columns text,label (IMDB's, fetched once)")
    parser.add_argument("--limit", type=int, default=0, help="use so many reviews (0: all)")
    parser.add_argument("--bad_rows", choices=("stop", "skip"), default="stop")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.n_container < 1:
        raise SystemExit(f"--n_container {args.n_container}: there must be at least one shard")

    path = args.reviews or reviews.fetched(reviews.place())
    texts, labels, skipped = reviews.read(path, args.bad_rows)
    order = shuffled(texts, args.seed)[: args.limit or None]
    held_out, training = order[: len(order) // 5], order[len(order) // 5 :]
    if len(training) < args.n_container:
        raise SystemExit(f"{path}: {len(training)} reviews to train on cannot be cut into {args.n_container} shards")
    known = [labels[i] for i in training]
    if len(set(known)) < 2:
        raise SystemExit(f"{path}: all {len(known)} reviews to train on have the label {known[0]}; both are wanted")
    print(f"{len(texts)} different reviews: {len(training)} to train on, {len(held_out)} held out, {skipped} bad rows")

    known = np.array(known, np.int8)
    words, rows = count_words([texts[i] for i in training], args.words if args.model == "bigru" else 0)
    ngrams, ratios = np.empty(0, np.int64), np.empty(0, np.float32)
    if args.model == "bow":
        ngrams, ratios, rows = count_ngrams(rows, known)
    save(Features(args.model, TOKEN, words, ngrams, ratios), args.savedir)
    print(f"{len(words)} words, {len(ngrams)} n-grams of up to three")

    parts = args.n_container if args.mode == "split" else 1
    for number in range(args.n_container):
        mine = np.arange(number % parts, len(training), parts)
        shard = files.Shard(rows.take(mine), known[mine], number, parts)
        files.save_shard(os.path.join(args.savedir, f"{number}.npz"), shard)
    lines = (json.dumps({"text": texts[i], "label": labels[i]}, ensure_ascii=False) + "\n" for i in held_out)
    files.whole(os.path.join(args.savedir, "held-out.jsonl"), lambda file: file.writelines(map(str.encode, lines)))
    print(f"{args.n_container} shards in {args.savedir}", flush=True)


if __name__ == "__main__":
    main()
