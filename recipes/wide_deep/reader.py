"""Reads Criteo's CSV: no header; clicked (0 or 1), 13 numbers, 26 categories. Commas or tabs; .gz too.

A file is read in blocks of whole rows, so the memory taken does not grow with it. Within a block numpy finds all
separators at once and takes the bytes of every field as 64-bit words: categories are hashed from them, numbers summed
up from their digits, for all rows together. What is rare (fractions, long numbers, bad rows) is looked at one by one.
"""

import glob
import gzip
import math
import zlib
from dataclasses import dataclass

import numpy as np
import transform

NUMBERS = slice(1, 1 + len(transform.NUMBERS))
CATEGORIES = slice(NUMBERS.stop, NUMBERS.stop + len(transform.CATEGORIES))
COLUMNS = ("clicked", *transform.NUMBERS, *transform.CATEGORIES)
BLOCK = 1 << 20
MARGIN = 16
"""Bytes around a block, so that words can be taken at its ends."""

COMMA, TAB, NEWLINE, RETURN, MINUS = b",\t\n\r-"
LAST_SEPARATOR = COMMA
"""No byte up to this one stands in a field."""
FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
LAST_BYTES = np.array([(1 << 64) - (1 << 8 * (8 - count)) for count in range(9)], np.uint64)
ZEROS, HIGH_HALVES, SIXES = (np.uint64(0x0101010101010101 * byte) for byte in (0x30, 0xF0, 0x06))


@dataclass(frozen=True)
class Place:
    """The next unread row. JSON can hold it: it goes into checkpoints."""

    turn: int = 1
    """Which pass over all files, from 1."""
    file: int = 0
    row: int = 1
    """Its number in its file, from 1."""
    byte: int = 0
    """Where it begins, in the unpacked file."""
    skipped: int = 0
    """Bad rows left out before it."""


@dataclass(frozen=True)
class Rows:
    labels: np.ndarray
    numbers: np.ndarray
    """Rows x 13, nan where empty."""
    buckets: np.ndarray
    """Rows x 26, as transform.buckets_of gives them."""
    behind: np.ndarray
    """For each row: file, row, byte and skipped of the place behind it."""

    def __len__(self):
        return len(self.labels)

    def part(self, begin, end):
        return Rows(self.labels[begin:end], self.numbers[begin:end], self.buckets[begin:end], self.behind[begin:end])


def joined(parts):
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])))


def files_of(pattern):
    """The files that a path or a pattern names, in the order of their names."""
    found = sorted(glob.glob(pattern))
    if not found:
        raise SystemExit(f"{pattern} does not exist")
    return found


def batches(pattern, size, buckets, place=None, turns=1, bad_rows="stop", say=print):
    """(rows, the place behind them) for batch after batch, until `turns` passes are over.

    pattern: a path, or one with * for several files. The last batch of a pass may be short; no row is in two batches.
    bad_rows: stop ends the program at a bad row; skip leaves it out, counts it, and says what was wrong with the first.
    """
    files, place = files_of(pattern), place or Place()
    while place.turn <= turns:
        held, count, anything = [], 0, place.byte or place.file
        for rows in pass_over(files, buckets, place, bad_rows, say):
            begin, anything = 0, True
            while begin < len(rows):
                if count == size:  # and there are more rows: it is not the last of this pass
                    place = Place(place.turn, *map(int, held[-1].behind[-1]))
                    yield joined(held), place
                    held, count = [], 0
                end = min(begin + size - count, len(rows))
                held.append(rows.part(begin, end))
                begin, count = end, count + end - begin
        if not anything:
            raise SystemExit(f"{pattern} has no good row")
        ended = Place(place.turn + 1, skipped=place.skipped)
        if held:
            ended = Place(place.turn + 1, skipped=int(held[-1].behind[-1, -1]))
            yield joined(held), ended
        place = ended


