"""The job file at the door: text in, a checked Job and its Plan out.

Reading is strict and total: whatever is wrong with a file is found in one go and shown with its
place and its fix. Nothing in here starts a process, talks to a network or prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longboat.spec.loading import LoadedJob, find, load
from longboat.spec.problems import JobError, Problem

if TYPE_CHECKING:
    import os


def set_param(path: str | os.PathLike[str], name: str, text: str) -> int:
    """Changes the value of a param in the job file; gives in how many places the file uses it."""
    from longboat.spec.param_editing import change

    return change(path, name, text).count


__all__ = ["JobError", "LoadedJob", "Problem", "find", "load", "set_param"]
