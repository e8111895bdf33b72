"""Options of the commands that call a model server: address, protocol and authentication."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.runtime.errors import LongboatError

if TYPE_CHECKING:
    from longboat.serve.client.target import Target

PROTOCOLS = ("rest", "grpc", "v2")
"""TensorFlow Serving's REST and gRPC, and the Open Inference Protocol over HTTP."""

VARIABLE = "LONGBOAT_SERVE_TOKEN"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--protocol", choices=PROTOCOLS, default="", help="protocol of the server (default: detected)")
    parser.add_argument("-m", "--model", default="", metavar="NAME", help="name of the model, if the address has none")
    parser.add_argument(
        "--model-version", default="", metavar="N", help="version of the model (default: the server's choice)"
    )
    parser.add_argument("--signature", default="", metavar="NAME", help="signature of a TensorFlow model")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="time to wait for an answer (30)"
    )
    parser.add_argument("--token-file", default="", metavar="FILE", help=f"file with the token (default: ${VARIABLE})")
    parser.add_argument("--tls", action="store_true", help="use TLS, if the address does not say so")
    parser.add_argument("--ca", default="", metavar="FILE", help="CA certificates to trust instead of the system's")


def settle(address: str, args: argparse.Namespace, environ: Mapping[str, str]) -> Target:
    """The server and model that the address and the options name."""
    from longboat.runtime.light_dataclasses import replace
    from longboat.serve.client import target

    if args.timeout <= 0:
        raise LongboatError(f"--timeout {args.timeout:g}: must be more than 0 seconds")
    server = target.parse(address, args.protocol)
    server = server.but(model=args.model, version=args.model_version, token=_token(args, environ), ca=args.ca)
    return replace(server, tls=True) if args.tls else server


def _token(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    if not args.token_file:
        token = environ.get(VARIABLE, "")
    else:
        try:
            token = Path(args.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise LongboatError(f"cannot read {args.token_file}: {error.strerror}") from None
    if not token.isprintable() or not token.isascii() or " " in token:
        raise LongboatError(
            "the token has characters that an HTTP header cannot carry", "check that it is the right file"
        )
    return token