def pass_over(files, buckets, place, bad_rows, say):
    """The rows of all files from a place on, block by block."""
    row, byte, skipped = place.row, place.byte, place.skipped
    for number in range(place.file, len(files)):
        path = files[number]
        for block in blocks(path, byte, bad_rows, say):
            found = Parsed(block, buckets)
            bad = np.flatnonzero(~found.good)
            if len(bad) and (bad_rows == "stop" or not skipped):
                why = f"{path}, row {row + bad[0]}: {found.wrong_with(bad[0])}"
                if bad_rows == "stop":
                    raise SystemExit(f"{why} (--set BAD_ROWS=skip leaves bad rows out and counts them)")
                say(f"{why}; bad rows are skipped and counted")
            behind = np.stack(
                (
                    np.full(len(found.good), number),
                    row + 1 + np.arange(len(found.good)),
                    byte + found.row_ends,
                    skipped + np.cumsum(~found.good),
                ),
                axis=1,
            )
            row, byte, skipped = row + len(found.good), byte + len(block.bytes), int(behind[-1, -1])
            if found.good.any():
                yield Rows(found.labels, found.numbers, found.buckets, behind[found.good])
        row, byte = 1, 0


@dataclass(frozen=True)
class Block:
    """Whole rows of a file, with a margin before and behind them."""

    room: np.ndarray
    end: int
    separator: int

    @property
    def bytes(self):
        return self.room[MARGIN : self.end]


def blocks(path, byte, bad_rows, say):
    """The file from a byte on, as blocks of whole rows. Each is to be used before the next is asked for."""
    room, filled, separator = np.empty(MARGIN + 2 * BLOCK + MARGIN, np.uint8), MARGIN, None
    room[:] = NEWLINE
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb", buffering=0) as file:
            if not file.read(1):
                if bad_rows == "stop":
                    raise SystemExit(f"{path} is empty (--set BAD_ROWS=skip leaves empty files out)")
                say(f"{path} is empty; it is left out")
                return
            file.seek(byte)
            while True:
                got = file.readinto(memoryview(room)[filled : filled + BLOCK])
                if not got and filled > MARGIN:  # the last row has no newline
                    room[filled], got = NEWLINE, 1
                if not got:
                    return
                newlines = np.flatnonzero(room[filled : filled + got] == NEWLINE)
                filled += got
                if not len(newlines):
                    if filled > MARGIN + BLOCK:
                        raise SystemExit(f"{path}, behind byte {byte}: no row ends within {BLOCK} bytes; is it CSV?")
                    continue
                end = filled - got + int(newlines[-1]) + 1
                if separator is None:
                    separator = TAB if b"\t" in room[MARGIN:end].tobytes().split(b"\n", 1)[0] else COMMA
                yield Block(room, end, separator)
                byte += end - MARGIN
                rest = room[end:filled].copy()
                room[MARGIN : MARGIN + len(rest)] = rest
                filled = MARGIN + len(rest)
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SystemExit(f"{path}, behind byte {byte}: {error}; is the file whole?") from None
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror or error}") from None


