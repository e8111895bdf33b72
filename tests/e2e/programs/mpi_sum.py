"""Adds up the ranks of an MPI world; with FAIL set, one of them fails."""

import os

from mpi4py import MPI

world = MPI.COMM_WORLD
print(MPI.Get_library_version().splitlines()[0], flush=True)
total = world.allreduce(world.rank + 1)
print("rank", world.rank, "of", world.size, "sum", total, MPI.Get_processor_name(), flush=True)
if os.environ.get("FAIL") == str(world.rank):
    raise ValueError("on purpose")
world.barrier()
