"""What is to be built, from what a job says and what its user wishes: on which base, under which name.

Pure, but for a look at whether the base is a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longboat.images.building import BuildOrder, BuiltImage
from longboat.images.image_name import ImageName, parse
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan

REGISTRY = "REGISTRY"
"""The param or variable that names a registry, with a path if it has one."""
USER = 1000
_BASE_HINT = "--base python:3.12-slim, or `base:` in the job file"


@dataclass(frozen=True)
class BuildOptions:
    """What a user may say beside the job file; what is empty is left to the job."""

    tag: str = ""
    base: str = ""
    tool: str = ""
    platform: str = "linux/amd64"
    python: str = ""
    insecure: bool = False
    output: str = ""
    push: bool | None = None


def order_of(plan: Plan, wish: BuildOptions, environ: Mapping[str, str]) -> BuildOrder:
    """LongboatError when job and wish leave something open."""
    base = wish.base or plan.base or plan.image
    if not base:
        raise LongboatError(f"{plan.name}: there is no base image to build on", _BASE_HINT)
    target = _target(plan, wish, environ)
    if target is not None and target.name == _name(base):
        raise LongboatError(f"{plan.name}: {base} would be built on itself", _BASE_HINT)
    push = wish.push
    if push is None:
        push = target is not None and (bool(wish.tag) or not wish.output)
    if target is None and (push or not wish.output):
        raise LongboatError(
            f"{plan.name}: the image has no name to push it under",
            f"-t REGISTRY/NAME:TAG, or `export {REGISTRY}=ghcr.io/me`, or write it to a file: -o image.tar",
        )
    user = USER if plan.security.user is None else plan.security.user
    return BuildOrder(
        job=plan.name,
        code=plan.code,
        base=base,
        requirements=plan.requirements,
        target=target,
        push=push,
        output=wish.output,
        platform=wish.platform,
        python=wish.python,
        user=user,
        group=user if plan.security.group is None else plan.security.group,
        tool=wish.tool,
        insecure=wish.insecure,
    )


def in_image(plan: Plan, built: BuiltImage) -> Plan:
    """The plan with an image that holds code and packages: pods need neither sent to them."""
    if any(role.image for stage in plan.stages for role in stage.roles):  # those with their own still need both
        return replace(plan, image=built.exact)
    return replace(plan, image=built.exact, code="", requirements=())


def _name(base: str) -> str:
    """Of an image in a registry; empty for a file."""
    return "" if os.path.exists(base) or base.startswith((".", "/", "~")) else parse(base).name


def _target(plan: Plan, wish: BuildOptions, environ: Mapping[str, str]) -> ImageName | None:
    if wish.tag:
        return parse(wish.tag)
    if (wish.base or plan.base) and plan.image and wish.base != plan.image:
        return replace(parse(plan.image), digest="")
    params = {param.name: param.value for param in plan.params}
    place = str(params.get(REGISTRY) or environ.get(REGISTRY) or "").rstrip("/")
    return parse(f"{place}/{plan.name}") if place else None
