"""Sees to it that there are shards to train on: makes those of a small set, or looks for all of ImageNet's."""

import argparse

import loader
import small

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", choices=("small", "imagenet", "synthetic"), default="small")
    parser.add_argument("--small-set", choices=small.NAMES, default="mnist")
    parser.add_argument("--source", default="", help="directory with the idx files of the small set")
    parser.add_argument("--data", default="", help="directory of ImageNet's shards")
    args = parser.parse_args()
    if args.input == "small":
        print(f"shards in {small.make(args.small_set, args.source)}", flush=True)
    elif args.input == "imagenet":
        if not args.data:
            raise SystemExit("--input imagenet: where are its shards? --set DATASET_DIR=DIR (by hand: --data DIR)")
        for name in small.SETS:
            print(f"{args.data}: {len(loader.shard_paths(args.data, name))} {name} shards", flush=True)
