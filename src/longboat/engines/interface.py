"""The engine interface: what a place that runs plans must offer, and what the CLI and the Python API use.

An `Engine` starts, resumes and finds runs; a `RunHandle` is one run, wherever it is. Nothing above this file knows
which engine it talks to. `registry` lists the engines; docs/engines.md says how to add one. What not every engine can
do is a protocol of its own (`CanExec`, `CanServe`, ...), which an engine's classes have or do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from longboat.runs.stage_reuse import ALL_STAGES, StageChoice, StageDecision
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, field

if TYPE_CHECKING:  # a start does not wait for these
    from pathlib import Path

    from longboat.runs.logs import LogLine
    from longboat.runs.run_files import RunFiles
    from longboat.runs.run_state import RankState, RunState, StageState
    from longboat.runs.watch import RunWatch
    from longboat.runtime.journal import Event
    from longboat.runtime.plan import Plan

Say = Callable[[str], None]
"""Shows a line to the user."""


def silent(_line: str) -> None:
    """A `Say` that shows nothing."""


@dataclass(frozen=True)
class EngineContext:
    """On whose behalf an engine works, and where."""

    home: str
    environ: Mapping[str, str]
    context: str = ""
    """Of the kubeconfig."""
    namespace: str = ""


@dataclass(frozen=True)
class RunRequest:
    """What is to be run: a plan, which of its stages, and the engine's own options."""

    plan: Plan | None = None
    """None: a resumed run keeps the plan that it has."""
    choice: StageChoice = ALL_STAGES
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resumption:
    """What a resumed run would do."""

    plan: Plan
    events: int
    """Events in the journal when this was decided; if there are more when it starts, somebody else was faster."""
    passed: tuple[str, ...]
    decisions: tuple[StageDecision, ...]


class StopOutcome(Enum):
    """What came of a request to stop."""

    NOT_RUNNING = "is not running"
    ASKED = "was asked to stop"
    ENDED = "has ended"
    LATE = "has not ended"
    SERVERS_REMOVED = "had ended; its servers are removed now"


@dataclass(frozen=True)
class KeptData:
    """Something that outlives a run, and the command that deletes it."""

    what: str
    command: str


@dataclass(frozen=True)
class Removal:
    """What was removed with a run and what stays."""

    detail: str = ""
    """For the line that says that the run is gone: its size, or where it was."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same for a machine."""
    gone: Sequence[str] = ()
    kept: Sequence[KeptData] = ()


