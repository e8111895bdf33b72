"""Client for one repository of a registry, by the OCI distribution protocol.

It checks for blobs before it uploads them, and streams them from files. It uses the user's login and requests a token
when the registry asks for one. Nothing here knows the contents of images.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from longboat.images import registry_login
from longboat.images.image_name import ImageName
from longboat.runtime import atomic_file
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
TRIES = 4
PATIENCE = 60.0
_PASSING = (408, 429, 500, 502, 503, 504)


class RegistryError(LongboatError):
    """The registry refused a request or is not reachable. `status` is the HTTP status, or 0."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint, FAILED)
        self.status = status


@dataclass(frozen=True)
class RegistryResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class ImageManifest:
    kind: str
    digest: str
    text: bytes

    @property
    def value(self) -> dict[str, Any]:
        return dict(json.loads(self.text))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows redirects with the same method and without the login."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.get_method() not in ("GET", "HEAD"):
            return None
        kept = {name: value for name, value in req.headers.items() if name.lower() == "accept"}
        return urllib.request.Request(newurl, None, kept, method=req.get_method())


class Repository:
    """Client for one repository.

    actions: permissions to request for a token: pull, push, delete. beside: a repository of the same registry to mount
    blobs from."""

    def __init__(
        self,
        reference: ImageName,
        environ: Mapping[str, str],
        insecure: bool = False,
        actions: str = "pull",
        beside: str = "",
    ) -> None:
        self.reference = reference
        self._environ = environ
        self._may_be_plain = insecure or reference.is_local
        self._scopes = {f"repository:{reference.repository}:{actions}"}
        self._beside = beside
        if beside:
            self._scopes.add(f"repository:{beside}:pull")
        self._authorization = ""
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context), _Stay()]
        if reference.is_local:
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine
        self._opener = urllib.request.build_opener(*handlers)
        self._root = ""

    # Reading.

    def manifest(self, wanted: str) -> ImageManifest | None:
        """The manifest for a tag or digest; None if it does not exist."""
        accept = ", ".join((*INDEXES, *MANIFESTS))
        answer = self._ask("GET", f"manifests/{wanted}", {"Accept": accept}, missing=True)
        if answer.status == 404:
            return None
        digest = "sha256:" + hashlib.sha256(answer.body).hexdigest()
        if wanted.startswith("sha256:") and digest != wanted:
            raise RegistryError(0, f"{self.reference.registry} sent a manifest that is not {wanted}")
        kind = answer.headers.get("content-type", "").partition(";")[0]
        return ImageManifest(kind or MANIFESTS[0], digest, answer.body)

    def has(self, digest: str) -> bool:
        return self._ask("HEAD", f"blobs/{digest}", missing=True).status == 200

    def blob(self, digest: str) -> bytes:
        """A small blob, in memory."""
        answer = self._ask("GET", f"blobs/{digest}")
        if "sha256:" + hashlib.sha256(answer.body).hexdigest() != digest:
            raise RegistryError(0, f"{self.reference.registry} sent a corrupt blob {digest}", "try again")
        return answer.body

    def save(self, digest: str, path: str) -> None:
        """Download a blob into a file, atomically."""
        with atomic_file.replacing(path) as unfinished:
            self._ask("GET", f"blobs/{digest}", into=unfinished)
            with open(unfinished, "rb") as file:
                actual = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
            if actual != digest:
                raise RegistryError(0, f"{self.reference.registry} sent a corrupt blob {digest}", "try again")

    # Writing.

    def takes_over(self, digest: str) -> bool:
        """Mount a blob from the repository `beside`. Returns whether that worked."""
        if not self._beside:
            return False
        query = urllib.parse.urlencode({"mount": digest, "from": self._beside})
        return self._ask("POST", f"blobs/uploads/?{query}", body=b"").status == 201

    def upload(self, digest: str, body: bytes | Path) -> None:
        """Upload a blob from a file or from bytes. A broken upload starts again from the beginning."""
        for number in range(1, TRIES + 1):
            location = self._ask("POST", "blobs/uploads/", body=b"").headers["location"]
            url = urllib.parse.urljoin(self._base(), location)
            url += ("&" if "?" in url else "?") + urllib.parse.urlencode({"digest": digest})
            try:
                self._ask("PUT", url, {"Content-Type": "application/octet-stream"}, body, tries=1)
                return
            except RegistryError as error:
                if number == TRIES or error.status not in (0, *_PASSING):
                    raise
                time.sleep(0.2 * 2**number)

    def put(self, manifest: ImageManifest, tag: str) -> None:
        self._ask("PUT", f"manifests/{tag}", {"Content-Type": manifest.kind}, manifest.text)

    def delete(self, digest: str) -> bool:
        """Delete a manifest; False if it did not exist."""
        return self._ask("DELETE", f"manifests/{digest}", missing=True).status != 404

    # One exchange.

    def _ask(
        self,
        method: str,
        where: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path | None = None,
        into: str = "",
        missing: bool = False,
        tries: int = TRIES,
    ) -> RegistryResponse:
        """Send a request; repeat it if that may help. body: bytes, or the file to send. into: the file to receive."""
        url = where if "://" in where else self._base() + where
        authorized = False
        for number in range(1, tries + 1):
            try:
                answer = self._once(method, url, headers or {}, body, into)
            except (OSError, http.client.HTTPException) as error:
                if number == tries:
                    raise self._unreachable(error) from None
                time.sleep(0.2 * 2**number)
                continue
            if answer.status == 401 and not authorized:
                authorized = True
                self._authorize(answer)
                answer = self._once(method, url, headers or {}, body, into)
            if answer.status < 400 or missing and answer.status == 404:
                return answer
            if answer.status not in _PASSING or number == tries:
                raise self._refusal(method, answer)
            time.sleep(min(float(_digits(answer.headers.get("retry-after"))) or 0.2 * 2**number, 30.0))
        raise AssertionError("the last try has returned or raised")

    def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Path | None, into: str
    ) -> RegistryResponse:
        data: Any = body.open("rb") if isinstance(body, Path) else body
        request = urllib.request.Request(url, data, dict(headers), method=method)
        if isinstance(body, Path):
            request.add_unredirected_header("Content-Length", str(body.stat().st_size))
        if self._authorization and urllib.parse.urlsplit(url).netloc == self.reference.host:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                return RegistryResponse(answer.status, _lower(answer.headers), _taken(answer, into))
        except urllib.error.HTTPError as error:
            return RegistryResponse(error.code, _lower(error.headers), error.read(65536))
        finally:
            if isinstance(body, Path):
                data.close()

    def _base(self) -> str:
        """`https://HOST/v2/REPOSITORY/`; plain http only if it is allowed and https does not work."""
        if not self._root:
            host = self.reference.host
            self._root = f"https://{host}/v2/{self.reference.repository}/"
            if self._may_be_plain:
                try:
                    self._once("GET", f"https://{host}/v2/", {}, None, "")
                except (OSError, http.client.HTTPException):
                    self._root = f"http://{host}/v2/{self.reference.repository}/"
        return self._root

    # Authentication.

    def _authorize(self, answer: RegistryResponse) -> None:
        """Set the Authorization header from the registry's challenge: password or token."""
        challenge = answer.headers.get("www-authenticate", "")
        kind, _, rest = challenge.partition(" ")
        known = registry_login.find(self.reference.registry, self._environ)
        if kind.lower() == "basic":
            if known is None:
                raise self._no_login()
            self._authorization = known.basic
        elif kind.lower() == "bearer":
            self._authorization = "Bearer " + self._token(dict(re.findall(r'(\w+)="([^"]*)"', rest)), known)
        else:
            raise RegistryError(
                401, f"{self.reference.registry} uses an unknown authentication scheme: {kind or 'none'}"
            )

    def _token(self, challenge: Mapping[str, str], known: registry_login.Login | None) -> str:
        realm = challenge.get("realm", "")
        if not realm.startswith("https://") and not self._root.startswith("http://"):
            raise RegistryError(401, f"{self.reference.registry} wants the login sent over plain http to {realm}")
        scopes = sorted(self._scopes | {scope for scope in [challenge.get("scope", "")] if scope})
        fields = [("service", challenge.get("service", "")), *(("scope", scope) for scope in scopes)]
        headers: dict[str, str] = {}
        if known is not None and known.identity:
            fields += [("grant_type", "refresh_token"), ("refresh_token", known.password), ("client_id", "longboat")]
            fields = [("scope", " ".join(scopes)), *(field for field in fields if field[0] != "scope")]
            data: bytes | None = urllib.parse.urlencode(fields).encode()
            request = urllib.request.Request(realm, data, headers)
        else:
            if known is not None:
                headers["Authorization"] = known.basic
            join = "&" if "?" in realm else "?"
            request = urllib.request.Request(realm + join + urllib.parse.urlencode(fields), None, headers)
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                reply = json.load(answer)
                return str(reply.get("token") or reply["access_token"])
        except urllib.error.HTTPError as error:
            if error.code in (400, 401, 403):
                raise self._refused_login(known) if known is not None else self._no_login() from None
            raise RegistryError(error.code, f"token server {_host(realm)} answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            why = getattr(error, "reason", None) or error
            raise RegistryError(
                0, f"token server {_host(realm)} returned no token for {self.reference.registry}: {why}"
            ) from None

    # Messages.

    def _no_login(self) -> RegistryError:
        file = registry_login.place(self._environ)
        registry = self.reference.registry
        return RegistryError(401, f"{registry} needs a login, and {file} has none", registry_login.command(registry))

    def _refused_login(self, known: registry_login.Login) -> RegistryError:
        who = "the token" if known.identity else f"the login of {known.user}"
        registry = self.reference.registry
        return RegistryError(
            401, f"{registry} rejected {who} from {known.source}", f"log in again: {registry_login.command(registry)}"
        )

    def _refusal(self, method: str, answer: RegistryResponse) -> RegistryError:
        registry, known = self.reference.registry, None
        if answer.status in (401, 403):
            known = registry_login.find(registry, self._environ)
        if answer.status == 401 and not self._authorization.startswith("Bearer"):
            return self._refused_login(known) if known is not None else self._no_login()
        if answer.status in (401, 403):
            who = known.user if known is not None and not known.identity else "you"
            verb = {"GET": "pull from", "HEAD": "pull from", "DELETE": "delete in"}.get(method, "push to")
            hint = "ask its owner for that permission, or log in as another user" if known else ""
            return RegistryError(
                answer.status,
                f"{registry} does not allow {who} to {verb} {self.reference.repository}: {_reason(answer)}",
                f"{hint}: {registry_login.command(registry)}" if hint else registry_login.command(registry),
            )
        if answer.status == 405 and method == "DELETE":
            return RegistryError(
                405, f"{registry} does not allow deleting images", "delete it with the registry's own tools"
            )
        hint = ""
        if answer.status == 404:
            hint = (
                f"check that repository {self.reference.repository} exists: some registries need it to be created first"
            )
        return RegistryError(
            answer.status, f"{registry} answered {answer.status} to a {method}: {_reason(answer)}", hint
        )

    def _unreachable(self, error: Exception) -> RegistryError:
        why = getattr(error, "reason", None) or error
        hint = ""
        if isinstance(why, ssl.SSLError):
            hint = "use --insecure for plain http or an unverified certificate"
        return RegistryError(0, f"cannot reach {self.reference.registry}: {why}", hint)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _taken(answer: Any, into: str) -> bytes:
    if not into:
        return bytes(answer.read())
    wanted, got = answer.headers.get("Content-Length"), 0
    with open(into, "wb") as file:
        while block := answer.read(1 << 20):
            got += file.write(block)
    if wanted is not None and got != int(wanted):
        raise OSError(f"the response ended after {got} of {wanted} bytes")
    return b""


def _reason(answer: RegistryResponse) -> str:
    try:
        errors = json.loads(answer.body)["errors"]
        return "; ".join(str(each.get("message") or each.get("code")) for each in errors) or str(answer.status)
    except (ValueError, KeyError, TypeError, AttributeError):
        return " ".join(answer.body.decode("utf-8", "replace").split())[:200] or str(answer.status)


def _digits(text: str | None) -> str:
    return text if text is not None and text.isdigit() else "0"


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc
