"""A machine without room for another cluster says so before anything is started."""

import ctypes
import errno
import os

import pytest

from tests.cluster import machine
from tests.cluster.errors import ClusterError


@pytest.fixture
def no_instances_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernel gave no more: its own limit belongs to all who use the machine."""

    class Libc:
        def inotify_init1(self, flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc())


def test_looking_for_room_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_INOTIFY_INSTANCES", 2)  # others may need the rest at this moment
    before = set(os.listdir("/proc/self/fd"))
    machine.check_room()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("no_instances_left")
def test_too_few_inotify_instances_are_named_with_the_setting_that_raises_them() -> None:
    with pytest.raises(ClusterError, match="inotify instances") as error:
        machine.check_room()
    assert "fs.inotify.max_user_instances" in error.value.hint
