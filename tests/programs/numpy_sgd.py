"""Data-parallel training that is the same to the bit whoever is killed how often.

A small perceptron learns to tell generated classes apart. Each rank computes the gradient of its
share of the batch; rank 0 gathers them over TCP in rank order, sums them and sends the sum to
all. The batch is a function of the step. The state carries a hash chain over the steps: a step
that entered twice, never, or in another order changes the chain, and the result with it.

Everything a rank prints goes through `say`, which counts what write(2) was asked to take and what
it took in a file that outlives a SIGKILL, so that a test can compare the log with it.

`STEPS`, `EVERY` (steps between checkpoints), `PAUSE` (seconds a step takes at least), `HOLD` (a step after which it
goes no further; both until there is a file `hurry` in the output directory) and `TRANSPORT` (tcp, mpi or none) come
from the environment;
`DIE` names lives that kill themselves: `1.0/1/37` is rank 1 of generation 1, restart 0, after step 37.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import longboat

STEPS = int(os.environ.get("STEPS", "200"))
EVERY = int(os.environ.get("EVERY", "10"))
PAUSE = float(os.environ.get("PAUSE", "0"))
HOLD = int(os.environ.get("HOLD", "0"))
HIDDEN = int(os.environ.get("HIDDEN", "16"))
CLASSES, FEATURES, BATCH, RATE = 4, 8, 32, 0.05

Arrays = dict[str, Any]


class Witness:
    """How many lines were begun and how many write(2) has accepted, in this life of the rank."""

    def __init__(self, directory: str, rank: int) -> None:
        os.makedirs(directory, exist_ok=True)
        generation, restart = int(os.environ["LONGBOAT_GENERATION"]), int(os.environ["LONGBOAT_RESTART"])
        self.life = f"{generation}.{restart}"
        path = os.path.join(directory, f"{rank}-{generation:06d}-{restart:06d}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.ftruncate(fd, 16)
        self._counts = mmap.mmap(fd, 16)
        os.close(fd)
        self._said = 0

    def say(self, text: str) -> None:
        line = f"{self.life} {self._said} {text}\n".encode()
        self._said += 1
        struct.pack_into("<Q", self._counts, 0, self._said)
        while line:
            line = line[os.write(1, line) :]
        struct.pack_into("<Q", self._counts, 8, self._said)


class Exchange(Protocol):
    rank: int
    world: int

    def sum(self, step: int, value: Any) -> Any:
        """The sum over all ranks, in rank order: the same bits for all."""


class Alone:
    rank, world = 0, 1

    def sum(self, step: int, value: Any) -> Any:
        return value


class Tcp:
    """Rank 0 in the middle. A peer that is out of step is an error, never an average of two steps."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._peers: list[socket.socket] = []
        if self.rank == 0:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(self.world)
            found: dict[int, socket.socket] = {}
            while len(found) < self.world - 1:
                peer, _ = listener.accept()
                found[struct.unpack("<q", _receive(peer, 8))[0]] = peer
            self._peers = [found[rank] for rank in sorted(found)]
        else:
            while True:
                try:
                    self._peers = [socket.create_connection(address, timeout=60)]
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            self._peers[0].sendall(struct.pack("<q", self.rank))
        for peer in self._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(None)

    def sum(self, step: int, value: Any) -> Any:
        if self.rank:
            self._peers[0].sendall(struct.pack("<q", step) + value.tobytes())
            return np.frombuffer(self._whole(self._peers[0], step, value.nbytes))
        total = value.copy()
        for peer in self._peers:
            total += np.frombuffer(self._whole(peer, step, value.nbytes))
        for peer in self._peers:
            peer.sendall(struct.pack("<q", step) + total.tobytes())
        return total

    @staticmethod
    def _whole(peer: socket.socket, step: int, size: int) -> bytes:
        data = _receive(peer, 8 + size)
        (theirs,) = struct.unpack("<q", data[:8])
        if theirs != step:
            raise SystemExit(f"a peer is at step {theirs}, this rank at {step}")
        return data[8:]


class Mpi:
    def __init__(self) -> None:
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self.rank, self.world = self._world.Get_rank(), self._world.Get_size()

    def sum(self, step: int, value: Any) -> Any:
        parts = self._world.allgather((step, value))
        if {theirs for theirs, _ in parts} != {step}:
            raise SystemExit("the ranks are not at the same step")
        return sum((part for _, part in parts[1:]), start=parts[0][1])


