"""Where everything of the test cluster lies: one git-ignored directory of the checkout.

`cache/` may be kept for ever and is shared by all clusters of the checkout. `state/NAME/` is one cluster's own and is
gone when that cluster is down. Nothing of a cluster lies anywhere else, but for the names in `state.json`.
"""

import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def home() -> Path:
    """The directory of all clusters of this checkout; LONGBOAT_CLUSTER_HOME moves it."""
    return Path(os.environ.get("LONGBOAT_CLUSTER_HOME") or CHECKOUT / ".cluster").absolute()


def cache() -> Path:
    return home() / "cache"


@contextmanager
def locked(path: Path, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock of a file, which dies with its holder and the programs that it runs (`children`).

    BlockingIOError if another keeps it for too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with open(path, "w") as lock:
        os.set_inheritable(lock.fileno(), True)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
        yield


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A new directory beside the cached things, to be renamed into one of them when it is complete.

    What a killed command left of its own is removed by the next one; all who use this hold the cache's lock.
    """
    top = cache() / "scratch"
    shutil.rmtree(top, ignore_errors=True)
    directory = top / name
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(top, ignore_errors=True)


@dataclass(frozen=True)
class Places:
    """The files of the cluster called `name`."""

    name: str

    @property
    def root(self) -> Path:
        return home() / "state" / self.name

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def volumes(self) -> Path:
        """What pods keep on persistent volumes."""
        return self.root / "volumes"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    def node(self, node: str) -> Path:
        return self.root / "nodes" / node

    @property
    def box_lock(self) -> Path:
        """Held by the box's first process for as long as the box lives."""
        return home() / "state" / f"{self.name}.box.lock"

    @property
    def command_lock(self) -> Path:
        """Held by the command that changes the cluster."""
        return home() / "state" / f"{self.name}.command.lock"
