"""Fails when two modules of the package define a public class of the same name: one name, one meaning.

Functions are exempt, because they are called through their module. So are generated files and `rank_path`, which
stands in for other packages' modules. Another tree: unique_names.py DIRECTORY
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
EXEMPT = ("runtime/rank_path/", "serve/protos/")


def repeated(package: Path) -> dict[str, list[str]]:
    """Public classes that are defined more than once, each with `file:line` of every definition."""
    places: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(EXEMPT):
            text = path.read_text(encoding="utf-8")
            for match in CLASS.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                places.setdefault(match[1], []).append(f"{path}:{line}")
    return {name: each for name, each in places.items() if len(each) > 1}


def main() -> int:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src/longboat"
    if not package.is_dir():
        sys.stderr.write(f"error: {package} is not a directory\n")
        return 2
    names = repeated(package)
    for name, places in names.items():
        sys.stderr.write(f"error: class {name} is defined {len(places)} times: {', '.join(places)}\n")
    if names:
        sys.stderr.write("\nhint: give each class a name that says what it is in its package\n")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