def _receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = peer.recv(min(size - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError("Connection closed by peer")
        data += more
    return bytes(data)


def examples(count: int, seed: int) -> tuple[Any, Any]:
    """Noisy points around one centre a class; the centres do not depend on the seed."""
    centres = np.random.default_rng(7).normal(0, 1.2, (CLASSES, FEATURES))
    draw = np.random.default_rng([seed, 11])
    labels = draw.integers(CLASSES, size=count)
    return centres[labels] + draw.normal(0, 1, (count, FEATURES)), labels


def fresh(seed: int = 3) -> Arrays:
    draw = np.random.default_rng(seed)
    weights = {
        "w1": draw.normal(0, 0.3, (FEATURES, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": draw.normal(0, 0.3, (HIDDEN, CLASSES)),
        "b2": np.zeros(CLASSES),
    }
    speeds = {f"speed.{name}": np.zeros_like(value) for name, value in weights.items()}
    return {**weights, **speeds, "chain": np.zeros(32, np.uint8)}


def scores(state: Arrays, x: Any) -> tuple[Any, Any]:
    hidden = np.tanh(x @ state["w1"] + state["b1"])
    return hidden, hidden @ state["w2"] + state["b2"]


def gradient(state: Arrays, x: Any, labels: Any) -> tuple[float, Arrays]:
    hidden, out = scores(state, x)
    out -= out.max(axis=1, keepdims=True)
    chances = np.exp(out)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels]).mean())
    chances[rows, labels] -= 1
    chances /= len(labels)
    back = (chances @ state["w2"].T) * (1 - hidden**2)
    return loss, {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ chances, "b2": chances.sum(0)}


def advance(state: Arrays, step: int, exchange: Exchange, shard: int = 0) -> float:
    """One step of SGD with momentum, over all ranks."""
    x, labels = examples(BATCH, 1000 + 100_000 * (exchange.rank + shard) + step)
    loss, mine = gradient(state, x, labels)
    names = sorted(mine)
    flat = np.concatenate([mine[name].ravel() for name in names] + [np.array([loss])])
    total = exchange.sum(step, flat) / exchange.world
    at = 0
    for name in names:
        size = mine[name].size
        state[f"speed.{name}"] = 0.9 * state[f"speed.{name}"] - RATE * total[at : at + size].reshape(mine[name].shape)
        state[name] = state[name] + state[f"speed.{name}"]
        at += size
    link = hashlib.sha256(state["chain"].tobytes() + struct.pack("<q", step) + total.tobytes()).digest()
    state["chain"] = np.frombuffer(link, np.uint8)
    return float(total[-1])


def accuracy(state: Arrays) -> float:
    x, labels = examples(500, 5)
    return float((scores(state, x)[1].argmax(1) == labels).mean())


def finish(state: Arrays, path: str) -> None:
    """The result, renamed into place: it is whole or not there."""
    np.savez(path + ".new.npz", **state)
    os.replace(path + ".new.npz", path)


def meet_fate(life: str, rank: int, step: int) -> None:
    if f"{life}/{rank}/{step}" in os.environ.get("DIE", "").split(","):
        longboat.checkpoint.wait()
        os.kill(os.getpid(), signal.SIGKILL)


def hurried() -> bool:
    return os.path.exists(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "hurry"))


def hold(step: int) -> None:
    while step == HOLD and not hurried():
        time.sleep(0.01)


def train(exchange: Exchange, witness: Witness) -> None:
    state, first = fresh(), 1
    found = longboat.checkpoint.load()
    if found is not None:
        state, first = dict(found.arrays), found.step + 1
    witness.say(f"begins at step {first}")
    for step in range(first, STEPS + 1):
        began = time.monotonic()
        loss = advance(state, step, exchange)
        witness.say(f"rank {exchange.rank} step {step} loss {loss:.6f}")
        longboat.report(step=step, total=STEPS, loss=loss)
        if step % EVERY == 0 and exchange.rank == 0:
            known = "DIE" in os.environ  # who dies at a given step must know what was saved before it
            longboat.checkpoint.save(state, step=step, meta={"ranks": exchange.world}, wait=known)
        meet_fate(witness.life, exchange.rank, step)
        hold(step)
        if PAUSE and not hurried():
            time.sleep(max(0.0, PAUSE - (time.monotonic() - began)))
    if exchange.rank == 0:
        finish(state, os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "weights.npz"))
        longboat.report(step=STEPS, total=STEPS, accuracy=accuracy(state))


def main() -> int:
    rank = int(os.environ["LONGBOAT_RANK"])
    witness = Witness(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "witness"), rank)
    transports: dict[str, Callable[[], Exchange]] = {"tcp": Tcp, "mpi": Mpi, "none": Alone}
    try:
        train(transports[os.environ.get("TRANSPORT", "tcp")](), witness)
    except (ConnectionError, BrokenPipeError) as error:
        witness.say(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
