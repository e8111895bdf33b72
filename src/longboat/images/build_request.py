"""Turns a plan and the user's options into a build order: base image, name, platform.

Pure, except for a check whether the base is a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from longboat.images.building import BuildOrder, BuiltImage
from longboat.images.image_name import ImageName, parse
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.plan import Plan

REGISTRY = "REGISTRY"
"""Param or environment variable with the registry and optional path."""
USER = 1000
_BASE_HINT = "use --base python:3.12-slim, or set `base:` in the job file"


@dataclass(frozen=True)
class BuildOptions:
    """Options of the command line; empty ones are left to the job file."""

    tag: str = ""
    base: str = ""
    tool: str = ""
    platform: str = "linux/amd64"
    python: str = ""
    insecure: bool = False
    output: str = ""
    push: bool | None = None


def order_of(plan: Plan, options: BuildOptions, environ: Mapping[str, str]) -> BuildOrder:
    """The build order. LongboatError if base image or name are missing."""
    base = options.base or plan.base or plan.image
    if not base:
        raise LongboatError(f"{plan.name}: no base image", _BASE_HINT)
    target = _target(plan, options, environ)
    if target is not None and target.name == _name(base):
        raise LongboatError(f"{plan.name}: base image and target are both {base}", _BASE_HINT)
    push = options.push
    if push is None:
        push = target is not None and (bool(options.tag) or not options.output)
    if target is None and (push or not options.output):
        raise LongboatError(
            f"{plan.name}: no name to push the image to",
            f"use -t REGISTRY/NAME:TAG, or `export {REGISTRY}=ghcr.io/me`, or write it to a file: -o image.tar",
        )
    user = USER if plan.security.user is None else plan.security.user
    return BuildOrder(
        job=plan.name,
        code=plan.code,
        base=base,
        requirements=plan.requirements,
        target=target,
        push=push,
        output=options.output,
        platform=options.platform,
        python=options.python,
        user=user,
        group=user if plan.security.group is None else plan.security.group,
        tool=options.tool,
        insecure=options.insecure,
    )


def in_image(plan: Plan, built: BuiltImage) -> Plan:
    """The plan with the built image, which holds code and packages: pods need no upload of either."""
    if any(role.image for stage in plan.stages for role in stage.roles):  # roles with another image still need both
        return replace(plan, image=built.exact)
    return replace(plan, image=built.exact, code="", requirements=())


def _name(base: str) -> str:
    """Name of an image in a registry; "" for a file."""
    return "" if os.path.exists(base) or base.startswith((".", "/", "~")) else parse(base).name


def _target(plan: Plan, options: BuildOptions, environ: Mapping[str, str]) -> ImageName | None:
    if options.tag:
        return parse(options.tag)
    if (options.base or plan.base) and plan.image and options.base != plan.image:
        return replace(parse(plan.image), digest="")
    params = {param.name: param.value for param in plan.params}
    registry = str(params.get(REGISTRY) or environ.get(REGISTRY) or "").rstrip("/")
    return parse(f"{registry}/{plan.name}") if registry else None
