"""Shards and models as files that numpy.load opens, checked when they are read.

A shard has `ids` and `starts` (row i is ids[starts[i]:starts[i+1]]), `labels` (0 or 1), its `number`, and into how
many `parts` the reviews were cut. A model has the arrays of its weights, `rows` (how many reviews it has seen) and
`features` (the fingerprint of the features it was trained with). A `bigru` can also be a Keras .h5 file.
"""

import os
from dataclasses import dataclass

import features
import numpy as np

NEEDS_JAX = "the model bigru needs JAX: pip install jax"


@dataclass(frozen=True)
class Shard:
    rows: features.Rows
    labels: np.ndarray
    number: int
    parts: int


@dataclass(frozen=True)
class Model:
    arrays: dict
    rows: int
    features: str


def whole(path, write):
    """Lets `write` fill a temporary file, then puts it in its place in one move."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    unfinished = f"{path}.{os.getpid()}.new"
    with open(unfinished, "wb") as file:
        write(file)
    os.replace(unfinished, path)


def arrays_of(path, names=()):
    """All arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist") from None
    except Exception as error:  # numpy and zipfile have many ways to say that a file is damaged
        raise SystemExit(f"{path} is not a whole .npz file: {error}") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise SystemExit(f"{path} has no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    return arrays


def save_shard(path, shard):
    arrays = {"ids": shard.rows.ids, "starts": shard.rows.starts, "labels": shard.labels}
    whole(path, lambda file: np.savez(file, **arrays, number=shard.number, parts=shard.parts))


def load_shard(path, ids, bad_rows="stop"):
    """A shard in which every id is below `ids` and every label 0 or 1; other rows are skipped or end the program."""
    found = arrays_of(path, ("ids", "starts", "labels", "number", "parts"))
    rows, labels = features.Rows(found["ids"], found["starts"]), found["labels"]
    if len(labels) != len(rows) or (len(rows) and rows.starts[-1] != len(rows.ids)):
        raise SystemExit(f"{path} does not fit together: {len(labels)} labels, {len(rows)} rows, {len(rows.ids)} ids")
    bad = (labels != 0) & (labels != 1)
    bad[rows.row_of_id[(rows.ids < 0) | (rows.ids >= ids)]] = True
    if bad.any() and bad_rows == "stop":
        row = int(np.argmax(bad))
        raise SystemExit(
            f"{path}, row {row}: label {labels[row]}, ids up to {rows.take([row]).ids.max(initial=0)}; labels must be "
            f"0 or 1, ids from 0 to {ids - 1} (--set BAD_ROWS=skip leaves bad rows out; by hand: --bad_rows skip)"
        )
    if bad.any():
        print(f"{path}: {int(bad.sum())} bad rows skipped", flush=True)
        rows, labels = rows.take(np.flatnonzero(~bad)), labels[~bad]
    if not len(rows):
        raise SystemExit(f"{path} has no reviews: fewer shards (WORKER_NUMBER), or more reviews")
    return Shard(rows, labels, int(found["number"]), int(found["parts"]))


def save_model(path, model):
    """As .npz, or as .h5 for Keras; what the name says."""
    if path.endswith(".h5"):
        import keras_file

        keras_file.save(path, model)
    else:
        whole(path, lambda file: np.savez(file, **model.arrays, rows=model.rows, features=model.features))


def load_model(path):
    if path.endswith(".h5"):
        import keras_file

        return keras_file.load(path)
    arrays = arrays_of(path, ("rows", "features"))
    return Model(arrays, int(arrays.pop("rows")), str(arrays.pop("features")))


def check_name(path, kind):
    """Ends the program when a model of this kind cannot be saved under this name."""
    if path.endswith(".npz") or (path.endswith(".h5") and kind == "bigru"):
        return
    raise SystemExit(f"{path}: a {kind} is saved as .npz" + (" or .h5" if kind == "bigru" else "; .h5 is for bigru"))


def trainer(found, **sizes):
    """The code of the model that the features are for."""
    if found.model == "bow":
        from bow import Bow

        return Bow(found)
    try:
        from bigru import BiGru
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}: {NEEDS_JAX}") from None
    return BiGru(found, **sizes)
