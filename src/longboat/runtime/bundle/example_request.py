"""One real answer of a server that has the model: asked over HTTP as any client would ask, so what is told works."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Dict, Optional

from longboat.runtime.bundle.bundle_format import read

PATIENCE = 30.0


def first_answer(url: str, name: str, version: str, token: str = "") -> Dict[str, Any]:
    """The first example of the version in this directory, and what the server answers to it; OSError when it does
    not answer. Empty: the version has no example."""
    found = read(version, verify=False)
    for example in found.examples[:1]:
        answer = ask(f"{url}/v1/models/{name}:predict", {"instances": [dict(example.inputs)]}, token)
        prediction = answer["predictions"][0]
        told = {"example": dict(example.inputs), "label": example.label, "prediction": prediction}
        if isinstance(prediction, list) and len(prediction) == len(found.labels) > 1:
            best = max(range(len(prediction)), key=prediction.__getitem__)
            told["answer"] = f"{found.labels[best]} {prediction[best]:.1%}"
        return told
    return {}


def ask(url: str, body: Optional[Dict[str, Any]] = None, token: str = "") -> Any:
    """What a server answers, as JSON; OSError with its own words when it refuses."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(error.read().decode("utf-8", "replace")[:500]) from None
