"""Averages models: `python aggregater.py --dir ./models --savefile final-model.npz`.

Takes every model in the directory that has the ending of --savefile. Each counts by the reviews it has seen. They must
come from one `prepare` and one start: the mean of nets that began apart is no net.
"""

import argparse
import os
import shutil

import features
import files
import numpy as np


def average(models):
    """The weighted mean, array by array."""
    total = sum(model.rows for model in models)
    mean = {}
    for name, like in models[0].arrays.items():
        summed = sum(model.arrays[name].astype(np.float64) * (model.rows / total) for model in models)
        mean[name] = summed.astype(like.dtype)
    return files.Model(mean, total, models[0].features)


def check(paths, models):
    """Ends the program when the models do not belong together."""
    for path, model in zip(paths, models, strict=True):
        if model.features != models[0].features:
            raise SystemExit(f"{path} and {paths[0]} were trained with different words: prepare once, then train all")
        shapes, wanted = ({name: a.shape for name, a in m.arrays.items()} for m in (model, models[0]))
        if shapes != wanted:
            raise SystemExit(f"{path} has arrays {shapes}, {paths[0]} has {wanted}")
        if not all(np.isfinite(array).all() for array in model.arrays.values()):
            raise SystemExit(f"{path} has weights that are no numbers: its training went astray")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="./models", help="directory with the models (./models)")
    parser.add_argument("--savefile", default="aggregated-model.npz", help="file for the mean: .npz or .h5")
    parser.add_argument("--expect", type=int, default=0, help="how many models there must be (0: any number)")
    args = parser.parse_args()

    ending = os.path.splitext(args.savefile)[1]
    if ending not in (".npz", ".h5"):
        raise SystemExit(f"--savefile {args.savefile}: the name must end in .npz or .h5")
    try:
        names = sorted(name for name in os.listdir(args.dir) if name.endswith(ending) and name not in features.FILES)
    except OSError as error:
        raise SystemExit(f"--dir {args.dir}: {error.strerror}") from None
    paths = [os.path.join(args.dir, name) for name in names]
    if args.expect and len(paths) != args.expect or not paths:
        wanted = args.expect or "at least one"
        raise SystemExit(f"{args.dir} has {len(paths)} models that end in {ending}, not {wanted}")
    models = [files.load_model(path) for path in paths]
    check(paths, models)
    files.save_model(args.savefile, average(models))
    for name in features.FILES:
        source = os.path.join(args.dir, name)
        target = os.path.join(os.path.dirname(args.savefile) or ".", name)
        if os.path.exists(source) and not (os.path.exists(target) and os.path.samefile(source, target)):
            with open(source, "rb") as file:
                files.whole(target, lambda to, file=file: shutil.copyfileobj(file, to))
    print(f"mean of {len(models)} models in {args.savefile}", flush=True)


if __name__ == "__main__":
    main()
