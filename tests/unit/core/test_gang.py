"""The gang's machine, event by event: no clock, no process, every transition."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from windlass.causes import Cause, Kind
from windlass.gang.machine import Gang, Phase
from windlass.gang.members import At
from windlass.gang.words import (
    NO_LIFE,
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
from windlass.rankenv import Address

W0, W1, W2 = ("worker", 0), ("worker", 1), ("worker", 2)
CHIEF, PS = ("chief", 0), ("ps", 0)
TOGETHER, ALONE, SERVES = (True, False), (True, True), (False, False)

A = TypeVar("A", bound=Action)


def user_error(text: str = "ValueError: no", frame: str = "train.py:3") -> Cause:
    return Cause(Kind.USER_ERROR, text, exit_code=1, frame=frame, error=text)


KILLED = Cause(Kind.KILLED, "killed by signal 9 (SIGKILL), sender unknown", signal=9)
GONE = Cause(Kind.AGENT_LOST, "the agent was killed by signal 9 (SIGKILL), sender unknown")
STOPPED = Cause(Kind.STOPPED, "stopped by Ctrl-C")


class Driven:
    """A gang and all it has wanted so far. Agents are at 10.0.0.N, N counted over the seats."""

    def __init__(self, seats: dict[Seat, tuple[bool, bool]] | None = None, **rules: Any) -> None:
        self.now = 100.0
        self.seats = seats or {W0: TOGETHER, W1: TOGETHER}
        recover = rules.pop("recover", False)
        generation = rules.pop("generation", 0)
        budget = rules.pop("budget", None)
        self.gang = Gang(Rules(self.seats, **rules), generation, self.now, recover=recover, budget=budget)
        self.agents = dict.fromkeys(self.seats, "first")
        self.all: list[Action] = list(self.gang.begin(self.now))

    def __call__(self, event: Happening) -> list[Action]:
        actions = self.gang.handle(event, self.now)
        self.all += actions
        return actions

    def address(self, seat: Seat) -> Address:
        return Address(f"10.0.0.{list(self.seats).index(seat)}", (1, 2, 3))

    def seen(
        self, seat: Seat, life: Life = NO_LIFE, running: bool = False, ended: Exited | None = None, **more: Any
    ) -> list[Action]:
        address = more.pop("address", self.address(seat))
        return self(Seen(seat, self.agents[seat], address, life, running, ended, **more))

    def join(self, *seats: Seat) -> list[Action]:
        return [action for seat in seats or self.seats for action in self.seen(seat)]

    def beat(self) -> list[Action]:
        """A heartbeat of every member, which does what the gang thinks that it does."""
        found = []
        for seat, member in self.gang.members.items():
            life = (self.gang.generation, member.restart)
            running = member.at is At.RUNNING
            if member.at is not At.ABSENT:
                found += self.seen(seat, life, running, None if running else member.exit)
        return found

    def life(self, seat: Seat) -> Life:
        return (self.gang.generation, self.gang.members[seat].restart)

    def exit(self, seat: Seat, code: int = 0, cause: Cause | None = None, **more: Any) -> list[Action]:
        cause = cause or (user_error() if code > 0 else KILLED if code < 0 else None)
        return self(Exited(seat, more.pop("life", self.life(seat)), code, cause=cause, **more))

    def killed(self, *seats: Seat) -> list[Action]:
        """What was told to end has ended."""
        return [action for seat in seats for action in self.exit(seat, -1, signal=9, asked=True)]

    def lost(self, seat: Seat, cause: Cause = GONE, **more: Any) -> list[Action]:
        self.agents[seat] += "+"
        return self(Lost(seat, cause, **more))

    def tick(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self(Tick())

    @property
    def over(self) -> Over:
        (found,) = only(self.all, Over)
        return found


def only(actions: list[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def records(actions: list[Action], ev: str) -> list[Any]:
    return [record.keys for record in only(actions, Record) if record.ev == ev]


def ends(actions: list[Action]) -> dict[str, str]:
    return {f"{keys['role']}-{keys['rank']}": keys["state"] for keys in records(actions, "rank.ended")}


def running(seats: dict[Seat, tuple[bool, bool]] | None = None, **rules: Any) -> Driven:
    it = Driven(seats, **rules)
    it.join()
    assert it.gang.phase is Phase.RUNNING
    return it


# Coming together.


def test_it_asks_for_an_agent_for_every_seat() -> None:
    it = Driven()
    assert it.all == [Launch(W0), Launch(W1)]


def test_nobody_starts_before_all_are_there_and_then_all_start_with_one_world() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER, PS: SERVES})
    assert it.join(W1, PS) == []
    actions = it.join(W0)
    assert actions[0] == Record("gen.started", {"gen": 1, "reason": "first"}), "recorded before it is used"
    starts = only(actions, Start)
    assert [(start.seat, start.life) for start in starts] == [(W0, (1, 0)), (W1, (1, 0)), (PS, (1, 0))]
    assert starts[0].peers == starts[1].peers == starts[2].peers
    assert starts[0].peers == {"worker": (it.address(W0), it.address(W1)), "ps": (it.address(PS),)}


def test_peers_stand_in_the_order_of_their_numbers_also_beyond_ten() -> None:
    seats = {("worker", rank): TOGETHER for rank in reversed(range(12))}
    it = Driven(seats)
    starts = only(it.join(), Start)
    assert starts[0].peers["worker"] == tuple(it.address(("worker", rank)) for rank in range(12))


def test_joining_twice_and_strangers_are_harmless() -> None:
    it = Driven()
    it.join(W0)
    assert it.join(W0) == []
    it.agents[W2] = "stranger"
    assert it(Seen(W2, "stranger", Address("10.0.0.9", (1, 2, 3)), NO_LIFE, False)) == []
    assert len(only(it.join(W1), Start)) == 2


def test_an_agent_lost_while_forming_costs_a_restart_and_is_asked_for_again() -> None:
    it = Driven(restarts=1)
    it.join(W0)
    assert it.lost(W0) == [Launch(W0, it.address(W0))]
    assert it.gang.budget == 0
    it.join(W0)
    assert only(it.join(W1), Start)


def test_an_agent_that_never_comes_up_ends_the_stage_when_the_budget_is_spent() -> None:
    it = Driven(restarts=2)
    assert only(it.lost(W0), Launch)
    assert only(it.lost(W0), Launch)
    it.lost(W0)
    assert it.over.state == "failed"
    assert it.over.cause is not None
    assert it.over.cause.kind is Kind.AGENT_LOST


def test_a_gang_that_does_not_come_together_fails_and_names_who_is_missing() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER, W2: TOGETHER}, form_timeout=60, lease=1000)
    it.join(W1)
    assert it.gang.deadline() == 160
    assert it.tick(59.9) == []
    it.tick(0.1)
    assert it.over.cause is not None
    assert it.over.cause.kind is Kind.LOST_RENDEZVOUS
    assert it.over.cause.message == "the gang did not come together within 60 s: worker-0, worker-2 missing"


def test_an_agent_that_still_runs_an_old_life_is_made_to_end_it_before_it_counts() -> None:
    it = Driven(generation=4)
    it.join(W0)
    assert it.seen(W1, (4, 0), running=True) == [Kill(W1, (4, 0), 0.0)]
    assert it.gang.phase is Phase.FORMING
    starts = only(it.seen(W1, (4, 0), running=False), Start)
    assert [start.life for start in starts] == [(5, 0), (5, 0)]


# Succeeding.


def test_the_stage_succeeds_when_every_rank_that_must_finish_has_exited_0() -> None:
    it = running()
    assert ends(it.exit(W0)) == {"worker-0": "succeeded"}
    actions = it.exit(W1)
    assert ends(actions) == {"worker-1": "succeeded"}
    assert records(actions, "gen.ended")[0]["state"] == "succeeded"
    assert it.over == Over("succeeded", None)


def test_servers_are_ended_with_grace_and_count_as_stopped_when_the_others_are_done() -> None:
    it = running({W0: TOGETHER, PS: SERVES}, grace=7)
    assert only(it.exit(W0), Kill) == [Kill(PS, (1, 0), 7)]
    actions = it.killed(PS)
    assert ends(actions) == {"ps-0": "stopped"}
    assert it.over.state == "succeeded"


def test_a_server_that_falls_while_it_is_being_ended_does_not_spoil_the_success() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    it.exit(W0)
    it.exit(PS, 1)
    assert it.over.state == "succeeded"


def test_a_servers_own_clean_end_is_no_failure() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    assert ends(it.exit(PS)) == {"ps-0": "succeeded"}
    it.exit(W0)
    assert it.over.state == "succeeded"


def test_a_chief_decides_alone() -> None:
    it = running({CHIEF: TOGETHER, W0: (False, True), PS: SERVES})
    kills = only(it.exit(CHIEF), Kill)
    assert {kill.seat for kill in kills} == {W0, PS}
    it.killed(W0, PS)
    assert it.over.state == "succeeded"
    assert ends(it.all) == {"chief-0": "succeeded", "worker-0": "stopped", "ps-0": "stopped"}


# Falling together.


def test_one_fall_kills_the_others_at_once_and_only_then_the_next_generation_starts() -> None:
    it = running({W0: TOGETHER, W1: TOGETHER, W2: TOGETHER})
    actions = it.exit(W1, 1)
    assert actions == [Kill(W0, (1, 0), 0.0), Kill(W2, (1, 0), 0.0)]
    assert it.killed(W0) == []
    actions = it.killed(W2)
    (ended,) = records(actions, "gen.ended")
    assert (ended["gen"], ended["state"], ended["consequences"]) == (1, "failed", ["worker-0", "worker-2"])
    assert ended["cause"].rank == 1
    assert ends(actions) == {"worker-0": "killed", "worker-1": "failed", "worker-2": "killed"}
    because = {keys["rank"]: keys.get("because") for keys in records(actions, "rank.ended")}
    assert because == {0: "worker-1", 1: None, 2: "worker-1"}
    assert records(actions, "gen.started") == [{"gen": 2, "reason": "user_error"}]
    assert [start.life for start in only(actions, Start)] == [(2, 0)] * 3
    order = [type(action).__name__ for action in actions]
    assert order.index("Start") > max(i for i, name in enumerate(order) if name == "Record")
    assert it.gang.budget == 2


def test_the_first_fall_by_the_agents_clocks_is_the_cause_whoever_is_heard_first() -> None:
    it = running(restarts=0)
    it.exit(W0, 1, user_error("RuntimeError: peer gone"), at=50.2)
    it.exit(W1, 1, user_error("KeyError: 'x'"), at=50.1)
    assert it.over.cause is not None
    assert (it.over.cause.rank, it.over.cause.error) == (1, "KeyError: 'x'")
    assert ends(it.all) == {"worker-0": "killed", "worker-1": "failed"}


def test_a_torn_connection_yields_to_what_tore_it_even_if_it_was_earlier() -> None:
    it = running(restarts=0)
    it.exit(W0, 1, Cause(Kind.LOST_RENDEZVOUS, "Connection reset by peer"), at=50.0)
    it.exit(W1, -1, KILLED, signal=9, at=50.1)
    assert it.over.cause is not None
    assert (it.over.cause.rank, it.over.cause.kind) == (1, Kind.KILLED)


def test_what_was_asked_to_end_is_never_the_cause() -> None:
    it = running(restarts=0)
    it.exit(W0, 1, at=60)
    it.exit(W1, -1, KILLED, signal=9, asked=True, at=10)
    assert it.over.cause is not None
    assert it.over.cause.rank == 0


def test_a_rank_that_ended_well_before_the_fall_stays_succeeded_and_starts_again_with_the_others() -> None:
    it = running()
    it.exit(W0)
    actions = it.exit(W1, 1)
    assert ends(it.all) == {"worker-0": "succeeded", "worker-1": "failed"}
    assert [start.seat for start in only(actions, Start)] == [W0, W1]
    it.exit(W1)
    assert not only(it.all, Over), "the success of the generation before does not count"
    it.exit(W0)
    assert it.over.state == "succeeded"


def test_a_lost_server_takes_all_along() -> None:
    it = running({W0: ALONE, PS: SERVES})
    assert only(it.exit(PS, 1), Kill) == [Kill(W0, (1, 0), 0.0)]
    starts = only(it.killed(W0), Start)
    assert [start.life for start in starts] == [(2, 0), (2, 0)]


def test_old_news_are_harmless() -> None:
    it = running()
    it.exit(W1, 1)
    it.killed(W0)
    assert it.gang.generation == 2
    for event in (
        Exited(W0, (1, 0), 0),
        Exited(W1, (1, 0), 1, cause=user_error()),
        Exited(W0, (9, 0), 1, cause=user_error()),
        Progress(W0, 1, 5),
        Exited(W2, (2, 0), 1),
        Lost(W2, GONE),
        Progress(W2, 2),
        Notice(W2),
    ):
        assert it(event) == [], event
    assert it.gang.phase is Phase.RUNNING


def test_an_exit_that_is_told_twice_counts_once() -> None:
    it = running({W0: TOGETHER, W1: TOGETHER, W2: TOGETHER}, restarts=1)
    it.exit(W0, 1)
    assert it.exit(W0, 1) == []
    it.killed(W1, W2)
    assert it.gang.budget == 0
    assert it.gang.generation == 2


def test_after_the_end_nothing_is_wanted_any_more() -> None:
    it = running(restarts=0)
    it.exit(W0, 1)
    it.killed(W1)
    before = list(it.all)
    it.join()
    it.exit(W1, 1)
    it.lost(W0)
    it(Stop(STOPPED))
    it.tick(1e6)
    assert it.all == before


# The restart budget.


def test_each_restart_costs_one_and_the_stage_fails_when_none_is_left() -> None:
    it = running({W0: TOGETHER}, restarts=2)
    for number in range(3):
        it.exit(W0, 1, user_error(f"Error: {number}"))
    assert it.gang.generation == 3
    assert it.over.state == "failed"


def test_the_same_failure_twice_without_progress_ends_it_with_a_note() -> None:
    it = running({W0: TOGETHER}, restarts=9)
    it.exit(W0, 1)
    it.exit(W0, 1)
    assert it.gang.generation == 2
    assert it.over.state == "failed"
    (note,) = records(it.all, "note")
    assert note["text"] == "not restarted: the same failure twice without progress"


def test_the_same_failure_is_tried_again_when_training_had_come_further() -> None:
    it = running({W0: TOGETHER}, restarts=9)
    for step in (10, 20, 30):
        it(Progress(W0, it.gang.generation, step))
        it.exit(W0, 1)
    assert it.gang.generation == 4
    it(Progress(W0, 4, 25))
    it.exit(W0, 1)
    assert it.over.state == "failed", "step 25 is not further than step 30"


def test_two_different_failures_are_not_the_same() -> None:
    it = running({W0: TOGETHER}, restarts=9)
    it.exit(W0, 1, user_error("KeyError: 1"))
    it.exit(W0, 1, user_error("KeyError: 2"))
    it.exit(W0, 1, user_error("KeyError: 1"))
    assert it.gang.generation == 4


def test_a_kill_from_outside_may_happen_twice() -> None:
    it = running({W0: TOGETHER}, restarts=9)
    it.exit(W0, -1, signal=9)
    it.exit(W0, -1, signal=9)
    assert it.gang.generation == 3


@pytest.mark.parametrize("kind", [Kind.NOT_FOUND, Kind.NOT_EXECUTABLE, Kind.DISK_FULL, Kind.NOT_WRITABLE])
@pytest.mark.parametrize("rule", [TOGETHER, ALONE])
def test_what_a_restart_cannot_help_is_not_restarted(kind: Kind, rule: tuple[bool, bool]) -> None:
    it = running({W0: rule})
    it.exit(W0, -1, Cause(kind, "no"))
    assert it.over.state == "failed"
    assert not records(it.all, "note"), "nothing to add: the cause says it"


def test_a_complete_checkpoint_fills_the_budget_and_forgives_the_last_failure() -> None:
    it = running({W0: TOGETHER}, restarts=1)
    it.exit(W0, 1)
    assert it.gang.budget == 0
    it(Checkpoint())
    assert it.gang.budget == 1
    it.exit(W0, 1)
    assert it.gang.generation == 3


def test_a_preemption_costs_nothing_and_gives_grace() -> None:
    it = running(restarts=0, grace=30)
    kills = only(it(Notice(W0)), Kill)
    assert kills == [Kill(W0, (1, 0), 30), Kill(W1, (1, 0), 30)]
    actions = it.killed(W0, W1)
    assert records(actions, "gen.ended")[0]["cause"].kind is Kind.PREEMPTED
    assert records(actions, "gen.started") == [{"gen": 2, "reason": "preempted"}]
    assert it.gang.budget == 0


def test_a_preempted_rank_of_its_own_goes_alone() -> None:
    it = running({W0: ALONE, W1: ALONE}, restarts=0, grace=30)
    assert it(Notice(W0)) == [Kill(W0, (1, 0), 30)]
    actions = it.exit(W0, 0, asked=True)
    assert only(actions, Start) == [Start(W0, (1, 1), only(it.all, Start)[0].peers)]
    assert ends(actions) == {"worker-0": "failed"}
    assert it.gang.budget == 0


def test_a_notice_for_somebody_who_does_not_run_changes_nothing() -> None:
    it = running()
    it.exit(W0)
    assert it(Notice(W0)) == []


# Falling alone.


def test_a_rank_that_may_restart_alone_does_and_its_peers_train_on() -> None:
    it = running({W0: ALONE, W1: ALONE})
    peers = only(it.all, Start)[0].peers
    actions = it.exit(W1, 1)
    assert ends(actions) == {"worker-1": "failed"}
    assert only(actions, Start) == [Start(W1, (1, 1), peers)]
    assert not only(actions, Kill)
    assert it.exit(W1, 1, life=(1, 0)) == [], "its first life is history"
    it.exit(W0)
    it.exit(W1)
    assert it.over.state == "succeeded"


def test_a_rank_whose_agent_is_lost_is_brought_back_to_the_same_address() -> None:
    it = running({W0: ALONE, W1: ALONE})
    actions = it.lost(W1)
    assert only(actions, Launch) == [Launch(W1, it.address(W1))]
    assert ends(actions) == {"worker-1": "lost"}
    starts = only(it.join(W1), Start)
    assert [(start.seat, start.life) for start in starts] == [(W1, (1, 1))]


def test_a_rank_that_comes_back_elsewhere_restarts_all_because_its_peers_would_not_find_it() -> None:
    it = running({W0: ALONE, W1: ALONE})
    it.lost(W1)
    actions = it.seen(W1, address=Address("10.9.9.9", (7, 8, 9)))
    assert only(actions, Kill) == [Kill(W0, (1, 0), 0.0)]
    starts = only(it.killed(W0), Start)
    assert [start.life for start in starts] == [(2, 0), (2, 0)]
    assert starts[0].peers["worker"][1] == Address("10.9.9.9", (7, 8, 9))


def test_ranks_that_restart_alone_share_one_budget_and_then_fail_the_stage() -> None:
    it = running({W0: ALONE, W1: ALONE}, restarts=2)
    it.exit(W0, 1, user_error("a"))
    it.exit(W1, 1, user_error("b"))
    actions = it.exit(W0, 1, user_error("c"))
    assert only(actions, Kill) == [Kill(W1, (1, 1), 0.0)]
    it.killed(W1)
    assert it.over.state == "failed"


def test_the_loss_of_a_rank_that_has_succeeded_is_no_loss() -> None:
    it = running({W0: ALONE, W1: ALONE})
    it.exit(W0)
    assert it.lost(W0) == []
    it.exit(W1)
    assert it.over.state == "succeeded"


# Losing agents.


def test_a_lost_agent_ends_the_generation_and_is_replaced_when_the_others_have_ended() -> None:
    it = running()
    assert it.lost(W0) == [Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W1)
    assert ends(actions) == {"worker-0": "lost", "worker-1": "killed"}
    assert only(actions, Launch) == [Launch(W0, it.address(W0))]
    assert not only(actions, Start)
    starts = only(it.join(W0), Start)
    assert [start.life for start in starts] == [(2, 0), (2, 0)]


def test_all_agents_lost_at_once_cost_one_restart() -> None:
    it = running(restarts=1)
    it.lost(W0)
    actions = it.lost(W1)
    assert {launch.seat for launch in only(actions, Launch)} == {W0, W1}
    assert it.gang.budget == 0
    assert only(it.join(), Start)


def test_another_agent_at_the_seat_means_that_the_first_is_gone() -> None:
    it = running()
    it.agents[W0] = "second"
    assert only(it.seen(W0), Kill) == [Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W1)
    assert not only(actions, Launch), "its successor is here already"
    assert [start.life for start in only(actions, Start)] == [(2, 0), (2, 0)]


def test_a_silent_agent_is_fenced_and_nothing_starts_before_it_is_known_to_be_gone() -> None:
    it = running(lease=15)
    it.tick(10)
    it.seen(W1, (1, 0), running=True)
    fences = only(it.tick(5), Fence)
    assert fences == [Fence(W0)]
    assert not only(it.tick(1), Fence), "once"
    it.seen(W1, (1, 0), running=True)
    assert it.exit(W0) == [], "what a fenced agent says does not count any more"
    assert not it.gang.renews(W0)
    assert it.gang.renews(W1)
    assert it.lost(W0) == [Kill(W1, (1, 0), 0.0)]
    assert not only(it.all, Start)[2:]
    it.killed(W1)
    assert len(only(it.join(W0), Start)) == 2


def test_heartbeats_keep_the_lease() -> None:
    it = running(lease=15)
    for _ in range(10):
        it.tick(10)
        it.beat()
    assert not only(it.all, Fence)


def test_the_deadline_is_never_later_than_the_next_thing_that_is_due() -> None:
    assert running(lease=15).gang.deadline() == 115
    assert running(lease=15, timeout=5).gang.deadline() == 105
    assert running(lease=15, stall_after=3).gang.deadline() == 103


def test_a_start_that_was_lost_on_the_way_is_said_again() -> None:
    it = running()
    again = it.seen(W0, NO_LIFE)
    assert again == [only(it.all, Start)[0]]


def test_an_exit_that_was_lost_on_the_way_is_taken_from_the_heartbeat() -> None:
    it = running({W0: TOGETHER})
    it.seen(W0, (1, 0), ended=Exited(W0, (1, 0), 0))
    assert it.over.state == "succeeded"


def test_a_kill_that_was_lost_on_the_way_is_said_again() -> None:
    it = running(grace=9)
    it(Stop(STOPPED))
    assert it.seen(W0, (1, 0), running=True) == [Kill(W0, (1, 0), 9)]


# Stopping.


def test_a_stop_gives_grace_and_ends_as_stopped() -> None:
    it = running(grace=9)
    assert it(Stop(STOPPED)) == [Kill(W0, (1, 0), 9), Kill(W1, (1, 0), 9)]
    it.exit(W0, 0, asked=True)
    actions = it.killed(W1)
    assert ends(it.all) == {"worker-0": "stopped", "worker-1": "stopped"}
    assert records(actions, "gen.ended")[0]["state"] == "stopped"
    assert it.over == Over("stopped", STOPPED)


def test_a_second_stop_kills_at_once() -> None:
    it = running(grace=9)
    it(Stop(STOPPED))
    assert it(Stop(STOPPED, now=True)) == [Kill(W0, (1, 0), 0.0), Kill(W1, (1, 0), 0.0)]


def test_a_later_gentle_stop_gives_no_grace_back() -> None:
    it = running(grace=9)
    it(Stop(STOPPED, now=True))
    assert {kill.grace for kill in only(it(Stop(STOPPED)), Kill)} == {0.0}


def test_a_stop_while_forming_ends_at_once_without_a_generation() -> None:
    it = Driven()
    it.join(W0)
    it(Stop(STOPPED))
    assert it.over == Over("stopped", STOPPED)
    assert not only(it.all, Record)
    assert it.join(W1) == []


def test_a_stop_while_a_failed_generation_ends_leads_to_no_other() -> None:
    it = running()
    it.exit(W0, 1)
    it(Stop(STOPPED))
    it.killed(W1)
    assert it.over.state == "stopped"
    assert it.gang.generation == 1


def test_a_stop_while_forming_again_ends_it() -> None:
    it = running()
    it.lost(W0)
    it.killed(W1)
    assert it.gang.phase is Phase.FORMING
    it(Stop(STOPPED))
    assert it.over.state == "stopped"


def test_a_stop_while_servers_are_ended_after_success_leaves_the_success() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    it.exit(W0)
    it(Stop(STOPPED, now=True))
    it.killed(PS)
    assert it.over.state == "succeeded"


def test_an_agent_lost_while_it_is_being_stopped_is_part_of_the_stop() -> None:
    it = running()
    it(Stop(STOPPED))
    it.lost(W0)
    it.killed(W1)
    assert it.over == Over("stopped", STOPPED)


def test_a_rank_alone_that_ends_during_a_stop_is_not_restarted() -> None:
    it = running({W0: ALONE, W1: ALONE})
    it(Stop(STOPPED))
    assert not only(it.exit(W0, 1), Start)
    it.killed(W1)
    assert it.over.state == "stopped"


# Time and faults.


def test_a_fault_from_outside_ends_the_stage_with_its_cause_and_no_restart() -> None:
    it = running()
    full = Cause(Kind.DISK_FULL, "the disk is full")
    assert only(it(Fault(full)), Kill)
    it.exit(W0, 1)
    it.killed(W1)
    assert it.over.cause is not None
    assert it.over.cause.kind is Kind.DISK_FULL
    assert it.gang.generation == 1


def test_a_fault_during_a_failing_generation_bars_the_next_one() -> None:
    it = running()
    it.exit(W0, 1)
    it(Fault(Cause(Kind.DISK_FULL, "the disk is full")))
    it.killed(W1)
    assert it.over.state == "failed"
    assert it.gang.generation == 1


def test_a_timeout_counts_from_the_first_start_and_is_not_restarted() -> None:
    it = running({W0: TOGETHER}, timeout=50, lease=1000, grace=4)
    it.now += 30
    it.exit(W0, 1)
    assert it.gang.generation == 2
    assert it.tick(19) == []
    assert only(it.tick(1), Kill) == [Kill(W0, (2, 0), 4)]
    it.killed(W0)
    assert it.over.cause is not None
    assert (it.over.cause.kind, it.over.cause.message) == (
        Kind.TIMED_OUT,
        "the stage ran longer than its timeout of 50 s",
    )


def stalled(it: Driven) -> list[Action]:
    """The stacks have been asked for, and what comes after the wait for them."""
    dumps = only(it.tick(1.0), DumpStacks)
    assert {dump.seat for dump in dumps} == {seat for seat, m in it.gang.members.items() if m.at is At.RUNNING}
    assert it.tick(1.0) == []
    return it.tick(1.0)


def test_a_gang_in_which_nobody_ever_reports_is_stalled_after_its_patience() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2)
    assert it.tick(19) == []
    assert only(stalled(it), Kill) == [Kill(W0, (1, 0), 0.0), Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W0, W1)
    assert records(actions, "gen.ended")[0]["cause"].kind is Kind.STALLED
    assert records(actions, "gen.started") == [{"gen": 2, "reason": "stalled"}]


def test_progress_puts_the_stall_off_and_progress_during_the_wait_calls_it_off() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2)
    it.tick(15)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    assert it.tick(19) == []
    assert only(it.tick(1), DumpStacks)
    for seat in (W0, W1):
        it(Progress(seat, 1, 2))
    assert not only(it.tick(10), Kill)
    assert it.gang.phase is Phase.RUNNING


def test_one_rank_that_fell_silent_hangs_all_that_wait_for_it() -> None:
    it = running(stall_after=20, lease=1000)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    for _ in range(20):
        it.tick(1)
        it(Progress(W0, 1, 2))
    assert {dump.seat for dump in only(it.all, DumpStacks)} == {W0, W1}


def test_a_rank_that_reports_for_all_is_enough() -> None:
    it = running(stall_after=20, lease=1000)
    for _ in range(60):
        it.tick(1)
        it(Progress(W0, 1, 2))
    assert not only(it.all, DumpStacks)


def test_a_silent_rank_of_its_own_is_ended_and_restarted_alone() -> None:
    it = running({W0: ALONE, W1: ALONE}, stall_after=20, lease=1000, stacks_wait=2)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    it.tick(19)
    it(Progress(W0, 1, 2))
    assert it.tick(1) == [DumpStacks(W1, (1, 0))]
    assert it.tick(2) == [Kill(W1, (1, 0), 0.0)]
    assert it.seen(W1, (1, 0), running=True) == [Kill(W1, (1, 0), 0.0)], "said again until it is done"
    actions = it.killed(W1)
    assert ends(actions) == {"worker-1": "failed"}
    assert records(actions, "rank.ended")[0]["cause"].kind is Kind.STALLED
    assert [(start.seat, start.life) for start in only(actions, Start)] == [(W1, (1, 1))]


def test_a_stall_fails_the_stage_where_the_plan_says_so() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2, restart_on_stall=False)
    it.tick(19)
    stalled(it)
    it.killed(W0, W1)
    assert it.over.state == "failed"
    assert it.over.cause is not None
    assert it.over.cause.kind is Kind.STALLED
    assert it.gang.generation == 1


# A driver that was started anew.


def test_a_new_driver_takes_up_a_generation_whose_agents_are_all_there() -> None:
    it = Driven(generation=3, recover=True)
    assert it.all == []
    assert it.seen(W0, (3, 0), running=True) == []
    assert it.seen(W1, (3, 0), running=True) == []
    assert it.gang.phase is Phase.RUNNING
    assert not only(it.all, Record), "the journal has its beginning already"
    it.exit(W0)
    it.exit(W1)
    assert it.over.state == "succeeded"


def test_a_new_driver_learns_of_ends_that_nobody_heard() -> None:
    it = Driven(generation=3, recover=True)
    it.seen(W0, (3, 0), ended=Exited(W0, (3, 0), 0, at=5))
    it.seen(W1, (3, 0), ended=Exited(W1, (3, 0), 0, at=6))
    assert it.over.state == "succeeded"
    assert ends(it.all) == {"worker-0": "succeeded", "worker-1": "succeeded"}


def test_a_new_driver_that_finds_a_successor_at_a_seat_begins_the_next_generation_without_cost() -> None:
    it = Driven(generation=3, recover=True, restarts=1)
    it.seen(W0, (3, 0), running=True)
    assert only(it.seen(W1, NO_LIFE), Kill)[0] == Kill(W0, (3, 0), 0.0)
    it.killed(W0)
    it.killed(W1)
    assert it.gang.generation == 4
    assert it.gang.budget == 1
    assert records(it.all, "gen.ended")[0]["cause"].kind is Kind.SUPERVISOR_LOST


def test_a_new_driver_gives_those_who_do_not_come_back_up_after_the_lease() -> None:
    it = Driven(generation=3, recover=True, lease=15)
    it.tick(10)
    it.seen(W0, (3, 0), running=True)
    actions = it.tick(5)
    assert only(actions, Fence) == [Fence(W1)]
    assert only(actions, Kill)[0] == Kill(W0, (3, 0), 0.0)
    it.killed(W0)
    actions = it.lost(W1)
    (ended,) = records(it.all, "gen.ended")
    assert ended["cause"].kind is Kind.NODE_LOST
    assert "worker-1 did not come back" in ended["cause"].message
    assert only(actions, Launch) == [Launch(W1)]


def test_a_new_driver_goes_on_with_the_restarts_that_were_left() -> None:
    it = Driven({W0: TOGETHER}, generation=3, restarts=3, budget=0)
    it.join()
    it.exit(W0, 1)
    assert it.over.state == "failed"
