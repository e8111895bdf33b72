"""The rank environment: every variable that Longboat sets for a rank, and nothing else.

The only place that does. `docs/rank-environment.md` is generated from TABLE; a test compares TABLE with what
`environment` sets. Pure: callers pass in the seat, the world and the places.
"""

from __future__ import annotations

import json
import re
from typing import Dict, List, Mapping, Sequence, Tuple

from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.plan import Stage
from longboat.runtime.shapes import SHAPES

_DECIDES = re.compile(r"[;|&\n`()!]|(?<!\$)\{|\b(if|while|until|for|case|trap)\b")
"""What lets a shell continue after a command failed."""
_HARMLESS = re.compile(r"&&|>&\d")

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",
)
"""JAX's CPU client reads NPROC; it ignores OMP_NUM_THREADS."""


TABLE: Tuple[Tuple[str, str, str], ...] = (
    ("LONGBOAT_RUN_ID", "always", "id of the run"),
    ("LONGBOAT_STAGE", "always", "name of the stage"),
    ("LONGBOAT_ROLE", "always", "role of the rank: worker, chief, ps, evaluator, launcher or merge"),
    (
        "LONGBOAT_RANK",
        "always",
        "number of the rank, counted from 0 within its role; the shard number in an average stage",
    ),
    ("LONGBOAT_WORLD_SIZE", "always", "number of ranks in the role; the shard count in an average stage"),
    ("LONGBOAT_GENERATION", "always", "number of this start of the gang, from 1, never reset within a stage"),
    ("LONGBOAT_ATTEMPT", "always", "number of this attempt at the stage, from 1, never reset"),
    ("LONGBOAT_RESTART", "always", "how often this rank was restarted alone within the generation"),
    ("LONGBOAT_ROUND", "average", "number of this round, from 1"),
    ("LONGBOAT_ROUNDS", "average", "number of rounds"),
    ("LONGBOAT_WORKERS", "merge of an average stage", "number of trainers whose results are merged"),
    ("LONGBOAT_DATA_DIR", "always", "directory of data sets: the mount `data`, else a directory shared by all runs"),
    ("LONGBOAT_OUTPUT_DIR", "always", "directory for the stage's results; the same for all its ranks"),
    ("LONGBOAT_CHECKPOINT_DIR", "always", "directory for this generation's checkpoints"),
    ("LONGBOAT_RESUME_FROM", "always", "the newest complete checkpoint; empty if there is none"),
    ("LONGBOAT_REPORT_FILE", "always", "file that longboat.report() appends to; internal"),
    ("LONGBOAT_STACKS_FILE", "always", "file for stacks on SIGUSR1; internal"),
    ("LONGBOAT_RANK_PID", "always", "pid of the rank's program, `sh PID` if it is a child of that shell; internal"),
    ("TMPDIR", "local engine", "the run's own directory, removed with the run"),
    ("LONGBOAT_MOUNT_<NAME>", "per mount", "directory of the mount, its name in capitals, - as _"),
    ("LONGBOAT_INPUT_<STAGE>", "per earlier stage", "output directory of a stage that this one comes after"),
    ("MASTER_ADDR, MASTER_PORT", "allreduce, ps, mpi", "PyTorch: where rank 0 listens"),
    ("RANK, WORLD_SIZE", "allreduce, ps, mpi", "PyTorch: number and count over the ranks that must finish"),
    ("LOCAL_RANK, LOCAL_WORLD_SIZE", "allreduce, ps, mpi", "PyTorch: number and count on this machine"),
    ("TORCHELASTIC_RESTART_COUNT", "allreduce, ps, mpi", "PyTorch: generations before this one"),
    ("TF_CONFIG", "allreduce, ps", "TensorFlow: the cluster and this task"),
    ("COORDINATOR_ADDRESS, NUM_PROCESSES, PROCESS_ID", "allreduce, ps, mpi", "JAX, as Kubeflow's JAXJob sets them"),
    ("JAX_COORDINATOR_ADDRESS, JAX_COORDINATOR_BIND_ADDRESS", "allreduce, ps, mpi", "JAX: where process 0 listens"),
    ("CUDA_VISIBLE_DEVICES", "gpu requested", "the GPUs of this rank"),
    ("OMP_NUM_THREADS", "several ranks; unless you set it", "threads, so that ranks on one machine share its cores"),
    (
        ", ".join(THREADS[1:]),
        "several ranks; unless you set them",
        "the same for libraries that read another name (NPROC: JAX)",
    ),
    ("PYTHONUNBUFFERED", "unless you set it", "1: a line printed is a line in the log"),
    ("PYTHONPATH, PATH", "always", "start with the directories for `import longboat` and the stage's `python:`"),
)


@dataclass(frozen=True)
class Address:
    """Where a rank can be reached: one port for TensorFlow, one for PyTorch, one for JAX."""

    host: str
    ports: Tuple[int, int, int]


def with_pid(env: Mapping[str, str], command: Sequence[str], pid: int) -> Dict[str, str]:
    """The environment of a rank's command that is about to be executed as process `pid`: it says which program's
    uncaught exception fails the rank. A shell counts as its child if it always exits as the child does."""
    shell = list(command[:2]) == ["sh", "-c"] and not _DECIDES.search(_HARMLESS.sub("", command[2].strip()))
    return {**env, "LONGBOAT_RANK_PID": f"sh {pid}" if shell else str(pid)}


def bracketed(host: str) -> str:
    """A host as written before a colon and a port."""
    return f"[{host}]" if ":" in host else host


Peers = Mapping[str, Tuple[Address, ...]]
"""Role -> the address of each rank, the same for all ranks of a generation."""


