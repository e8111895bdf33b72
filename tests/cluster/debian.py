"""Debian packages as plain files: downloaded with apt-get, unpacked into the cache, never installed.

So no service of theirs starts, the machine stays as it was, and root is not needed for this part.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

from tests.cluster import build_cache, children
from tests.cluster.errors import ClusterError
from tests.cluster.places import cache, locked


def download(packages: tuple[str, ...]) -> list[Path]:
    """The .deb files of the packages, in the given order.

    Their versions are those that the machine's apt knew when they were first asked for; the cache remembers them.
    """
    store = cache() / "debs"
    store.mkdir(parents=True, exist_ok=True)
    with locked(cache() / "locks/debs.lock"):
        return _download(packages, store)


def _download(packages: tuple[str, ...], store: Path) -> list[Path]:
    chosen = store / f"{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:12]}.json"
    if chosen.exists():
        return [store / file for file in json.loads(chosen.read_text())]
    files = _file_names(packages)
    missing = [package for package, file in files.items() if not (store / file).exists()]
    if missing:
        scratch = store / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # a killed build may have left it
        scratch.mkdir()
        _apt_get("download", "-q", *missing, cwd=scratch)
        for deb in scratch.iterdir():
            deb.rename(store / deb.name)
        scratch.rmdir()
    chosen.with_suffix(".new").write_text(json.dumps(list(files.values())))
    chosen.with_suffix(".new").rename(chosen)
    return [store / file for file in files.values()]


def _file_names(packages: tuple[str, ...]) -> dict[str, str]:
    answer = _apt_get("download", "--print-uris", *packages, cwd=cache(), refresh=True)
    names = [line.split()[1] for line in answer.splitlines() if line.startswith("'")]
    files = {name.split("_")[0]: name for name in names}
    unknown = [package for package in packages if package not in files]
    if unknown:
        raise ClusterError(
            f"apt-get knows no package {', '.join(unknown)}",
            "the test cluster takes etcd, containerd, runc and its images' base from Debian 12: build it there",
        )
    return {package: files[package] for package in packages}


def _apt_get(*arguments: str, cwd: Path, refresh: bool = False) -> str:
    # Without the option, apt warns that its own user may not write into our directory.
    command = ["apt-get", "-o", "APT::Sandbox::User=root", *arguments]
    done = children.run(*command, check=False, cwd=cwd)
    if done.returncode and refresh and os.geteuid() == 0:
        children.run("apt-get", "update", "-qq", check=False)
        done = children.run(*command, check=False, cwd=cwd)
    if done.returncode:
        raise ClusterError(f"apt-get {arguments[0]} failed: {done.stderr.strip()}", "as root: apt-get update")
    return done.stdout


def unpack(packages: tuple[str, ...], name: str) -> Path:
    """The packages' files under one directory of the cache."""
    debs = download(packages)

    def make(scratch: Path) -> Path:
        root = scratch / "root"
        for deb in debs:
            children.run("dpkg-deb", "-x", deb, root)
        # What Debian's update-alternatives would have linked.
        for family in ("iptables", "ip6tables"):
            for ending in ("", "-save", "-restore"):
                (root / "usr/sbin" / f"{family}{ending}").symlink_to("xtables-nft-multi")
        return root

    return build_cache.entry("tools", name, [*(deb.name for deb in debs), Path(__file__)], make)
