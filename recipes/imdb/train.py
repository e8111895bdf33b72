"""Trains on one shard: `python train.py --data data/0.npz --epoch 3 --batch 100 --savemodel models/0-model.npz`.

All trainers start from the same weights: those of the seed, or in a later round those of --start. The order of the
reviews comes from the seed, the shard, the round and the epoch: a new life of this process computes the same bits.
"""

import argparse
import os

import features
import files
import numpy as np
from progress import checkpoint, report, stopping

STOPPED = 143
"""Exit code after SIGTERM: no model was left."""


def train(code, shard, arrays, *, epochs, batch, seed, turn=1, turns=1, save_every=0):
    """Weights after `epochs` passes over the shard; `turn` of `turns` rounds. None when asked to stop."""
    per_epoch = -(-len(shard.rows) // batch)
    steps = epochs * per_epoch
    saved = checkpoint.load() if save_every else None
    before = (turn - 1) * steps
    first = saved.step - before if saved else 0
    state, order, losses = saved.arrays if saved else code.begin(arrays), None, []
    for step in range(first, steps):
        epoch, at = divmod(step, per_epoch)
        if order is None or at == 0:
            order = np.random.default_rng([seed, shard.number, turn, epoch]).permutation(len(shard.rows))
        which = order[at * batch : (at + 1) * batch]
        rate = 1 - (before + step) / (turns * steps)
        losses.append(code.step(state, shard.rows.take(which), shard.labels[which], rate, shard.parts, batch))
        done = step + 1
        if save_every and (done % 10 == 0 or done == steps):
            report(step=before + done, total=turns * steps, loss=float(np.mean(losses)))
            losses = []
        if save_every and stopping():
            checkpoint.save(state, step=before + done, wait=True)
            return None
        if save_every and done % save_every == 0 and done < steps:
            checkpoint.save(state, step=before + done)
    return code.arrays(state)


def leave_features(found, directory):
    """A copy of the features beside the models, unless it is there."""
    there = all(os.path.exists(os.path.join(directory, name)) for name in features.FILES)
    if there and features.load(directory).fingerprint == found.fingerprint:
        return
    features.save(found, directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="the shard, such as data/0.npz")
    parser.add_argument("--epoch", type=int, default=3, help="passes over the shard in a round (3)")
    parser.add_argument("--batch", type=int, default=100, help="reviews in a step (100)")
    parser.add_argument("--savemodel", default="model.npz", help="file for the model: .npz, or .h5 for a bigru")
    parser.add_argument("--start", default="", help="model to start from, instead of the seed's weights")
    parser.add_argument("--seed", type=int, default=1, help="the same for all trainers")
    parser.add_argument("--bad_rows", choices=("stop", "skip"), default="stop")
    parser.add_argument("--embedding", type=int, default=64, help="bigru: numbers for a word (64)")
    parser.add_argument("--units", type=int, default=64, help="bigru: width of each direction of a layer (64)")
    parser.add_argument("--length", type=int, default=200, help="bigru: words that are read, from the end (200)")
    args = parser.parse_args()
    if args.epoch < 1 or args.batch < 1:
        raise SystemExit(f"--epoch {args.epoch} --batch {args.batch}: both must be at least 1")

    found = features.load(os.path.dirname(args.data) or ".")
    files.check_name(args.savemodel, found.model)
    code = files.trainer(found, embedding=args.embedding, units=args.units, length=args.length)
    shard = files.load_shard(args.data, found.ids, args.bad_rows)
    turn, turns = int(os.environ.get("LONGBOAT_ROUND", "1")), int(os.environ.get("LONGBOAT_ROUNDS", "1"))
    arrays = files.load_model(args.start).arrays if args.start and turn > 1 else code.new(args.seed)
    print(f"shard {shard.number}: {len(shard.rows)} reviews, round {turn} of {turns}", flush=True)
    every = getattr(code, "save_every", 0) or -(-len(shard.rows) // args.batch)
    how = {"epochs": args.epoch, "batch": args.batch, "seed": args.seed}
    arrays = train(code, shard, arrays, **how, turn=turn, turns=turns, save_every=every)
    if arrays is None:
        raise SystemExit(STOPPED)
    leave_features(found, os.path.dirname(args.savemodel) or ".")
    files.save_model(args.savemodel, files.Model(arrays, len(shard.rows), found.fingerprint))
    print(f"model in {args.savemodel}", flush=True)


if __name__ == "__main__":
    main()
