"""Which cluster to use, and with which credentials: kubeconfig files, contexts, namespaces, plugins.

Follows kubectl: `--context` and `--namespace` override the file; $KUBECONFIG may name several files; without any file,
a pod uses its own service account.
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
    """The API server to use; LongboatError if none is configured."""
    files = [os.path.expanduser(path) for path in environ.get("KUBECONFIG", "").split(":") if path]
    if not files:
        files = [os.path.expanduser("~/.kube/config")]
        if not os.path.exists(files[0]) and os.path.exists(f"{api.ACCOUNT}/token"):
            pod_server = api.in_cluster()
            return _in_namespace(pod_server, namespace) if namespace else pod_server
    return _from_files(files, context, namespace)


def _from_files(files: list[str], context: str, namespace: str) -> ApiServer:
    merged, directories = _merged(files)
    name = context or merged["current-context"]
    if not name:
        raise LongboatError("the kubeconfig names no current context", "choose one with --context NAME")
    chosen = _entry(merged, "contexts", "context", name)
    cluster = _entry(merged, "clusters", "cluster", str(chosen.get("cluster")))
    user = _entry(merged, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    directory = directories.get(("clusters", str(chosen.get("cluster"))), ".")
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
        tls = _tls(cluster, user, directory, directories.get(("users", str(chosen.get("user"))), "."))
    port, through = given or (443 if tls else 80), str(cluster.get("proxy-url") or "")
    return ApiServer(
        url.hostname,
        port,
        tls,
        _Credentials(user, directories.get(("users", str(chosen.get("user"))), "."), cluster),
        url.path.rstrip("/"),
        namespace or str(chosen.get("namespace") or "default"),
        str(cluster.get("tls-server-name") or ""),
        http_proxy.way(through, url.hostname, port) if through else None,
    )


def _in_namespace(server: ApiServer, namespace: str) -> ApiServer:
    from longboat.runtime.light_dataclasses import replace

    return replace(server, namespace=namespace)


def _merged(files: list[str]) -> tuple[Section, dict[tuple[str, str], str]]:
    """All files merged, the first entry of a name wins; and the directory of each entry."""
    merged: Section = {"current-context": "", "contexts": [], "clusters": [], "users": []}
    directories: dict[tuple[str, str], str] = {}
    read = False
    for file in files:
        config = _read(file)
        if config is None:
            continue
        read = True
        merged["current-context"] = merged["current-context"] or str(config.get("current-context") or "")
        for kind in KINDS:
            for entry in config.get(kind) or ():
                if (kind, entry["name"]) not in directories:
                    directories[kind, entry["name"]] = os.path.dirname(os.path.abspath(file))
                    merged[kind].append(entry)
    if not read:
        raise LongboatError(
            f"there is no kubeconfig: {', '.join(files)}",
            "get one from whoever runs the cluster, then `export KUBECONFIG=FILE` (or put it at ~/.kube/config)",
        )
    return merged, directories


def _read(file: str) -> Section | None:
    """Reads and checks a kubeconfig; None if the file does not exist."""
    import yaml

    try:
        with open(file, encoding="utf-8") as opened:
            config = yaml.safe_load(opened) or {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LongboatError(f"the kubeconfig {file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise LongboatError(f"the kubeconfig {file} is no mapping of keys to values")
    for kind, key in KINDS.items():
        entries = config.get(kind) or []
        if not isinstance(entries, list):
            raise LongboatError(f"the kubeconfig {file}: `{kind}` is no list")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise LongboatError(f"the kubeconfig {file}: `{kind}[{number}]` has no name")
            if not isinstance(entry.get(key) or {}, dict):
                raise LongboatError(f"the kubeconfig {file}: `{key}` of {entry['name']} in `{kind}` is no mapping")
    return config


def _entry(merged: Section, kind: str, key: str, name: str) -> Section:
    for entry in merged[kind]:
        if entry["name"] == name:
            return dict(entry.get(key) or {})
    known = ", ".join(entry["name"] for entry in merged[kind]) or "none"
    raise LongboatError(f"the kubeconfig has no {key} {name!r}", f"it has: {known}")


def _tls(cluster: Section, user: Section, directory: str, user_directory: str) -> ssl.SSLContext:
    authority, data = cluster.get("certificate-authority"), cluster.get("certificate-authority-data")
    try:
        if data:
            context = ssl.create_default_context(cadata=base64.b64decode(data).decode())
        else:
            context = ssl.create_default_context(cafile=os.path.join(directory, authority) if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if user.get("client-certificate-data") or user.get("client-certificate"):
            _certify(context, user, user_directory)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise LongboatError(f"the kubeconfig's certificates cannot be used: {error}") from None
    return context


def _certify(context: ssl.SSLContext, user: Section, directory: str) -> None:
    """Loads the client certificate. OpenSSL needs files, so embedded data goes to private temporary files."""
    files, made = [], []
    try:
        for key in ("client-certificate", "client-key"):
            if user.get(f"{key}-data"):
                with tempfile.NamedTemporaryFile(delete=False) as file:
                    file.write(base64.b64decode(user[f"{key}-data"]))
                made.append(file.name)
                files.append(file.name)
            else:
                files.append(os.path.join(directory, str(user.get(key))))
        context.load_cert_chain(files[0], files[1])
    finally:
        for name in made:
            os.unlink(name)


class _Credentials:
    """Authentication headers: from a token, a token file, a password, or a credential plugin."""

    def __init__(self, user: Section, directory: str, cluster: Section) -> None:
        self._user, self._directory, self._cluster = user, directory, cluster
        self._token = ""
        self._until = 0.0

    def __call__(self, renew: bool) -> Mapping[str, str]:
        user = self._user
        if user.get("exec"):
            if renew or not self._token or time.time() > self._until:
                self._ask(user["exec"])
            return {"Authorization": f"Bearer {self._token}"}
        if user.get("tokenFile"):
            path = os.path.join(self._directory, str(user["tokenFile"]))
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
        """Runs the credential plugin, as client.authentication.k8s.io specifies."""
        version = str(program.get("apiVersion"))
        spec: Section = {"interactive": False}
        if program.get("provideClusterInfo"):
            keys = ("server", "certificate-authority-data", "tls-server-name", "insecure-skip-tls-verify")
            spec["cluster"] = {key: self._cluster[key] for key in keys if key in self._cluster}
        request = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(request)}
        env |= {each["name"]: each["value"] for each in program.get("env") or ()}
        command = [str(program["command"]), *map(str, program.get("args") or ())]
        if "/" in command[0]:
            command[0] = os.path.join(self._directory, command[0])
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
    """A Kubernetes timestamp in seconds; ten minutes from now if it cannot be parsed."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time() + 600
