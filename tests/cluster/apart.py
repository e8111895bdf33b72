"""Clusters that tests start for themselves, beside the one that the other tests share."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.cluster import Cluster
from tests.cluster.places import home, locked


@contextmanager
def cluster_apart(name: str) -> Iterator[Cluster]:
    """A new cluster, gone afterwards."""
    cluster = Cluster(name, print)
    with no_other_changes():
        cluster.down()
        cluster.up()
    try:
        yield cluster
    finally:
        with no_other_changes():
            cluster.down()


@contextmanager
def no_other_changes() -> Iterator[None]:
    """Tests that run side by side start and stop their clusters one after the other.

    So a test can compare what is on the machine before and after.
    """
    with locked(home() / "state/tests.lock"):
        yield
