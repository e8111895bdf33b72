"""The gang's state machine: ranks of a stage that start, restart and stop together.

Events with times go in, actions come out. There is no clock, socket, file or thread here, so a
simulator can drive it through any order of events. It guarantees:

- No process of generation g+1 starts before every process of g has ended or is fenced.
- All ranks of a generation get the same peers, and its number is recorded before use.
- The stage succeeds when every rank that must finish has exited 0 in one generation.
- The first failure is the cause; later ones are its consequences.

Agents repeat their state (`Heartbeat`), and the gang compares it with what it wants. That one
comparison repairs lost and repeated messages, broken connections and a restarted driver. Which
seats restart alone is a property of the seat (`alone`), not of this code. `outcomes` decides which
rank failed first, `restart_budget` what a restart costs, `stall` what hangs; `kill_causes` holds
the causes that the gang determines itself.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, List, Mapping, Optional, Sequence

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang import kill_causes, outcomes
from longboat.runtime.gang.members import Member, MemberState, Roster
from longboat.runtime.gang.outcomes import GenerationOutcome
from longboat.runtime.gang.restart_budget import SAME, RestartBudget
from longboat.runtime.gang.stall import StallWatch
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.rank_env import Peers
from longboat.runtime.seat import Seat


class Phase(Enum):
    """Where the gang is between its first agent and its end."""

    RECOVERING = "recovering"
    """The driver was restarted and waits for the agents of the open generation."""
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


class Gang:
    """State machine of one stage's gang. Feed `handle`, carry out the actions it returns, call it again by `deadline`.

    recover: according to the journal an earlier driver started `generation` and did not end it;
    its agents may still be alive.
    budget: restarts left according to the journal, if there was an earlier driver.
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
        """The last one started; the next is one higher."""
        self.phase = Phase.RECOVERING if recover else Phase.FORMING
        self.members = Roster(rules.seats)
        self._restart_budget = RestartBudget(rules, budget)
        self._stall = StallWatch(rules)
        self.first_started: Optional[float] = now if recover else None
        self._unfinished = self.members.to_finish()
        self._since = now
        """When the current phase began; in the future if the gang waits before it forms again."""
        self._next_lease_check = now + rules.lease
        self._ending: Optional[GenerationOutcome] = None
        self._failures: List[g.Exited] = []
        self._peers: Peers = {}
        self._reason = "first"
        self._open = recover
        """A generation was started and its end is not recorded yet."""
        self._journal_behind = False
        """Agents ran a generation that the journal lost with the driver's disk. Its number is not used again:
        agents ignore orders about generations they have left."""
        if recover:
            self.members.presume_running(now)

    @property
    def budget(self) -> int:
        """Restarts left."""
        return self._restart_budget.left

    def begin(self, now: float) -> List[g.Action]:
        """Launch all agents; after a driver restart, wait for those that are alive."""
        if self.phase is Phase.RECOVERING:
            return []
        return [launch for seat in self.members for launch in self._launch(seat)]

    def handle(self, event: g.GangEvent, now: float) -> List[g.Action]:
        """Handle one event; stale and repeated ones are harmless."""
        if self.phase is Phase.OVER:
            return []
        actions: List[g.Action] = _HANDLERS[type(event)](self, event, now)
        return actions

    def deadline(self) -> Optional[float]:
        """Latest time at which `Tick` is due."""
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

    def renews(self, seat: Seat) -> bool:
        """Whether the driver may answer the agent's heartbeat. Not once it is fenced: an answer extends its lease."""
        return not self.members[seat].fenced

    @property
    def _times_out_at(self) -> float:
        started, timeout = self.first_started, self.rules.timeout
        return started + timeout if timeout and started is not None else math.inf

    def _incarnation(self, seat: Seat) -> g.Incarnation:
        return self.generation, self.members[seat].restart

    # Forming.

    def _launch(self, seat: Seat) -> List[g.Action]:
        """Request an agent, unless one is on its way."""
        member = self.members[seat]
        self.members.held.pop(seat, None)
        if member.launching:
            return []
        member.launching = True
        return [g.Launch(seat, member.address)]

    def _launch_again(self, seat: Seat, now: float) -> List[g.Action]:
        """Request a replacement for a lost agent; after a pause, if agents of the gang keep getting lost."""
        if not self._restart_budget.pause:
            return self._launch(seat)
        self.members.held[seat] = now + self._restart_budget.pause
        return []

    def _launch_held(self, now: float) -> List[g.Action]:
        due = self.members.release_held(now)
        if self.phase not in (Phase.FORMING, Phase.RUNNING):
            return []  # forming launches all that are absent
        return [launch for seat in due for launch in self._launch(seat)]

    def _heartbeat(self, event: g.Heartbeat, now: float) -> List[g.Action]:
        """Compare an agent's state with what it should be."""
        member = self.members.get(event.seat)
        if member is None or member.fenced:
            return []  # a fenced agent counts as dead, and so does its successor until AgentLost is reported
        if member.agent and member.agent != event.agent:
            lost = g.AgentLost(event.seat, kill_causes.replaced(event.seat))
            return [*self._agent_lost(lost, now, launching=True), *self.handle(event, now)]  # its successor is here
        if event.incarnation[0] > self.generation and self.phase in (Phase.RECOVERING, Phase.FORMING):
            self.generation, self._journal_behind = event.incarnation[0], True
        member.last_heartbeat_at = max(member.last_heartbeat_at, event.at)
        if not member.agent and member.at is MemberState.RUNNING:
            return self._agent_rejoined(event, member, now)
        member.heard, member.agent = now, event.agent
        if member.at is MemberState.ABSENT:
            return self._agent_joined(event, member, now)
        current = self._incarnation(event.seat)
        if member.at is MemberState.RUNNING and event.incarnation <= current:
            return self._reconcile(event, member, current, now)
        if event.running and event.incarnation < current:
            return [g.Kill(event.seat, event.incarnation, 0.0)]
        return []

    def _reconcile(self, event: g.Heartbeat, member: Member, current: g.Incarnation, now: float) -> List[g.Action]:
        """Correct a member that should run or be stopped."""
        if event.incarnation == current and event.exit is not None:
            return self._exited(event.exit, now)
        if self.phase is Phase.ENDING:
            return self._kill(event.seat)
        if event.incarnation == current and event.failing is not None and self.phase is Phase.RUNNING:
            return self._failing(event.failing, member, now)
        if event.running and event.incarnation < current:
            return [g.Kill(event.seat, event.incarnation, 0.0)]
        if event.incarnation < current and self.phase is Phase.RUNNING:
            return [g.Start(event.seat, current, self._peers)]
        if member.kill_cause is not None:
            return self._kill(event.seat, self.rules.grace if member.kill_cause.kind is CauseKind.PREEMPTED else 0.0)
        return []

    def _agent_joined(self, event: g.Heartbeat, member: Member, now: float) -> List[g.Action]:
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
        """Start the generation if all agents are here and the pause is over."""
        return [] if self.members.absent or now < self._since else self._start_generation(now)

    def _start_generation(self, now: float) -> List[g.Action]:
        self.generation += 1
        self.phase, self._since = Phase.RUNNING, now
        if self.first_started is None:
            self.first_started = now
        self._restart_budget.begin()
        self._stall.begin(now)
        self._ending, self._open = None, True
        self._unfinished = self.members.to_finish()
        self._peers = self.members.peers()
        self.members.begin(now)
        begun = g.RecordEvent("gen.started", {"gen": self.generation, "reason": self._reason})
        return [begun, *(g.Start(seat, self._incarnation(seat), self._peers) for seat in self.members)]

    def _start_alone(self, seat: Seat, now: float) -> List[g.Action]:
        member = self.members[seat]
        self.members.move(member, MemberState.RUNNING)
        member.restart += 1
        member.begin(now)
        return [g.Start(seat, self._incarnation(seat), self._peers)]

    # After a driver restart.

    def _agent_rejoined(self, event: g.Heartbeat, member: Member, now: float) -> List[g.Action]:
        """Accept a surviving agent; once all are here, continue the generation if it is complete."""
        self.members.rejoin(member, event, self.generation, now)
        if self.phase is Phase.RECOVERING:
            return [] if self.members.not_rejoined else self._resume_generation(now)
        return self._heartbeat(event, now)

    def _resume_generation(self, now: float) -> List[g.Action]:
        """Continue the open generation: all agents are here.

        It cannot continue if an agent never heard of it (it may replace one that ran in it), if the
        earlier driver stopped a rank (perhaps before it ran), or if the journal lost its record."""
        self._peers = self.members.peers()
        self.phase, self._since = Phase.RUNNING, now
        self._stall.begin(now)
        ended = self.members.ended()
        complete = not self._journal_behind and all(member.knows for member in self.members.values())
        if not complete or any(exit_.asked for exit_ in ended):
            return self._abandon(kill_causes.driver_lost_between(), now)
        return [action for exit_ in ended for action in self._exited(exit_, now)]

    def _abandon(self, cause: Cause, now: float) -> List[g.Action]:
        """End the generation for all ranks. An agent that reconnects later is ordered to stop, or is fenced."""
        ended = self.members.ended()
        failures = [outcomes.located(exit_) for exit_ in ended if not exit_.asked and not exit_.ok]
        actions = self._fail(failures[0] if failures else replace(cause, generation=self.generation), now)
        return actions + [action for exit_ in ended for action in self._exited(exit_, now)]

    def _give_up_recovery(self, now: float) -> List[g.Action]:
        return self._abandon(kill_causes.not_back(self.members.missing()), now)

    # Progress and preemption.

    def _progress(self, event: g.Progress, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is not None and event.generation == self.generation:
            member.heard = member.progress_at = now
            self._restart_budget.reached(event.step)
        return []

    def _checkpoint(self, event: g.CheckpointComplete, now: float) -> List[g.Action]:
        self._restart_budget.refill()
        return []

    def _notice(self, event: g.PreemptionNotice, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not MemberState.RUNNING or self.phase is not Phase.RUNNING:
            return []
        cause = kill_causes.preempted(event.seat, self.generation)
        if member.alone:
            if member.kill_cause == cause:
                return []  # agents repeat it
            member.kill_cause = cause
            return self._kill(event.seat, self.rules.grace)
        return self._end(GenerationOutcome("failed", cause, again=True, grace=self.rules.grace), now)

    # Ranks that end.

    def _exited(self, event: g.Exited, now: float) -> List[g.Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not MemberState.RUNNING or event.incarnation != self._incarnation(event.seat):
            return []
        if self.phase is Phase.RECOVERING or member.fenced or not member.agent:
            return []  # the agent will repeat it, or counts as dead
        self.members.move(member, MemberState.DONE)
        member.heard = now
        return self._rank_ended(event.seat, member, event, now)

    def _failing(self, event: g.Exited, member: Member, now: float) -> List[g.Action]:
        """An exception is ending a rank: end the others at once. Its own exit handlers get the grace period."""
        member.failing = True
        return [] if member.alone else self._fail(outcomes.located(event), now)

    def _agent_lost(self, event: g.AgentLost, now: float, launching: bool = False) -> List[g.Action]:
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
            return self._rank_ended(event.seat, member, exit_, now)
        waited_for = was is MemberState.ABSENT and self.phase is Phase.RUNNING and not member.succeeded
        if self.phase is Phase.FORMING or waited_for:
            return self._spend(event.cause, now) or self._launch_again(event.seat, now)
        return []

    def _rank_ended(self, seat: Seat, member: Member, event: g.Exited, now: float) -> List[g.Action]:
        member.exit = event = outcomes.counted(event, member.kill_cause, self.phase is Phase.ENDING)
        if self.phase is Phase.ENDING:
            if not event.ok and not event.asked and not member.alone:
                self._failures.append(event)
            return self._conclude(now)
        if event.ok:
            recorded: List[g.Action] = [outcomes.rank_ended(member, "succeeded")]
            self._unfinished -= member.finishes
            if not self._unfinished:
                return recorded + self._end(GenerationOutcome("succeeded", grace=self.rules.grace), now)
            return recorded
        cause = outcomes.located(event)
        if member.alone and self._restart_budget.pay(cause):
            recorded = [outcomes.rank_ended(member, "failed", left=self.budget)]
            if member.at is MemberState.ABSENT:
                return recorded + self._launch_again(seat, now)
            return recorded + self._start_alone(seat, now)
        self._failures.append(event)
        return self._fail(cause, now)

    def _fail(self, cause: Cause, now: float) -> List[g.Action]:
        """End the generation for all ranks: kill what runs, then restart or give up."""
        return self._end(GenerationOutcome("failed", cause, again=not self._restart_budget.refusal(cause)), now)

    def _spend(self, cause: Cause, now: float) -> List[g.Action]:
        """Pay for an agent lost before it ran anything; returns actions only if the budget is spent."""
        return [] if self._restart_budget.pay(cause) else self._end(GenerationOutcome("failed", cause), now)

    def _stop(self, event: g.StopRequest, now: float) -> List[g.Action]:
        grace = 0.0 if event.now else self.rules.grace
        if event.now:
            self.members.stop_waiting()
        if self.phase is Phase.ENDING and self._ending is not None:
            self._ending = self._ending.stopped(event.cause, grace)
            return self._kill_running()
        return self._end(GenerationOutcome("stopped", event.cause, grace=grace), now)

    def _fault(self, event: g.Fault, now: float) -> List[g.Action]:
        if self.phase is Phase.ENDING and self._ending is not None:
            self._ending = self._ending.failed(event.cause)
            return []
        return self._end(GenerationOutcome("failed", event.cause), now)

    # Ending a generation.

    def _end(self, ending: GenerationOutcome, now: float) -> List[g.Action]:
        self.phase, self._ending, self._since = Phase.ENDING, ending, now
        return self._kill_running() + self._conclude(now)

    def _kill_running(self) -> List[g.Action]:
        return [kill for seat in self.members.seats_in(MemberState.RUNNING) for kill in self._kill(seat)]

    def _kill(self, seat: Seat, grace: Optional[float] = None) -> List[g.Action]:
        if grace is None:
            if self.members[seat].failing:
                return []
            grace = self._ending.grace if self._ending is not None else 0.0
        return [g.Kill(seat, self._incarnation(seat), grace)]

    def _conclude(self, now: float) -> List[g.Action]:
        """Once no rank runs: record how the generation ended, then form the next or stop."""
        ending = self._ending
        if ending is None or self.members.running:
            return []
        cause, first = outcomes.first_cause(ending, self._failures)
        again = ending.again and cause is not None and self._restart_budget.pay(cause)
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
        without_progress = (
            ending.state == "failed" and cause is not None and self._restart_budget.refusal(cause) == SAME
        )
        return [outcomes.note(f"not restarted: {SAME}"), over] if without_progress else [over]

    def _form_again(self, cause: Cause, now: float) -> List[g.Action]:
        pause = self._restart_budget.pause
        self.phase, self._since, self._failures = Phase.FORMING, now + pause, []
        self._reason = cause.kind.value
        actions: List[g.Action] = []
        if pause:
            ended = self._restart_budget.without_progress
            text = f"restarting in {pause:g} s: ended {ended} times in a row without progress"
            actions.append(outcomes.note(text))
        if not self.members.absent:
            return actions + self._formed(now)
        return actions + [launch for seat in self.members.seats_in(MemberState.ABSENT) for launch in self._launch(seat)]

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
        stalled = self._stall.look(self.members, now)
        if stalled.hung:
            return self._end_hung(stalled.hung, now)
        return [g.DumpStacks(seat, self._incarnation(seat)) for seat in stalled.dump_stacks]

    def _end_hung(self, hung: Sequence[Seat], now: float) -> List[g.Action]:
        cause = kill_causes.gang_stalled(self.rules, self.generation)
        if not self.rules.restart_on_stall:
            return self._end(GenerationOutcome("failed", cause), now)
        if not all(self.members[seat].alone for seat in hung) or len(hung) >= self.members.running:
            return self._fail(cause, now)
        for seat in hung:
            self.members[seat].kill_cause = kill_causes.rank_stalled(self.rules, seat)
        return [kill for seat in hung for kill in self._kill(seat, 0.0)]

    def _never_formed(self, now: float) -> List[g.Action]:
        missing = self.members.seats_in(MemberState.ABSENT)
        return self._end(GenerationOutcome("failed", kill_causes.never_formed(self.rules, missing)), now)


_HANDLERS: Mapping[type, Any] = {
    g.Heartbeat: Gang._heartbeat,
    g.Exited: Gang._exited,
    g.AgentLost: Gang._agent_lost,
    g.Progress: Gang._progress,
    g.CheckpointComplete: Gang._checkpoint,
    g.PreemptionNotice: Gang._notice,
    g.StopRequest: Gang._stop,
    g.Fault: Gang._fault,
    g.Tick: Gang._tick,
}
