"""Which run is meant: one of this machine, or one in a cluster, of which a copy is kept here.

A run that was started or looked at from this machine is found again without being told where it
is. Copies are not brought up to date in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.runs.store import Store, born, mirrored
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.errors import LongboatError

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster
    from longboat.engines.kubernetes.replica import RunReplica
    from longboat.runs.run_state import RunState


@dataclass(frozen=True)
class Where:
    """Where to look for runs, and on whose behalf."""

    home: str
    environ: Mapping[str, str]
    on: str | None = None
    """local or kubernetes; without it, wherever the run is."""
    context: str = ""
    namespace: str = ""

    @property
    def in_cluster(self) -> bool:
        return self.on != "local" and bool(self.on or self.context or self.namespace)

    def cluster(self) -> Cluster:
        from longboat.engines.kubernetes.cluster import Cluster

        return Cluster(self.environ, self.context, self.namespace)

    def find(self, text: str | None) -> tuple[Path, RunReplica | None]:
        """The directory of the run that is meant; of one in a cluster a copy, not yet brought up to date."""
        if self.in_cluster:
            from longboat.engines.kubernetes import replica

            cluster = self.cluster()
            store, _ = replica.known(cluster, self.home)
            if not store.ids():
                raise LongboatError(
                    f"there are no runs in the namespace {cluster.namespace}", "longboat run job.yaml --on kubernetes"
                )
            run = store.find(text)
            return run, replica.RunReplica(cluster, self.home, run.name)
        run = self._anywhere(text)
        told = mirrored(run)
        return run, None if told is None else self._remembered(run, told)

    def knows_copy(self, text: str) -> bool:
        """Whether a run is one in a cluster that this machine knows."""
        try:
            return mirrored(self._anywhere(text)) is not None
        except LongboatError:
            return False

    def _anywhere(self, text: str | None) -> Path:
        """A run of this machine, or the copy of one that was started or looked at from here."""
        copies = [] if self.on == "local" else _copies(self.home)
        found: list[Path] = []
        problem: LongboatError | None = None
        for store in [Store(self.home), *copies]:
            try:
                found.append(store.find(text))
            except LongboatError as error:
                problem = problem or error
        if not found:
            assert problem is not None
            raise problem
        return max(found, key=born) if text is None else found[0]

    def _remembered(self, run: Path, told: dict[str, object]) -> RunReplica:
        from longboat.engines.kubernetes.cluster import Cluster
        from longboat.engines.kubernetes.replica import OVER, RunReplica

        environ = dict(self.environ)
        if told.get("kubeconfig"):
            environ["KUBECONFIG"] = str(told["kubeconfig"])
        cluster = Cluster(environ, str(told.get("context") or ""), str(told.get("namespace") or ""))
        copy = RunReplica(cluster, self.home, run.name)
        root = cluster.root(run.name)
        if root is None:
            raise LongboatError(
                f"{run.name} is no longer in the namespace {cluster.namespace}: somebody has removed it",
                f"its copy is {run}; to drop that too: longboat rm {run.name}",
            )
        copy.mark(root.state not in OVER, root.created, root.plan)
        return copy


def refusal_in(error: Exception) -> LongboatError | None:
    """What both faces say of a cluster that said no, or nothing, wherever it was asked; None for all else."""
    from longboat.runtime.kube_client.api import ApiError

    if not isinstance(error, ApiError):
        return None
    from longboat.engines.kubernetes.cluster import refusal

    return refusal(error)


def standing(copy: RunReplica) -> RunState:
    """How a run in a cluster stands; while its driver has not begun or is lost, the cluster says why."""
    from longboat.engines.kubernetes import pending_pods
    from longboat.runs.journal_fold import load
    from longboat.runs.run_state import starting_again

    waits = copy.waits_for_its_driver()
    if not waits and (copy.begun or copy.reachable):
        copy.sync()
    state = load(copy.path)
    if copy.coming_up:
        state = starting_again(state)
    if waits or not copy.begun:
        return replace(state, cause=pending_pods.driver(copy.cluster.api, copy.run))
    return replace(state, cause=_reckoned(copy, state.cause)) if state.cause is not None else state


def explained(copy: RunReplica) -> RunState:
    """The same, with what keeps pods of a run that goes on from running: nobody waits for the end to ask why."""
    from longboat.engines.kubernetes import pending_pods

    state = standing(copy)
    if state.over or state.cause is not None or any(stage.cause for stage in state.stages):
        return state
    cause = pending_pods.rank(copy.cluster.api, copy.run)
    if cause is None:
        return state
    found = _reckoned(copy, cause)
    stages = tuple(replace(each, cause=found) if each.name == found.stage else each for each in state.stages)
    return replace(state, stages=stages)


def _reckoned(copy: RunReplica, cause: Cause) -> Cause:
    """Where no node had room: the arithmetic, which the driver may not do, for it may not see nodes."""
    from longboat.engines.kubernetes import pending_pods
    from longboat.manifests import rank_pods
    from longboat.runs.journal_fold import plan_of

    plan = plan_of(copy.path)
    if cause.kind is not CauseKind.UNSCHEDULABLE or plan is None:
        return cause
    stage = next((each for each in plan.stages if each.name == cause.stage), None)
    role = next((each for each in stage.roles if each.name == cause.role), None) if stage else None
    if stage is None or role is None:
        return cause
    asked = rank_pods.asked(role, stage)
    told = pending_pods.room(copy.cluster.api, asked.cpu or 0.0, float(asked.memory or 0), float(asked.gpu))
    return replace(cause, evidence=(*cause.evidence, *told))


def _copies(home: str) -> list[Store]:
    try:
        places = sorted((Path(home) / "clusters").iterdir())
    except OSError:
        return []
    return [store for place in places if (store := Store(place)).ids()]
