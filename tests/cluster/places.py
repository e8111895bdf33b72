"""Where the files of test clusters are: a git-ignored directory of the checkout, and the user's build cache.

`state/NAME/` belongs to one cluster and is gone when that cluster is down. The build cache is shared by all checkouts
(`build_cache`). Nothing of a cluster is anywhere else, except what `state.json` names.
"""

import fcntl
import math
import os
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
    """The build cache of this user: $XDG_CACHE_HOME/longboat/cluster or ~/.cache/longboat/cluster."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base.absolute() / "longboat/cluster"


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
        try:
            yield
        finally:
            # Not left to closing the file: a program that another thread runs meanwhile may have inherited it.
            fcntl.flock(lock, fcntl.LOCK_UN)


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
