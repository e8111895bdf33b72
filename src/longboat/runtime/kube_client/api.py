"""A client for the Kubernetes API: requests with back-off, server-side apply, watches that continue.

Pods and the CLI use the same client, because a pod may have nothing but Python. It knows neither kubeconfig files
(the CLI's business) nor runs. Objects are parsed JSON: the API server checks them better than types could.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from typing import Any, Callable, Dict, Generator, Iterator, List, Mapping, Optional, Tuple

from longboat.runtime import debug_log
from longboat.runtime.kube_client.http_client import BadResponse, ConnectionClosed, HttpConnection, HttpResponse, quoted
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.rank_env import bracketed

Manifest = Dict[str, Any]

MANAGER = "longboat"
"""Field manager of every write."""
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

PLURALS: Mapping[str, Tuple[str, str]] = {
    "ConfigMap": ("api/v1", "configmaps"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Event": ("api/v1", "events"),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "PersistentVolume": ("api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("api/v1", "secrets"),
    "SelfSubjectAccessReview": ("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "StorageClass": ("apis/storage.k8s.io/v1", "storageclasses"),
}
"""Kind -> path of its objects, for every kind that Longboat uses."""

CLUSTER_WIDE = frozenset({"Namespace", "Node", "PersistentVolume", "SelfSubjectAccessReview", "StorageClass"})
EVERYWHERE = "*"
"""As a namespace: all namespaces."""
WATCH_SECONDS = 30
"""Duration of one watch request; a server that is silent for longer counts as dead."""
TIMEOUT = 15.0
NO_JSON = "NoJson"
"""The reason when the response is not from an API server."""


class ApiError(Exception):
    """The API server refused a request, or did not respond for longer than the caller waits (status 0)."""

    def __init__(self, status: int, reason: str, message: str, after: float = 0.0) -> None:
        """after: seconds to wait before the next request (Retry-After)."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.after = after

    @property
    def transient(self) -> bool:
        """Worth a retry: no response, too many requests, or a problem of the server."""
        return self.status in (0, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class ApiServer:
    """Address of the API server, and the credentials for it."""

    host: str
    port: int
    tls: Optional[ssl.SSLContext]
    headers: Callable[[bool], Mapping[str, str]]
    """Credentials for a request; True: the last ones were refused, get new ones."""
    prefix: str = ""
    namespace: str = "default"
    name: str = ""
    """Host name in the TLS certificate, if it is not `host`."""
    way: Optional[Callable[[Optional[float]], socket.socket]] = None
    """Connects to the host, with a timeout, if it cannot be reached directly."""

    @property
    def authority(self) -> str:
        """HOST:PORT, for requests and messages."""
        return f"{bracketed(self.host)}:{self.port}"


def in_cluster(account: str = ACCOUNT) -> ApiServer:
    """The API server as seen from a pod. The token is read each time: it is replaced every hour."""

    def headers(_renew: bool) -> Mapping[str, str]:
        with open(os.path.join(account, "token"), encoding="utf-8") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}

    with open(os.path.join(account, "namespace"), encoding="utf-8") as file:
        namespace = file.read().strip()
    tls = ssl.create_default_context(cafile=os.path.join(account, "ca.crt"))
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    return ApiServer(host, port, tls, headers, namespace=namespace)


