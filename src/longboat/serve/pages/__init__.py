"""HTML pages of a model server: a list of its models, and a page to try each one.

A page is self-contained: style, script and model details are in it, and its Content-Security-Policy allows nothing
else. It uses TensorFlow Serving's REST API like any client. Pure: a bundle in, bytes out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from longboat.runtime.bundle import Bundle, Example
from longboat.runtime.light_dataclasses import dataclass

ASSETS = Path(__file__).parent / "assets"
KINDS = {"text": "text", "image": "image", "table": "table"}
"""Kinds of models with their own page; all others get the JSON page."""
ANSWER = "<!-- answer -->\n"
"""Placeholder for the answer in a page."""
LARGEST_EXAMPLE = 200_000
"""Maximum bytes of an example in JSON; larger ones are left out of the page."""


def page(bundle: Bundle) -> bytes:
    """The page of one model."""
    kind = page_kind(bundle)
    title = bundle.title or bundle.name
    body = (
        '<p class="up"><a href="../">All models</a></p>\n'
        f"<header><h1>{escape(title)}</h1>\n<p class='dim'>{_facts(bundle)}</p></header>\n"
        f"<main>\n{_asset(f'{kind}.html').replace(ANSWER, _asset('answer.html'))}{_asset('program.html')}</main>\n"
        f'<script type="application/json" id="model">{_embedded(_details(bundle))}</script>\n'
    )
    return _document(title, body, _asset("common.js") + _asset(f"{kind}.js"))


def index(bundles: Sequence[Bundle]) -> bytes:
    """The list of models."""
    rows = "".join(
        f'<li><a href="models/{escape(bundle.name)}">{escape(bundle.title or bundle.name)}</a>\n'
        f"<p class='dim'>{_facts(bundle)}</p></li>\n"
        for bundle in bundles
    )
    none = "<p>No model is loaded. The server's log says why; it is ready when one is.</p>"
    body = f"<header><h1>Models</h1></header>\n<main>{f'<ul class=models>{rows}</ul>' if rows else none}</main>\n"
    return _document("Models", body, "")


def page_kind(bundle: Bundle) -> str:
    """The kind of page: the bundle's kind, if its inputs match."""
    shapes = {
        "text": len(bundle.inputs) == 1 and bundle.inputs[0].dtype == "string" and len(bundle.inputs[0].shape) == 1,
        "image": len(bundle.inputs) == 1 and _pixels(bundle) is not None,
        "table": bool(bundle.inputs) and all(_cells(tensor.shape) is not None for tensor in bundle.inputs),
    }
    return KINDS[bundle.kind] if shapes.get(bundle.kind) else "json"


def _cells(shape: Sequence[int | None]) -> int | None:
    """Number of form fields for an input; None if a form is not possible."""
    if len(shape) > 2 or None in shape[1:]:
        return None
    return shape[1] if len(shape) == 2 else 1


def _pixels(bundle: Bundle) -> tuple[int, int, int, str] | None:
    """Height, width, channels and their order, if the input is an image of a fixed size."""
    sizes = [size for size in bundle.inputs[0].shape[1:] if size is not None]
    if len(sizes) != len(bundle.inputs[0].shape) - 1 or bundle.inputs[0].dtype == "string":
        return None
    if len(sizes) == 1:
        side = round(sizes[0] ** 0.5)
        return (side, side, 1, "flat") if side * side == sizes[0] else None
    if len(sizes) == 2:
        return sizes[0], sizes[1], 1, "rows"
    if len(sizes) == 3 and sizes[2] in (1, 3):
        return sizes[0], sizes[1], sizes[2], "last"
    if len(sizes) == 3 and sizes[0] in (1, 3):
        return sizes[1], sizes[2], sizes[0], "first"
    return None


def _facts(bundle: Bundle) -> str:
    facts = [f"version {bundle.version}"]
    facts += [f"{escape(name)} {value:.4g}" for name, value in bundle.metrics.items()]
    if run := bundle.provenance.get("run"):
        facts.append(f"from run {escape(run)}")
    return ", ".join(facts)


def _details(bundle: Bundle) -> dict[str, Any]:
    """Model details for the page's script."""
    examples = [
        {"inputs": dict(each.inputs), "label": each.label, "note": each.note}
        for each in bundle.examples
        if len(json.dumps(dict(each.inputs))) <= LARGEST_EXAMPLE
    ]
    pixels = _pixels(bundle) if len(bundle.inputs) == 1 else None
    return {
        "name": bundle.name,
        "title": bundle.title or bundle.name,
        "inputs": [_tensor(tensor) for tensor in bundle.inputs],
        "outputs": [_tensor(tensor) for tensor in bundle.outputs],
        "labels": list(bundle.labels),
        "explains": _explains(bundle),
        "examples": examples,
        "pixels": dict(zip(("height", "width", "channels", "order"), pixels, strict=True)) if pixels else None,
    }


def _explains(bundle: Bundle) -> bool:
    """Whether its transform has the method. The source is only parsed, not run."""
    if not bundle.transform:
        return False
    try:
        source = (Path(bundle.path) / bundle.transform).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(r"^\s+def explain\b", source, re.MULTILINE) is not None


def _tensor(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "help": tensor.help}


def _embedded(value: Any) -> str:
    """JSON that cannot close its HTML element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _document(title: str, body: str, script: str) -> bytes:
    style = _asset("page.css")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; connect-src 'self'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'" + (f"; script-src 'sha256-{_digest(script)}'" if script else "")
    )
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}"
        + (f'<script type="module">{script}</script>\n' if script else "")
        + "</body>\n</html>\n"
    ).encode()


@dataclass(frozen=True)
class PageContent:
    """Model details that a page has beyond the protocols."""

    labels: tuple[str, ...]
    examples: tuple[Example, ...]


def read(content: bytes) -> PageContent | None:
    """Parse the details from a page, for clients; None if it is not such a page."""
    match = re.search(rb'<script type="application/json" id="model">(.*?)</script>', content, re.DOTALL)
    try:
        model = json.loads(match[1]) if match else {}
        examples = tuple(Example(each["inputs"], each["label"], each["note"]) for each in model["examples"])
        return PageContent(tuple(map(str, model["labels"])), examples)
    except (ValueError, KeyError, TypeError):
        return None


@cache
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
