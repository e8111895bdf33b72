"""The images as a container runtime keeps them: imported once, then handed to every node as links to the same files.

Importing unpacks each layer, which takes seconds per node; linking takes a fraction of one. Unpacked layers are never
written to (containers write above them), so nodes and clusters may share the files. The runtime's two small databases
are copied.
"""

import os
import shutil
import time
from pathlib import Path

from tests.cluster import build_cache
from tests.cluster.box import Box
from tests.cluster.errors import ClusterError
from tests.cluster.node import Tools, containerd_config


def prepare(box: Box, tools: Tools, archives: list[Path]) -> Path:
    """A runtime's root directory that holds just these images."""

    def make(scratch: Path) -> Path:
        # In the box the cache cannot be written to, but the cluster's own directory can.
        filled = box.places.root / "store"
        shutil.rmtree(filled, ignore_errors=True)
        _fill(box, tools, archives, filled)
        return Path(shutil.move(filled, scratch / "store"))

    names = [tools.root.name, *sorted(archive.name for archive in archives)]
    return build_cache.entry("stores", "store", [*names, Path(__file__)], make)


def _fill(box: Box, tools: Tools, archives: list[Path], root: Path) -> None:
    config = box.places.root / "store.toml"
    run = "/run/store"
    config.write_text(containerd_config(root, run, f'conf_dir = "{run}/cni"'))
    box.spawn("store-containerd", ["containerd", "--config", str(config)], tools.environment)
    try:
        await_runtime(box, tools, f"{run}/containerd.sock")
        for archive in archives:
            load(box, tools, f"{run}/containerd.sock", archive)
    finally:
        box.stop("store-containerd")


def await_runtime(box: Box, tools: Tools, socket: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            box.run("ctr", "--address", socket, "version", env=tools.environment)
            return
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def load(box: Box, tools: Tools, socket: str, archive: Path) -> None:
    """Give a running runtime one image."""
    command = ("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", str(archive))
    box.run(*command, env=tools.environment, timeout=600)


def hand_out(store: Path, root: Path) -> None:
    """A root directory of its own for one node."""
    # Links do not cross file systems; copies always work.
    shutil.copytree(store, root, symlinks=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    if not source.endswith(".db"):
        try:
            os.link(source, target, follow_symlinks=False)
            return target
        except OSError:
            pass
    return str(shutil.copy2(source, target, follow_symlinks=False))