class Parsed:
    """The rows of a block. `good` says of each row whether it is; the other arrays have the good ones."""

    def __init__(self, block, buckets):
        self._block, room = block, block.room
        self._words = np.ndarray((len(room) - 7,), "<u8", room, strides=(1,))
        ends = MARGIN + np.flatnonzero(block.bytes <= LAST_SEPARATOR)
        kinds = room[ends]
        if len(ends) % len(COLUMNS) == 0 and regular(kinds, block.separator):
            ends = ends.reshape(-1, len(COLUMNS))
            self.row_ends = ends[:, -1] + 1 - MARGIN
            self.good = np.ones(len(ends), bool)
        else:
            ends = self._irregular(ends, kinds)
        begins = np.empty_like(ends)
        begins[:, 1:] = ends[:, :-1] + 1
        begins[:, 0] = (MARGIN + np.concatenate(([0], self.row_ends[:-1])))[self.good]
        lengths = ends - begins
        right = (lengths[:, 0] == 1) & ((room[begins[:, 0]] | 1) == ord("1"))
        numbers, numbers_right = self._numbers(begins[:, NUMBERS], ends[:, NUMBERS], lengths[:, NUMBERS])
        chosen, short_enough = self._buckets(begins[:, CATEGORIES], lengths[:, CATEGORIES], buckets)
        right &= numbers_right & short_enough
        labels = (room[begins[:, 0]] == ord("1")).astype(np.float32)
        if not right.all():
            labels, numbers, chosen = labels[right], numbers[right], chosen[right]
            self.good[self.good] = right
        self.labels, self.numbers, self.buckets = labels, numbers, chosen

    def _irregular(self, ends, kinds):
        """Ends of the fields of those rows that have the right number of them."""
        if RETURN in kinds:  # of \r\n the \r ends the last field, and the \n the row
            second = np.zeros(len(kinds), bool)
            second[1:] = (kinds[1:] == NEWLINE) & (kinds[:-1] == RETURN) & (np.diff(ends) == 1)
            kinds = np.where(np.append(second[1:], False), NEWLINE, kinds)
            row_ends = ends[(kinds == NEWLINE) & ~np.append(second[1:], False)] + 1 - MARGIN
            ends, kinds = ends[~second], kinds[~second]
        else:
            row_ends = ends[kinds == NEWLINE] + 1 - MARGIN
        self.row_ends = row_ends
        last = np.flatnonzero(kinds == NEWLINE)
        row_of = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
        odd = np.bincount(row_of, (kinds != NEWLINE) & (kinds != self._block.separator), minlength=len(last))
        self.good = (np.diff(last, prepend=-1) == len(COLUMNS)) & (odd == 0)
        return ends[self.good[row_of]].reshape(-1, len(COLUMNS))

    def _numbers(self, begins, ends, lengths):
        """(values, which rows have nothing but numbers)."""
        room = self._block.room
        negative = (room[begins] == MINUS) & (lengths > 0)
        digits = lengths - negative
        kept = LAST_BYTES[np.minimum(digits, 8)]
        words = (self._words[ends - 8] & kept) | (ZEROS & ~kept)
        plain = (words & HIGH_HALVES) == ZEROS
        plain &= ((words + SIXES) & HIGH_HALVES) == ZEROS
        plain &= digits <= 8
        plain &= (digits > 0) | (lengths == 0)
        words -= ZEROS  # eight digits, the first in the lowest byte: join neighbours, then pairs, then fours
        values = eight_digits(words).astype(np.float32)
        np.negative(values, out=values, where=negative)
        values[lengths == 0] = np.nan
        right = np.ones(len(values), bool)
        for row, column in zip(*np.nonzero(~plain), strict=True):
            try:
                values[row, column] = number(room[begins[row, column] : ends[row, column]].tobytes())
            except ValueError:
                right[row] = False
        return values, right

    def _buckets(self, begins, lengths, buckets):
        """(bucket numbers, which rows have no category that is too long)."""
        first = self._words[begins]
        if lengths.min(initial=8) < 8:
            first &= FIRST_BYTES[np.minimum(lengths, 8)]
        second, longest = None, lengths.max(initial=0)
        if longest > 8:
            second = self._words[begins + 8] & FIRST_BYTES[np.clip(lengths - 8, 0, 8)]
        right = (lengths <= transform.LONGEST).all(axis=1)
        return transform.buckets_of(first, second, buckets), right

    def wrong_with(self, row):
        """In words, what is wrong with a row of the block (from 0)."""
        begin = self.row_ends[row - 1] if row else 0
        text = self._block.bytes[begin : self.row_ends[row]].tobytes().rstrip(b"\r\n").decode(errors="replace")
        fields = text.split(chr(self._block.separator))
        if len(fields) != len(COLUMNS):
            return f"{len(fields)} columns instead of {len(COLUMNS)}"
        if fields[0] not in ("0", "1"):
            return f"clicked is {fields[0][:40]!r}; it must be 0 or 1"
        for name, field in zip(COLUMNS[1:], fields[1:], strict=True):
            if name in transform.CATEGORIES:
                if len(field.encode()) > transform.LONGEST:
                    return f"{name} is {field[:40]!r}, longer than {transform.LONGEST} characters"
            elif field:
                try:
                    number(field)
                except ValueError:
                    return f"{name} is {field[:40]!r}, which is not a number"
        return "a character that does not belong in such a file: a space, a quote or the like"


def regular(kinds, separator):
    """Whether these separators end whole rows of all columns, and nothing else."""
    kinds = kinds.reshape(-1, len(COLUMNS))
    return bool((kinds[:, -1] == NEWLINE).all() and (kinds[:, :-1] == separator).all())


def number(text):
    found = float(text)
    if not math.isfinite(found) or (b"_" if isinstance(text, bytes) else "_") in text:
        raise ValueError(text)
    return found


def eight_digits(words):
    """The numbers that words of eight digits stand for, the first digit in the lowest byte: pairs, fours, all eight."""
    words = words * np.uint64(10) + (words >> np.uint64(8))
    pairs = np.uint64(0x000000FF000000FF)
    high = (words & pairs) * np.uint64(100 + (1000000 << 32))
    low = ((words >> np.uint64(16)) & pairs) * np.uint64(1 + (10000 << 32))
    return (high + low) >> np.uint64(32)
