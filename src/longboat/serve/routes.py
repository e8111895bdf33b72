"""Routes URLs to handlers, checks the token, and formats errors.

A URL is parsed once and its handler cached, so that a busy route costs one lookup.
"""

from __future__ import annotations

import hmac
import re
import urllib.parse
from collections.abc import Callable

import orjson

from longboat.serve import metrics, tfs_rest, v2_rest
from longboat.serve.batching import Batcher
from longboat.serve.http_server import Handler, Request
from longboat.serve.model_versions import ServedModels
from longboat.serve.prediction import RequestCounters, counted
from longboat.serve.request_errors import RefusalReason, RequestRefused

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
HTML = b"text/html; charset=utf-8"
MOST_ROUTES = 1024
OPEN = (b"/", b"/healthz", b"/readyz", b"/v2/health/live", b"/v2/health/ready")
"""URLs that need no token, besides model pages: probes have none, and a page asks its user for one."""

_V1 = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d{1,18}))?(?P<rest>/metadata|:[a-z]+)?")
_V2 = re.compile(r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>\d{1,18}))?(?P<rest>/ready|/infer)?")
_GET = (b"GET", b"HEAD")


class Routes:
    """The handler of all requests."""

    def __init__(
        self, models: ServedModels, numbers: metrics.ProcessMetrics, token: str, most: int, scrape: Callable[[], str]
    ) -> None:
        self._models, self._numbers, self._most, self._scrape = models, numbers, most, scrape
        self._bearer = b"Bearer " + token.encode() if token else b""
        self._made: dict[tuple[bytes, bytes], Handler] = {}
        self.draining = False

    def admit(self, request: Request) -> RequestRefused | None:
        """Why the request is refused, judged by its headers; None if it is allowed."""
        if self._bearer and not hmac.compare_digest(request.headers.get(b"authorization", b""), self._bearer):
            path = request.url.partition(b"?")[0]
            if path not in OPEN and not path.startswith(b"/models/"):
                return RequestRefused(
                    RefusalReason.UNAUTHENTICATED, "a token is needed: send the header `Authorization: Bearer TOKEN`"
                )
        return None

    def __call__(self, request: Request) -> None:
        key = (request.method, request.url)
        handler = self._made.get(key)
        if handler is None:
            handler = self._make(*key)
            if len(self._made) >= MOST_ROUTES:
                self._made.clear()
            self._made[key] = handler
        handler(request)

    def _make(self, method: bytes, url: bytes) -> Handler:
        try:
            path = urllib.parse.unquote_to_bytes(url.partition(b"?")[0]).decode()
        except UnicodeDecodeError:
            raise RequestRefused(RefusalReason.INVALID, "the URL is not valid UTF-8") from None
        if match := _V1.fullmatch(path):
            return self._v1(method, match["name"], match["version"], match["rest"] or "")
        if match := _V2.fullmatch(path):
            return self._v2(method, match["name"], match["version"], match["rest"] or "")
        plain = {
            "/healthz": self._live,
            "/readyz": self._ready,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
            "/v2": lambda request: request.json(v2_rest.server()),
            "/v1/models": self._list,
            "/metrics": lambda request: request.reply(200, self._scrape().encode(), TEXT),
            "/": self._index,
        }
        if path == "/v2/repository/index":
            if method != b"POST":
                raise _method("POST")
            return lambda request: request.json(v2_rest.index(list(self._models.by_name.values())))
        if path in plain:
            if method not in _GET:
                raise _method("GET")
            return plain[path]
        if path.startswith("/models/") and method in _GET:
            return lambda request: self._model_page(request, path.removeprefix("/models/"))
        if path.startswith("/v1/"):
            raise RequestRefused(RefusalReason.INVALID, f"Malformed request: {method.decode()} {path}")
        raise RequestRefused(
            RefusalReason.NOT_FOUND, f"nothing at {path}; GET / lists the models, /v1/models/NAME is one of them"
        )

    def _v1(self, method: bytes, name: str, number: str | None, rest: str) -> Handler:
        version = None if number is None else int(number)
        if not rest or rest == "/metadata":
            if method not in _GET:
                raise _method("GET")
            if not rest:
                return lambda request: request.json(tfs_rest.status(self._models.model(name), version))
            return lambda request: self._v1_metadata(request, name, version)
        makers = {
            ":predict": tfs_rest.predict,
            ":explain": tfs_rest.explain,
            ":classify": lambda *words: tfs_rest.examples("classify", *words),
            ":regress": lambda *words: tfs_rest.examples("regress", *words),
        }
        if rest not in makers:
            raise RequestRefused(RefusalReason.INVALID, f"Malformed request: {method.decode()} /v1/models/{name}{rest}")
        if method != b"POST":
            raise _method("POST")
        counting = self._counting(name, "rest")
        return counted(counting, makers[rest](self._finder(name, version), counting, self._most))

    def _v1_metadata(self, request: Request, name: str, version: int | None) -> None:
        request.json(tfs_rest.metadata(self._models.find(name, version).runner.bundle))

    def _v2(self, method: bytes, name: str, number: str | None, rest: str) -> Handler:
        version = None if number is None else int(number)
        find = self._finder(name, version)
        if rest == "/infer":
            if method != b"POST":
                raise _method("POST")
            counting = self._counting(name, "v2")
            return counted(counting, v2_rest.infer(find, counting, self._most))
        if method not in _GET:
            raise _method("GET")
        if rest == "/ready":
            return lambda request: self._model_ready(request, find)
        return lambda request: request.json(v2_rest.metadata(self._models.model(name), find().runner.bundle))

    def _finder(self, name: str, version: int | None) -> Callable[[], Batcher]:
        models = self._models
        model = models.by_name.get(name)
        if model is None or version is not None:
            return lambda: models.find(name, version)
        return lambda: model.newest or models.find(name)

    def _counting(self, name: str, protocol: str) -> RequestCounters:
        return RequestCounters(self._numbers, name if name in self._models.by_name else "", protocol)

    def _live(self, request: Request) -> None:
        request.json(b'{"live":true}')

    def _ready(self, request: Request) -> None:
        if self.draining or not self._models.ready:
            raise RequestRefused(
                RefusalReason.UNAVAILABLE, "the server is stopping" if self.draining else "a model is not loaded"
            )
        request.json(b'{"ready":true}')

    def _model_ready(self, request: Request, find: Callable[[], Batcher]) -> None:
        find()
        request.json(b"{}")

    def _list(self, request: Request) -> None:
        models = [
            {
                "name": model.name,
                "versions": [str(version.number) for version in model.available()],
                "title": model.newest.runner.bundle.title if model.newest else "",
            }
            for model in self._models.by_name.values()
        ]
        request.json(orjson.dumps({"models": models}))

    def _index(self, request: Request) -> None:
        from longboat.serve import pages

        bundles = [m.newest.runner.bundle for m in self._models.by_name.values() if m.newest is not None]
        self._html(request, pages.index(bundles))

    def _model_page(self, request: Request, name: str) -> None:
        from longboat.serve import pages

        self._html(request, pages.page(self._models.find(name).runner.bundle))

    def _html(self, request: Request, content: bytes) -> None:
        request.reply(
            200, content, HTML, ((b"X-Content-Type-Options", b"nosniff"), (b"Referrer-Policy", b"no-referrer"))
        )


def _method(allowed: str) -> RequestRefused:
    return RequestRefused(RefusalReason.METHOD, f"this URL only accepts {allowed}")


def error(refused: RequestRefused) -> bytes:
    """The error body of both REST protocols, {"error": ...}."""
    return tfs_rest.error(refused.message)
