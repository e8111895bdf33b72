"""Serve models over REST and gRPC, with a web page to try each.

Use it to try or to deploy a model. The server speaks TensorFlow Serving's REST and gRPC and the Open Inference Protocol
v2. MODEL is a model's directory (numbered versions in it), one version, or a directory of models. A run's id or a job's
name means the models that the run saved. NAME=MODEL gives the model another name. Keras files (.keras, .h5) and
TensorFlow SavedModels need TensorFlow.

  longboat serve models/mnist
  longboat serve imdb --port 0
  longboat serve small=models/a large=models/b --workers 2
  curl -d '{"instances": [[...]]}' http://127.0.0.1:8501/v1/models/mnist:predict

A new version in a model's directory replaces the old one as soon as it is complete and loaded; the old one finishes its
requests. A broken version is refused, and /v1/models/NAME shows why. Requests that arrive together are computed
together; when the queue is full, the answer is 429 (RESOURCE_EXHAUSTED). After SIGTERM or Ctrl-C the server finishes
running requests, then exits; with --linger, for load balancers, it first reports not ready at /readyz and accepts
requests for that long.

Only this machine can reach the server unless you set --host. With --token, or the variable LONGBOAT_SERVE_TOKEN,
clients must send `Authorization: Bearer TOKEN`. Metrics are at /metrics. With -v, or LONGBOAT_LOG=debug (info, warning,
error), the server logs to stderr what it loads, computes and refuses.

Needs the packages of longboat[serve].
"""

from __future__ import annotations

import argparse
import ipaddress
from typing import TYPE_CHECKING

from longboat import host
from longboat.cli.console import Console
from longboat.install_hint import install_command
from longboat.runs.store import Store
from longboat.runtime import debug_log
from longboat.runtime.errors import PACKAGES_MISSING, LongboatError
from longboat.runtime.rank_env import bracketed

if TYPE_CHECKING:
    from longboat.serve.settings import ServerSettings
    from longboat.serve.worker_processes import ServerReady


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="+", metavar="[NAME=]MODEL|RUN", help="models or runs to serve")
    add("--name", default="", metavar="NAME", help="name of the model for clients (the directory's name)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1); :: for all")
    add(
        "--port",
        type=int,
        default=8501,
        metavar="N",
        help="port for REST, v2, pages and metrics (8501); 0: any free port",
    )
    add("--grpc-port", type=int, default=8500, metavar="N", help="port for gRPC (8500); 0: any free port")
    add("--no-grpc", action="store_true", help="turn gRPC off")
    add("--version", default="latest", metavar="WHICH", help="versions to serve: latest, all, or a number (latest)")
    add("--workers", type=int, default=1, metavar="N", help="processes on the same port (1)")
    add("--threads", type=int, default=0, metavar="N", help="threads per model (default: by its size)")
    add("--max-batch", type=int, default=64, metavar="ROWS", help="most rows computed at once (64)")
    add(
        "--batch-wait",
        type=float,
        default=0,
        metavar="MS",
        help="milliseconds to wait for more requests before computing (0)",
    )
    add(
        "--latency",
        type=float,
        default=0,
        metavar="MS",
        help="refuse requests that would take more milliseconds (no limit)",
    )
    add("--queue", type=int, default=1024, metavar="ROWS", help="most rows that may wait; more get 429 (1024)")
    add("--timeout", type=float, default=60, metavar="S", help="seconds for a request to arrive or to wait (60)")
    add("--max-body", type=_size, default=64 << 20, metavar="SIZE", help="largest request (64M)")
    add("--token", default="", metavar="TOKEN", help="token that clients must send (visible in ps)")
    add("--token-file", default="", metavar="FILE", help="file with the token")
    add("--tls-cert", default="", metavar="FILE", help="certificate chain (PEM), to serve over TLS")
    add("--tls-key", default="", metavar="FILE", help="private key (PEM)")
    add(
        "--linger",
        type=float,
        default=0,
        metavar="S",
        help="seconds to accept requests after SIGTERM, not ready (0)",
    )
    add("-v", "--verbose", action="store_true", help="log to stderr, as with LONGBOAT_LOG=debug")
    add("--drain", type=float, default=30, metavar="S", help="seconds to finish running requests when stopped (30)")