@dataclass(frozen=True)
class Leftover:
    """Something that a run has left."""

    run: str
    kind: str
    name: str
    age: float | None
    """Seconds; None for what is not in the cluster."""
    cost: str
    """What it takes up while it exists; empty for what takes up nothing to speak of."""
    remove: str


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`."""

    about: str
    state: str
    """ok, missing, or note: missing, but nothing that was asked about needs it."""
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found."""

    title: str
    place: Sequence[Finding]
    job: Sequence[Finding]
    ok: bool
    """The job can run; without a job, a run can be started."""


@dataclass(frozen=True)
class RunList:
    """The runs of one engine, the newest first."""

    where: str
    """`in the namespace team`."""
    states: Sequence[RunState]
    total: int


@dataclass(frozen=True)
class Endpoint:
    """Where a served model, or a TensorBoard, answers from this machine."""

    facts: Mapping[str, str]
    """url, and where they apply grpc, page, model, expose."""
    held: bool = False
    """It answers only while this process keeps it open."""


@dataclass(frozen=True)
class EndpointRequest:
    stage: str = ""
    board: bool = False
    port: int = 0
    """The local port of an endpoint that has to be held open; 0: any."""
    wait: float | None = None
    """Seconds to wait for it; None: do not wait."""


class Viewer(Protocol):
    """What shows a run to the user while the engine runs it."""

    def open(self, beside: Callable[[], None]) -> None:
        """Show it from a process of its own, so that drawing never delays the driver; that one first calls `beside`."""

    def wait(self) -> None:
        """Wait until that process has shown everything."""

    logs: bool
    """Whether it shows what ranks print."""

    def show(self, begin: Callable[[], None]) -> int:
        """Show it in this process until it ends or only serves; the exit code. `begin` is called once it is ready."""


class RunHandle(Protocol):
    """One run. Its directory holds plan, journal and logs; a remote engine keeps a local replica of them there."""

    id: str
    engine: str
    where: str
    """For people: `on this machine`, `in the namespace team`."""
    outlives_cli: bool
    """The run goes on when the process that started it ends."""
    directory: Path
    after: int
    """So many events were there when the run was last resumed, and its next driver has not written yet; else 0."""

    def sync(self, logs: bool = False) -> None:
        """Bring the directory up to date."""

    def follow(self, logs: bool, say: Say = silent) -> RunWatch:
        """Bring the directory up to date and keep it so while the run goes on."""

    def pause(self, seconds: float) -> None:
        """Sleep, or until the directory has news."""

    def state(self, explain: bool = False) -> RunState:
        """How it stands now. `explain` also asks the engine what keeps ranks from running."""

    def events(self) -> Iterator[Event]:
        """The journal so far."""

    def logs(self) -> Iterator[LogLine]:
        """What the ranks have printed so far."""

    def wait(self, timeout: float | None = None) -> RunState:
        """Until it has ended or serves; TimeoutError."""

    def files(self) -> AbstractContextManager[RunFiles]:
        """The run's files and mounts."""

    def fetch(self, path: str) -> Path:
        """A directory of the run, complete, on this machine."""

    def attend(self, viewer: Viewer, say: Say) -> int:
        """Run it in the foreground with a viewer; the exit code."""

    def detach(self, fork: bool = False) -> bool:
        """Let it run by itself; False if it did not start. `fork`: this process has one thread and may be forked."""

    def stop(self, by: str, now: bool = False, wait: float | None = None) -> StopOutcome:
        """Ask it to end; with `wait`, wait so many seconds for the end."""

    def remove(self, force: bool = False, data: bool = False) -> Removal:
        """Remove it with everything it left; with `data`, the storage that was created for it too."""


class Engine(Protocol):
    name: ClassVar[str]
    remote: ClassVar[bool]
    """Ranks do not see this machine's file system."""

    def __init__(self, context: EngineContext) -> None: ...

    def submit(self, request: RunRequest, say: Say) -> tuple[RunHandle, Sequence[StageDecision]]:
        """A new run. Where the run does not outlive the CLI, `attend` or `detach` starts it."""

    def resumption(self, run: RunHandle, request: RunRequest) -> Resumption:
        """What `resume` would do; nothing is changed."""

    def resume(self, run: RunHandle, request: RunRequest, say: Say) -> tuple[RunHandle, Sequence[StageDecision]]:
        """Continue a run that ended, was lost, or only serves."""

    def find(self, text: str | None) -> RunHandle:
        """The run meant by an id, the beginning of one, or a job's name; None: the newest."""

    def open(self, directory: Path) -> RunHandle:
        """The run of a directory that this machine has."""

    def runs(self, most: int = 0) -> RunList:
        """All runs, or the newest `most`."""

    def warnings(self, plan: Plan) -> Sequence[str]:
        """What the user should know before a run of this plan."""


# What only some engines can do.


@runtime_checkable
class CanExec(Protocol):
    def exec(self, rank: RankState, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run a command next to a rank, with its environment; the exit code."""


@runtime_checkable
class CanServe(Protocol):
    def endpoint(self, request: EndpointRequest, say: Say) -> AbstractContextManager[Endpoint]:
        """An address that works from this machine."""

    def served_at(self, stage: StageState) -> tuple[Mapping[str, Any], str]:
        """What a stage serves, with addresses for this machine where there are any, and a remark."""


@runtime_checkable
class CanFetchBoard(Protocol):
    def fetch_board(self) -> None:
        """Copy what stages wrote for TensorBoard into the directory."""


@runtime_checkable
class CanDiagnose(Protocol):
    def doctor(self, plan: Plan | None, probe: bool) -> Diagnosis:
        """What this place can do and what is missing, for any run or for this plan."""


@runtime_checkable
class KeepsData(Protocol):
    def leftovers(self, run: str) -> list[Leftover]:
        """What runs have left, each with the command that removes it."""

    def remove_data(self, run: str) -> list[str]:
        """Delete the storage of a run that is gone itself; what was deleted."""

    def plans(self) -> Mapping[str, Plan]:
        """The plan of every run."""


Able = TypeVar("Able")


def able(thing: RunHandle | Engine, capability: type[Able], what: str) -> Able:
    """The same object, typed by what it can do; LongboatError if its engine cannot do that."""
    if isinstance(thing, capability):
        return thing
    name = thing.engine if hasattr(thing, "engine") else thing.name
    raise LongboatError(f"the engine {name} does not support `{what}`", "`longboat status` shows where a run is")
