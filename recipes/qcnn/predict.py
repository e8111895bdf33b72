"""Asks a trained network: loads the weights and the test set that training left; prints predictions, labels, error.

`python predict.py --model DIRECTORY`, where DIRECTORY holds weights.npz and test.npz; both can be copied anywhere.
"""

import argparse
import os
import sys
import zipfile

try:
    import circuit
    import jax
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"this script needs {missing.name}: pip install jax numpy")

import longboat


def read(directory, name, *keys):
    """Arrays of a file that training left."""
    path = os.path.join(directory, name)
    try:
        with np.load(path) as file:
            return path, [file[key] for key in keys]
    except FileNotFoundError:
        sys.exit(f"{path} is not there; train first, or name another --model")
    except KeyError as missing:
        sys.exit(f"{path} has no array {missing.args[0].split()[0]}; it must hold {', '.join(keys)}")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        sys.exit(f"{path} cannot be read: {error}; copy it again, or train again")


def read_weights(directory):
    path, (weights,) = read(directory, "weights.npz", "weights")
    if weights.shape != (circuit.WEIGHTS,):
        sys.exit(f"{path} holds weights of shape {weights.shape}, not {circuit.WEIGHTS} of them")
    if bad := np.flatnonzero(~np.isfinite(weights)).tolist():
        sys.exit(f"{path}: weight {bad[0]} is {weights[bad[0]]}, not a number")
    return weights


def read_examples(directory, bad_data):
    """The test set without its bad rows, and how many were bad. Rows count from 0."""
    path, columns = read(directory, "test.npz", "qubit", "theta", "label")
    qubit, theta, label = columns
    if len({column.shape for column in columns}) > 1 or theta.ndim != 1 or not len(theta):
        sys.exit(f"{path}: qubit, theta and label have shapes {', '.join(str(c.shape) for c in columns)}")
    if any(column.dtype.kind not in "iuf" for column in columns):
        sys.exit(f"{path}: qubit, theta and label must be numbers")
    rules = (
        ("qubit", qubit, np.isin(qubit, np.arange(circuit.QUBITS)), f"not one of 0 to {circuit.QUBITS - 1}"),
        ("theta", theta, abs(theta) <= np.pi, "not an angle from -pi to pi"),
        ("label", label, abs(label) == 1, "neither 1 nor -1"),
    )
    bad = np.zeros(len(theta), bool)
    for name, values, right, rule in rules:
        for row in np.flatnonzero(~right):
            message = f"{path}: row {row}: {name} is {values[row]}, {rule}"
            if bad_data == "stop":
                sys.exit(message)
            print(message, file=sys.stderr)
        bad |= ~right
    if bad.all():
        sys.exit(f"{path}: no row is good")
    kept = {"qubit": qubit[~bad].astype(np.int32), "theta": theta[~bad], "label": label[~bad]}
    return kept, int(bad.sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=".", metavar="DIRECTORY", help="where weights.npz and test.npz are")
    parser.add_argument("--bad-data", choices=("stop", "skip"), default="stop", help="what to do about a bad row")
    args = parser.parse_args()

    weights = read_weights(args.model)
    jax.config.update("jax_enable_x64", weights.dtype == np.float64)  # the precision of the training
    examples, skipped = read_examples(args.model, args.bad_data)
    predicted = circuit.evaluate(weights, examples)
    print("qubit   theta  label  prediction")
    for row in zip(examples["qubit"], examples["theta"], examples["label"], predicted, strict=True):
        print("{:5d}  {:+.3f}  {:+5.0f}  {:+10.4f}".format(*row))
    error, accuracy = circuit.scores(predicted, examples["label"])
    longboat.report(mse=error, accuracy=accuracy, examples=len(predicted), skipped=skipped)
    print(f"{len(predicted)} examples, {skipped} skipped: mean squared error {error:.4f}, signs right {accuracy:.1%}")


if __name__ == "__main__":
    main()
