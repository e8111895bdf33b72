"""Formats the report of a load test as text. Nothing here prints."""

from __future__ import annotations

from longboat.serve.client.report import Iteration, Latency, LoadReport

WIDE = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def iteration(each: Iteration) -> str:
    if each.error:
        return f"iteration {each.number:>5}  {milliseconds(each.seconds):>11}  {each.error}"
    judged = "" if each.accuracy is None else f"  accuracy {each.accuracy:.4f} ({each.correct} of {each.rows})"
    return f"iteration {each.number:>5}  {milliseconds(each.seconds):>11}{judged}"


def text(report: LoadReport) -> str:
    """The full report, without a final newline."""
    return "\n".join([*_figures(report), *_failures(report), *_histogram(report), *_notes(report)])


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with four digits."""
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.{max(0, 3 - len(str(int(value))))}f} ms"


def _figures(report: LoadReport) -> list[str]:
    count = report.requests - report.succeeded
    how = f"{report.rate:,g} requests/s asked for, up to" if report.rate else "one after the other on"
    plural = "connection" if report.concurrency == 1 else "connections"
    lines = [
        ("target", f"{report.url}  ({report.protocol}, version {report.version or '?'})"),
        ("data", f"{report.data}, {report.data_rows:,} rows in batches of {report.batch_size}"),
        ("load", f"{how} {report.concurrency} {plural}; {report.warm_up} requests of warm-up not counted"),
        ("requests", f"{report.requests:,} in {report.seconds:.2f} s, {count:,} failed"),
    ]
    if report.accuracy is not None:
        lines.append(("accuracy", f"{report.accuracy:.4f}  ({report.correct:,} of {report.labelled:,})"))
    if report.latency is not None:
        lines.append(("latency", _latency(report.latency)))
    if report.service is not None:
        lines.append(("", "counted from when each request was due; from when it was sent:"))
        lines.append(("", _latency(report.service)))
    rate = f"{report.examples_per_second:,.1f} examples/s  {report.requests_per_second:,.1f} requests/s"
    return [f"{name:<11}{value}".rstrip() for name, value in [*lines, ("throughput", rate)]]


def _latency(value: Latency) -> str:
    points = (
        ("mean", value.mean),
        ("p50", value.p50),
        ("p95", value.p95),
        ("p99", value.p99),
        ("p99.9", value.p99_9),
        ("max", value.maximum),
    )
    return "  ".join(f"{name} {milliseconds(seconds)}" for name, seconds in points)


def _failures(report: LoadReport) -> list[str]:
    lines = [f"{each.count:>9,}  {each.kind}{': ' + each.message if each.message else ''}" for each in report.failures]
    return ["", "failures", *lines] if lines else []


def _histogram(report: LoadReport) -> list[str]:
    bars = report.histogram
    if not bars:
        return []
    most = max(bar.count for bar in bars)
    labels = [f"{_edge(bar.low)} to {_edge(bar.high)} ms" for bar in bars]
    wide = max(map(len, labels))
    lines = [
        f"  {label:>{wide}}  {_drawn(bar.count / most):<{WIDE}}  {bar.count:,}".rstrip()
        for label, bar in zip(labels, bars, strict=True)
    ]
    return ["", "how many took how long", *lines]


def _edge(seconds: float) -> str:
    return f"{1000 * seconds:.6g}"


def _drawn(share: float) -> str:
    eighths = round(share * WIDE * 8)
    if share > 0:
        eighths = max(eighths, 1)
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _notes(report: LoadReport) -> list[str]:
    return ["", *(f"note: {note}" for note in report.notes)] if report.notes else []
