"""Planted bugs: each takes one check out of the protocol. The simulator must find every one of them.

A mutant is a small patch of the real machine; `planted` puts it in for a while.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from longboat.runtime.agent.outbox import Outbox
from longboat.runtime.agent.protocol import AgentOrder, AgentProtocol
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver import history
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang import machine, outcomes
from longboat.runtime.gang.machine import Gang, Phase
from longboat.runtime.gang.members import Member, MemberState, Roster
from longboat.runtime.gang.outcomes import GenerationOutcome, first_cause
from longboat.runtime.gang.restart_budget import RestartBudget
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.seat import Seat

Patch = tuple[object, str, Any]


def _handler(event: type, method: Callable[..., Any]) -> list[Patch]:
    return [(machine, "_HANDLERS", {**machine._HANDLERS, event: method})]


def conclude_while_some_run() -> list[Patch]:
    real = Gang._conclude

    def conclude(self: Gang, now: float) -> list[g.Action]:
        running, self.members.running = self.members.running, 0
        found = real(self, now)
        self.members.running += running
        return found

    return [(Gang, "_conclude", conclude)]


def believe_stale_exits() -> list[Patch]:
    real = Gang._exited

    def exited(self: Gang, event: g.Exited, now: float) -> list[g.Action]:
        member = self.members[event.seat]
        return real(self, replace(event, incarnation=(self.generation, member.restart)), now)

    return _handler(g.Exited, exited)


def take_one_agent_for_another() -> list[Patch]:
    real = Gang._heartbeat

    def seen(self: Gang, event: g.Heartbeat, now: float) -> list[g.Action]:
        member = self.members[event.seat]
        return real(self, replace(event, agent=member.agent or event.agent), now)

    return [(Gang, "_heartbeat", seen), *_handler(g.Heartbeat, seen)]


def use_a_generation_twice() -> list[Patch]:
    real = Gang._start_generation

    def start(self: Gang, now: float) -> list[g.Action]:
        self.generation = max(self.generation - 1, 0)
        return real(self, now)

    return [(Gang, "_start_generation", start)]


def start_before_recording() -> list[Patch]:
    real = Gang._start_generation

    def start(self: Gang, now: float) -> list[g.Action]:
        record, *starts = real(self, now)
        return [*starts, record]

    return [(Gang, "_start_generation", start)]


def agents_without_a_lease() -> list[Patch]:
    return [(AgentProtocol, "lapsed", lambda _self, _now: False)]


def lease_from_the_answer() -> list[Patch]:
    """The lease runs from the answer's arrival and not from the heartbeat's sending."""
    real = AgentProtocol.order

    def order(self: AgentProtocol, message: Any, now: float, wall: float) -> AgentOrder:
        return real(self, {**message, "beat": now} if message["is"] == "alive" else message, now, wall)

    return [(AgentProtocol, "order", order)]


def restart_all_for_one() -> list[Patch]:
    real = Gang.__init__

    def init(self: Gang, rules: g.GangRules, *args: Any) -> None:
        seats = {seat: (finishes, False) for seat, (finishes, _) in rules.seats.items()}
        real(self, replace(rules, seats=seats), *args)

    return [(Gang, "__init__", init)]


def succeed_when_a_service_ends() -> list[Patch]:
    real = Gang._rank_ended

    def fell(self: Gang, seat: Seat, member: Member, event: g.Exited, now: float) -> list[g.Action]:
        if event.ok and not member.finishes and self.phase is Phase.RUNNING:
            self._unfinished = 1
            member = replace(member, finishes=True)
        return real(self, seat, member, event, now)

    return [(Gang, "_rank_ended", fell)]


def kill_nobody() -> list[Patch]:
    return [(Gang, "_kill", lambda _self, _seat, _grace=None: [])]


def kill_only_once() -> list[Patch]:
    """A Kill that was lost is not said again."""
    real = Gang._reconcile

    def compared(self: Gang, *args: Any) -> list[g.Action]:
        return [action for action in real(self, *args) if not isinstance(action, g.Kill)]

    return [(Gang, "_reconcile", compared)]


def start_only_once() -> list[Patch]:
    real = Gang._reconcile

    def compared(self: Gang, *args: Any) -> list[g.Action]:
        return [action for action in real(self, *args) if not isinstance(action, g.Start)]

    return [(Gang, "_reconcile", compared)]


def take_the_silent_for_dead() -> list[Patch]:
    """Lost is believed as soon as a lease seems to be over."""
    real = Gang._check_leases

    def check(self: Gang, now: float) -> list[g.Action]:
        actions: list[g.Action] = []
        for action in real(self, now):
            assert isinstance(action, g.Fence)
            lost = g.AgentLost(action.seat, Cause(CauseKind.NODE_LOST, "silent").at(action.seat), now)
            actions += [action, *self._agent_lost(lost, now)]
        return actions

    return [(Gang, "_check_leases", check)]


def recover_what_is_not_whole() -> list[Patch]:
    """A new driver starts those who never heard of the generation, in the generation."""
    real = Gang._resume_generation

    def take_up(self: Gang, now: float) -> list[g.Action]:
        for member in self.members.values():
            member.knows = True
        return real(self, now)

    return [(Gang, "_resume_generation", take_up)]


def recover_without_the_missing() -> list[Patch]:
    """A new driver does not wait for those who have not come back, nor fences them."""

    def give_up(self: Gang, now: float) -> list[g.Action]:
        for member in self.members.values():
            if not member.agent:
                self.members.move(member, MemberState.ABSENT)
        return self._abandon(Cause(CauseKind.NODE_LOST, "missing"), now)

    return [(Gang, "_give_up_recovery", give_up), (Gang, "_check_leases", lambda _self, _now: [])]


def forget_the_journal() -> list[Patch]:
    """A new driver takes a generation that was under way for one that has ended."""
    real = history.look_back

    def look(events: Any) -> Any:
        before = real(events)
        return replace(before, unfinished={k: replace(v, open=False) for k, v in before.unfinished.items()})

    return [(history, "look_back", look)]


def end_before_it_began() -> list[Patch]:
    """A seat that has not said that it runs is taken for one that never will."""
    real = Gang._reconcile

    def compared(self: Gang, event: g.Heartbeat, member: Member, current: g.Incarnation, now: float) -> list[g.Action]:
        if self.phase is Phase.ENDING and event.incarnation < current and not event.running:
            return self._exited(g.Exited(event.seat, current, -1, 0, now, asked=True), now)
        return real(self, event, member, current, now)

    return [(Gang, "_reconcile", compared)]


def begin_what_was_ended() -> list[Patch]:
    """An agent starts a life again that is over."""
    real = AgentProtocol.order

    def order(self: AgentProtocol, message: Any, now: float, wall: float) -> AgentOrder:
        again = message["is"] == "start" and tuple(message["incarnation"]) == self.incarnation and not self.running
        return AgentOrder.START if again else real(self, message, now, wall)

    return [(AgentProtocol, "order", order)]


def blame_the_last() -> list[Patch]:
    def first(ending: GenerationOutcome, falls: Sequence[g.Exited]) -> Any:
        return first_cause(ending, [replace(fall, at=-fall.at) for fall in falls])

    return [(outcomes, "first_cause", first)]


def pay_nothing() -> list[Patch]:
    return [(RestartBudget, "pay", lambda self, cause: not self.refusal(cause))]


def launch_twice() -> list[Patch]:
    real = Gang._launch

    def launch(self: Gang, seat: Seat) -> list[g.Action]:
        self.members[seat].launching = False
        return real(self, seat)

    return [(Gang, "_launch", launch)]


def finish_twice() -> list[Patch]:
    """A rank that has finished and whose agent came back is run again."""
    real = Gang._agent_joined

    def arrived(self: Gang, event: g.Heartbeat, member: Member, now: float) -> list[g.Action]:
        if member.exit is not None and member.exit.ok:
            member.exit = replace(member.exit, code=1)
        return real(self, event, member, now)

    return [(Gang, "_agent_joined", arrived)]


def count_the_asked() -> list[Patch]:
    """A new driver takes a rank that the old one was ending for one that ended by itself."""
    real = Gang._rank_ended

    def fell(self: Gang, seat: Seat, member: Member, event: g.Exited, now: float) -> list[g.Action]:
        return real(self, seat, member, replace(event, asked=event.asked and self.phase is Phase.ENDING), now)

    taken = Roster.ended

    def ended(self: Roster) -> list[g.Exited]:
        return [replace(exit_, asked=False) for exit_ in taken(self)]

    return [(Gang, "_rank_ended", fell), (Roster, "ended", ended)]


def two_worlds() -> list[Patch]:
    """A rank that comes back at another address is started, and its peers are not."""
    real = Gang._agent_joined

    def arrived(self: Gang, event: g.Heartbeat, member: Member, now: float) -> list[g.Action]:
        if self.phase is Phase.RUNNING:
            member.address = event.address
            if not event.running:
                self._peers = self.members.peers()
        return real(self, event, member, now)

    return [(Gang, "_agent_joined", arrived)]


def trust_what_was_sent() -> list[Patch]:
    """What a connection has taken is taken for heard."""
    real = Outbox.keep

    def keep(self: Outbox, message: Any, sent: bool) -> None:
        if not sent:
            real(self, message, sent)

    return [(Outbox, "keep", keep)]


def say_the_end_first() -> list[Patch]:
    """An agent that comes back with words for the driver tells how its life ended before them."""
    return [(Outbox, "__bool__", lambda _self: False)]


MUTANTS: dict[str, tuple[Callable[[], list[Patch]], str]] = {
    make.__name__: (make, theme)
    for make, theme in (
        (conclude_while_some_run, ""),
        (believe_stale_exits, ""),
        (take_one_agent_for_another, ""),
        (use_a_generation_twice, ""),
        (start_before_recording, ""),
        (agents_without_a_lease, "cuts"),
        (lease_from_the_answer, "edges"),
        (restart_all_for_one, ""),
        (succeed_when_a_service_ends, ""),
        (kill_nobody, ""),
        (kill_only_once, ""),
        (start_only_once, ""),
        (take_the_silent_for_dead, ""),
        (recover_what_is_not_whole, "driver"),
        (recover_without_the_missing, "driver"),
        (forget_the_journal, "driver"),
        (end_before_it_began, ""),
        (begin_what_was_ended, ""),
        (blame_the_last, ""),
        (pay_nothing, ""),
        (launch_twice, ""),
        (finish_twice, "driver"),
        (count_the_asked, "driver"),
        (two_worlds, ""),
        (trust_what_was_sent, "driver"),
        (say_the_end_first, "driver"),
    )
}
"""What to put in, and the theme that makes most of it."""


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Puts a bug in for a while; none for the empty name."""
    with contextlib.ExitStack() as stack:
        for target, attribute, value in MUTANTS[name][0]() if name else ():
            stack.enter_context(mock.patch.object(target, attribute, value))
        yield
