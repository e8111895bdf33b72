"""Building a job's image, for `build` and for `run --build`: the arguments, and what they mean for a job."""

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
    group.add_argument("-t", "--tag", metavar="REGISTRY/NAME:TAG", default="", help="what the image is called")
    group.add_argument("--base", metavar="IMAGE", default="", help="the image below: a name, or a file")
    group.add_argument(
        "--with",
        dest="tool",
        metavar="TOOL",
        choices=("docker", "podman", "buildah", "none"),
        default="",
        help="who builds: docker, podman, buildah or none (none, where that can do it)",
    )
    group.add_argument("--platform", metavar="OS/ARCH", default="linux/amd64", help="what it is for (linux/amd64)")
    group.add_argument("--python", metavar="VERSION", default="", help="of the base image (looked up in it)")
    group.add_argument(
        "--insecure", action="store_true", help="a registry with plain http, or a certificate nobody vouches for"
    )


def wish_of(args: argparse.Namespace, output: str = "", push: bool | None = None) -> BuildOptions:
    from longboat.images.build_request import BuildOptions

    return BuildOptions(args.tag, args.base, args.tool, args.platform, args.python, args.insecure, output, push)


def built_plan(plan: Plan, args: argparse.Namespace, console: Console) -> Plan:
    """The plan with an image of its own, built and pushed."""
    from longboat.images import build_request, building

    order = build_request.order_of(plan, wish_of(args), console.environ)
    built = building.build(order, console.home, console.environ, console.say)
    console.say(told(built))
    return build_request.in_image(plan, built)


def told(built: BuiltImage) -> str:
    if built.existed:
        return f"unchanged: {built.reference} is there already"
    return f"pushed {built.reference}" + (f" ({formatting.size(built.sent)} sent)" if built.by == "longboat" else "")
