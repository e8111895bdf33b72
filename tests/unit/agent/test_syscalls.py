"""The system calls that Python lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from longboat.runtime.agent import syscalls

pytestmark = pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning")
"""Another test may have brought JAX's threads into this process; the forks here run none of it."""


def test_a_tree_of_processes_is_seen_from_its_root() -> None:
    script = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.fork()
        time.sleep(600)
print(flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        root.stdout.readline()
        try:
            while len(found := syscalls.descendants(root.pid)) < 4:
                pass
            assert len(set(found)) == 4
            assert root.pid not in found
            assert root.pid in syscalls.descendants(os.getpid())
        finally:
            syscalls.signal_all([root.pid, *syscalls.descendants(root.pid)], signal.SIGKILL)


def test_below_finds_all_of_a_tree_and_nothing_beside_it() -> None:
    tree = {1: [2, 3], 2: [4], 4: [5], 9: [10]}
    assert sorted(syscalls.below(tree, 1)) == [2, 3, 4, 5]
    assert syscalls.below(tree, 5) == []


def test_a_process_with_spaces_and_brackets_in_its_name_is_read_right() -> None:
    script = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') 1 2 (x', 0, 0, 0);print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            assert child.pid in syscalls.process_tree()[os.getpid()]
        finally:
            child.kill()


def test_signals_to_processes_that_are_gone_are_harmless() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    syscalls.signal_all([child.pid], signal.SIGKILL)


def test_whose_parent_is_gone_already_does_not_live_on() -> None:
    pid = os.fork()
    if pid == 0:
        syscalls.die_with_parent(1)  # pid 1 is not our parent: the real one must have gone
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_outside_of_a_box_a_process_has_one_number() -> None:
    assert syscalls.outside_pid() == os.getpid()
    assert syscalls.outside_pid_of(1234) == 1234


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a PID namespace without a user namespace")
def test_from_within_a_box_the_outside_number_is_found() -> None:
    script = """
import os
from longboat.runtime.agent import syscalls
from longboat.engines.local import containment
syscalls.outer_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
containment.unshare()
first = os.fork()
if first == 0:
    hold, release = os.pipe()
    second = os.fork()
    if second == 0:
        os.read(hold, 1)
        os._exit(0)
    print(os.getpid(), syscalls.outside_pid(), second, syscalls.outside_pid_of(second), flush=True)
    os.write(release, b"x")
    os.wait()
    os._exit(0)
os.waitpid(first, 0)
print(first, flush=True)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    one, one_outside, two, two_outside, seen_outside = (int(word) for word in out.split())
    assert (one, two) == (1, 2)
    assert one_outside == seen_outside
    assert two_outside > one_outside


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")])
def test_sizes_are_written_for_a_person(count: int, text: str) -> None:
    assert syscalls.size(count) == text
