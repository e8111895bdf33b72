"""Building a job's image, for `build` and for `run --build`: the arguments, and what they mean for a job."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from windlass.cli.world import World
from windlass.errors import WindlassError

if TYPE_CHECKING:
    from windlass.images.building import Built, Order
    from windlass.images.reference import Reference
    from windlass.plan import Plan

REGISTRY = "REGISTRY"
"""The param or variable that names a registry, with a path if it has one."""


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


def order_of(plan: Plan, args: argparse.Namespace, world: World, output: str = "", push: bool | None = None) -> Order:
    """What is to be built; WindlassError when the job and the arguments leave it open."""
    from windlass.images.building import Order

    base = args.base or plan.base or plan.image
    if not base:
        raise WindlassError(
            f"{plan.name}: there is no base image to build on", "--base python:3.12-slim, or `base:` in the job file"
        )
    target = _target(plan, args, world, below=bool(args.base or plan.base))
    if target is not None and target.name == _name(base):
        raise WindlassError(
            f"{plan.name}: {base} would be built on itself", "--base python:3.12-slim, or `base:` in the job file"
        )
    if push is None:
        push = target is not None and (bool(args.tag) or not output)
    if push and target is None or not push and not output and target is None:
        raise WindlassError(
            f"{plan.name}: the image has no name to push it under",
            f"-t REGISTRY/NAME:TAG, or `export {REGISTRY}=ghcr.io/me`, or write it to a file: -o image.tar",
        )
    user = 1000 if plan.security.user is None else plan.security.user
    return Order(
        job=plan.name,
        code=plan.code,
        base=base,
        requirements=plan.requirements,
        target=target,
        push=push,
        output=output,
        platform=args.platform,
        python=args.python,
        user=user,
        group=user if plan.security.group is None else plan.security.group,
        tool=args.tool,
        insecure=args.insecure,
    )


def _name(base: str) -> str:
    """Of an image in a registry; empty for a file."""
    import os

    from windlass.images.reference import parse

    return "" if os.path.exists(base) or base.startswith((".", "/", "~")) else parse(base).name


def _target(plan: Plan, args: argparse.Namespace, world: World, below: bool) -> Reference | None:
    from windlass.images.reference import parse

    if args.tag:
        return parse(args.tag)
    if below and plan.image and args.base != plan.image:
        return replace(parse(plan.image), digest="")
    params = {param.name: param.value for param in plan.params}
    place = str(params.get(REGISTRY) or world.environ.get(REGISTRY) or "").rstrip("/")
    return parse(f"{place}/{plan.name}") if place else None


def built_plan(plan: Plan, args: argparse.Namespace, world: World) -> Plan:
    """The plan with an image that holds code and packages, built and pushed; pods need neither sent to them."""
    from windlass.images import building

    built = building.build(order_of(plan, args, world), world.home, world.environ, world.say)
    world.say(told(built))
    own = any(role.image for stage in plan.stages for role in stage.roles)
    if own:  # roles with images of their own still need both
        return replace(plan, image=built.exact)
    return replace(plan, image=built.exact, code="", requirements=())


def told(built: Built) -> str:
    if built.by == "nobody":
        return f"unchanged: {built.reference} is there already"
    return f"pushed {built.reference}" + (f" ({built.sent / 1e6:.1f} MB sent)" if built.by == "windlass" else "")
