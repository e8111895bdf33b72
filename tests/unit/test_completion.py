from __future__ import annotations

import shutil
import subprocess

import pytest

from longboat.cli.main import COMMANDS
from tests.commands import Longboat


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_knows_every_command(shell: str, longboat: Longboat) -> None:
    said = longboat("completion", shell)
    assert said.code == 0
    assert [name for name in COMMANDS if name not in said.out] == []


def test_bash_accepts_the_script_and_completes_a_command_from_it(longboat: Longboat) -> None:
    script = longboat("completion", "bash").out
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n"], input=script, text=True, check=True)
    ask = '\nCOMP_WORDS=(longboat doc); COMP_CWORD=1; _shtab_longboat; echo "${COMPREPLY[*]}"'
    done = subprocess.run([bash], input=script + ask, text=True, check=True, capture_output=True)
    assert done.stdout.split() == ["doctor"]


def test_a_shell_that_is_not_known_is_wrong_use(longboat: Longboat) -> None:
    said = longboat("completion", "cmd.exe")
    assert said.code == 2
    assert "'bash', 'zsh', 'fish'" in said.err
