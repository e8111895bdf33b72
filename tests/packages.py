"""The wheel of this checkout, built once for all tests of a session, and environments to install it into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = (sys.executable, "-m", "uv")


def build_wheel(directory: Path) -> Path:
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = run([sys.executable, "-c", build, str(directory)], os.environ, ROOT)
    return directory / done.split()[-1]


def environment(place: Path) -> dict[str, str]:
    """Versions from the lock, uv on PATH, and tools of uv below `place`: commands run as a user types them."""
    constraints = place / "constraints.txt"
    lock = (ROOT / "requirements/dev.txt").read_text()
    constraints.write_text("".join(f"{pin}\n" for pin in re.findall(r"^([\w.-]+==[^\\\n]*?) *\\$", lock, re.MULTILINE)))
    programs = os.path.dirname(sys.executable)
    (place / "programs").mkdir()
    (place / "programs/uv").symlink_to(os.path.join(programs, "uv"))
    removed = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON", "PIP_REQUIRE_VIRTUALENV")
    return {
        **{name: value for name, value in os.environ.items() if name not in removed},
        "PATH": f"{place / 'programs'}:{os.environ['PATH'].replace(programs + ':', '')}",
        "PIP_CONSTRAINT": str(constraints),
        "UV_CONSTRAINT": str(constraints),
        "UV_TOOL_DIR": str(place / "tools"),
        "UV_TOOL_BIN_DIR": str(place / "bin"),
    }


def run(command: list[str] | str, env: dict[str, str] | os._Environ[str], cwd: Path) -> str:
    """Its stdout; a command that fails fails the test with all that it printed."""
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout
