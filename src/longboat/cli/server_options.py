"""The options of the commands that ask a model server: how to reach it and prove who asks."""

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
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, default="", help="what the server speaks (found out if not given)"
    )
    parser.add_argument("-m", "--model", default="", metavar="NAME", help="the model's name, if the address has none")
    parser.add_argument("--model-version", default="", metavar="N", help="a version of it (the server's choice)")
    parser.add_argument("--signature", default="", metavar="NAME", help="a TensorFlow model's signature")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="how long to wait (30)")
    parser.add_argument("--token-file", default="", metavar="FILE", help=f"a file with the token (else ${VARIABLE})")
    parser.add_argument("--tls", action="store_true", help="encrypt, where the address does not say so")
    parser.add_argument("--ca", default="", metavar="FILE", help="certificates to trust instead of the system's")


def settle(address: str, args: argparse.Namespace, environ: Mapping[str, str]) -> Target:
    """The target that the address and the options mean."""
    import dataclasses

    from longboat.serve.client import target

    if args.timeout <= 0:
        raise LongboatError(f"--timeout {args.timeout:g}: seconds, more than 0")
    found = target.parse(address, args.protocol)
    found = found.but(model=args.model, version=args.model_version, token=_token(args, environ), ca=args.ca)
    return dataclasses.replace(found, tls=True) if args.tls else found


def _token(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    if not args.token_file:
        token = environ.get(VARIABLE, "")
    else:
        try:
            token = Path(args.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise LongboatError(f"{args.token_file} cannot be read: {error.strerror}") from None
    if not token.isprintable() or not token.isascii() or " " in token:
        raise LongboatError("the token has characters that no request can carry", "is it the right file?")
    return token
