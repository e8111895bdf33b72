"""A server that is a stage of a run says that it is ready, and shows one real answer of its own.

The answer is asked over HTTP as a client would ask it: what is announced works. Outside of a run
nothing of this happens.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

PATIENCE = 30.0


def in_a_run(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("WINDLASS_REPORT_FILE") and environ.get("WINDLASS_OUTPUT_DIR"))


def announce(url: str, grpc: str, name: str, directory: str, environ: Mapping[str, str], token: str = "") -> None:
    """Called when the server listens; returns at once, because the server may run in the calling thread."""
    told = (url, grpc, name, directory, environ["WINDLASS_OUTPUT_DIR"], token)
    threading.Thread(target=_announce, args=told, daemon=True).start()


def _announce(url: str, grpc: str, name: str, directory: str, output: str, token: str) -> None:
    import windlass
    from windlass import bundle, layout

    told: dict[str, Any] = {"url": url, "page": f"{url}/models/{name}", "grpc": grpc, "model": name}
    try:
        version = os.path.join(directory, str(bundle.versions(directory)[-1]))
        found = bundle.read(version, verify=False)
        for example in found.examples[:1]:
            answer = _ask(f"{url}/v1/models/{name}:predict", {"instances": [dict(example.inputs)]}, token)
            prediction = answer["predictions"][0]
            told |= {"example": dict(example.inputs), "label": example.label, "prediction": prediction}
            if isinstance(prediction, list) and len(prediction) == len(found.labels) > 1:
                best = max(range(len(prediction)), key=prediction.__getitem__)
                told["answer"] = f"{found.labels[best]} {prediction[best]:.1%}"
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"the first example was not answered: {error}", flush=True)  # noqa: T201 (its log is its voice)
    path = os.path.join(output, layout.SERVING)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(told, file, indent=2, ensure_ascii=False)
    os.replace(path + ".new", path)
    windlass.report(ready=1)


def _ask(url: str, body: dict[str, Any], token: str) -> Any:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(error.read().decode("utf-8", "replace")[:500]) from None
