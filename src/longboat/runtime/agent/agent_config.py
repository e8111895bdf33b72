"""What an agent knows before it meets the driver, and where things are for its rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, Tuple

from longboat.runtime import run_layout
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import Places
from longboat.runtime.shapes import SHAPES


@dataclass(frozen=True)
class AgentConfig:
    """Everything an agent knows before it meets the driver."""

    plan: Plan
    run_id: str
    run_dir: str
    stage: str
    role: str
    rank: int
    driver: str
    """Path of the driver's socket, or host:port."""
    token: bytes
    base: Mapping[str, str]
    """Environment that the rank's own stands on; holds the secrets."""
    data: str
    rank_path: str
    python: str
    host: str = "127.0.0.1"
    threads: int = 0
    gpus: Tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)
    lease: float = 0.0
    """Seconds to train on without the driver; 0: the driver's end is the end."""
    ports: Tuple[int, ...] = ()
    """Taken again if they can be: a rank that comes back alone must be found where it was."""
    agent: str = ""
    """By which whoever brought this agent knows it again; empty: by nothing."""
    leaves: bool = False
    """SIGTERM means that this agent has to go too, as soon as its process has ended."""
    depot: str = ""
    """host:port of the driver's depot, where the run directory is not on a disk that both see."""

    @property
    def name(self) -> str:
        return f"{self.stage}/{self.role}-{self.rank}"


def places_of(config: AgentConfig, generation: int, role: str = "", rank: int = -1) -> Places:
    """Where things are for a rank of this post's stage; by default the post's own."""
    stage = config.plan.stage(config.stage)
    role, rank = (role, rank) if role else (config.role, config.rank)
    own = SHAPES[stage.shape].own_checkpoints
    return Places(
        run_id=config.run_id,
        data=config.data,
        output=run_layout.output(config.run_dir, config.stage),
        checkpoints=run_layout.checkpoints(config.run_dir, config.stage, generation, f"{role}-{rank}" if own else ""),
        report_file=run_layout.reports(config.run_dir, config.stage, role, rank),
        stacks_file=run_layout.stacks(config.run_dir, config.stage, role, rank),
        rank_path=config.rank_path,
        python=stage.python or config.python,
        mounts=config.mounts,
        inputs={name: run_layout.output(config.run_dir, name) for name in earlier(config.plan, config.stage)},
        threads=config.threads,
        gpus=config.gpus,
    )


def storage_of(config: AgentConfig) -> List[str]:
    """Mounts that are directories of the run."""
    return [run_layout.storage(config.run_dir, mount.name) for mount in config.plan.storage if mount.kind == "run"]


def earlier(plan: Plan, name: str) -> List[str]:
    """All stages that come before this one, near and far."""
    found: List[str] = []
    for before in plan.stage(name).after:
        for each in [*earlier(plan, before), before]:
            if each not in found and plan.stage(each).kind == "gang":
                found.append(each)
    return found
