"""Asks a model: one that is served, or one that lies on this machine.

MODEL is a model's directory, one version in it, or a run that left one: it is loaded here, as a server would. Or it is
the address of a server: http://HOST:8501/v1/models/NAME (TensorFlow Serving's REST), http://HOST:8501/v2/models/NAME
(the Open Inference Protocol), grpc://HOST:8500/NAME or HOST:PORT.

FILE holds the examples: JSON (one object, a list, {"instances": [...]}), JSON lines, CSV or TSV (with a header, or
Criteo's 40 columns without one), npz, a PNG, MNIST's idx, lines of text for a model that reads text. `-` is standard
input. Without FILE, the examples that the model was saved with.

  longboat predict sentiment
  echo 'What a film!' | longboat predict http://localhost:8501/v1/models/sentiment -
  longboat predict mnist digit.png --json
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
"""Columns that an example gets in the table where the output is no terminal."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("place", metavar="MODEL", help="a model's directory, a run, or the address of a server")
    add("file", nargs="?", default="", metavar="FILE", help="examples; - is standard input")
    add("--label", default="", metavar="COLUMN", help="the column with the truth: a name, a number from 0, or none")
    add("--empty", type=float, default=math.nan, metavar="X", help="what an empty cell is sent as (nan)")
    add("--output", default="", metavar="NAME", help="which of the model's outputs is the prediction")
    add("--limit", type=int, default=0, metavar="N", help="only the first N examples")
    server_options.arguments(parser)
    add("--json", action="store_true", help="everything that the model said, as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.serve.client import predictions, target

    if args.limit < 0:
        raise LongboatError(f"--limit {args.limit}: a number of examples")
    ask = _remote if target.looks_like_one(args.place) and not os.path.exists(args.place) else _here
    signature, examples, columns = ask(args, console)
    if args.output and args.output not in columns:
        raise LongboatError(f"the model has no output {args.output!r}", f"it has {', '.join(columns)}")
    said = predictions.read(columns, signature.labels, args.output)
    if args.json:
        console.print_json(_document(signature, examples, columns, said))
        return OK
    console.print(_table(signature, examples, said, console.columns))
    for note in (*examples.notes, *_score(signature, examples, said)):
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
            told = await model_requests.page(known, args.timeout)
            records = _some(example_files.of_examples(told.examples if told else ()), known.model, args.limit)
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
    """The examples of the model itself, as many as are wanted."""
    from longboat.serve.client.example_files import JsonRows

    if not examples.rows:
        raise LongboatError(
            f"no examples of {model} are known",
            "name a file with some, or `-` and type them: a line of text or JSON each",
        )
    return JsonRows(examples.rows[: limit or None])


def _document(signature: Signature, examples: Examples, columns: Columns, said: Sequence[Predicted]) -> dict[str, Any]:
    predictions = []
    for number, one in enumerate(said):
        entry: dict[str, Any] = {"prediction": one.value, "share": one.share}
        if examples.labels is not None:
            entry["label"] = examples.labels[number]
        predictions.append({**entry, "outputs": {name: values[number] for name, values in columns.items()}})
    return {"model": signature.model, "version": signature.version, "predictions": predictions}


def _table(signature: Signature, examples: Examples, said: Sequence[Predicted], columns: int) -> str:
    from longboat.serve.client.predictions import right

    headers = ["prediction", "sure", "truth", "example"]
    lines = []
    for number, (row, one) in enumerate(zip(examples.rows, said, strict=True)):
        truth = ""
        if examples.labels is not None:
            label = examples.labels[number]
            verdict = right(one, label, signature.labels)
            truth = f"{_name(label, signature)}{'' if verdict is None else ' ✓' if verdict else ' ✗'}"
        value = f"{one.value:.6g}" if isinstance(one.value, float) else str(one.value)
        share = "" if one.share is None else "> 99.9 %" if 0.999 < one.share < 1 else f"{100 * one.share:.1f} %"
        lines.append([value, share, truth, described(row) if columns else table.shorten(described(row), SHORT)])
    keep = [i for i in range(4) if i in (0, 3) or any(line[i] for line in lines)]
    return table.render([headers[i] for i in keep], [[line[i] for i in keep] for line in lines], columns=columns)


def _name(label: float | str, signature: Signature) -> str:
    if isinstance(label, int) and str(label) not in signature.labels and 0 <= label < len(signature.labels):
        return signature.labels[label]
    return str(label)


def _score(signature: Signature, examples: Examples, said: Sequence[Predicted]) -> list[str]:
    from longboat.serve.client.predictions import right

    if examples.labels is None:
        return []
    judged = [right(one, truth, signature.labels) for one, truth in zip(said, examples.labels, strict=True)]
    counted = [each for each in judged if each is not None]
    return [f"{sum(counted)} of {len(counted)} right ({100 * sum(counted) / len(counted):.1f} %)"] if counted else []


def described(row: Row) -> str:
    """An example in a few words: its text, its figures, or how many they are."""
    parts = []
    for name, value in row.items():
        if isinstance(value, list):
            flat = str(value).count(",") + 1
            short = str(value) if flat <= 8 else f"{flat:,} values"
        else:
            short = str(value)
        parts.append(short if len(row) == 1 else f"{name}={short}")
    return " ".join(parts)
