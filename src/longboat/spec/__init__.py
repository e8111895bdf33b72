"""The job file: parsing, validation and the Plan made from it.

Validation is strict and complete: one pass reports all problems of a file, each with its position and fix. Nothing
here starts a process, uses the network or prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longboat.spec.loading import LoadedJob, find, load
from longboat.spec.problems import JobError, Problem

if TYPE_CHECKING:
    import os


def set_param(path: str | os.PathLike[str], name: str, text: str) -> int:
    """Change the value of a param in the job file. Returns in how many places the file uses it."""
    from longboat.spec.param_editing import change

    return change(path, name, text).count


__all__ = ["JobError", "LoadedJob", "Problem", "find", "load", "set_param"]