class Api:
    """API client. Thread-safe: each thread has its own connection."""

    def __init__(self, server: ApiServer, patience: float = 30.0) -> None:
        """patience: seconds to retry a request while the server is away or overloaded."""
        self.server = server
        self.patience = patience
        self.requests = 0
        self.date = ""
        """The Date header of the last response."""
        self._local = threading.local()

    def now(self) -> float:
        """The server's clock at its last response; this machine's clock before the first one."""
        import calendar

        try:
            return float(calendar.timegm(time.strptime(self.date, "%a, %d %b %Y %H:%M:%S GMT")))
        except ValueError:
            return time.time()

    # Objects.

    def get(self, kind: str, name: str, namespace: str = "") -> Manifest:
        return self.request("GET", self.path(kind, name, namespace))

    def find(self, kind: str, name: str, namespace: str = "") -> Optional[Manifest]:
        """The object, or None if it does not exist."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, selector: str = "", namespace: str = "", fields: str = "") -> List[Manifest]:
        items, _ = self._list(kind, selector, namespace, fields)
        return items

    def create(self, obj: Manifest, namespace: str = "", dry_run: bool = False) -> Manifest:
        """Create an object. dry_run: the server checks it, but creates nothing."""
        query = {"fieldManager": MANAGER, **({"dryRun": "All"} if dry_run else {})}
        return self.request("POST", self.path(obj["kind"], "", namespace), obj, query)

    def apply(self, obj: Manifest, namespace: str = "", dry_run: bool = False) -> Manifest:
        """Server-side apply: create the object, or change the fields that we manage."""
        query = {"fieldManager": MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        path = self.path(obj["kind"], obj["metadata"]["name"], namespace)
        return self.request("PATCH", path, obj, query, APPLY)

    def patch(self, kind: str, name: str, change: Manifest, namespace: str = "", part: str = "") -> Manifest:
        path = self.path(kind, name, namespace) + (f"/{part}" if part else "")
        return self.request("PATCH", path, change, {"fieldManager": MANAGER}, MERGE)

    def delete(self, kind: str, name: str, namespace: str = "", grace: Optional[int] = None, uid: str = "") -> bool:
        """Delete an object; False if there was none. Grace 0 forgets a pod without asking its node."""
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", self.path(kind, name, namespace), body)
            return True
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise

    def delete_all(self, kind: str, selector: str, grace: Optional[int] = None) -> None:
        """Delete all objects of a selector with one request; needs the right deletecollection."""
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        self.request("DELETE", self.path(kind), body, {"labelSelector": selector})

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        group, plural = PLURALS[kind]
        wide = kind in CLUSTER_WIDE or namespace == EVERYWHERE
        scope = "" if wide else f"namespaces/{quoted(namespace or self.server.namespace)}/"
        return f"/{group}/{scope}{plural}" + (f"/{quoted(name)}" if name else "")

    # Watching.

    def watch(
        self,
        kind: str,
        selector: str = "",
        namespace: str = "",
        fields: str = "",
        trouble: Callable[[Exception], None] = lambda _error: None,
    ) -> Generator[Tuple[str, Manifest], None, None]:
        """Watch objects for ever. Yields ("LISTED", {"items": [...]}) with all objects at the start and whenever events
        may have been missed, otherwise ("ADDED" | "MODIFIED" | "DELETED", object). Reconnects silently."""
        version, pause, renew, begun = "", 0.2, False, 0.0
        while True:
            after = 0.0
            try:
                if not version:
                    items, version = self._list(kind, selector, namespace, fields)
                    yield "LISTED", {"items": items}
                begun = time.monotonic()
                for event, obj in self._watch_once(kind, selector, namespace, fields, version, renew):
                    pause, renew = 0.2, False
                    version = obj.get("metadata", {}).get("resourceVersion", version)
                    if event != "BOOKMARK":
                        yield event, obj
                if time.monotonic() > begun + 1.0:
                    continue  # it was quiet and ended as planned
            except ApiError as error:
                renew = error.status == 401 and not renew
                if error.status == 410:
                    version = ""
                    continue
                after = error.after
                trouble(error)
            except (OSError, BadResponse, ValueError) as error:
                trouble(error)
            pause = min(pause * 2, 5.0)
            debug_log.info("watching %s again after a pause of at most %.1f s", kind, max(after, pause))
            time.sleep(max(after, pause * _jitter()))

    def log(self, pod: str, container: str, since: str = "", follow: bool = True) -> Iterator[bytes]:
        """Lines of a container, each with its timestamp; until it ends, if followed. since: timestamp to start at,
        in whole seconds."""
        query = {"container": container, "timestamps": "true", "sinceTime": since, "follow": "true" if follow else ""}
        connection = self._connect(TIMEOUT)
        try:
            path = _with(f"{self.path('Pod', pod)}/log", query)
            response = self._send(connection, "GET", path, None, "", False)
            if response.status >= 300:
                raise _error(response.status, response.read())
            connection.wait_for_ever()  # a server may be silent for days
            yield from response.lines(keep=True)
        finally:
            connection.close()

    def _watch_once(
        self, kind: str, selector: str, namespace: str, fields: str, version: str, renew: bool
    ) -> Iterator[Tuple[str, Manifest]]:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            "labelSelector": selector,
            "fieldSelector": fields,
        }
        connection = self._connect(WATCH_SECONDS + 10.0)
        try:
            response = self._send(connection, "GET", _with(self.path(kind, "", namespace), query), None, "", renew)
            if response.status >= 300:
                raise _error(response.status, response.read(), _after(response))
            for line in response.lines():
                event = json.loads(line)
                obj = event.get("object") or {}
                if event["type"] == "ERROR":
                    raise ApiError(int(obj.get("code") or 500), str(obj.get("reason")), str(obj.get("message")))
                yield event["type"], obj
        finally:
            connection.close()

    def _list(self, kind: str, selector: str, namespace: str, fields: str) -> Tuple[List[Manifest], str]:
        items: List[Manifest] = []
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": "500"}
        while True:
            try:
                page = self.request("GET", self.path(kind, "", namespace), query=query)
            except ApiError as error:
                if error.status != 410 or not query.get("continue"):
                    raise
                items, query["continue"] = [], ""  # the snapshot of the pages has expired: start again
                continue
            for item in page["items"]:
                item.setdefault("kind", kind)
            items += page["items"]
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return items, str(page["metadata"].get("resourceVersion", ""))

    # Requests.

    def request(
        self,
        method: str,
        path: str,
        body: Optional[Manifest] = None,
        query: Optional[Mapping[str, str]] = None,
        kind: str = "application/json",
    ) -> Manifest:
        """Send a request; returns the response's JSON. Retries while the server is away or overloaded."""
        due, pause, renew = time.monotonic() + self.patience, 0.1, False
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        while True:
            try:
                status, text, after = self._once(method, _with(path, query or {}), data, kind, renew)
                if status < 300:
                    return self._answer(text)
                if status == 401 and not renew:
                    renew = True
                    continue
                error = _error(status, text, after)
            except (OSError, BadResponse) as problem:
                self._drop()
                if isinstance(problem, ssl.SSLCertVerificationError):
                    raise ApiError(495, "BadCertificate", f"the API server's certificate: {problem}") from None
                where = f"the API server at {self.server.authority}"
                error = ApiError(0, "Unreachable", f"{where} cannot be reached: {problem}")
            except BaseException:
                self._drop()  # else the next request would get this one's response
                raise
            pause = min(pause * 2, 5.0)
            wait = max(error.after, pause * _jitter())
            if not error.transient or time.monotonic() + wait > due:
                raise error
            debug_log.info("%s %s: status %d %s; retrying in %.1f s", method, path, error.status, error.reason, wait)
            time.sleep(wait)

    def _answer(self, text: bytes) -> Manifest:
        try:
            answer = json.loads(text or b"{}")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            where = f"{self.server.authority}{self.server.prefix}"
            raise ApiError(200, NO_JSON, f"{where} is not a Kubernetes API server; it sent {_page(text)}")
        return answer

    def _once(self, method: str, path: str, data: Optional[bytes], kind: str, renew: bool) -> Tuple[int, bytes, float]:
        connection = getattr(self._local, "connection", None)
        fresh = connection is None
        if connection is None:
            connection = self._local.connection = self._connect(TIMEOUT)
        try:
            response = self._send(connection, method, path, data, kind, renew)
        except (ConnectionClosed, BrokenPipeError, ConnectionResetError):
            self._drop()
            if fresh:
                raise
            return self._once(method, path, data, kind, renew)  # the server closed the idle connection
        text = response.read()
        self.date = response.header("date") or self.date
        return response.status, text, _after(response)

    def _send(
        self,
        connection: HttpConnection,
        method: str,
        path: str,
        data: Optional[bytes],
        kind: str,
        renew: bool,
    ) -> HttpResponse:
        headers = {"Accept": "application/json", "User-Agent": MANAGER, **self.server.headers(renew)}
        if data is not None:
            headers["Content-Type"] = kind
        self.requests += 1
        return connection.request(method, self.server.prefix + path, data, headers)

    def _connect(self, timeout: float) -> HttpConnection:
        return HttpConnection(lambda: dial(self.server, timeout), self.server.authority)

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def dial(server: ApiServer, timeout: Optional[float]) -> socket.socket:
    """Connect to the server, with TLS if configured."""
    if server.way is not None:
        plain = server.way(timeout)
    else:
        plain = socket.create_connection((server.host, server.port), timeout=timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if server.tls is None:
        return plain
    return server.tls.wrap_socket(plain, server_hostname=server.name or server.host)


def _jitter() -> float:
    """A random factor between a half and one, so that many clients do not retry at once."""
    return 0.5 + os.urandom(1)[0] / 512


def _with(path: str, query: Mapping[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{'&'.join(f'{quoted(key)}={quoted(value)}' for key, value in given.items())}" if given else path


def _after(response: HttpResponse) -> float:
    """The Retry-After header in seconds; 0 if there is none."""
    seconds = response.header("retry-after")
    return float(seconds) if seconds.isdigit() else 0.0


def _error(status: int, text: bytes, after: float = 0.0) -> ApiError:
    try:
        answer = json.loads(text)
        return ApiError(status, str(answer.get("reason") or ""), str(answer.get("message") or text.decode()), after)
    except (ValueError, AttributeError):
        if text.lstrip().startswith(b"<") or 300 <= status < 400:
            message = f"not a Kubernetes API server; it sent HTTP status {status}: {_page(text)}"
            return ApiError(status, NO_JSON, message, after)
        return ApiError(status, "", text.decode("utf-8", "replace").strip() or f"HTTP status {status}", after)


def _page(text: bytes) -> str:
    """The beginning of a response that is not JSON."""
    return repr(" ".join(text[:400].decode("utf-8", "replace").split())[:80])
