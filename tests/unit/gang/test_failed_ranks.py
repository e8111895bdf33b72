"""What falls with a rank, and what a restart costs."""

from __future__ import annotations

import pytest

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import (
    AgentLost,
    CheckpointComplete,
    Exited,
    GangEnded,
    Kill,
    Launch,
    PreemptionNotice,
    Progress,
    Start,
    StopRequest,
)
from longboat.runtime.gang.machine import Phase
from longboat.runtime.rank_env import Address
from tests.unit.gang.driven import (
    ALONE,
    GONE,
    KILLED,
    PS,
    SERVES,
    STOPPED,
    TOGETHER,
    W0,
    W1,
    W2,
    ends,
    only,
    records,
    running,
    user_error,
)

# Falling together.


def test_an_uncaught_exception_kills_the_others_at_once_and_leaves_its_rank_the_grace_period() -> None:
    it = running({W0: TOGETHER, W1: TOGETHER}, restarts=0, grace=5.0)
    failing = Exited(W1, (1, 0), 1, at=50.1, cause=user_error())
    assert it.seen(W1, (1, 0), True, failing=failing) == [Kill(W0, (1, 0), 0.0)]
    assert it.seen(W1, (1, 0), True, failing=failing) == []
    it.exit(W0, -1, KILLED, signal=6, at=50.2)
    it(failing)
    assert it.over.cause is not None
    assert (it.over.cause.rank, it.over.cause.error) == (1, "ValueError: no")
    assert ends(it.all) == {"worker-0": "killed", "worker-1": "failed"}


def test_a_stop_without_grace_kills_a_rank_in_its_exit_handlers() -> None:
    it = running()
    failing = Exited(W1, (1, 0), 1, cause=user_error())
    it.seen(W1, (1, 0), True, failing=failing)
    assert it(StopRequest(STOPPED)) == [Kill(W0, (1, 0), 0.0)]
    assert it(StopRequest(STOPPED, now=True)) == [Kill(W0, (1, 0), 0.0), Kill(W1, (1, 0), 0.0)]


def test_a_rank_that_restarts_alone_does_so_once_its_exit_handlers_are_done() -> None:
    it = running({W0: TOGETHER, W1: ALONE})
    failing = Exited(W1, (1, 0), 1, cause=user_error())
    assert it.seen(W1, (1, 0), True, failing=failing) == []
    assert [start.incarnation for start in only(it(failing), Start)] == [(1, 1)]


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
    assert [start.incarnation for start in only(actions, Start)] == [(2, 0)] * 3
    order = [type(action).__name__ for action in actions]
    assert order.index("Start") > max(i for i, name in enumerate(order) if name == "RecordEvent")
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
    it.exit(W0, 1, Cause(CauseKind.LOST_RENDEZVOUS, "Connection reset by peer"), at=50.0)
    it.exit(W1, -1, KILLED, signal=9, at=50.1)
    assert it.over.cause is not None
    assert (it.over.cause.rank, it.over.cause.kind) == (1, CauseKind.KILLED)


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
    assert not only(it.all, GangEnded), "the success of the generation before does not count"
    it.exit(W0)
    assert it.over.state == "succeeded"


def test_a_lost_server_takes_all_along() -> None:
    it = running({W0: ALONE, PS: SERVES})
    assert only(it.exit(PS, 1), Kill) == [Kill(W0, (1, 0), 0.0)]
    starts = only(it.killed(W0), Start)
    assert [start.incarnation for start in starts] == [(2, 0), (2, 0)]


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
        AgentLost(W2, GONE),
        Progress(W2, 2),
        PreemptionNotice(W2),
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
    it(StopRequest(STOPPED))
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
    it.tick(1.0)  # the third failure in a row without progress is waited for
    assert it.gang.generation == 4


def test_a_kill_from_outside_may_happen_twice() -> None:
    it = running({W0: TOGETHER}, restarts=9)
    it.exit(W0, -1, signal=9)
    it.exit(W0, -1, signal=9)
    assert it.gang.generation == 3


