"""Measure how fast and how correctly a model server answers, with real examples.

Use it before you rely on a server: it reports latency, throughput, errors and, if the data has labels, accuracy. The
server is a URL, or -s HOST:PORT. It works with every server that speaks TensorFlow Serving's REST or gRPC, or the Open
Inference Protocol (v2): bench asks the server for the model's inputs.

  longboat bench -d eval.csv            localhost:8500, 40 requests of one row, the first 10 as warm-up
  longboat bench http://localhost:8501/v1/models/mnist -d t10k-images-idx3-ubyte -b 32 -n 1000
  longboat bench URL -d eval.csv --concurrency 16 --duration 30s
  longboat bench URL -d eval.csv --rate 500 --duration 1m

The data: CSV or TSV (with a header, or Criteo's 40 columns without one), JSON, JSON lines, npz, MNIST's idx, lines of
text. Columns are matched to the model's inputs by name, else in order. The label is the column named label (or
clicked, target, class, y), else the first one if there is one more column than the model takes; --label overrides this.

Batches are cut from the data in order; the last one may be short, then the data starts again. Latency is the time from
sending a request to the last byte of its answer. With --rate, requests are due at fixed times, whether or not answers
come, and latency counts from that time: a server that stalls cannot hide the requests that it delayed.

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
"""Most measured iterations that are printed one by one."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "url",
        nargs="?",
        metavar="URL",
        help="http://HOST:8501/v1/models/NAME, .../v2/models/NAME, grpc://HOST:8500/NAME",
    )
    add("-s", "--server", metavar="HOST:PORT", help=f"server, instead of a URL ({SERVER})")
    add("-d", "--data_file", "--data-file", required=True, metavar="FILE", help="examples to send")
    add("-b", "--batch_size", "--batch-size", type=int, default=1, metavar="N", help="rows per request (1)")
    add("-n", "--num_iteration", "--num-iteration", type=int, default=40, metavar="N", help="number of requests (40)")
    add(
        "-w",
        "--warm_up_iteration",
        "--warm-up-iteration",
        type=int,
        default=10,
        metavar="N",
        help="warm-up requests, not measured (10)",
    )
    add("-c", "--concurrency", type=int, default=0, metavar="N", help="connections (1; with --rate at most 64)")
    add("--rate", type=float, default=0.0, metavar="R", help="requests per second, whether or not answers come")
    add("--duration", default="", metavar="TIME", help="time to measure (30s, 5m), instead of -n requests")
    add("--label", default="", metavar="COLUMN", help="column with the label: a name, a number from 0, or none")
    add("--labels", default="", metavar="A,B", help="class names, if the data has names and the model returns numbers")
    add("--empty", type=float, default=math.nan, metavar="X", help="value to send for an empty cell (nan)")
    add("--output", default="", metavar="NAME", help="output of the model that is the prediction")
    server_options.arguments(parser)
    add("--json", action="store_true", help="print the report as JSON, times in seconds")
    add("--html", default="", metavar="FILE", help="write the report as an HTML page")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.runs import formatting
    from longboat.serve.client import load_test, text_report

    if args.url and args.server:
        raise LongboatError("both a URL and --server were given", "use one of them")
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
    report = load_test.run(target, settings, _Progress(console, settings, args.json))
    if console.interactive:
        console.err.write("\r\x1b[K")
    if args.html:
        _write(args.html, report)
    if args.json:
        console.print_json(report.document())
    else:
        console.print(text_report.text(report))
    if args.html:
        console.say(f"\nreport: {args.html}")
    inside = bool(console.environ.get("LONGBOAT_REPORT_FILE"))
    if inside:
        _report(report)
    if report.interrupted:
        console.say("interrupted: these are the figures so far")
        return INTERRUPTED
    if not report.rate and report.succeeded and not args.json and not inside:
        calm = max(1, round(0.7 * report.requests_per_second))
        then = f"longboat bench {report.url} -d {args.data_file} -b {report.batch_size} --rate {calm} --duration 30s"
        console.next(f"{then}   (latency at 70 % of that load)")
    return OK if report.succeeded else FAILED


def _report(report: LoadReport) -> None:
    """Reports figures for gates and for the run's metrics; times in milliseconds."""
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


class _Progress:
    """Shows each iteration as it ends: a line each if they are few, else a count on a terminal."""

    def __init__(self, console: Console, settings: LoadSettings, quiet: bool) -> None:
        measured = settings.num_iteration - settings.warm_up_iteration
        self._console, self._count, self._shown = console, 0, time.monotonic()
        self._list = not quiet and not settings.duration and measured <= LISTED

    def __call__(self, iteration: Iteration) -> None:
        from longboat.serve.client.text_report import iteration as line

        self._count += 1
        if self._list:
            self._console.print(line(iteration))
        elif self._console.interactive and time.monotonic() - self._shown > 0.5:
            self._shown = time.monotonic()
            self._console.err.write(f"\r{self._count:,} requests")
            self._console.err.flush()


def _write(name: str, report: LoadReport) -> None:
    import datetime
    from pathlib import Path

    from longboat.serve.client.html_report import page

    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        Path(name).write_text(page(report, when), encoding="utf-8")
    except OSError as error:
        raise LongboatError(f"cannot write {name}: {error.strerror}") from None
