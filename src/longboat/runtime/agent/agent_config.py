"""What an agent knows before it meets the driver, and where things are for its rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, Tuple

from longboat.runtime import run_layout
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import Places
from longboat.runtime.shapes import SHAPES


@dataclass(frozen=True)
class Post:
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


def places_of(post: Post, generation: int, role: str = "", rank: int = -1) -> Places:
    """Where things are for a rank of this post's stage; by default the post's own."""
    stage = post.plan.stage(post.stage)
    role, rank = (role, rank) if role else (post.role, post.rank)
    own = SHAPES[stage.shape].own_checkpoints
    return Places(
        run_id=post.run_id,
        data=post.data,
        output=run_layout.output(post.run_dir, post.stage),
        checkpoints=run_layout.checkpoints(post.run_dir, post.stage, generation, f"{role}-{rank}" if own else ""),
        report_file=run_layout.reports(post.run_dir, post.stage, role, rank),
        stacks_file=run_layout.stacks(post.run_dir, post.stage, role, rank),
        rank_path=post.rank_path,
        python=stage.python or post.python,
        mounts=post.mounts,
        inputs={name: run_layout.output(post.run_dir, name) for name in earlier(post.plan, post.stage)},
        threads=post.threads,
        gpus=post.gpus,
    )


def storage_of(post: Post) -> List[str]:
    """Mounts that are directories of the run."""
    return [run_layout.storage(post.run_dir, mount.name) for mount in post.plan.storage if mount.kind == "run"]


def earlier(plan: Plan, name: str) -> List[str]:
    """All stages that come before this one, near and far."""
    found: List[str] = []
    for before in plan.stage(name).after:
        for each in [*earlier(plan, before), before]:
            if each not in found and plan.stage(each).kind == "gang":
                found.append(each)
    return found
