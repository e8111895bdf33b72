"""The cluster's own tests need root and, the first time, eight minutes: `make e2e` runs them, `make test` does not."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.apart import cluster_apart
from tests.cluster.cluster import Cluster
from tests.cluster.places import home


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    theirs = os.environ.get("KUBECONFIG", "")
    if theirs and not theirs.startswith(str(home())):
        pytest.skip("KUBECONFIG names another cluster; these tests are about our own")
    if os.geteuid() != 0:
        pytest.skip("the test cluster needs root")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for the tests of a file, so that nobody else's work is disturbed.

    It is gone before the next file's begins: a machine has room for few clusters at once (`machine.check_room`).
    """
    with cluster_apart("own-tests") as cluster:
        yield cluster
