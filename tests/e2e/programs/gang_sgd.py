"""Data-parallel training with nothing but the standard library: what ranks do in any framework, bit for bit repeatable.

Every rank holds the same weights and its own shard of the data; each step, rank 0 collects the gradients over TCP, adds
them in the order of the ranks and sends the sum back. Rank 0 saves a checkpoint every few steps. Each rank numbers the
lines that it prints, and reports the number after printing: whoever reads the log can tell whether one is missing.
Generations before UNDISTURBED stop half-way and wait for their end: so a run is not over before the harm is done.
With GO set, rank 0 waits half-way until a file of that name is there, and with it all the others.
"""

import array
import os
import random
import socket
import struct
import time
from typing import Dict, List

import longboat

STEPS = int(os.environ.get("STEPS", "60"))
EVERY = int(os.environ.get("EVERY", "5"))
PAUSE = float(os.environ.get("PAUSE", "0.1"))
GO = os.environ.get("GO", "")
UNDISTURBED = int(os.environ.get("UNDISTURBED", "1"))
SIZE = 64


def meet(rank: int, world: int, host: str, port: int) -> List[socket.socket]:
    """Connections: rank 0 has one to each peer, the others have one to rank 0."""
    if rank == 0:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen(world)
        found: Dict[int, socket.socket] = {}
        while len(found) < world - 1:
            peer, _ = server.accept()
            found[struct.unpack(">I", receive(peer, 4))[0]] = peer
        return [found[number] for number in range(1, world)]
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=5)
            peer.settimeout(None)
            peer.sendall(struct.pack(">I", rank))
            return [peer]
        except OSError:
            time.sleep(0.05)


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("a peer is gone")
        data += piece
    return data


def reduced(peers: List[socket.socket], rank: int, values: List[float]) -> List[float]:
    """The sum over all ranks, added in their order."""
    if rank == 0:
        total = list(values)
        for peer in peers:
            other = array.array("d", receive(peer, 8 * len(total)))
            total = [a + b for a, b in zip(total, other)]  # noqa: B905
        data = array.array("d", total).tobytes()
        for peer in peers:
            peer.sendall(data)
        return total
    peers[0].sendall(array.array("d", values).tobytes())
    return list(array.array("d", receive(peers[0], 8 * len(values))))


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    life = "{}.{}".format(os.environ["LONGBOAT_GENERATION"], os.environ["LONGBOAT_RESTART"])
    state = longboat.checkpoint.load()
    weights, first = [0.0] * SIZE, 0
    if state is not None:
        weights, first = list(memoryview(state.arrays["w"]).cast("B").cast("d")), state.step + 1
    peers = meet(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) if world > 1 else []
    for number, step in enumerate(range(first, STEPS)):
        draw = random.Random(step * world + rank)
        gradient = [w - draw.gauss(1.0, 0.1) for w in weights]
        total = reduced(peers, rank, gradient)
        weights = [w - 0.05 * g / world for w, g in zip(weights, total)]  # noqa: B905
        print(f"life {life} line {number} step {step} at {time.time():.3f}", flush=True)
        longboat.report(step=step + 1, total=STEPS, lines=number, loss=sum(g * g for g in total))
        if rank == 0 and step % EVERY == EVERY - 1:
            longboat.checkpoint.save({"w": array.array("d", weights)}, step=step)
        while rank == 0 and GO and step + 1 == STEPS // 2 and not os.path.exists(GO):
            time.sleep(0.05)
        doomed = int(os.environ["LONGBOAT_GENERATION"]) < UNDISTURBED
        time.sleep(3600 if doomed and step + 1 >= STEPS // 2 else PAUSE)
    if rank == 0:
        with open(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "weights.hex"), "w") as file:
            file.write(array.array("d", weights).tobytes().hex())
    for peer in peers:
        peer.close()


if __name__ == "__main__":
    main()
