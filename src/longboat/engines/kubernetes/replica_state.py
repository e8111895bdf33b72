"""How a run in a cluster stands: its replica's journal, and what the cluster says about pods that do not run."""

from __future__ import annotations

from dataclasses import replace

from longboat.engines.kubernetes import pending_pods
from longboat.engines.kubernetes.replica import RunReplica
from longboat.runs.journal_fold import load, plan_of
from longboat.runs.run_state import RunState, starting_again
from longboat.runtime.causes import Cause, CauseKind


def current(replica: RunReplica) -> RunState:
    """How a run in a cluster stands; while its driver has not begun or is lost, the cluster says why."""

    waits = replica.waits_for_its_driver()
    if not waits and (replica.begun or replica.reachable):
        replica.sync()
    state = load(replica.path)
    if replica.coming_up:
        state = starting_again(state)
    if waits or not replica.begun:
        return replace(state, cause=pending_pods.driver(replica.cluster.api, replica.run))
    return replace(state, cause=_reckoned(replica, state.cause)) if state.cause is not None else state


def explained(replica: RunReplica) -> RunState:
    """The same, with what keeps pods of a run that goes on from running: nobody waits for the end to ask why."""

    state = current(replica)
    if state.over or state.cause is not None or any(stage.cause for stage in state.stages):
        return state
    cause = pending_pods.rank(replica.cluster.api, replica.run)
    if cause is None:
        return state
    found = _reckoned(replica, cause)
    stages = tuple(replace(each, cause=found) if each.name == found.stage else each for each in state.stages)
    return replace(state, stages=stages)


def _reckoned(replica: RunReplica, cause: Cause) -> Cause:
    """Where no node had room: the arithmetic, which the driver may not do, for it may not see nodes."""
    from longboat.manifests import rank_pods

    plan = plan_of(replica.path)
    if cause.kind is not CauseKind.UNSCHEDULABLE or plan is None:
        return cause
    stage = next((each for each in plan.stages if each.name == cause.stage), None)
    role = next((each for each in stage.roles if each.name == cause.role), None) if stage else None
    if stage is None or role is None:
        return cause
    asked = rank_pods.asked(role, stage)
    told = pending_pods.room(replica.cluster.api, asked.cpu or 0.0, float(asked.memory or 0), float(asked.gpu))
    return replace(cause, evidence=(*cause.evidence, *told))
