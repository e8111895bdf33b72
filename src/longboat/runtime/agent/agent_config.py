"""The agent's configuration, and the directories and files of its rank."""

from __future__ import annotations

from typing import List, Mapping, Tuple

from longboat.runtime import run_layout
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import Places
from longboat.runtime.seat import Seat
from longboat.runtime.shapes import SHAPES


@dataclass(frozen=True)
class AgentConfig:
    """What an agent knows before it connects to the driver."""

    plan: Plan
    run_id: str
    run_dir: str
    seat: Seat
    driver: str
    """Path of the driver's socket, or HOST:PORT."""
    token: bytes
    base: Mapping[str, str]
    """The environment that the rank's variables are added to; contains the secrets."""
    data: str
    rank_path: str
    python: str
    host: str = "127.0.0.1"
    threads: int = 0
    gpus: Tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)
    lease: float = 0.0
    """Seconds to keep training without the driver; 0: the agent ends with the driver."""
    ports: Tuple[int, ...] = ()
    """Reused if they are free: peers expect a rank that restarts alone at its old address."""
    agent: str = ""
    """The engine's name for this agent; empty: it has none."""
    leaves: bool = False
    """SIGTERM also ends this agent, once its process has ended."""
    file_server: str = ""
    """HOST:PORT of the driver's file server, if the run directory is not on a shared disk."""


def places_of(config: AgentConfig, generation: int, role: str = "", rank: int = -1) -> Places:
    """Directories and files of a rank in this agent's stage; by default of the agent's own rank."""
    stage = config.plan.stage(config.seat.stage)
    role, rank = (role, rank) if role else (config.seat.role, config.seat.rank)
    per_rank = SHAPES[stage.shape].own_checkpoints
    return Places(
        run_id=config.run_id,
        data=config.data,
        output=run_layout.output(config.run_dir, config.seat.stage),
        checkpoints=run_layout.checkpoints(
            config.run_dir, config.seat.stage, generation, f"{role}-{rank}" if per_rank else ""
        ),
        report_file=run_layout.reports(config.run_dir, config.seat.stage, role, rank),
        stacks_file=run_layout.stacks(config.run_dir, config.seat.stage, role, rank),
        rank_path=config.rank_path,
        python=stage.python or config.python,
        mounts=config.mounts,
        inputs={name: run_layout.output(config.run_dir, name) for name in earlier(config.plan, config.seat.stage)},
        threads=config.threads,
        gpus=config.gpus,
    )


def storage_of(config: AgentConfig) -> List[str]:
    """Mounts that are directories inside the run."""
    return [run_layout.storage(config.run_dir, mount.name) for mount in config.plan.storage if mount.kind == "run"]


def earlier(plan: Plan, name: str) -> List[str]:
    """All stages before this one, direct and indirect."""
    stages: List[str] = []
    for before in plan.stage(name).after:
        for stage in [*earlier(plan, before), before]:
            if stage not in stages and plan.stage(stage).kind == "gang":
                stages.append(stage)
    return stages
