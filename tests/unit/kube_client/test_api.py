"""The API client against a server that is busy, restarts, forgets and closes: over real sockets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longboat.runtime import debug_log
from longboat.runtime.kube_client.api import Api, ApiError, ApiServer
from tests.unit.kube_client.listening import listening

Answer = tuple[int, dict[str, str], list[object]]


class Script(ThreadingHTTPServer):
    """Answers requests one after the other with what it was given, and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, str, str]] = []

    def reply(self, method: str, path: str) -> Answer:
        return self.answers.pop(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.server.asked.append((self.command, self.path, self.headers.get("Content-Type", ""), body))
        status, headers, lines = self.server.reply(self.command, self.path)
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def script() -> Iterator[Script]:
    with listening(Script()) as server:
        yield server


def client(script: Script, patience: float = 10.0) -> Api:
    return Api(ApiServer("127.0.0.1", script.server_port, None, lambda _renew: {"Authorization": "Bearer x"}), patience)


def status(code: int, reason: str, message: str = "") -> dict[str, object]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


def test_a_busy_server_is_asked_again_and_that_is_logged(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_log, "_logger", None)
    debug_log.begin("info", "driver", str(tmp_path / "driver.log"))
    script.answers = [
        (429, {"Retry-After": "0"}, [status(429, "TooManyRequests")]),
        (503, {}, []),
        (200, {}, [{"metadata": {"name": "a"}}]),
    ]
    assert client(script).get("Pod", "a")["metadata"]["name"] == "a"
    assert [asked[1] for asked in script.asked] == ["/api/v1/namespaces/default/pods/a"] * 3
    log = (tmp_path / "driver.log").read_text().splitlines()
    lines = [line for line in log if "GET /api/v1/namespaces/default/pods/a:" in line]  # not of threads of other tests
    assert ["status 429 TooManyRequests" in lines[0], "status 503" in lines[1], len(lines)] == [True, True, 2]


def test_a_refusal_is_not_tried_again(script: Script) -> None:
    script.answers = [(403, {}, [status(403, "Forbidden", "no")])]
    with pytest.raises(ApiError) as error:
        client(script).create({"kind": "Pod", "metadata": {"name": "a"}})
    assert (error.value.status, error.value.message, error.value.transient) == (403, "no", False)


def test_what_does_not_exist_is_none_and_was_deleted_already(script: Script) -> None:
    script.answers = [(404, {}, [status(404, "NotFound")])] * 2
    api = client(script)
    assert api.find("Secret", "a") is None
    assert api.delete("Secret", "a") is False


def test_an_apply_is_server_side_with_a_field_manager(script: Script) -> None:
    script.answers = [(200, {}, [{}])]
    client(script).apply({"kind": "StatefulSet", "metadata": {"name": "a"}}, "other")
    method, path, kind, _ = script.asked[0]
    assert (method, kind) == ("PATCH", "application/apply-patch+yaml")
    assert path == "/apis/apps/v1/namespaces/other/statefulsets/a?fieldManager=longboat&force=true"


def test_a_list_is_read_page_by_page(script: Script) -> None:
    script.answers = [
        (200, {}, [{"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}}]),
        (200, {}, [{"items": [{"metadata": {"name": "b"}}], "metadata": {"resourceVersion": "7"}}]),
    ]
    found = client(script).list("Pod", "x=y")
    assert [(pod["kind"], pod["metadata"]["name"]) for pod in found] == [("Pod", "a"), ("Pod", "b")]


def test_a_watch_goes_on_after_an_end_and_lists_again_when_it_has_missed_something(script: Script) -> None:
    def event(kind: str, name: str, version: str) -> dict[str, object]:
        return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}

    script.answers = [
        (200, {}, [{"items": [], "metadata": {"resourceVersion": "1"}}]),
        (200, {}, [event("ADDED", "a", "2"), event("BOOKMARK", "", "5")]),
        (200, {}, [event("DELETED", "a", "6"), {"type": "ERROR", "object": status(410, "Expired")}]),
        (200, {}, [{"items": [{"metadata": {"name": "b"}}], "metadata": {"resourceVersion": "9"}}]),
        (200, {}, [event("ADDED", "c", "10")]),
    ]
    watch = client(script).watch("Pod")
    seen = [next(watch) for _ in range(5)]
    assert [kind for kind, _ in seen] == ["LISTED", "ADDED", "DELETED", "LISTED", "ADDED"]
    versions = [asked[1].partition("resourceVersion=")[2].partition("&")[0] for asked in script.asked]
    assert versions == ["", "1", "5", "", "9"], "it resumes behind the bookmark"
    watch.close()


def test_a_watch_proves_itself_anew_when_its_credentials_have_expired(script: Script) -> None:
    renewed: list[bool] = []

    def headers(renew: bool) -> dict[str, str]:
        renewed.append(renew)
        return {}

    script.answers = [
        (200, {}, [{"items": [], "metadata": {"resourceVersion": "1"}}]),
        (401, {}, [status(401, "Unauthorized")]),
        (200, {}, [{"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}}]),
    ]
    watch = Api(ApiServer("127.0.0.1", script.server_port, None, headers)).watch("Pod")
    assert [next(watch)[0] for _ in range(2)] == ["LISTED", "ADDED"]
    assert renewed == [False, False, True]


def test_the_time_that_an_overloaded_server_asks_for_is_given_to_it(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    here, sleep = threading.get_ident(), time.sleep

    def note(wait: float) -> None:
        if threading.get_ident() == here:
            waits.append(wait)
        else:
            sleep(wait)  # a thread that another test left

    monkeypatch.setattr(time, "sleep", note)
    busy: Answer = (429, {"Retry-After": "1"}, [status(429, "TooManyRequests")])
    script.answers = [
        busy,
        (200, {}, [{"items": [], "metadata": {"resourceVersion": "1"}}]),
        busy,
        (200, {}, [{"type": "ADDED", "object": {}}]),
    ]
    watch = client(script).watch("Pod")
    assert [next(watch)[0] for _ in range(2)] == ["LISTED", "ADDED"]
    assert waits == [1.0, 1.0]
    script.answers = [busy]
    with pytest.raises(ApiError, match="TooManyRequests") as error:
        client(script, patience=0.5).get("Pod", "a")
    assert error.value.after == 1.0, "more than one would wait is not waited for"


def test_a_list_whose_pages_have_expired_is_read_from_the_front(script: Script) -> None:
    script.answers = [
        (200, {}, [{"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}}]),
        (410, {}, [status(410, "Expired")]),
        (200, {}, [{"items": [{"metadata": {"name": "b"}}], "metadata": {"resourceVersion": "9"}}]),
    ]
    assert [pod["metadata"]["name"] for pod in client(script).list("Pod")] == ["b"]


def test_the_clock_is_the_servers(script: Script) -> None:
    script.answers = [(200, {}, [{}])]
    api = client(script)
    api.get("Pod", "a")
    api.date = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert api.now() == 784111777.0


def test_a_server_that_is_away_is_waited_for_no_longer_than_the_patience(script: Script) -> None:
    port = script.server_port
    script.shutdown()
    script.server_close()
    api = Api(ApiServer("127.0.0.1", port, None, lambda _renew: {}), patience=0.3)
    with pytest.raises(ApiError, match="cannot be reached") as error:
        api.get("Pod", "a")
    assert error.value.status == 0
