"""Builds a job's image for `build` and `run --build`: the options and the plan that uses the image."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.runs import formatting

if TYPE_CHECKING:
    from longboat.images.build_request import BuildOptions
    from longboat.images.building import BuiltImage
    from longboat.runtime.plan import Plan


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the image")
    group.add_argument("-t", "--tag", metavar="REGISTRY/NAME:TAG", default="", help="name of the image")
    group.add_argument("--base", metavar="IMAGE", default="", help="base image: a name, or a file")
    group.add_argument(
        "--with",
        dest="tool",
        metavar="TOOL",
        choices=("docker", "podman", "buildah", "none"),
        default="",
        help="builder: docker, podman, buildah, or none for the built-in one (default)",
    )
    group.add_argument(
        "--platform", metavar="OS/ARCH", default="linux/amd64", help="platform of the image (linux/amd64)"
    )
    group.add_argument("--python", metavar="VERSION", default="", help="Python version of the base image (detected)")
    group.add_argument(
        "--insecure", action="store_true", help="allow a registry with plain HTTP or an untrusted certificate"
    )


def options_of(args: argparse.Namespace, output: str = "", push: bool | None = None) -> BuildOptions:
    from longboat.images.build_request import BuildOptions

    return BuildOptions(args.tag, args.base, args.tool, args.platform, args.python, args.insecure, output, push)


def built_plan(plan: Plan, args: argparse.Namespace, console: Console) -> Plan:
    """Builds and pushes the job's image; returns the plan that uses it."""
    from longboat.images import build_request, building

    order = build_request.order_of(plan, options_of(args), console.environ)
    built = building.build(order, console.home, console.environ, console.say)
    console.say(summary(built))
    return build_request.in_image(plan, built)


def summary(built: BuiltImage) -> str:
    if built.existed:
        return f"unchanged: {built.reference} already exists"
    return f"pushed {built.reference}" + (f" ({formatting.size(built.sent)} sent)" if built.by == "longboat" else "")
