"""Files of a `code:` directory that belong to the job.

`.longboatignore` excludes files, in .gitignore syntax. Version control, caches and virtual environments are always
excluded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

IGNORE_FILE = ".longboatignore"
NEVER = {
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    ".venv",
    "venv",
    "node_modules",
    ".longboat",
    ".mypy_cache",
    ".ruff_cache",
}


def code_files(directory: str) -> Iterator[str]:
    """Paths of the files, relative, with `/`, sorted."""
    ignored = _ignored(directory)
    for folder, folders, names in os.walk(directory):
        inside = os.path.relpath(folder, directory).replace(os.sep, "/")
        prefix = "" if inside == "." else inside + "/"
        folders[:] = sorted(f for f in folders if f not in NEVER and not ignored(f"{prefix}{f}/"))
        for name in sorted(names):
            path = prefix + name
            if not name.endswith(".pyc") and os.path.isfile(os.path.join(folder, name)) and not ignored(path):
                yield path


class _Nothing:
    def __call__(self, path: str) -> bool:
        return False


class _Ignored:
    def __init__(self, text: str) -> None:
        from pathspec import GitIgnoreSpec

        self._spec = GitIgnoreSpec.from_lines(text.splitlines())

    def __call__(self, path: str) -> bool:
        return self._spec.match_file(path)


def _ignored(directory: str) -> _Ignored | _Nothing:
    try:
        with open(os.path.join(directory, IGNORE_FILE), encoding="utf-8") as file:
            return _Ignored(file.read())
    except FileNotFoundError:
        return _Nothing()
