"""The gang: a pure state machine for the ranks of a stage that live and die together.

Inputs are events with times, outputs are actions; there is no clock, socket, file or thread in
here, so that a simulator can drive it through any weather. It holds the promises of a
generation:

- No process of generation g+1 starts before every process of g has ended or is fenced.
- All ranks of a generation are handed the same world, and its number is recorded before use.
- The stage succeeds when every rank that must finish has exited 0 in one generation.
- The first failure is the cause; what falls after it is its consequence.

An agent says again and again what it is doing (`Seen`), and the gang compares that with what it
wants: a lost or doubled message, a torn connection or a driver that was started anew are all
healed in that one place. What restarts together is a property of the seat (`alone`), not of this
code. Who fell first (`endings`), what a restart costs (`purse`) and what hangs (`stall`) are
decided beside it.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any, List, Mapping, Optional, Sequence

from windlass.causes import Cause, Kind
from windlass.gang.endings import Ending, first_cause, located, rank_ended, ranks_ended
from windlass.gang.members import At, Member, Roster, named
from windlass.gang.purse import SAME, Purse
from windlass.gang.stall import StallWatch
from windlass.gang.words import (
    Action,
    Checkpoint,
    DumpStacks,
    Exited,
    Fault,
    Fence,
    Happening,
    Kill,
    Launch,
    Life,
    Lost,
    Notice,
    Over,
    Progress,
    Record,
    Rules,
    Seat,
    Seen,
    Start,
    Stop,
    Tick,
)
from windlass.rankenv import Peers


class Phase(Enum):
    RECOVERING = "recovering"
    """The driver was started anew and asks who is still there."""
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


class Gang:
    """One stage's gang. Feed `handle`, carry out what it returns, call it again by `deadline`.

    recover: the journal says that `generation` was started and not that it ended, by a driver
    that is gone; its agents may still be there.
    budget: the restarts that the journal says are left, when there was an earlier driver.
    """

    def __init__(
        self,
        rules: Rules,
        generation: int = 0,
        now: float = 0.0,
        recover: bool = False,
        budget: Optional[int] = None,
    ) -> None:
        self.rules = rules
        self.generation = generation
        """The last one that was started; the next is one higher."""
        self.phase = Phase.RECOVERING if recover else Phase.FORMING
        self.members = Roster(rules.seats)
        self._purse = Purse(rules.restarts, budget)
        self._stall = StallWatch(rules)
        self.first_started: Optional[float] = now if recover else None
        self._unknown = len(self.members) if recover else 0
        """Members that the new driver has not heard of yet."""
        self._unfinished = self.members.to_finish()
        self._since = now
        """When the present phase began; a gang that fails again and again forms later than now."""
        self._next_lease_check = now + rules.lease
        self._ending: Optional[Ending] = None
        self._falls: List[Exited] = []
        self._peers: Peers = {}
        self._reason = "first"
        self._open = recover
        """A generation was started and its end is not recorded yet."""
        if recover:
            for member in self.members.values():
                self.members.move(member, At.RUNNING)  # nobody says that it has ended
                member.heard = now

    @property
    def budget(self) -> int:
        """Restarts that are left."""
        return self._purse.left

    def begin(self, now: float) -> List[Action]:
        if self.phase is Phase.RECOVERING:
            return []
        return [launch for seat in self.members for launch in self._launch(seat)]

    def handle(self, event: Happening, now: float) -> List[Action]:
        """Takes one event; stale and repeated ones are harmless."""
        if self.phase is Phase.OVER:
            return []
        actions: List[Action] = _HANDLERS[type(event)](self, event, now)
        return actions

    def deadline(self) -> Optional[float]:
        """When `Tick` is due at the latest."""
        times = [self._next_lease_check]
        if self.phase is Phase.FORMING:
            times.append(self._since + (self.rules.form_timeout if self.members.absent else 0.0))
        if self.phase is Phase.RECOVERING:
            times.append(self._since + self.rules.lease)
        if self.phase is Phase.RUNNING:
            if self.rules.timeout and self.first_started is not None:
                times.append(self.first_started + self.rules.timeout)
            if self.rules.stall_after:
                times.append(self._stall.due)
        return min(times)

    def renews(self, seat: Seat) -> bool:
        """Whether the driver may answer the agent's heartbeat: no longer once it is fenced, lest its lease goes on."""
        return not self.members[seat].fenced

    # Coming together.

    def _launch(self, seat: Seat) -> List[Action]:
        """Asks for an agent, unless one is on its way."""
        member = self.members[seat]
        if member.launching:
            return []
        member.launching = True
        return [Launch(seat, member.address)]

    def _seen(self, event: Seen, now: float) -> List[Action]:
        """What an agent does against what it should do."""
        member = self.members.get(event.seat)
        if member is None or member.fenced:
            return []  # what is fenced is as good as dead, and so is whoever takes its place before Lost is told
        if member.agent and member.agent != event.agent:
            gone = Cause(Kind.AGENT_LOST, "another agent took its place", role=event.seat[0], rank=event.seat[1])
            actions = self._lost(Lost(event.seat, gone), now, launching=True)  # its successor is here
            return [*actions, *self.handle(event, now)]
        member.said_at = max(member.said_at, event.at)
        if not member.agent and member.at is At.RUNNING:
            return self._recovered(event, member, now)
        member.heard, member.agent = now, event.agent
        if member.at is At.ABSENT:
            return self._arrived(event, member, now)
        current = (self.generation, member.restart)
        if member.at is At.RUNNING and event.life <= current:
            return self._compared(event, member, current, now)
        if event.running and event.life < current:
            return [Kill(event.seat, event.life, 0.0)]
        return []

    def _compared(self, event: Seen, member: Member, current: Life, now: float) -> List[Action]:
        """A member that should run, or be made to end."""
        if event.life == current and event.exit is not None:
            return self._exited(event.exit, now)
        if self.phase is Phase.ENDING:
            return self._kill(event.seat)
        if event.running and event.life < current:
            return [Kill(event.seat, event.life, 0.0)]
        if event.life < current and self.phase is Phase.RUNNING:
            return [Start(event.seat, current, self._peers)]
        if member.doom is not None:
            return self._kill(event.seat, self.rules.grace if member.doom.kind is Kind.PREEMPTED else 0.0)
        return []

    def _arrived(self, event: Seen, member: Member, now: float) -> List[Action]:
        moved = member.address is not None and member.address != event.address
        member.address, member.launching = event.address, event.running
        if event.running:
            member.agent = ""
            return [Kill(event.seat, event.life, 0.0)]
        self.members.move(member, At.IDLE)
        if self.phase is Phase.FORMING:
            return self._formed(now)
        if self.phase is not Phase.RUNNING or not member.alone:
            return []
        if member.succeeded:
            self.members.move(member, At.DONE)
            return []
        if moved:
            text = "the rank came back at another address than its peers know"
            return self._fail(Cause(Kind.AGENT_LOST, text, role=event.seat[0], rank=event.seat[1]), now)
        return self._start_alone(event.seat, now)

    def _formed(self, now: float) -> List[Action]:
        """Starts the generation if all are there and its time has come."""
        return [] if self.members.absent or now < self._since else self._start_generation(now)

    def _start_generation(self, now: float) -> List[Action]:
        self.generation += 1
        self.phase, self._since = Phase.RUNNING, now
        if self.first_started is None:
            self.first_started = now
        self._purse.begin()
        self._stall.begin(now)
        self._falls, self._ending, self._open = [], None, True
        self._unfinished = self.members.to_finish()
        self._peers = self.members.peers()
        actions: List[Action] = [Record("gen.started", {"gen": self.generation, "reason": self._reason})]
        for seat, member in self.members.items():
            self.members.move(member, At.RUNNING)
            member.restart, member.heard = 0, now
            member.begin(now)
            actions.append(Start(seat, (self.generation, 0), self._peers))
        return actions

    def _start_alone(self, seat: Seat, now: float) -> List[Action]:
        member = self.members[seat]
        self.members.move(member, At.RUNNING)
        member.restart += 1
        member.begin(now)
        return [Start(seat, (self.generation, member.restart), self._peers)]

    # A driver that was started anew.

    def _recovered(self, event: Seen, member: Member, now: float) -> List[Action]:
        """Takes a survivor as it is; once all are there, goes on with the generation if it is whole."""
        member.heard, member.agent, member.address = now, event.agent, event.address
        self._unknown -= 1
        member.knows = event.life[0] == self.generation
        if member.knows:
            member.restart, member.exit = event.life[1], event.exit
        if self.phase is Phase.RECOVERING:
            return [] if self._unknown else self._take_up(now)
        return self._seen(event, now)

    def _take_up(self, now: float) -> List[Action]:
        """All are there. Where one never heard of the generation (it may be the successor of one that ran in it)
        or was ended by the earlier driver (perhaps before it ever ran), the generation cannot go on."""
        self._peers = self.members.peers()
        self.phase, self._since = Phase.RUNNING, now
        self._stall.begin(now)
        ended = self.members.ended()
        if not all(member.knows for member in self.members.values()) or any(exit_.asked for exit_ in ended):
            text = "the driver was lost while it started or ended the gang"
            return self._abandon(Cause(Kind.SUPERVISOR_LOST, text), now)
        return [action for exit_ in ended for action in self._exited(exit_, now)]

    def _abandon(self, cause: Cause, now: float) -> List[Action]:
        """The generation ends for all. Who has not come back is told so when it does, or fenced."""
        ended = self.members.ended()
        own = [located(exit_) for exit_ in ended if not exit_.asked and not exit_.ok]
        actions = self._fail(own[0] if own else replace(cause, generation=self.generation), now)
        return actions + [action for exit_ in ended for action in self._exited(exit_, now)]

    def _give_up_recovery(self, now: float) -> List[Action]:
        text = f"{named(self.members.unheard())} did not come back after the driver was started anew"
        return self._abandon(Cause(Kind.NODE_LOST, text), now)

    # Signs of life.

    def _progress(self, event: Progress, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is not None and event.generation == self.generation:
            member.heard = member.progress_at = now
            self._purse.reached(event.step)
        return []

    def _checkpoint(self, event: Checkpoint, now: float) -> List[Action]:
        self._purse.refill()
        return []

    def _notice(self, event: Notice, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not At.RUNNING or self.phase is not Phase.RUNNING:
            return []
        role, rank = event.seat
        cause = Cause(Kind.PREEMPTED, "its machine was taken away", role=role, rank=rank, generation=self.generation)
        if member.alone:
            member.doom = cause
            return self._kill(event.seat, self.rules.grace)
        return self._end(Ending("failed", cause, again=True, grace=self.rules.grace), now)

    # Falling.

    def _exited(self, event: Exited, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not At.RUNNING or event.life != (self.generation, member.restart):
            return []
        if self.phase is Phase.RECOVERING or member.fenced or not member.agent:
            return []  # the agent will say it again, or is as good as dead
        self.members.move(member, At.DONE)
        member.heard = now
        return self._fell(event.seat, member, event, now)

    def _lost(self, event: Lost, now: float, launching: bool = False) -> List[Action]:
        member = self.members.get(event.seat)
        if member is None:
            return []
        was, life = member.at, (self.generation, member.restart)
        unasked = self.phase is not Phase.ENDING or member.fenced  # a fenced one fell before all others, perhaps
        at = event.at if event.at and not member.fenced else member.said_at
        self.members.move(member, At.ABSENT)
        member.agent, member.fenced, member.launching = "", False, launching
        if self.phase is Phase.RECOVERING:
            return self._abandon(event.cause, now)
        if was is At.RUNNING:
            return self._fell(event.seat, member, Exited(event.seat, life, -1, 0, at, not unasked, event.cause), now)
        waited_for = was is At.ABSENT and self.phase is Phase.RUNNING and not member.succeeded
        if self.phase is Phase.FORMING or waited_for:
            return self._spend(event.cause, now) or self._launch(event.seat)
        return []

    def _fell(self, seat: Seat, member: Member, event: Exited, now: float) -> List[Action]:
        if member.doom is not None:
            event = replace(event, cause=member.doom, asked=False, code=event.code or -1)
        elif event.asked and self.phase is not Phase.ENDING:
            lost = Cause(Kind.SUPERVISOR_LOST, "the driver was lost while it ended this rank")
            event = replace(event, cause=lost, asked=False, code=event.code or -1)
        member.exit = event
        if self.phase is Phase.ENDING:
            if not event.ok and not event.asked and not member.alone:
                self._falls.append(event)
            return self._conclude(now)
        if event.ok:
            member.recorded = True
            recorded: List[Action] = [rank_ended(event, "succeeded")]
            self._unfinished -= member.finishes
            if not self._unfinished:
                return recorded + self._end(Ending("succeeded", grace=self.rules.grace), now)
            return recorded
        cause = located(event)
        if member.alone and not self._refusal(cause):
            self._pay(cause)
            member.recorded = True
            recorded = [rank_ended(event, "failed", left=self.budget)]
            if member.at is At.ABSENT:
                return recorded + self._launch(seat)
            return recorded + self._start_alone(seat, now)
        self._falls.append(event)
        return self._fail(cause, now)

    def _fail(self, cause: Cause, now: float) -> List[Action]:
        """The generation is over for all: kill what is left at once, then begin again or give up."""
        return self._end(Ending("failed", cause, again=not self._refusal(cause)), now)

    def _refusal(self, cause: Cause) -> str:
        return self._purse.refusal(cause, self._alone(cause))

    def _pay(self, cause: Cause) -> None:
        self._purse.pay(cause, self._alone(cause))

    def _alone(self, cause: Cause) -> Optional[Seat]:
        member = self.members.get((cause.role, cause.rank))
        return (cause.role, cause.rank) if member is not None and member.alone else None

    def _spend(self, cause: Cause, now: float) -> List[Action]:
        """Pays for an agent that fell before it ran anything; actions only when it cannot."""
        if self._refusal(cause):
            return self._end(Ending("failed", cause), now)
        self._pay(cause)
        return []

    def _stop(self, event: Stop, now: float) -> List[Action]:
        grace = 0.0 if event.now else self.rules.grace
        if self.phase is Phase.ENDING and self._ending is not None:
            if self._ending.again:
                self._ending = replace(self._ending, again=False, state="stopped", cause=event.cause)
            self._ending = replace(self._ending, grace=min(grace, self._ending.grace))
            return self._kill_running()
        return self._end(Ending("stopped", event.cause, grace=grace), now)

    def _fault(self, event: Fault, now: float) -> List[Action]:
        if self.phase is Phase.ENDING and self._ending is not None:
            if self._ending.again:
                self._ending = Ending("failed", event.cause)
            return []
        return self._end(Ending("failed", event.cause), now)

    # Winding up a generation.

    def _end(self, ending: Ending, now: float) -> List[Action]:
        self.phase, self._ending, self._since = Phase.ENDING, ending, now
        return self._kill_running() + self._conclude(now)

    def _kill_running(self) -> List[Action]:
        return [kill for seat in self.members.who(At.RUNNING) for kill in self._kill(seat)]

    def _kill(self, seat: Seat, grace: Optional[float] = None) -> List[Action]:
        wanted = self._ending.grace if self._ending is not None else 0.0
        return [Kill(seat, (self.generation, self.members[seat].restart), wanted if grace is None else grace)]

    def _conclude(self, now: float) -> List[Action]:
        """Once nobody runs: say how the generation ended, then go on to the next or stop."""
        ending = self._ending
        if ending is None or self.members.running:
            return []
        cause, first = first_cause(ending, self._falls)
        again = ending.again and cause is not None and not self._refusal(cause)
        if again and cause is not None:
            self._pay(cause)
        records, consequences = ranks_ended(ending, self.members, first)
        actions: List[Action] = [*records]
        if self._open:
            self._open = False
            keys = {"gen": self.generation, "state": ending.state, "cause": cause, "again": again or None}
            keys["restarts_left"] = self.budget
            actions.append(Record("gen.ended", {**keys, "consequences": consequences or None}))
        if not again:
            self.phase = Phase.OVER
            if ending.state == "failed" and cause is not None and self._refusal(cause) == SAME:
                text = f"not restarted: {SAME}"
                actions.append(Record("note", {"text": text, "level": "warning"}))
            return [*actions, Over(ending.state, cause)]
        assert cause is not None
        return actions + self._form_again(cause, now)

    def _form_again(self, cause: Cause, now: float) -> List[Action]:
        pause = self._purse.pause
        self.phase, self._since = Phase.FORMING, now + pause
        self._reason = cause.kind.value
        actions: List[Action] = []
        if pause:
            text = f"starts again in {pause:g} s: it failed {self._purse.vain} times in a row without progress"
            actions.append(Record("note", {"text": text, "level": "warning"}))
        if not self.members.absent:
            return actions + self._formed(now)
        return actions + [launch for seat in self.members.who(At.ABSENT) for launch in self._launch(seat)]

    # Time.

    def _tick(self, event: Tick, now: float) -> List[Action]:
        actions: List[Action] = []
        if now >= self._next_lease_check:
            self._next_lease_check = now + min(1.0, self.rules.lease)
            actions += self._check_leases(now)
        if self.phase is Phase.RECOVERING and now >= self._since + self.rules.lease:
            return actions + self._give_up_recovery(now)
        if self.phase is Phase.FORMING:
            late = self.members.absent and now >= self._since + self.rules.form_timeout
            return actions + (self._never_formed(now) if late else self._formed(now))
        if self.phase is not Phase.RUNNING:
            return actions
        if self.rules.timeout and self.first_started is not None and now >= self.first_started + self.rules.timeout:
            text = f"the stage ran longer than its timeout of {self.rules.timeout:g} s"
            ending = Ending("failed", Cause(Kind.TIMED_OUT, text, generation=self.generation), grace=self.rules.grace)
            return actions + self._end(ending, now)
        if self.rules.stall_after:
            return actions + self._check_stall(now)
        return actions

    def _check_leases(self, now: float) -> List[Action]:
        actions: List[Action] = []
        for seat in self.members.silent(now, self.rules.lease):
            member = self.members[seat]
            member.fenced = True
            if member.at is not At.RUNNING:
                self.members.move(member, At.ABSENT)
                member.launching = True  # another agent may come once Lost is told, not before
            actions.append(Fence(seat))
        return actions

    def _check_stall(self, now: float) -> List[Action]:
        found = self._stall.look(self.members, now)
        if found.end:
            return self._end_hung(found.end, now)
        return [DumpStacks(seat, (self.generation, self.members[seat].restart)) for seat in found.show]

    def _end_hung(self, hung: Sequence[Seat], now: float) -> List[Action]:
        text = f"no progress was reported for {self.rules.stall_after:g} s"
        if not self.rules.restart_on_stall:
            cause = Cause(Kind.STALLED, text, generation=self.generation)
            return self._end(Ending("failed", cause), now)
        if all(self.members[seat].alone for seat in hung) and len(hung) < self.members.running:
            actions: List[Action] = []
            for seat in hung:
                self.members[seat].doom = Cause(Kind.STALLED, text, role=seat[0], rank=seat[1])
                actions += self._kill(seat, 0.0)
            return actions
        return self._fail(Cause(Kind.STALLED, text, generation=self.generation), now)

    def _never_formed(self, now: float) -> List[Action]:
        missing = named(self.members.who(At.ABSENT))
        text = f"the gang did not come together within {self.rules.form_timeout:g} s: {missing} missing"
        return self._end(Ending("failed", Cause(Kind.LOST_RENDEZVOUS, text)), now)


_HANDLERS: Mapping[type, Any] = {
    Seen: Gang._seen,
    Exited: Gang._exited,
    Lost: Gang._lost,
    Progress: Gang._progress,
    Checkpoint: Gang._checkpoint,
    Notice: Gang._notice,
    Stop: Gang._stop,
    Fault: Gang._fault,
    Tick: Gang._tick,
}
