"""State of a run in a cluster: from its replica's journal, and from the pods that do not run."""

from __future__ import annotations

from longboat.engines.kubernetes import pending_pods
from longboat.engines.kubernetes.replica import RunReplica
from longboat.runs.journal_fold import load, plan_of
from longboat.runs.run_state import RunState, starting_again
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.light_dataclasses import replace


def current(replica: RunReplica) -> RunState:
    """State of the run; while its driver has not started or is lost, with the cluster's reason."""

    waits = replica.is_waiting_for_driver()
    if not waits and (replica.has_journal or replica.reachable):
        replica.sync()
    state = load(replica.path)
    if replica.is_restarting:
        state = starting_again(state)
    if waits or not replica.has_journal:
        return replace(state, cause=pending_pods.driver(replica.cluster.api, replica.run))
    return replace(state, cause=_with_room(replica, state.cause)) if state.cause is not None else state


def explained(replica: RunReplica) -> RunState:
    """State of the run, with the reason why pods of a running run are pending."""

    state = current(replica)
    if state.over or state.cause is not None or any(stage.cause for stage in state.stages):
        return state
    cause = pending_pods.rank(replica.cluster.api, replica.run)
    if cause is None:
        return state
    pending = _with_room(replica, cause)
    stages = tuple(replace(each, cause=pending) if each.name == pending.stage else each for each in state.stages)
    return replace(state, stages=stages)


def _with_room(replica: RunReplica, cause: Cause) -> Cause:
    """Adds what is free on the nodes if no node had room; the driver has no permission to list nodes."""
    from longboat.manifests import rank_pods

    plan = plan_of(replica.path)
    if cause.kind is not CauseKind.UNSCHEDULABLE or plan is None:
        return cause
    stage = next((each for each in plan.stages if each.name == cause.stage), None)
    role = next((each for each in stage.roles if each.name == cause.role), None) if stage else None
    if stage is None or role is None:
        return cause
    needs = rank_pods.asked(role, stage)
    room = pending_pods.room(replica.cluster.api, needs.cpu or 0.0, float(needs.memory or 0), float(needs.gpu))
    return replace(cause, evidence=(*cause.evidence, *room))
