"""The values of a job's secrets, from where its file says they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan


def values(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Name -> value. All that are missing are told at once."""
    found, missing = {}, []
    for secret in plan.secrets:
        variable = secret.ref if secret.source == "env" else secret.name
        if secret.source == "file":
            try:
                with open(os.path.expanduser(secret.ref), encoding="utf-8") as file:
                    found[secret.name] = file.read().rstrip("\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                missing.append(f"secret {secret.name}: cannot read {secret.ref}: {reason}")
        elif variable in environ:
            found[secret.name] = environ[variable]
        else:
            missing.append(f"secret {secret.name}: the environment variable {variable} is not set")
    if missing:
        raise LongboatError("\nerror: ".join(missing), "set them (export NAME=...) or change the job file's `secrets:`")
    return found


def taken_along(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Those that a run in a cluster takes along from this machine; those of the cluster are there already."""
    return values(replace(plan, secrets=tuple(s for s in plan.secrets if s.source != "cluster")), environ)
