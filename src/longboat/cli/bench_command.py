"""Loads a model server with real examples and says how fast and how right it answers.

The server is a URL, or -s HOST:PORT. Any server that speaks TensorFlow Serving's REST or gRPC, or the Open Inference
Protocol (v2), will do: what the model takes is asked of the server itself.

  longboat bench -d eval.csv            localhost:8500, 40 requests of one row, the first 10 as warm-up
  longboat bench http://localhost:8501/v1/models/mnist -d t10k-images-idx3-ubyte -b 32 -n 1000
  longboat bench URL -d eval.csv --concurrency 16 --duration 30s
  longboat bench URL -d eval.csv --rate 500 --duration 1m

The data: CSV or TSV (with a header, or Criteo's 40 columns without one), JSON, JSON lines, npz, MNIST's idx, lines of
text. Columns go to the model's inputs by name, else in order. The label is the column named label (or clicked, target,
class, y), else the first one if there is one more column than the model takes; --label says otherwise.

A batch is cut from the data in order; the last one may be short, and after it the data begins again. A latency is the
time from sending a request to the last byte of its answer. With --rate requests are due at fixed times, whether or not
answers come, and a latency is counted from that time: a server that stalls cannot hide the requests that it held up.

Exit code 0; 1 if no request was answered; 130 after Ctrl-C, with the figures so far.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING

from longboat.cli import server_options
from longboat.cli.console import Console
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, LongboatError

if TYPE_CHECKING:
    from longboat.serve.client.load_test import LoadSettings
    from longboat.serve.client.report import Iteration, LoadReport

SERVER = "localhost:8500"
LISTED = 100
"""Measured iterations that are listed one by one as they come."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "url",
        nargs="?",
        metavar="URL",
        help="http://HOST:8501/v1/models/NAME, .../v2/models/NAME, grpc://HOST:8500/NAME",
    )
    add("-s", "--server", metavar="HOST:PORT", help=f"the server, instead of a URL ({SERVER})")
    add("-d", "--data_file", "--data-file", required=True, metavar="FILE", help="examples to send")
    add("-b", "--batch_size", "--batch-size", type=int, default=1, metavar="N", help="rows in a request (1)")
    add("-n", "--num_iteration", "--num-iteration", type=int, default=40, metavar="N", help="requests in all (40)")
    add(
        "-w",
        "--warm_up_iteration",
        "--warm-up-iteration",
        type=int,
        default=10,
        metavar="N",
        help="the first N requests are not measured (10)",
    )
    add("-c", "--concurrency", type=int, default=0, metavar="N", help="connections (1; at a rate at most 64)")
    add("--rate", type=float, default=0.0, metavar="R", help="send R requests a second, whether or not answers come")
    add("--duration", default="", metavar="TIME", help="measure for so long (30s, 5m) instead of -n requests")
    add("--label", default="", metavar="COLUMN", help="the column with the truth: a name, a number from 0, or none")
    add("--labels", default="", metavar="A,B", help="the classes' names, if the data has names and the model numbers")
    add("--empty", type=float, default=math.nan, metavar="X", help="what an empty cell is sent as (nan)")
    add("--output", default="", metavar="NAME", help="which of the model's outputs is the prediction")
    server_options.arguments(parser)
    add("--json", action="store_true", help="the report as JSON, times in seconds")
    add("--html", default="", metavar="FILE", help="write the report as a page of HTML")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.runs import formatting
    from longboat.serve.client import load_test, text_report

    if args.url and args.server:
        raise LongboatError("a URL and --server both name a server", "leave one of them out")
    settings = load_test.LoadSettings(
        data_file=args.data_file,
        batch_size=args.batch_size,
        num_iteration=args.num_iteration,
        warm_up_iteration=args.warm_up_iteration,
        concurrency=args.concurrency,
        rate=args.rate,
        duration=formatting.seconds(args.duration) if args.duration else 0.0,
        label=args.label,
        signature=args.signature,
        output=args.output,
        labels=tuple(filter(None, args.labels.split(","))),
        empty=args.empty,
        timeout=args.timeout,
    )
    settings.check()
    target = server_options.settle(args.url or args.server or SERVER, args, console.environ)
    report = load_test.run(target, settings, _Told(console, settings, args.json))
    if console.interactive:
        console.err.write("\r\x1b[K")
    if args.html:
        _write(args.html, report)
    if args.json:
        console.print_json(report.document())
    else:
        console.print(text_report.text(report))
    if args.html:
        console.say(f"\nthe page: {args.html}")
    inside = bool(console.environ.get("LONGBOAT_REPORT_FILE"))
    if inside:
        _report(report)
    if report.interrupted:
        console.say("interrupted: these are the figures so far")
        return INTERRUPTED
    if not report.rate and report.succeeded and not args.json and not inside:
        calm = max(1, round(0.7 * report.requests_per_second))
        then = f"longboat bench {report.url} -d {args.data_file} -b {report.batch_size} --rate {calm} --duration 30s"
        console.next(f"{then}   (what clients see at 70 % of that)")
    return OK if report.succeeded else FAILED


def _report(report: LoadReport) -> None:
    """The figures that a gate or a table of the run may ask for; times in milliseconds."""
    import longboat

    figures: dict[str, float] = {
        "examples_per_s": report.examples_per_second,
        "errors": report.requests - report.succeeded,
    }
    if report.accuracy is not None:
        figures["accuracy"] = report.accuracy
    if report.latency is not None:
        figures |= {"p50_ms": 1000 * report.latency.p50, "p99_ms": 1000 * report.latency.p99}
    longboat.report(report.requests, None, **figures)


class _Told:
    """Tells of every iteration as it ends: listed if they are few, else counted on a terminal."""

    def __init__(self, console: Console, settings: LoadSettings, quiet: bool) -> None:
        measured = settings.num_iteration - settings.warm_up_iteration
        self._world, self._count, self._said = console, 0, time.monotonic()
        self._list = not quiet and not settings.duration and measured <= LISTED

    def __call__(self, iteration: Iteration) -> None:
        from longboat.serve.client.text_report import iteration as line

        self._count += 1
        if self._list:
            self._world.print(line(iteration))
        elif self._world.interactive and time.monotonic() - self._said > 0.5:
            self._said = time.monotonic()
            self._world.err.write(f"\r{self._count:,} requests")
            self._world.err.flush()


def _write(name: str, report: LoadReport) -> None:
    import datetime
    from pathlib import Path

    from longboat.serve.client.html_report import page

    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        Path(name).write_text(page(report, when), encoding="utf-8")
    except OSError as error:
        raise LongboatError(f"{name} cannot be written: {error.strerror}") from None
