"""Which cluster, as whom: kubeconfig files, contexts, namespaces, exec credentials, or the pod this runs in.

As kubectl has it: `--context` and `--namespace` above the file's current ones; $KUBECONFIG may name
several files; without any, a pod's own service account.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from longboat.engines.kubernetes import http_proxy
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import api
from longboat.runtime.kube_client.api import ApiServer

Section = dict[str, Any]
KINDS = {"contexts": "context", "clusters": "cluster", "users": "user"}
"""The lists of a kubeconfig, and the key that an entry of each has beside its name."""


def server(environ: Mapping[str, str], context: str = "", namespace: str = "") -> ApiServer:
    """Where the cluster is; LongboatError when nothing says so."""
    files = [os.path.expanduser(path) for path in environ.get("KUBECONFIG", "").split(":") if path]
    if not files:
        files = [os.path.expanduser("~/.kube/config")]
        if not os.path.exists(files[0]) and os.path.exists(f"{api.ACCOUNT}/token"):
            found = api.in_cluster()
            return _named(found, namespace) if namespace else found
    return _from_files(files, context, namespace)


def _from_files(files: list[str], context: str, namespace: str) -> ApiServer:
    merged, places = _merged(files)
    name = context or merged["current-context"]
    if not name:
        raise LongboatError("the kubeconfig names no current context", "choose one with --context NAME")
    chosen = _entry(merged, "contexts", "context", name)
    cluster = _entry(merged, "clusters", "cluster", str(chosen.get("cluster")))
    user = _entry(merged, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    place = places.get(("clusters", str(chosen.get("cluster"))), ".")
    try:
        url = urlsplit(str(cluster.get("server", "")))
        given = url.port
    except ValueError:
        url, given = urlsplit(""), None
    if not url.hostname:
        raise LongboatError(
            f"context {name}: the cluster's server {cluster.get('server')!r} is no address",
            f"mend `clusters: {chosen.get('cluster')}: server` in the kubeconfig ({', '.join(files)})",
        )
    tls = None
    if url.scheme == "https":
        tls = _tls(cluster, user, place, places.get(("users", str(chosen.get("user"))), "."))
    port, through = given or (443 if tls else 80), str(cluster.get("proxy-url") or "")
    return ApiServer(
        url.hostname,
        port,
        tls,
        _Credentials(user, places.get(("users", str(chosen.get("user"))), "."), cluster),
        url.path.rstrip("/"),
        namespace or str(chosen.get("namespace") or "default"),
        str(cluster.get("tls-server-name") or ""),
        http_proxy.way(through, url.hostname, port) if through else None,
    )


def _named(found: ApiServer, namespace: str) -> ApiServer:
    import dataclasses

    return dataclasses.replace(found, namespace=namespace)


def _merged(files: list[str]) -> tuple[Section, dict[tuple[str, str], str]]:
    """All files as one, the first that names something wins; and in which directory each entry stood."""
    merged: Section = {"current-context": "", "contexts": [], "clusters": [], "users": []}
    places: dict[tuple[str, str], str] = {}
    read = False
    for file in files:
        found = _read(file)
        if found is None:
            continue
        read = True
        merged["current-context"] = merged["current-context"] or str(found.get("current-context") or "")
        for kind in KINDS:
            for entry in found.get(kind) or ():
                if (kind, entry["name"]) not in places:
                    places[kind, entry["name"]] = os.path.dirname(os.path.abspath(file))
                    merged[kind].append(entry)
    if not read:
        raise LongboatError(
            f"there is no kubeconfig: {', '.join(files)}",
            "get one from whoever runs the cluster, then `export KUBECONFIG=FILE` (or put it at ~/.kube/config)",
        )
    return merged, places


def _read(file: str) -> Section | None:
    """A kubeconfig whose lists have the form that they should; None where there is no such file."""
    import yaml

    try:
        with open(file, encoding="utf-8") as opened:
            found = yaml.safe_load(opened) or {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LongboatError(f"the kubeconfig {file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise LongboatError(f"the kubeconfig {file} is no mapping of keys to values")
    for kind, key in KINDS.items():
        entries = found.get(kind) or []
        if not isinstance(entries, list):
            raise LongboatError(f"the kubeconfig {file}: `{kind}` is no list")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise LongboatError(f"the kubeconfig {file}: `{kind}[{number}]` has no name")
            if not isinstance(entry.get(key) or {}, dict):
                raise LongboatError(f"the kubeconfig {file}: `{key}` of {entry['name']} in `{kind}` is no mapping")
    return found


def _entry(merged: Section, kind: str, key: str, name: str) -> Section:
    for entry in merged[kind]:
        if entry["name"] == name:
            return dict(entry.get(key) or {})
    known = ", ".join(entry["name"] for entry in merged[kind]) or "none"
    raise LongboatError(f"the kubeconfig has no {key} {name!r}", f"it has: {known}")


def _tls(cluster: Section, user: Section, place: str, user_place: str) -> ssl.SSLContext:
    authority, data = cluster.get("certificate-authority"), cluster.get("certificate-authority-data")
    try:
        if data:
            context = ssl.create_default_context(cadata=base64.b64decode(data).decode())
        else:
            context = ssl.create_default_context(cafile=os.path.join(place, authority) if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if user.get("client-certificate-data") or user.get("client-certificate"):
            _certify(context, user, user_place)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise LongboatError(f"the kubeconfig's certificates cannot be used: {error}") from None
    return context


def _certify(context: ssl.SSLContext, user: Section, place: str) -> None:
    """OpenSSL wants files; what stands in the kubeconfig itself is written to ones that only we can read."""
    files, made = [], []
    try:
        for key in ("client-certificate", "client-key"):
            if user.get(f"{key}-data"):
                with tempfile.NamedTemporaryFile(delete=False) as file:
                    file.write(base64.b64decode(user[f"{key}-data"]))
                made.append(file.name)
                files.append(file.name)
            else:
                files.append(os.path.join(place, str(user.get(key))))
        context.load_cert_chain(files[0], files[1])
    finally:
        for name in made:
            os.unlink(name)


class _Credentials:
    """The headers that prove who we are: a token, a token file, a password, or what a program says."""

    def __init__(self, user: Section, place: str, cluster: Section) -> None:
        self._user, self._place, self._cluster = user, place, cluster
        self._token = ""
        self._until = 0.0

    def __call__(self, renew: bool) -> Mapping[str, str]:
        user = self._user
        if user.get("exec"):
            if renew or not self._token or time.time() > self._until:
                self._ask(user["exec"])
            return {"Authorization": f"Bearer {self._token}"}
        if user.get("tokenFile"):
            path = os.path.join(self._place, str(user["tokenFile"]))
            try:
                with open(path, encoding="ascii") as file:
                    return {"Authorization": f"Bearer {file.read().strip()}"}
            except (OSError, ValueError) as error:
                raise LongboatError(f"the kubeconfig's tokenFile {path} cannot be read: {error}") from None
        if user.get("token"):
            return {"Authorization": f"Bearer {user['token']}"}
        if user.get("username"):
            word = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode()).decode()
            return {"Authorization": f"Basic {word}"}
        return {}

    def _ask(self, program: Section) -> None:
        """The credential plugin, as client.authentication.k8s.io describes it."""
        version = str(program.get("apiVersion"))
        spec: Section = {"interactive": False}
        if program.get("provideClusterInfo"):
            keys = ("server", "certificate-authority-data", "tls-server-name", "insecure-skip-tls-verify")
            spec["cluster"] = {key: self._cluster[key] for key in keys if key in self._cluster}
        told = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(told)}
        env |= {each["name"]: each["value"] for each in program.get("env") or ()}
        command = [str(program["command"]), *map(str, program.get("args") or ())]
        if "/" in command[0]:
            command[0] = os.path.join(self._place, command[0])
        try:
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
            status = json.loads(done.stdout)["status"]
        except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
            hint = str(program.get("installHint") or "try it by hand, or log in again")
            raise LongboatError(f"the kubeconfig's program {command[0]} gave no credentials: {error}", hint) from None
        self._token = str(status.get("token") or "")
        if not self._token:
            raise LongboatError(f"the program {command[0]} gave a certificate; only tokens are taken from programs")
        self._until = moment(status.get("expirationTimestamp")) - 10


def moment(text: object) -> float:
    """A time as Kubernetes writes it; one that cannot be read is in ten minutes."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time() + 600
