"""The Kubernetes engine: the cluster drives a run; this machine submits it and reads a replica."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from longboat.engines import resume_policy, secret_values
from longboat.engines.directory_run import DirectoryRun
from longboat.engines.interface import (
    Diagnosis,
    Endpoint,
    EndpointRequest,
    EngineContext,
    Leftover,
    Removal,
    Resumption,
    RunHandle,
    RunList,
    RunRequest,
    Say,
    StopOutcome,
    Viewer,
    silent,
)
from longboat.engines.kubernetes import replica as replicas
from longboat.engines.kubernetes import service_address, submission
from longboat.engines.kubernetes.cluster import Cluster, refusal
from longboat.engines.kubernetes.replica import OVER, RunReplica
from longboat.engines.kubernetes.service_address import ServiceAddress
from longboat.manifests.run_objects import submit_options
from longboat.runs import stage_reuse
from longboat.runs.run_state import RankState, RunState, StageState
from longboat.runs.stage_reuse import StageDecision
from longboat.runs.store import replica_origin
from longboat.runs.watch import RunWatch
from longboat.runtime import journal, run_layout
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import bracketed

if TYPE_CHECKING:
    from longboat.runs.run_files import RunFiles

PAUSE = 1.0
NO_CONTROLLER = 60.0
"""Seconds to wait for the address of a load balancer that no controller reports on."""

P = ParamSpec("P")
T = TypeVar("T")


def _translated(method: Callable[P, T]) -> Callable[P, T]:
    """Turns an error of the API server into a LongboatError with a fix; the only place that does."""

    @functools.wraps(method)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return method(*args, **named)
        except ApiError as error:
            raise refusal(error) from None

    return call


def _translated_context(method: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """`contextlib.contextmanager`, with the same translation."""
    manager = contextlib.contextmanager(method)

    @functools.wraps(method)
    @contextlib.contextmanager
    def call(*args: P.args, **named: P.kwargs) -> Iterator[T]:
        try:
            with manager(*args, **named) as value:
                yield value
        except ApiError as error:
            raise refusal(error) from None

    return call


Class = TypeVar("Class", bound=type)


def _translates(cls: Class) -> Class:
    for name, method in vars(cls).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _translated(method))
    return cls


@_translates
class ClusterRun(DirectoryRun):
    engine = "kubernetes"
    outlives_cli = True
    poll_interval = 0.5

    def __init__(self, replica: RunReplica) -> None:
        self.replica = replica
        super().__init__(replica.path)
        self.where = f"in the namespace {replica.cluster.namespace}"
        self._known = False
        """Whether the cluster has confirmed that the run exists."""

    @property
    def after(self) -> int:
        return self.replica.after

    @after.setter
    def after(self, _value: int) -> None:
        """Ignored: the replica has the number."""

    def _existing(self) -> RunReplica:
        if not self._known:
            cluster = self.replica.cluster
            root = cluster.root(self.id)
            if root is None:
                raise LongboatError(
                    f"{self.id} no longer exists in the namespace {cluster.namespace}: it was removed",
                    f"its replica is {self.directory}; to remove that too: longboat rm {self.id}",
                )
            self.replica.mark(root.state not in OVER, root.created, root.plan)
            self._known = True
        return self.replica

    def sync(self, logs: bool = False) -> None:
        self._existing().sync(logs=logs)

    def follow(self, logs: bool, say: Say = silent) -> RunWatch:
        self._existing().follow_if_running(logs, say)
        return super().follow(logs, say)

    def pause(self, seconds: float) -> None:
        self.replica.wait(seconds)

    def state(self, explain: bool = False) -> RunState:
        from longboat.engines.kubernetes import replica_state

        replica = self._existing()
        return replica_state.explained(replica) if explain else replica_state.current(replica)

    def _ended(self, state: RunState) -> bool:
        """An end after which the cluster was asked to resume the run is not the end."""
        return state.over and self.replica.is_complete()

    @_translated_context
    def files(self) -> Iterator[RunFiles]:
        from longboat.engines.kubernetes.pod_files import PodFiles

        replica = self._existing()
        with PodFiles(replica.cluster, self.id, self.plan) as files:
            yield files

    def fetch(self, path: str) -> Path:
        self._existing().fetch_all(path)
        return self.directory / path

    def fetch_board(self) -> None:
        self._existing().fetch_board()

    def attend(self, viewer: Viewer, say: Say) -> int:
        return viewer.show(lambda: self.replica.follow(viewer.logs, say))

    def detach(self, fork: bool = False) -> bool:
        return True

    def stop(self, by: str, now: bool = False, wait: float | None = None) -> StopOutcome:
        """Asks the driver to stop; the journal shows when everything has ended."""
        replica = self._existing()
        due = time.monotonic() + (wait or 0.0)
        if not replica.stop(by, now, wait):
            return StopOutcome.SERVERS_REMOVED if replica.cluster.take_down(self.id) else StopOutcome.NOT_RUNNING
        if wait is None:
            return StopOutcome.ASKED
        while not replica.is_complete():
            if time.monotonic() > due:
                return StopOutcome.LATE
            time.sleep(0.3)
            replica.sync()
        return StopOutcome.ENDED

    def remove(self, force: bool = False, data: bool = False) -> Removal:
        """Removes the root object and everything it owns; data is kept unless `data` is set."""
        namespace = self.replica.cluster.namespace
        gone, kept = self.replica.remove(force=force, data=data)
        return Removal(f" from the namespace {namespace}", {"namespace": namespace}, gone, kept)

    def exec(self, rank: RankState, command: Sequence[str], environ: Mapping[str, str]) -> int:
        from longboat.engines.kubernetes import rank_exec

        return rank_exec.execute(self._existing().cluster, self.id, rank, command, environ)

    # Serving.

    @_translated_context
    def endpoint(self, request: EndpointRequest, say: Say) -> Iterator[Endpoint]:
        from longboat.engines.kubernetes import port_forward

        cluster, model = self._existing().cluster, ""
        if request.board:
            if self.plan is None or self.plan.board is None:
                raise LongboatError(f"{self.id} has no `board:`", f"on this machine: longboat board {self.id}")
            pods = names.selector(self.id, names.BOARD)
            address = self._address(lambda: service_address.board(cluster, self.id), request, say)
        else:
            stage, serve = service_address.served(self.plan, self.id, request.stage)
            self._await_serving(stage, request, say)
            pods, model = service_address.servers(self.id, stage), serve.name
            address = self._address(lambda: service_address.find(cluster, self.id, stage), request, say)
        if address.expose != "ClusterIP":
            yield Endpoint(_facts(model, address.host, address.rest, address.grpc, address.expose))
            return
        ports = {address.rest: request.port} | ({address.grpc: 0} if address.grpc != address.rest else {})
        with port_forward.PortForward(cluster, pods, ports, say) as forward:
            rest, grpc = forward.ports[address.rest], forward.ports[address.grpc]
            yield Endpoint(_facts(model, "127.0.0.1", rest, grpc, address.expose), held=True)

    def _await_serving(self, stage: str, request: EndpointRequest, say: Say) -> None:
        from longboat.engines.serving_wait import await_serving, serving_stage
        from longboat.runtime.light_dataclasses import replace

        if request.wait is not None:
            state = self.state()
            if serving_stage(state, stage) is None and not state.over:
                say(f"{self.id} is {state.state}: waiting until {stage} serves")
        named = replace(request, stage=stage)
        await_serving(self, named, PAUSE, lambda: self.replica.cluster.stands(self.id, stage))

    def _address(self, find: Callable[[], ServiceAddress], request: EndpointRequest, say: Say) -> ServiceAddress:
        """Waits for the address of a service."""
        started, shown = time.monotonic(), ""
        due = started + (request.wait or 0.0)
        while True:
            address = find()
            if address.host or address.expose == "ClusterIP":
                return address
            if address.why != shown:
                shown = address.why
                say(f"the {address.expose} has no address yet: {shown}")
            hopeless = address.no_controller and time.monotonic() - started > NO_CONTROLLER
            if request.wait is None or hopeless or time.monotonic() > due:
                namespace = self.replica.cluster.namespace
                describe = f"kubectl describe service -n {namespace} -l longboat.dev/run={self.id}"
                hint = describe if request.wait is not None else f"longboat url {self.id} --wait"
                raise LongboatError(f"{self.id} has no address outside of the cluster", hint, FAILED)
            time.sleep(PAUSE)

    def served_at(self, stage: StageState) -> tuple[Mapping[str, Any], str]:
        facts = dict(stage.serving)
        try:
            address = service_address.find(self.replica.cluster, self.id, stage.name)
        except LongboatError:
            address = ServiceAddress("ClusterIP")
        if address.host:
            facts |= {"url": address.url(), "grpc": f"{bracketed(address.host)}:{address.grpc}"}
            facts |= {"page": f"{address.url()}/models/{facts['model']}"} if "page" in facts else {}
        if address.expose == "ClusterIP":
            return facts, f"that address works inside the cluster; from here: longboat url {self.id}"
        if not address.host:
            return facts, f"the {address.expose} has no address yet: longboat url {self.id} --wait"
        return facts, ""


def _facts(model: str, host: str, rest: int, grpc: int, expose: str) -> dict[str, str]:
    url = f"http://{bracketed(host)}:{rest}"
    facts = {"url": url, "expose": expose}
    if model:
        facts |= {"grpc": f"{bracketed(host)}:{grpc}", "page": f"{url}/models/{model}", "model": model}
    return facts


@_translates
class KubernetesEngine:
    name = "kubernetes"
    remote = True

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    @functools.cached_property
    def cluster(self) -> Cluster:
        return Cluster(self._context.environ, self._context.context, self._context.namespace)

    def submit(self, request: RunRequest, say: Say) -> tuple[ClusterRun, Sequence[StageDecision]]:
        plan = request.plan
        assert plan is not None
        if request.choice.first or request.choice.only:
            raise LongboatError("--from and --only need a run to resume", "add --resume RUN")
        secrets = secret_values.taken_along(plan, self._context.environ)
        options = submit_options(self._context.namespace, request.options, self._context.environ)
        return ClusterRun(replicas.submitted(plan, options, secrets, self.cluster, self._context.home, say)), ()

    def resumption(self, run: RunHandle, request: RunRequest) -> Resumption:
        return self._resumption(run, request)[1]

    def _resumption(self, run: RunHandle, request: RunRequest) -> tuple[Manifest, Resumption]:
        """What a resume would do, and the root object on which that is based."""
        from longboat.runs.journal_fold import fold, plan_of
        from longboat.spec import fingerprint

        replica = cast("ClusterRun", run).replica
        root = replica.cluster.api.find("ConfigMap", run.id)
        if root is None:
            raise replica.cluster.absent(run.id)
        replica.sync(logs=True)
        events = journal.read(str(replica.path))
        if replica.is_restarting:
            busy = submission.is_handed_over(replica.cluster, root)
        else:
            busy = not replica.is_complete() and fold(events, run.id, alive=True).state != "serving"
        if busy:
            raise LongboatError(f"{run.id} is still running", f"watch it: longboat attach {run.id}")
        recorded = fingerprint.from_json(root["data"].get(run_layout.FINGERPRINTS, ""))
        # Without a new plan the code in the cluster is unchanged.
        current = fingerprint.fingerprints(request.plan) if request.plan is not None else None
        return root, resume_policy.decide(run.id, request, plan_of(replica.path), events, recorded, current)

    def resume(self, run: RunHandle, request: RunRequest, say: Say) -> tuple[ClusterRun, Sequence[StageDecision]]:
        """Resumes a run: writes the order into the root object, where a new driver reads it."""
        replica = cast("ClusterRun", run).replica
        plan = request.plan
        secrets = secret_values.taken_along(plan, self._context.environ) if plan is not None else {}
        root, resumption = self._resumption(run, request)
        resume_policy.check_something_runs(run.id, resumption)
        order = submission.ResumeOrder(
            os.urandom(6).hex(),
            resume_policy.run_again(resumption),
            resume_policy.stages(resumption, stage_reuse.LEFT_OUT),
            plan,
            resume_policy.stages(resumption, stage_reuse.REUSED),
            submit_options(self._context.namespace, request.options, self._context.environ),
            secrets,
        )
        replica.resumed_at(resumption.events)
        submission.resume(replica.cluster, run.id, order, root)
        return cast("ClusterRun", run), resumption.decisions

    def find(self, text: str | None) -> ClusterRun:
        store, _ = replicas.known(self.cluster, self._context.home)
        if not store.ids():
            raise LongboatError(
                f"no runs in the namespace {self.cluster.namespace}", "longboat run job.yaml --on kubernetes"
            )
        return ClusterRun(RunReplica(self.cluster, self._context.home, store.find(text).name))

    def open(self, directory: Path) -> ClusterRun:
        """The run of a replica, in the cluster that the replica names."""
        origin = replica_origin(directory) or {}
        environ = dict(self._context.environ)
        if origin.get("kubeconfig"):
            environ["KUBECONFIG"] = str(origin["kubeconfig"])
        cluster = Cluster(environ, str(origin.get("context") or ""), str(origin.get("namespace") or ""))
        return ClusterRun(RunReplica(cluster, self._context.home, directory.name))

    def runs(self, most: int = 0) -> RunList:
        """Lists runs by their root objects, with one request."""
        _, listed = replicas.known(self.cluster, self._context.home)
        states = [
            RunState(run.id, run.job, run.state, started=run.created, code=run.code)
            for run in (listed[:most] if most else listed)
        ]
        return RunList(f"in the namespace {self.cluster.namespace}", states, len(listed))

    def warnings(self, plan: Plan) -> Sequence[str]:
        from longboat.manifests import model_serving, tensorboard_pod

        return (*model_serving.warnings(plan), *tensorboard_pod.warnings(plan))

    def doctor(self, plan: Plan | None, probe: bool) -> Diagnosis:
        from longboat.engines import doctor

        checks = doctor.of_cluster(self.cluster)
        reachable = all(each.state != doctor.MISSING for each in checks if each.about in ("cluster", "namespace"))
        job = []
        if plan is not None and reachable:
            job = doctor.of_job_there(self.cluster, plan, self._context.environ, probe)
        return Diagnosis("THE CLUSTER", checks, job, all(each.state != doctor.MISSING for each in [*checks, *job]))

    def leftovers(self, run: str) -> list[Leftover]:
        from longboat.engines.kubernetes import leftovers

        return leftovers.of_runs(self.cluster, run)

    def remove_data(self, run: str) -> list[str]:
        from longboat.engines.kubernetes import storage

        return storage.remove_of(self.cluster, run) if self.cluster.root(run) is None else []

    def plans(self) -> Mapping[str, Plan]:
        return self.cluster.plans()
