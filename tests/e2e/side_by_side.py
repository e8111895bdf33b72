"""Which tests on a cluster may run side by side: all, except those that have a cluster to themselves.

The tests of one group run one after the other in one worker of pytest-xdist, the others wherever there is room.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "tests/cluster/": "clusters",
    "tests/e2e/test_faults.py": "faults",
}
"""Files or directories whose tests break, start or stop clusters."""


LONGEST_FIRST = ("serving", "recipes", "board", "buckets", "images", "storage", "shapes", "requirements", "together")
"""Files of tests that take longest: begun first, so that no worker begins one when all others have ended."""


def position(nodeid: str) -> int:
    """The place of a test's file in that order."""
    file = nodeid.partition("::")[0].rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    return LONGEST_FIRST.index(file) if file in LONGEST_FIRST else len(LONGEST_FIRST)


def group(nodeid: str) -> str:
    """The group of a test; one that is in none is a group by itself."""
    return next((name for path, name in GROUPS.items() if nodeid.startswith(path)), nodeid)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
