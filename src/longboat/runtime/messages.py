"""Messages between driver and agents: the keys of each kind. `wire` frames them; `is` names the kind.

| kind | sender | keys |
|---|---|---|
| join, alive | agent | `AgentState`; a join has those of the handshake too |
| started | agent | `RankStart`, of the agent's own rank |
| exited | agent | `RankExit` with the incarnation |
| report, checkpoint, stacks | agent | `RankReport`, `CheckpointPart`, `RankStacks` |
| observed_start, observed_end | agent | `RankStart`, `RankExit` of a worker that mpirun runs |
| notice, left | agent | the machine will be preempted; nothing runs here any more |
| start, kill, stacks | driver | `StartOrder`, `KillOrder`, `StacksOrder` |
| alive | driver | `HeartbeatAnswer` |
| bye | driver | the seat needs no agent any more |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict(dict):
        """At run time a message is a dict: the standard class checks every key's type when it is imported."""

        def __init_subclass__(cls, total: bool = True) -> None:
            pass


class StacksOrder(TypedDict):
    incarnation: Sequence[int]


class KillOrder(StacksOrder):
    grace: float


class StartOrder(StacksOrder):
    attempt: int
    round: int
    peers: Mapping[str, Sequence[Any]]
    """Role -> host and ports of each rank."""
    resume_from: str
    merge_role: str
    launcher: bool
    """One rank starts the others."""
    spread: bool
    """And those have agents of their own."""


class HeartbeatAnswer(TypedDict):
    """Names the heartbeat, because the agent's lease runs from its sending."""

    beat: float
    said: int
    """Number of the last message before the heartbeat, which this acknowledges."""


class RankExit(TypedDict):
    code: int
    signal: int
    at: float
    asked: bool
    cause: Optional[Mapping[str, Any]]


class _AgentStateOptional(TypedDict, total=False):
    said: int
    owes: bool
    """Kept messages come first, then this state again."""
    notice: bool
    """The machine is going away, and the incarnation still runs."""
    left: bool
    """Nothing runs here, nothing will, and this agent ends once the driver has answered."""


class AgentState(_AgentStateOptional):
    agent: str
    address: Sequence[Any]
    incarnation: Sequence[int]
    running: bool
    failing: Optional[RankExit]
    """How the incarnation is about to end: its program raised an exception that nothing caught."""
    exit: Optional[RankExit]
    at: float
    beat: float


class _Numbered(TypedDict, total=False):
    word: int
    """Grows from message to message: a driver recognises one that it has seen."""


class OfRank(_Numbered):
    incarnation: Sequence[int]
    role: str
    rank: int


class RankStart(OfRank):
    pid: int
    log_offset: int
    report_offset: int


class RankReport(OfRank):
    points: Sequence[Mapping[str, Any]]


class CheckpointPart(OfRank):
    record: Mapping[str, Any]


class RankStacks(OfRank):
    states: List[str]
    text: str
