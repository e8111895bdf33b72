"""Asks models about the held-out reviews: `python evaluate.py --model aggregated-model.npz --data data --dir ./models`.

Begins with the text of the reviews, so what is measured is what a server would answer. With --compare it also trains
one model on all shards together, to tell what averaging costs.
"""

import argparse
import json
import os

import features
import files
import numpy as np
import serving
from progress import report
from train import train


def confusion(probabilities, labels):
    """Counts by what was said and what is true."""
    said = probabilities > 0.5
    kinds = {"true positive": (1, 1), "false positive": (1, 0), "true negative": (0, 0), "false negative": (0, 1)}
    counts = {name: int(np.sum((said == s) & (labels == truth))) for name, (s, truth) in kinds.items()}
    return {"accuracy": float(np.mean(said == (labels == 1))), **counts}


def held_out(path):
    """(texts, labels) of the reviews that nothing was trained on."""
    texts, labels = [], []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                if row.get("label") not in (0, 1) or not isinstance(row.get("text"), str):
                    raise SystemExit(f"{path}, row {number}: a text and a label of 0 or 1 are wanted")
                texts.append(row["text"])
                labels.append(row["label"])
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SystemExit(f"{path}, row {number}: {error}") from None
    if not texts:
        raise SystemExit(f"{path} has no reviews: at least five are needed to hold a fifth of them out")
    return texts, np.array(labels, np.int8)


def together(directory, ids, bad_rows):
    """All shards as one."""
    numbers = sorted(int(name[:-4]) for name in os.listdir(directory) if name.endswith(".npz") and name[:-4].isdigit())
    names = [f"{number}.npz" for number in numbers]
    shards = [files.load_shard(os.path.join(directory, name), ids, bad_rows) for name in names]
    shards = shards[: shards[0].parts]  # copies hold the same reviews
    rows = features.join([shard.rows.take([i]).ids for shard in shards for i in range(len(shard.rows))])
    return files.Shard(rows, np.concatenate([shard.labels for shard in shards]), 0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="aggregated-model.npz", help="the model, with its features beside it")
    parser.add_argument("--data", default="data", help="directory that prepare.py filled (data)")
    parser.add_argument("--dir", default="", help="directory of the trainers' models, to ask them too")
    parser.add_argument("--savefile", default="", help="JSON file for the figures")
    parser.add_argument("--bundle", default="", help="directory of a model for `longboat serve`; empty: none")
    parser.add_argument("--compare", default="no", choices=("yes", "no"), help="train one model on all shards too")
    parser.add_argument("--epoch", type=int, default=3, help="of the one model, all rounds together (3)")
    parser.add_argument("--batch", type=int, default=100, help="of the one model (100)")
    parser.add_argument("--length", type=int, default=200, help="bigru: words that are read (200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bad_rows", choices=("stop", "skip"), default="stop")
    args = parser.parse_args()

    merged = files.load_model(args.model)
    found = features.load(os.path.dirname(args.model) or ".")
    if merged.features != found.fingerprint:
        raise SystemExit(f"{args.model} was trained with other words than the {features.FILES[0]} beside it holds")
    sizes = {}
    if found.model == "bigru":
        sizes = {"embedding": merged.arrays["embedding"].shape[1], "units": merged.arrays["dense kernel"].shape[0] // 2}
    code = files.trainer(found, length=args.length, **sizes)
    texts, labels = held_out(os.path.join(args.data, "held-out.jsonl"))
    rows = found.rows(texts)

    figures = {"merged": confusion(code.probabilities(merged.arrays, rows), labels)}
    ending = os.path.splitext(args.model)[1]
    if args.dir:
        for name in sorted(n for n in os.listdir(args.dir) if n.endswith(ending) and n not in features.FILES):
            model = files.load_model(os.path.join(args.dir, name))
            figures[name] = confusion(code.probabilities(model.arrays, rows), labels)
    if args.compare == "yes":
        shard = together(args.data, found.ids, args.bad_rows)
        one = train(code, shard, code.new(args.seed), epochs=args.epoch, batch=args.batch, seed=args.seed)
        figures["one on all"] = confusion(code.probabilities(one, rows), labels)

    print(f"{len(labels)} reviews that no model has seen")
    print(f"{'model':<16} {'accuracy':>8}  said + when +, when -;  said - when -, when +")
    for name, told in figures.items():
        print("{:<16} {:>8.2%}  {:>13} {:>7}  {:>14} {:>7}".format(name, *told.values()))
    metrics = {"accuracy": figures["merged"]["accuracy"]}
    trainers = [told["accuracy"] for name, told in figures.items() if name.endswith(ending)]
    if trainers:
        metrics["trainers_mean"] = float(np.mean(trainers))
    if "one on all" in figures:
        metrics["one_on_all"] = figures["one on all"]["accuracy"]
        print(f"averaging gives {100 * (metrics['accuracy'] - metrics['one_on_all']):+.2f} points")
    if args.savefile:
        told = json.dumps({"reviews": len(labels), **figures}, indent=2) + "\n"
        files.whole(args.savefile, lambda file: file.write(told.encode()))
    if args.bundle:
        beside, told = os.path.dirname(args.model) or ".", {"accuracy": metrics["accuracy"]}
        saved = serving.save(args.bundle, found, code, merged.arrays, beside, told, texts, labels, args.length)
        print(f"saved for serving: {saved.path}")
    report(**metrics)


if __name__ == "__main__":
    main()
