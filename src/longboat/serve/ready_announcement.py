"""Announces that a server which is a stage of a local run is ready, with one real prediction.

Outside of a run it does nothing. On a cluster the driver checks the Service instead.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any


def in_a_run(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("LONGBOAT_REPORT_FILE") and environ.get("LONGBOAT_OUTPUT_DIR"))


def announce(url: str, grpc: str, name: str, directory: str, environ: Mapping[str, str], token: str = "") -> None:
    """Announce the server once it listens. Returns at once, because the server may run in this thread."""
    arguments = (url, grpc, name, directory, environ["LONGBOAT_OUTPUT_DIR"], token)
    threading.Thread(target=_announce, args=arguments, daemon=True).start()


def _announce(url: str, grpc: str, name: str, directory: str, output: str, token: str) -> None:
    import longboat
    from longboat.runtime import atomic_file, bundle, run_layout
    from longboat.runtime.bundle import example_request

    announcement: dict[str, Any] = {"url": url, "page": f"{url}/models/{name}", "grpc": grpc, "model": name}
    try:
        version = os.path.join(directory, str(bundle.versions(directory)[-1]))
        announcement |= example_request.first_answer(url, name, version, token)
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"the first example failed: {error}", flush=True)  # noqa: T201 (its log is its voice)
    text = json.dumps(announcement, indent=2, ensure_ascii=False)
    atomic_file.write(os.path.join(output, run_layout.SERVING), text)
    longboat.report(ready=1)
