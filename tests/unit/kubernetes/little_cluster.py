"""As much of an API server as submitting needs, over a real socket: objects that are kept, listed and deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from longboat.runtime.kube_client.api import MERGE, PLURALS, Manifest

KINDS = {plural: kind for kind, (_, plural) in PLURALS.items()}
Hook = Callable[[str, str], None]


class LittleCluster(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.carried_out: Hook = lambda _method, _kind: None
        """Called with method and kind when a request was carried out, before it is answered."""
        self.version = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def kubeconfig(self, path: Path) -> str:
        found = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
        }
        path.write_text(yaml.safe_dump(found))
        return str(path)

    def staying(self) -> list[str]:
        """What is there once the garbage collector has been by: not what belongs to an owner that is gone."""
        with self.lock:
            there = {obj["metadata"]["uid"] for obj in self.objects.values()}
            return [
                f"{kind} {name}"
                for (kind, name), obj in self.objects.items()
                if all(owner["uid"] in there for owner in obj["metadata"].get("ownerReferences") or ())
            ]

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LittleCluster

    def answer(self) -> None:
        body: Any = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        words = url.path.replace("/namespaces/default/", "/").strip("/").split("/")
        plural, name = (words[-1], "") if words[-1] in KINDS else words[-2:]
        kind = KINDS[plural]
        with self.server.lock:
            status, found = self.carry_out(kind, name, body, query)
        self.server.carried_out(self.command, kind)
        data = json.dumps(found).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # who asked has gone

    def carry_out(self, kind: str, name: str, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        objects = self.server.objects
        if self.command == "GET" and not name:
            wanted = dict(pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair)
            found = [
                obj
                for (each, _), obj in objects.items()
                if each == kind and wanted.items() <= obj["metadata"].get("labels", {}).items()
            ]
            return 200, {"items": found, "metadata": {"resourceVersion": "1"}}
        if kind == "SelfSubjectAccessReview":
            return 201, body | {"status": {"allowed": True}}
        name = name or body["metadata"]["name"]
        there = objects.get((kind, name))
        if query.get("dryRun"):
            return 200, body
        if self.command in ("POST", "PATCH"):
            if there is not None and self.command == "POST":
                return 409, {"reason": "AlreadyExists", "message": f"{kind} {name} is there"}
            if self.headers["Content-Type"] == MERGE:
                if there is None:
                    return 404, {"reason": "NotFound", "message": f"{kind} {name} not found"}
                if body.get("metadata", {}).get("resourceVersion") not in (None, there["metadata"]["resourceVersion"]):
                    return 409, {"reason": "Conflict", "message": f"{kind} {name} has been modified"}
                body = merged(there, body)
            self.server.version += 1
            body["metadata"] |= {"uid": f"{kind}-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
            body["metadata"]["resourceVersion"] = str(self.server.version)
            if kind == "Service":
                body["spec"] |= {"clusterIP": "10.0.0.1"}
            objects[kind, name] = body
            return 201, body
        if there is None:
            return 404, {"reason": "NotFound", "message": f"{kind} {name} not found"}
        if self.command == "DELETE":
            del objects[kind, name]
        return 200, there

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def merged(there: Any, change: Any) -> Any:
    """As a merge patch is meant to be: what is null goes."""
    if not isinstance(there, dict) or not isinstance(change, dict):
        return change
    found = there | {key: merged(there.get(key), value) for key, value in change.items()}
    return {key: value for key, value in found.items() if value is not None}