def main(args: argparse.Namespace, console: Console) -> int:
    _check(args)
    debug_log.begin(debug_log.level_of(console.environ), "server")
    settings = _settings(args, console)
    from longboat.serve import worker_processes

    if not _loopback(settings.host) and not settings.token:
        console.say(f"warning: no token: everybody who can reach {settings.host} can use the models (set --token)")
    return worker_processes.serve(settings, lambda ready: _ready(ready, settings, console), console.say)


def _check(args: argparse.Namespace) -> None:
    for option, low, high in (
        ("port", 0, 65535), ("grpc_port", 0, 65535), ("workers", 1, 256), ("threads", 0, 1024), ("queue", 1, 1 << 30),
        ("max_batch", 1, 1 << 20), ("batch_wait", 0, 60000), ("latency", 0, 600000), ("timeout", 0.1, 86400),
        ("drain", 0, 86400), ("linger", 0, 86400),
    ):  # fmt: skip
        value = getattr(args, option)
        if not low <= value <= high:
            raise LongboatError(f"--{option.replace('_', '-')} {value}: must be a number from {low} to {high}")
    if args.version not in ("latest", "all") and not args.version.isdecimal():
        raise LongboatError(f"--version {args.version}: must be latest, all, or the number of a version")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise LongboatError("--tls-cert and --tls-key must be given together")
    lacking = host.lacking((*host.SERVING, *(() if args.no_grpc else host.SERVING_GRPC)))
    if lacking:
        raise LongboatError(
            f"the server needs packages that are not installed: {', '.join(lacking)}",
            f"install them: {install_command('serve')}",
            PACKAGES_MISSING,
        )


def _settings(args: argparse.Namespace, console: Console) -> ServerSettings:
    from longboat.runtime.light_dataclasses import replace
    from longboat.serve import model_sources
    from longboat.serve.batching import BatchLimits
    from longboat.serve.http_server import HttpLimits
    from longboat.serve.settings import ServerSettings

    sources = model_sources.find(args.models, args.name, Store(console.home))
    if args.version.isdecimal():
        sources = [replace(source, only=int(args.version)) for source in sources]
    return ServerSettings(
        tuple(sources),
        args.host,
        args.port,
        -1 if args.no_grpc else args.grpc_port,
        args.version if args.version == "all" else "latest",
        args.workers,
        args.threads,
        _token(args, console),
        args.tls_cert,
        args.tls_key,
        args.drain,
        BatchLimits(args.max_batch, args.batch_wait / 1000, args.queue, args.latency / 1000, args.timeout),
        HttpLimits(body=args.max_body, request=args.timeout),
        args.linger,
    )


def _token(args: argparse.Namespace, console: Console) -> str:
    token = args.token or console.environ.get("LONGBOAT_SERVE_TOKEN", "")
    if args.token_file:
        try:
            with open(args.token_file, encoding="utf-8") as file:
                token = file.read().strip()
        except (OSError, UnicodeError) as error:
            raise LongboatError(f"--token-file {args.token_file}: {error}") from None
        if not token:
            raise LongboatError(f"--token-file {args.token_file} is empty", "write the token into it, on one line")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise LongboatError("the token must be printable ASCII characters without spaces")
    return token


def _ready(ready: ServerReady, settings: ServerSettings, console: Console) -> None:
    from longboat.serve import ready_announcement

    scheme = "https" if settings.tls_cert else "http"
    host = settings.host if settings.host not in ("0.0.0.0", "::", "") else "127.0.0.1"
    host = bracketed(host)
    url = f"{scheme}://{host}:{ready.port}"
    grpc = f", gRPC {host}:{ready.grpc_port}" if settings.grpc_port >= 0 else ""
    console.print(f"ready: {url}{grpc}: {'; '.join(ready.models)}")
    console.out.flush()
    name = settings.sources[0].name
    if ready_announcement.in_a_run(console.environ):
        grpc = grpc.rpartition(" ")[2]
        ready_announcement.announce(url, grpc, name, settings.sources[0].directory, console.environ, settings.token)
    if console.environ.get("LONGBOAT_STAGE"):  # readers of its log cannot reach that address
        return
    console.next(
        f"longboat predict {url}/v1/models/{name}",
        f"longboat bench {url}/v1/models/{name} -d DATA",
        f"open {url}/models/{name} in a browser",
        "Ctrl-C stops the server after its running requests",
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _size(text: str) -> int:
    """Bytes, from 500, 64K, 64M or 2G."""
    unit = {"k": 10, "m": 20, "g": 30}.get(text[-1:].lower(), 0)
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use 500K or 64M")
    return int(digits) << unit