@dataclass(frozen=True)
class World:
    """What is the same for all ranks of one generation."""

    generation: int
    attempt: int
    peers: Peers
    round: int = 1
    resume_from: str = ""


@dataclass(frozen=True)
class Places:
    """Paths and limits of a rank."""

    run_id: str
    data: str
    output: str
    checkpoints: str
    report_file: str
    stacks_file: str
    rank_path: str
    """Directory with the sitecustomize that a rank's Python starts with."""
    python: str
    """Directory put first on PATH."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0
    """0: leave thread counts alone."""
    gpus: Tuple[str, ...] = ()


def environment(
    stage: Stage,
    role: str,
    rank: int,
    restart: int,
    world: World,
    places: Places,
    base: Mapping[str, str],
) -> Dict[str, str]:
    """All variables of the rank: `base` (the environment of Longboat), the job's, then Longboat's."""
    env = dict(base)
    env.update(_job_variables(stage, role, base))
    for name in THREADS:
        if places.threads:
            env.setdefault(name, str(places.threads))
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update(_longboat_variables(stage, role, rank, restart, world, places))
    env.update(_frameworks(stage, role, rank, world))
    if places.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(places.gpus)
    env["PATH"] = _path(places.python, env.get("PATH") or "/usr/local/bin:/usr/bin:/bin")
    env["PYTHONPATH"] = _path(places.rank_path, env.get("PYTHONPATH", ""))
    return env


def variable(name: str) -> str:
    """The name of a mount or stage as part of a variable name."""
    return name.upper().replace("-", "_").replace(".", "_")


def counted(stage: Stage) -> List[Tuple[str, int]]:
    """The ranks that must finish, in the order in which PyTorch and JAX count them."""
    workers = SHAPES[stage.shape].launcher and "worker"
    roles = [r for r in stage.roles if (r.name == workers if workers else r.finishes)]
    return [(role.name, rank) for role in roles for rank in range(role.ranks)]


def _job_variables(stage: Stage, role: str, base: Mapping[str, str]) -> Dict[str, str]:
    """The job's variables. A secret's value is in `base` under its own name, and may be wanted under another."""
    of_role = [v for r in stage.roles if r.name == role for v in r.env]
    variables = {v.name: v.value for v in (*stage.env, *of_role) if not v.secret}
    variables.update((v.name, base[v.secret]) for v in of_role if v.secret in base)
    return variables


def _longboat_variables(
    stage: Stage, role: str, rank: int, restart: int, world: World, places: Places
) -> Dict[str, str]:
    size = next((r.ranks for r in stage.roles if r.name == role), 1)
    env = {
        "LONGBOAT_RUN_ID": places.run_id,
        "LONGBOAT_STAGE": stage.name,
        "LONGBOAT_ROLE": role,
        "LONGBOAT_RANK": str(rank),
        "LONGBOAT_WORLD_SIZE": str(size),
        "LONGBOAT_GENERATION": str(world.generation),
        "LONGBOAT_ATTEMPT": str(world.attempt),
        "LONGBOAT_RESTART": str(restart),
        "LONGBOAT_DATA_DIR": places.data,
        "LONGBOAT_OUTPUT_DIR": places.output,
        "LONGBOAT_CHECKPOINT_DIR": places.checkpoints,
        "LONGBOAT_RESUME_FROM": world.resume_from,
        "LONGBOAT_REPORT_FILE": places.report_file,
        "LONGBOAT_STACKS_FILE": places.stacks_file,
    }
    if stage.merge or stage.shape == "average":
        env["LONGBOAT_ROUND"] = str(world.round)
        env["LONGBOAT_ROUNDS"] = str(stage.rounds)
        env["LONGBOAT_WORKERS"] = str(stage.ranks)
    env.update((f"LONGBOAT_MOUNT_{variable(name)}", path) for name, path in places.mounts.items())
    env.update((f"LONGBOAT_INPUT_{variable(name)}", path) for name, path in places.inputs.items())
    return env


def _frameworks(stage: Stage, role: str, rank: int, world: World) -> Dict[str, str]:
    if stage.shape not in ("allreduce", "ps", "mpi") or not world.peers:
        return {}
    env: Dict[str, str] = {}
    order = counted(stage)
    first = _address(world.peers, order[0])
    if (role, rank) in order:
        number = order.index((role, rank))
        local = [seat for seat in order if _address(world.peers, seat).host == _address(world.peers, (role, rank)).host]
        coordinator = f"{bracketed(first.host)}:{first.ports[2]}"
        env = {
            "MASTER_ADDR": first.host,
            "MASTER_PORT": str(first.ports[1]),
            "RANK": str(number),
            "WORLD_SIZE": str(len(order)),
            "LOCAL_RANK": str(local.index((role, rank))),
            "LOCAL_WORLD_SIZE": str(len(local)),
            "TORCHELASTIC_RESTART_COUNT": str(world.generation - 1),
            "COORDINATOR_ADDRESS": coordinator,
            "JAX_COORDINATOR_ADDRESS": coordinator,
            "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
            "NUM_PROCESSES": str(len(order)),
            "PROCESS_ID": str(number),
        }
    if stage.shape in ("allreduce", "ps"):
        cluster = {
            r.name: [f"{bracketed(peer.host)}:{peer.ports[0]}" for peer in world.peers[r.name]]
            for r in stage.roles
            if r.name != "evaluator" and r.name in world.peers
        }
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": role, "index": rank}})
    return env


def _address(peers: Peers, seat: Tuple[str, int]) -> Address:
    """A rank's address; the launcher's for ranks that mpirun starts and that have no agent."""
    role, rank = seat
    return peers[role][rank] if role in peers else next(iter(peers.values()))[0]


def _path(first: str, rest: str) -> str:
    return f"{first}:{rest}" if first and rest else first or rest
