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
decided beside it; what it finds wrong by itself is worded in `reasons`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from typing import Any, List, Mapping, Optional, Sequence

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang import kill_causes, outcomes
from longboat.runtime.gang.members import Member, MemberState, Roster
from longboat.runtime.gang.outcomes import GenerationOutcome
from longboat.runtime.gang.restart_budget import SAME, RestartBudget
from longboat.runtime.gang.stall import StallWatch
from longboat.runtime.rank_env import Peers


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
        rules: g.GangRules,
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
        self._purse = RestartBudget(rules, budget)
        self._stall = StallWatch(rules)
        self.first_started: Optional[float] = now if recover else None
        self._unfinished = self.members.to_finish()
        self._since = now
        """When the present phase began; a gang that fails again and again forms later than now."""
        self._next_lease_check = now + rules.lease
        self._ending: Optional[GenerationOutcome] = None
        self._falls: List[g.Exited] = []
        self._peers: Peers = {}
        self._reason = "first"
        self._open = recover
        """A generation was started and its end is not recorded yet."""
        self._behind = False
        """Agents have lived a generation that the journal has lost with the driver's disk. None of its numbers is
        used again, for agents heed no order about what they have left behind."""
        if recover:
            self.members.presume_running(now)

    @property
    def budget(self) -> int:
        """Restarts that are left."""
        return self._purse.left

    def begin(self, now: float) -> List[g.Action]:
        if self.phase is Phase.RECOVERING:
            return []
        return [launch for seat in self.members for launch in self._launch(seat)]

    def handle(self, event: g.GangEvent, now: float) -> List[g.Action]:
        """Takes one event; stale and repeated ones are harmless."""
        if self.phase is Phase.OVER:
            return []
        actions: List[g.Action] = _HANDLERS[type(event)](self, event, now)
        return actions

    def deadline(self) -> Optional[float]:
        """When `Tick` is due at the latest."""
        times = [self._next_lease_check, *self.members.held.values()]
        if self.phase is Phase.FORMING:
            times.append(self._since + (self.rules.form_timeout if self.members.absent else 0.0))
        if self.phase is Phase.RECOVERING:
            times.append(self._since + self.rules.lease)
        if self.phase is Phase.RUNNING:
            times.append(self._times_out_at)
            if self.rules.stall_after:
                times.append(self._stall.due)
        return min(times)

    def renews(self, seat: g.Seat) -> bool:
        """Whether the driver may answer the agent's heartbeat: no longer once it is fenced, lest its lease goes on."""
        return not self.members[seat].fenced

    @property
    def _times_out_at(self) -> float:
        started, timeout = self.first_started, self.rules.timeout
        return started + timeout if timeout and started is not None else math.inf

    def _incarnation(self, seat: g.Seat) -> g.Incarnation:
        return self.generation, self.members[seat].restart

    # Coming together.

    def _launch(self, seat: g.Seat) -> List[g.Action]:
        """Asks for an agent, unless one is on its way."""
        member = self.members[seat]
        self.members.held.pop(seat, None)
        if member.launching:
            return []
        member.launching = True
        return [g.Launch(seat, member.address)]

    def _launch_again(self, seat: g.Seat, now: float) -> List[g.Action]:
        """The same for one that has just gone: after a pause, if they go again and again."""
        if not self._purse.pause:
            return self._launch(seat)
        self.members.held[seat] = now + self._purse.pause
        return []

    def _launch_held(self, now: float) -> List[g.Action]:
        due = self.members.let_out(now)
        if self.phase not in (Phase.FORMING, Phase.RUNNING):
            return []  # all are asked for by and by
        return [launch for seat in due for launch in self._launch(seat)]

    def _seen(self, event: g.Heartbeat, now: float) -> List[g.Action]:
        """What an agent does against what it should do."""
        member = self.members.get(event.seat)
        if member is None or member.fenced:
            return []  # what is fenced is as good as dead, and so is whoever takes its place before Lost is told
        if member.agent and member.agent != event.agent:
            lost = g.AgentLost(event.seat, kill_causes.replaced(event.seat))
            return [*self._lost(lost, now, launching=True), *self.handle(event, now)]  # its successor is here
        if event.incarnation[0] > self.generation and self.phase in (Phase.RECOVERING, Phase.FORMING):
            self.generation, self._behind = event.incarnation[0], True
        member.said_at = max(member.said_at, event.at)
        if not member.agent and member.at is MemberState.RUNNING:
            return self._recovered(event, member, now)
        member.heard, member.agent = now, event.agent
        if member.at is MemberState.ABSENT:
            return self._arrived(event, member, now)
        current = self._incarnation(event.seat)
        if member.at is MemberState.RUNNING and event.incarnation <= current:
            return self._compared(event, member, current, now)
        if event.running and event.incarnation < current:
            return [g.Kill(event.seat, event.incarnation, 0.0)]
        return []

    def _compared(self, event: g.Heartbeat, member: Member, current: g.Incarnation, now: float) -> List[g.Action]:
        """A member that should run, or be made to end."""
        if event.incarnation == current and event.exit is not None:
            return self._exited(event.exit, now)
        if self.phase is Phase.ENDING:
            return self._kill(event.seat)
        if event.running and event.incarnation < current:
            return [g.Kill(event.seat, event.incarnation, 0.0)]
        if event.incarnation < current and self.phase is Phase.RUNNING:
            return [g.Start(event.seat, current, self._peers)]
        if member.kill_cause is not None:
            return self._kill(event.seat, self.rules.grace if member.kill_cause.kind is CauseKind.PREEMPTED else 0.0)
        return []

    def _arrived(self, event: g.Heartbeat, member: Member, now: float) -> List[g.Action]:
        moved = member.address is not None and member.address != event.address
        member.address, member.launching = event.address, event.running
        if event.running:
            member.agent = ""
            return [g.Kill(event.seat, event.incarnation, 0.0)]
        self.members.move(member, MemberState.IDLE)
        if self.phase is Phase.FORMING:
            return self._formed(now)
        if self.phase is not Phase.RUNNING or not member.alone:
            return []
        if member.succeeded:
            self.members.move(member, MemberState.DONE)
            return []
        if moved:
            return self._fail(kill_causes.moved(event.seat), now)
        return self._start_alone(event.seat, now)

    def _formed(self, now: float) -> List[g.Action]:
        """Starts the generation if all are there and its time has come."""
        return [] if self.members.absent or now < self._since else self._start_generation(now)

    def _start_generation(self, now: float) -> List[g.Action]:
        self.generation += 1
        self.phase, self._since = Phase.RUNNING, now
        if self.first_started is None:
            self.first_started = now
        self._purse.begin()
        self._stall.begin(now)
        self._ending, self._open = None, True
        self._unfinished = self.members.to_finish()
        self._peers = self.members.peers()
        self.members.begin(now)
        begun = g.RecordEvent("gen.started", {"gen": self.generation, "reason": self._reason})
        return [begun, *(g.Start(seat, self._incarnation(seat), self._peers) for seat in self.members)]

    def _start_alone(self, seat: g.Seat, now: float) -> List[g.Action]:
        member = self.members[seat]
        self.members.move(member, MemberState.RUNNING)
        member.restart += 1
        member.begin(now)
        return [g.Start(seat, self._incarnation(seat), self._peers)]

    # A driver that was started anew.

    def _recovered(self, event: g.Heartbeat, member: Member, now: float) -> List[g.Action]:
        """Takes a survivor as it is; once all are there, goes on with the generation if it is whole."""
        self.members.take_back(member, event, self.generation, now)
        if self.phase is Phase.RECOVERING:
            return [] if self.members.unheard else self._take_up(now)
        return self._seen(event, now)

    def _take_up(self, now: float) -> List[g.Action]:
        """All are there. Where one never heard of the generation (it may be the successor of one that ran in it)
        or was ended by the earlier driver (perhaps before it ever ran), or where it was never recorded, the generation
        cannot go on."""
        self._peers = self.members.peers()
        self.phase, self._since = Phase.RUNNING, now
        self._stall.begin(now)
        ended = self.members.ended()
        whole = not self._behind and all(member.knows for member in self.members.values())
        if not whole or any(exit_.asked for exit_ in ended):
            return self._abandon(kill_causes.driver_lost_between(), now)
        return [action for exit_ in ended for action in self._exited(exit_, now)]

    def _abandon(self, cause: Cause, now: float) -> List[g.Action]:
        """The generation ends for all. Who has not come back is told so when it does, or fenced."""
        ended = self.members.ended()
        own = [outcomes.located(exit_) for exit_ in ended if not exit_.asked and not exit_.ok]
        actions = self._fail(own[0] if own else replace(cause, generation=self.generation), now)
        return actions + [action for exit_ in ended for action in self._exited(exit_, now)]

    def _give_up_recovery(self, now: float) -> List[g.Action]:
        return self._abandon(kill_causes.not_back(self.members.missing()), now)

    # Signs of life.

    def _progress(self, event: g.Progress, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is not None and event.generation == self.generation:
            member.heard = member.progress_at = now
            self._purse.reached(event.step)
        return []

    def _checkpoint(self, event: g.CheckpointComplete, now: float) -> List[g.Action]:
        self._purse.refill()
        return []

    def _notice(self, event: g.PreemptionNotice, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not MemberState.RUNNING or self.phase is not Phase.RUNNING:
            return []
        cause = kill_causes.preempted(event.seat, self.generation)
        if member.alone:
            member.kill_cause = cause
            return self._kill(event.seat, self.rules.grace)
        return self._end(GenerationOutcome("failed", cause, again=True, grace=self.rules.grace), now)

    # Falling.

    def _exited(self, event: g.Exited, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not MemberState.RUNNING or event.incarnation != self._incarnation(event.seat):
            return []
        if self.phase is Phase.RECOVERING or member.fenced or not member.agent:
            return []  # the agent will say it again, or is as good as dead
        self.members.move(member, MemberState.DONE)
        member.heard = now
        return self._fell(event.seat, member, event, now)

    def _lost(self, event: g.AgentLost, now: float, launching: bool = False) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is None:
            return []
        was, exit_ = (
            member.at,
            outcomes.of_loss(event, member, self._incarnation(event.seat), self.phase is Phase.ENDING),
        )
        self.members.leave(member, launching)
        if self.phase is Phase.RECOVERING:
            return self._abandon(event.cause, now)
        if was is MemberState.RUNNING:
            return self._fell(event.seat, member, exit_, now)
        waited_for = was is MemberState.ABSENT and self.phase is Phase.RUNNING and not member.succeeded
        if self.phase is Phase.FORMING or waited_for:
            return self._spend(event.cause, now) or self._launch_again(event.seat, now)
        return []

    def _fell(self, seat: g.Seat, member: Member, event: g.Exited, now: float) -> List[g.Action]:
        member.exit = event = outcomes.counted(event, member.kill_cause, self.phase is Phase.ENDING)
        if self.phase is Phase.ENDING:
            if not event.ok and not event.asked and not member.alone:
                self._falls.append(event)
            return self._conclude(now)
        if event.ok:
            recorded: List[g.Action] = [outcomes.rank_ended(member, "succeeded")]
            self._unfinished -= member.finishes
            if not self._unfinished:
                return recorded + self._end(GenerationOutcome("succeeded", grace=self.rules.grace), now)
            return recorded
        cause = outcomes.located(event)
        if member.alone and self._purse.pay(cause):
            recorded = [outcomes.rank_ended(member, "failed", left=self.budget)]
            if member.at is MemberState.ABSENT:
                return recorded + self._launch_again(seat, now)
            return recorded + self._start_alone(seat, now)
        self._falls.append(event)
        return self._fail(cause, now)

    def _fail(self, cause: Cause, now: float) -> List[g.Action]:
        """The generation is over for all: kill what is left at once, then begin again or give up."""
        return self._end(GenerationOutcome("failed", cause, again=not self._purse.refusal(cause)), now)

    def _spend(self, cause: Cause, now: float) -> List[g.Action]:
        """Pays for an agent that fell before it ran anything; actions only when it cannot."""
        return [] if self._purse.pay(cause) else self._end(GenerationOutcome("failed", cause), now)

    def _stop(self, event: g.StopRequest, now: float) -> List[g.Action]:
        grace = 0.0 if event.now else self.rules.grace
        if self.phase is Phase.ENDING and self._ending is not None:
            self._ending = self._ending.stopped(event.cause, grace)
            return self._kill_running()
        return self._end(GenerationOutcome("stopped", event.cause, grace=grace), now)

    def _fault(self, event: g.Fault, now: float) -> List[g.Action]:
        if self.phase is Phase.ENDING and self._ending is not None:
            self._ending = self._ending.spoilt(event.cause)
            return []
        return self._end(GenerationOutcome("failed", event.cause), now)

    # Winding up a generation.

    def _end(self, ending: GenerationOutcome, now: float) -> List[g.Action]:
        self.phase, self._ending, self._since = Phase.ENDING, ending, now
        return self._kill_running() + self._conclude(now)

    def _kill_running(self) -> List[g.Action]:
        return [kill for seat in self.members.who(MemberState.RUNNING) for kill in self._kill(seat)]

    def _kill(self, seat: g.Seat, grace: Optional[float] = None) -> List[g.Action]:
        wanted = self._ending.grace if self._ending is not None else 0.0
        return [g.Kill(seat, self._incarnation(seat), wanted if grace is None else grace)]

    def _conclude(self, now: float) -> List[g.Action]:
        """Once nobody runs: say how the generation ended, then go on to the next or stop."""
        ending = self._ending
        if ending is None or self.members.running:
            return []
        cause, first = outcomes.first_cause(ending, self._falls)
        again = ending.again and cause is not None and self._purse.pay(cause)
        records, consequences = outcomes.ranks_ended(ending, self.members, first)
        actions: List[g.Action] = [*records]
        if self._open:
            self._open = False
            actions.append(outcomes.generation_ended(self.generation, ending, cause, again, self.budget, consequences))
        if again and cause is not None:
            return actions + self._form_again(cause, now)
        return actions + self._give_up(ending, cause)

    def _give_up(self, ending: GenerationOutcome, cause: Optional[Cause]) -> List[g.Action]:
        self.phase = Phase.OVER
        over = g.GangEnded(ending.state, cause)
        vain = ending.state == "failed" and cause is not None and self._purse.refusal(cause) == SAME
        return [outcomes.note(f"not restarted: {SAME}"), over] if vain else [over]

    def _form_again(self, cause: Cause, now: float) -> List[g.Action]:
        pause = self._purse.pause
        self.phase, self._since, self._falls = Phase.FORMING, now + pause, []
        self._reason = cause.kind.value
        actions: List[g.Action] = []
        if pause:
            text = f"starts again in {pause:g} s: it ended {self._purse.vain} times in a row without progress"
            actions.append(outcomes.note(text))
        if not self.members.absent:
            return actions + self._formed(now)
        return actions + [launch for seat in self.members.who(MemberState.ABSENT) for launch in self._launch(seat)]

    # Time.

    def _tick(self, event: g.Tick, now: float) -> List[g.Action]:
        actions = self._launch_held(now)
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
        if now >= self._times_out_at:
            cause = kill_causes.timed_out(self.rules, self.generation)
            return actions + self._end(GenerationOutcome("failed", cause, grace=self.rules.grace), now)
        if self.rules.stall_after:
            return actions + self._check_stall(now)
        return actions

    def _check_leases(self, now: float) -> List[g.Action]:
        return [g.Fence(seat) for seat in self.members.fence_silent(now, self.rules.lease)]

    def _check_stall(self, now: float) -> List[g.Action]:
        found = self._stall.look(self.members, now)
        if found.end:
            return self._end_hung(found.end, now)
        return [g.DumpStacks(seat, self._incarnation(seat)) for seat in found.show]

    def _end_hung(self, hung: Sequence[g.Seat], now: float) -> List[g.Action]:
        cause = kill_causes.gang_stalled(self.rules, self.generation)
        if not self.rules.restart_on_stall:
            return self._end(GenerationOutcome("failed", cause), now)
        if not all(self.members[seat].alone for seat in hung) or len(hung) >= self.members.running:
            return self._fail(cause, now)
        for seat in hung:
            self.members[seat].kill_cause = kill_causes.rank_stalled(self.rules, seat)
        return [kill for seat in hung for kill in self._kill(seat, 0.0)]

    def _never_formed(self, now: float) -> List[g.Action]:
        missing = self.members.who(MemberState.ABSENT)
        return self._end(GenerationOutcome("failed", kill_causes.never_formed(self.rules, missing)), now)


_HANDLERS: Mapping[type, Any] = {
    g.Heartbeat: Gang._seen,
    g.Exited: Gang._exited,
    g.AgentLost: Gang._lost,
    g.Progress: Gang._progress,
    g.CheckpointComplete: Gang._checkpoint,
    g.PreemptionNotice: Gang._notice,
    g.StopRequest: Gang._stop,
    g.Fault: Gang._fault,
    g.Tick: Gang._tick,
}
