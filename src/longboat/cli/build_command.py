"""Builds an image with a job's code and packages, and pushes it.

The image holds the code tree and the `requirements:` on top of a base image, and runs as an
ordinary user. No docker is needed: Longboat writes the image itself, the same bytes for the same
input, and sends the registry what it does not have. Where that cannot be done (a package without
a wheel has to be compiled) docker, podman or buildah builds it, whichever is there.

    longboat build -t ghcr.io/me/train:1 --base python:3.12-slim
    longboat build -o image.tar              (no registry: a file for `ctr images import`, `docker load`, kind)
    longboat run --build --on kubernetes     (builds, pushes and runs it)

The base is --base, `base:` of the job file, or its `image:`. The name is -t; else `image:`, where
`base:` says what is below it; else NAME in the registry that the param or variable REGISTRY names,
with a tag made of what is in it. An image that was built from the same input is not built again.
The login is that of `docker login` or `podman login`.
"""

from __future__ import annotations

import argparse

from longboat.cli import image_building
from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words, load_job
from longboat.runtime.errors import OK


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    parser.set_defaults(on="kubernetes")
    image_building.add_build_arguments(parser)
    parser.add_argument(
        "--push", action=argparse.BooleanOptionalAction, help="push it (the default, unless there is only -o)"
    )
    parser.add_argument("-o", "--output", metavar="PATH", default="", help="write the image to this file")
    parser.add_argument("--json", action="store_true", help="what was built, as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.images import build_request
    from longboat.images import building as images

    plan = load_job(args, console).plan()
    order = build_request.order_of(plan, image_building.wish_of(args, args.output, args.push), console.environ)
    built = images.build(order, console.home, console.environ, console.say)
    if args.json:
        told = {
            "image": str(built.reference),
            "digest": built.digest,
            "key": built.key,
            "built_by": built.by or None,
            "pushed": built.pushed,
            "sent_bytes": built.sent,
        }
        console.print_json(told)
    else:
        console.print(built.exact if built.pushed else str(built.reference))
    commands = []
    if built.pushed:
        console.say(image_building.told(built))
        commands = [f"longboat run{file_words(args)} --build --on kubernetes", "longboat rm --images"]
    elif order.output:
        commands = [f"kind load image-archive {order.output}", f"ctr -n k8s.io images import {order.output}"]
    if commands and not args.json:
        console.next(*commands)
    return OK
