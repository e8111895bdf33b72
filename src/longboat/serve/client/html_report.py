"""Formats the report of a load test as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from longboat.serve.client.report import Latency, LoadReport
from longboat.serve.client.text_report import milliseconds

STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #2a6fb0; --dim: #595f69; }
@media (prefers-color-scheme: dark) { :root { --bar: #6db3f2; --dim: #a9b0bb; } }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.n { text-align: right; white-space: nowrap; }
.wrap { overflow-x: auto; } code { overflow-wrap: anywhere; } .dim { color: var(--dim); }
svg { display: block; width: 100%; height: .8rem; } rect { fill: var(--bar); }
table.histogram { width: 100%; max-width: 34rem; } td.bar { width: 100%; vertical-align: middle; }
"""
WIDE = 300
LISTED = 1000
"""Maximum number of iterations on the page; the JSON has more."""


def page(report: LoadReport, when: str) -> str:
    title = f"Load test of {report.model}"
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="dim"><code>{escape(report.url)}</code>, {escape(when)}</p>\n'
        + _figures(report)
        + _latencies(report)
        + _histogram(report)
        + _failures(report)
        + _notes(report)
        + _iterations(report)
        + "</body></html>\n"
    )


def _figures(report: LoadReport) -> str:
    accuracy = (
        "no labels" if report.accuracy is None else f"{report.accuracy:.4f} ({report.correct} of {report.labelled})"
    )
    rows = [
        ("protocol", f"{report.protocol}, version {report.version or '?'}"),
        ("data", f"{report.data}: {report.data_rows:,} rows in batches of {report.batch_size}"),
        ("load", f"{report.rate:,g} requests/s, open loop" if report.rate else "closed loop"),
        ("connections", f"{report.concurrency:,}"),
        ("requests", f"{report.requests:,} in {report.seconds:.2f} s after {report.warm_up} of warm-up"),
        ("failed", f"{report.requests - report.succeeded:,}"),
        ("accuracy", accuracy),
        ("examples/s", f"{report.examples_per_second:,.1f}"),
        ("requests/s", f"{report.requests_per_second:,.1f}"),
    ]
    lines = "".join(f'<tr><th scope="row">{name}</th><td>{escape(value)}</td></tr>\n' for name, value in rows)
    return f'<div class="wrap"><table>{lines}</table></div>\n'


POINTS = (("mean", "mean"), ("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("p99.9", "p99_9"), ("max", "maximum"))


def _latencies(report: LoadReport) -> str:
    columns = []
    if report.latency is not None:
        columns.append(("from when it was due" if report.rate else "latency", report.latency))
    if report.service is not None:
        columns.append(("from when it was sent", report.service))
    if not columns:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", *(name for name, _ in columns)))
    lines = "".join(
        f'<tr><th scope="row">{name}</th>{_cells([value for _, value in columns], field)}</tr>\n'
        for name, field in POINTS
    )
    return f'<h2>Latency</h2>\n<div class="wrap"><table><tr>{head}</tr>\n{lines}</table></div>\n'


def _cells(values: list[Latency], field: str) -> str:
    return "".join(f'<td class="n">{milliseconds(getattr(value, field))}</td>' for value in values)


def _histogram(report: LoadReport) -> str:
    if not report.histogram:
        return ""
    most = max(bar.count for bar in report.histogram)
    lines = "".join(
        f'<tr><td class="n">{1000 * bar.low:.6g} to {1000 * bar.high:.6g} ms</td>'
        f'<td class="bar"><svg viewBox="0 0 {WIDE} 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(WIDE * bar.count / most, 1 if bar.count else 0):.1f}" height="12"/></svg></td>'
        f'<td class="n">{bar.count:,}</td></tr>\n'
        for bar in report.histogram
    )
    head = '<tr><th scope="col">took</th><th scope="col"></th><th scope="col">requests</th></tr>'
    return (
        f'<h2>How many took how long</h2>\n<div class="wrap"><table class="histogram">{head}\n{lines}</table></div>\n'
    )


def _failures(report: LoadReport) -> str:
    if not report.failures:
        return ""
    lines = "".join(
        f'<tr><td>{escape(each.kind)}</td><td class="n">{each.count:,}</td><td>{escape(each.message)}</td></tr>\n'
        for each in report.failures
    )
    return f'<h2>Failures</h2>\n<div class="wrap"><table>{lines}</table></div>\n'


def _notes(report: LoadReport) -> str:
    return "".join(f"<p>{escape(note[:1].upper() + note[1:])}.</p>\n" for note in report.notes)


def _iterations(report: LoadReport) -> str:
    listed = report.iterations[:LISTED]
    lines = "".join(
        f'<tr><td class="n">{each.number}</td><td class="n">{milliseconds(each.seconds)}</td>'
        f'<td class="n">{each.rows}</td>'
        f"<td>{escape(each.error) or ('' if each.accuracy is None else f'{each.accuracy:.4f}')}</td></tr>\n"
        for each in listed
    )
    more = f"<p>The first {LISTED:,} of {len(report.iterations):,}.</p>\n" if len(report.iterations) > LISTED else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("iteration", "time", "rows", "accuracy"))
    table = f'<div class="wrap"><table><tr>{head}</tr>\n{lines}</table></div>\n'
    return f"<h2>Iterations</h2>\n<details><summary>Every request</summary>\n{more}{table}</details>\n"