@pytest.mark.parametrize(
    "kind", [CauseKind.NOT_FOUND, CauseKind.NOT_EXECUTABLE, CauseKind.DISK_FULL, CauseKind.NOT_WRITABLE]
)
@pytest.mark.parametrize("rule", [TOGETHER, ALONE])
def test_what_a_restart_cannot_help_is_not_restarted(kind: CauseKind, rule: tuple[bool, bool]) -> None:
    it = running({W0: rule})
    it.exit(W0, -1, Cause(kind, "no"))
    assert it.over.state == "failed"
    assert not records(it.all, "note"), "nothing to add: the cause says it"


def test_a_complete_checkpoint_fills_the_budget_and_forgives_the_last_failure() -> None:
    it = running({W0: TOGETHER}, restarts=1)
    it.exit(W0, 1)
    assert it.gang.budget == 0
    it(CheckpointComplete())
    assert it.gang.budget == 1
    it.exit(W0, 1)
    assert it.gang.generation == 3


def test_a_preemption_costs_nothing_and_gives_grace() -> None:
    it = running(restarts=0, grace=30)
    kills = only(it(PreemptionNotice(W0)), Kill)
    assert kills == [Kill(W0, (1, 0), 30), Kill(W1, (1, 0), 30)]
    actions = it.killed(W0, W1)
    assert records(actions, "gen.ended")[0]["cause"].kind is CauseKind.PREEMPTED
    assert records(actions, "gen.started") == [{"gen": 2, "reason": "preempted"}]
    assert it.gang.budget == 0


def test_a_preempted_rank_of_its_own_goes_alone() -> None:
    it = running({W0: ALONE, W1: ALONE}, restarts=0, grace=30)
    assert it(PreemptionNotice(W0)) == [Kill(W0, (1, 0), 30)]
    actions = it.exit(W0, 0, asked=True)
    assert only(actions, Start) == [Start(W0, (1, 1), only(it.all, Start)[0].peers)]
    assert ends(actions) == {"worker-0": "failed"}
    assert it.gang.budget == 0


def test_a_notice_for_somebody_who_does_not_run_changes_nothing() -> None:
    it = running()
    it.exit(W0)
    assert it(PreemptionNotice(W0)) == []


# Falling alone.


def test_a_rank_that_may_restart_alone_does_and_its_peers_train_on() -> None:
    it = running({W0: ALONE, W1: ALONE})
    peers = only(it.all, Start)[0].peers
    actions = it.exit(W1, 1)
    assert ends(actions) == {"worker-1": "failed"}
    assert only(actions, Start) == [Start(W1, (1, 1), peers)]
    assert not only(actions, Kill)
    assert it.exit(W1, 1, incarnation=(1, 0)) == [], "its first life is history"
    it.exit(W0)
    it.exit(W1)
    assert it.over.state == "succeeded"


def test_a_rank_whose_agent_is_lost_is_brought_back_to_the_same_address() -> None:
    it = running({W0: ALONE, W1: ALONE})
    actions = it.lost(W1)
    assert only(actions, Launch) == [Launch(W1, it.address(W1))]
    assert ends(actions) == {"worker-1": "lost"}
    starts = only(it.join(W1), Start)
    assert [(start.seat, start.incarnation) for start in starts] == [(W1, (1, 1))]


def test_a_rank_that_comes_back_elsewhere_restarts_all_because_its_peers_would_not_find_it() -> None:
    it = running({W0: ALONE, W1: ALONE})
    it.lost(W1)
    actions = it.seen(W1, address=Address("10.9.9.9", (7, 8, 9)))
    assert only(actions, Kill) == [Kill(W0, (1, 0), 0.0)]
    starts = only(it.killed(W0), Start)
    assert [start.incarnation for start in starts] == [(2, 0), (2, 0)]
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
