"""Sends one example to a model server over HTTP, as a client would, to show a real answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, Dict, Optional

from longboat.runtime.bundle.bundle_format import read

PATIENCE = 30.0


def first_answer(url: str, name: str, version: str, token: str = "") -> Dict[str, Any]:
    """The first example of the version in this directory, with the server's answer; empty without an example. Raises
    OSError if the server does not respond."""
    bundle = read(version, verify=False)
    for example in bundle.examples[:1]:
        answer = ask(f"{url}/v1/models/{name}:predict", {"instances": [dict(example.inputs)]}, token)
        prediction = answer["predictions"][0]
        result = {"example": dict(example.inputs), "label": example.label, "prediction": prediction}
        if isinstance(prediction, list) and len(prediction) == len(bundle.labels) > 1:
            best = max(range(len(prediction)), key=prediction.__getitem__)
            result["answer"] = f"{bundle.labels[best]} {prediction[best]:.1%}"
        return result
    return {}


def ask(url: str, body: Optional[Dict[str, Any]] = None, token: str = "") -> Any:
    """A server's response as JSON; OSError with the server's message if it refuses."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(error.read().decode("utf-8", "replace")[:500]) from None
