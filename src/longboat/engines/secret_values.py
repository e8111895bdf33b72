"""Reads the values of a job's secrets from the environment and files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Plan


def values(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Name -> value. Raises one error for all missing secrets."""
    known, missing = {}, []
    for secret in plan.secrets:
        variable = secret.ref if secret.source == "env" else secret.name
        if secret.source == "file":
            try:
                with open(os.path.expanduser(secret.ref), encoding="utf-8") as file:
                    known[secret.name] = file.read().rstrip("\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                missing.append(f"secret {secret.name}: cannot read {secret.ref}: {reason}")
        elif variable in environ:
            known[secret.name] = environ[variable]
        else:
            missing.append(f"secret {secret.name}: the environment variable {variable} is not set")
    if missing:
        raise LongboatError("\nerror: ".join(missing), "set them (export NAME=...) or change the job file's `secrets:`")
    return known


def taken_along(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Values that a cluster run takes from this machine; the cluster's own secrets are not read."""
    return values(replace(plan, secrets=tuple(s for s in plan.secrets if s.source != "cluster")), environ)
