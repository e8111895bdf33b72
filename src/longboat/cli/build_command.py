"""Build an image with a job's code and packages, and push it.

Use it when a cluster should run your code from an image. The image holds the code tree and the `requirements:` on top
of a base image, and runs as an ordinary user. Docker is not needed: Longboat writes the image itself, the same bytes
for the same input, and uploads what the registry lacks. If a package has to be compiled because it has no wheel,
docker, podman or buildah builds the image, whichever is installed.

    longboat build -t ghcr.io/me/train:1 --base python:3.12-slim
    longboat build -o image.tar              (no registry: a file for `ctr images import`, `docker load`, kind)
    longboat run --build --on kubernetes     (builds, pushes and runs it)

The base is --base, else `base:` of the job file, else its `image:`. The name is -t; else `image:`, if the job file has
a `base:`; else NAME in the registry of the param or variable REGISTRY, with a tag made from its contents. An image of
the same input is not built again. Logins are those of `docker login` and `podman login`.
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
        "--push", action=argparse.BooleanOptionalAction, help="push the image (default, unless only -o is given)"
    )
    parser.add_argument("-o", "--output", metavar="PATH", default="", help="write the image to this file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.images import build_request
    from longboat.images import building as images

    plan = load_job(args, console).plan()
    order = build_request.order_of(plan, image_building.options_of(args, args.output, args.push), console.environ)
    built = images.build(order, console.home, console.environ, console.say)
    if args.json:
        document = {
            "image": str(built.reference),
            "digest": built.digest,
            "key": built.key,
            "built_by": built.by or None,
            "pushed": built.pushed,
            "sent_bytes": built.sent,
        }
        console.print_json(document)
    else:
        console.print(built.exact if built.pushed else str(built.reference))
    commands = []
    if built.pushed:
        console.say(image_building.summary(built))
        commands = [f"longboat run{file_words(args)} --build --on kubernetes", "longboat rm --images"]
    elif order.output:
        commands = [f"kind load image-archive {order.output}", f"ctr -n k8s.io images import {order.output}"]
    if commands and not args.json:
        console.next(*commands)
    return OK
