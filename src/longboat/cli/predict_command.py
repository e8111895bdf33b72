"""Send examples to a model, served or on this machine, and print its predictions.

Use it to try a model. MODEL is a model's directory, one version in it, or a run that saved one: the model is loaded in
this process. Or MODEL is the address of a server: http://HOST:8501/v1/models/NAME (TensorFlow Serving's REST),
http://HOST:8501/v2/models/NAME (the Open Inference Protocol), grpc://HOST:8500/NAME or HOST:PORT.

  longboat predict sentiment
  echo 'What a film!' | longboat predict http://localhost:8501/v1/models/sentiment -
  longboat predict mnist digit.png --json

FILE holds the examples: JSON (one object, a list, {"instances": [...]}), JSON lines, CSV or TSV (with a header, or
Criteo's 40 columns without one), npz, a PNG or JPEG, MNIST's idx, lines of text for a model that reads text. `-` is
standard input. Without FILE, predict uses the examples that were saved with the model.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longboat.cli import server_options, table
from longboat.cli.console import Console
from longboat.runtime.errors import OK, LongboatError

if TYPE_CHECKING:
    from longboat.serve.client.example_files import JsonRows, Records
    from longboat.serve.client.http_codecs import Columns
    from longboat.serve.client.model_signature import Signature
    from longboat.serve.client.predictions import Predicted
    from longboat.serve.client.rows import Examples, Row

SHORT = 48
"""Width of an example in the table if the output is not a terminal."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("place", metavar="MODEL", help="model directory, run, or address of a server")
    add("file", nargs="?", default="", metavar="FILE", help="file with examples; - is standard input")
    add("--label", default="", metavar="COLUMN", help="column with the label: a name, a number from 0, or none")
    add("--empty", type=float, default=math.nan, metavar="X", help="value to send for an empty cell (nan)")
    add("--output", default="", metavar="NAME", help="output of the model that is the prediction")
    add("--limit", type=int, default=0, metavar="N", help="only the first N examples")
    server_options.arguments(parser)
    add("--json", action="store_true", help="print all outputs of the model as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.serve.client import predictions, target

    if args.limit < 0:
        raise LongboatError(f"--limit {args.limit}: must be 0 or more")
    ask = _remote if target.looks_like_one(args.place) and not os.path.exists(args.place) else _here
    signature, examples, columns = ask(args, console)
    if args.output and args.output not in columns:
        raise LongboatError(f"the model has no output {args.output!r}", f"it has {', '.join(columns)}")
    predicted = predictions.read(columns, signature.labels, args.output)
    if args.json:
        console.print_json(_document(signature, examples, columns, predicted))
        return OK
    console.print(_table(signature, examples, predicted, console.columns))
    for note in (*examples.notes, *_score(signature, examples, predicted)):
        console.say(note)
    remote = ask is _remote
    then = f"longboat bench {args.place} -d FILE" if remote else f"longboat serve {args.place}"
    console.next(then)
    return OK


def _remote(args: argparse.Namespace, console: Console) -> tuple[Signature, Examples, Columns]:
    import asyncio

    from longboat.serve.client import example_files, model_requests, rows

    target = server_options.settle(args.place, args, console.environ)

    async def go() -> tuple[Signature, Examples, Columns]:
        known, signature = await model_requests.meet(target, args.signature, args.timeout)
        if args.file:
            records = example_files.read(args.file, args.limit)
        else:
            page = await model_requests.page(known, args.timeout)
            records = _some(example_files.of_examples(page.examples if page else ()), known.model, args.limit)
        examples = rows.fit(records, signature, args.file or "its examples", args.label, args.empty)
        return signature, examples, await model_requests.predict(known, signature, examples.rows, args.timeout)

    return asyncio.run(go())


def _here(args: argparse.Namespace, console: Console) -> tuple[Signature, Examples, Columns]:
    from longboat.runs.store import Store
    from longboat.serve.client import example_files, rows
    from longboat.serve.client.in_process import InProcessModel

    model = InProcessModel(args.place, Store(console.home), args.model, args.model_version)
    records: Records
    if args.file:
        records = example_files.read(args.file, args.limit)
    else:
        records = _some(model.examples(), model.bundle.name, args.limit)
    examples = rows.fit(records, model.signature, args.file or "its examples", args.label, args.empty)
    return model.signature, examples, model.predict(examples.rows)


def _some(examples: JsonRows, model: str, limit: int) -> JsonRows:
    """The first `limit` of the model's own examples; 0: all."""
    from longboat.serve.client.example_files import JsonRows

    if not examples.rows:
        raise LongboatError(
            f"{model} was saved without examples",
            "give a file with examples, or `-` and type them: one line of text or JSON each",
        )
    return JsonRows(examples.rows[: limit or None])


def _document(
    signature: Signature, examples: Examples, columns: Columns, predicted: Sequence[Predicted]
) -> dict[str, Any]:
    predictions = []
    for number, prediction in enumerate(predicted):
        entry: dict[str, Any] = {"prediction": prediction.value, "share": prediction.share}
        if examples.labels is not None:
            entry["label"] = examples.labels[number]
        predictions.append({**entry, "outputs": {name: values[number] for name, values in columns.items()}})
    return {"model": signature.model, "version": signature.version, "predictions": predictions}


def _table(signature: Signature, examples: Examples, predicted: Sequence[Predicted], columns: int) -> str:
    from longboat.serve.client.predictions import right

    headers = ["prediction", "sure", "truth", "example"]
    lines = []
    for number, (row, prediction) in enumerate(zip(examples.rows, predicted, strict=True)):
        truth = ""
        if examples.labels is not None:
            label = examples.labels[number]
            verdict = right(prediction, label, signature.labels)
            truth = f"{_name(label, signature)}{'' if verdict is None else ' ✓' if verdict else ' ✗'}"
        value = f"{prediction.value:.6g}" if isinstance(prediction.value, float) else str(prediction.value)
        share = prediction.share
        sure = "" if share is None else "> 99.9 %" if 0.999 < share < 1 else f"{100 * share:.1f} %"
        lines.append([value, sure, truth, described(row) if columns else table.shorten(described(row), SHORT)])
    keep = [i for i in range(4) if i in (0, 3) or any(line[i] for line in lines)]
    return table.render([headers[i] for i in keep], [[line[i] for i in keep] for line in lines], columns=columns)


def _name(label: float | str, signature: Signature) -> str:
    if isinstance(label, int) and str(label) not in signature.labels and 0 <= label < len(signature.labels):
        return signature.labels[label]
    return str(label)


def _score(signature: Signature, examples: Examples, predicted: Sequence[Predicted]) -> list[str]:
    from longboat.serve.client.predictions import right

    if examples.labels is None:
        return []
    judged = [
        right(prediction, truth, signature.labels) for prediction, truth in zip(predicted, examples.labels, strict=True)
    ]
    counted = [each for each in judged if each is not None]
    return [f"{sum(counted)} of {len(counted)} right ({100 * sum(counted) / len(counted):.1f} %)"] if counted else []


def described(row: Row) -> str:
    """A short form of an example: its text, its numbers, or how many they are."""
    parts = []
    for name, value in row.items():
        if isinstance(value, list):
            flat = str(value).count(",") + 1
            short = str(value) if flat <= 8 else f"{flat:,} values"
        else:
            short = str(value)
        parts.append(short if len(row) == 1 else f"{name}={short}")
    return " ".join(parts)
