"""Runs serve stages as Deployments: snapshots the model, applies the objects, reports when all servers respond.

The cluster restarts servers that crash; this module watches and journals it. A rollout that does not become ready is
rolled back: the last good objects are applied again, with the model they served. Threads talk to the API server, so
that the driver's loop never does. `pod_status` knows what a pod's state means, `server_logs` copies the logs.
"""

from __future__ import annotations

import collections
import copy
import json
import os
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence

from longboat.runtime import atomic_file, run_layout
from longboat.runtime.agent import exit_causes
from longboat.runtime.bundle import example_request
from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.driver.launcher import StageNote
from longboat.runtime.driver.services import News, ServiceEnded, ServiceReady
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.plan import Plan, Serve
from longboat.runtime.pod import critical_threads, pod_status, pod_templates
from longboat.runtime.pod.model_snapshots import ModelSnapshot, snapshot_model
from longboat.runtime.pod.server_logs import ServerLogs
from longboat.runtime.rank_env import bracketed
from longboat.runtime.seat import Seat

LOOK, SELDOM = 0.5, 30.0
"""Seconds between two looks at a Deployment: while it starts, and once it is ready."""
SOON = 4.0
"""Seconds that a server may wait before the journal says what it waits for."""
MAX_CRASHES = 3
"""Crashes of a server before it has ever responded, after which the stage fails."""
OPTIONAL = frozenset({"HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""Kinds of objects that a serve stage may have."""
GONE = 90.0
"""Seconds to wait for the pods of a removed stage."""
LAST_GOOD = ".standing.json"
"""File next to the models of a stage: the objects that served last."""


@dataclass
class _ServeStage:
    """One serve stage."""

    stage: str
    serve: Serve
    name: str
    started: float
    snapshot: Optional[ModelSnapshot] = None
    ready: bool = False
    ending: bool = False
    last_note: str = ""


class ServiceSettings(NamedTuple):
    address: str
    """The driver's stable address."""
    pending: float
    """Seconds that a pod may wait until it runs."""
    token: str = ""
    """What clients must send to the servers; empty: nothing."""


class ModelServers:
    """The driver's Services on a cluster."""

    def __init__(
        self,
        api: Api,
        root: Manifest,
        plan: Plan,
        run_dir: str,
        settings: ServiceSettings,
        settled: Callable[[], None],
    ) -> None:
        """settled: called when all stages are done and the servers keep running."""
        self._api, self._root, self._plan, self._run_dir = api, root, plan, run_dir
        self._address, self._pending, self._token = settings
        self._settled = settled
        self._run = str(root["metadata"]["name"])
        self._services: Dict[str, _ServeStage] = {}
        self._pods: Dict[str, Manifest] = {}
        self._news: Deque[News] = collections.deque()
        self._changed = threading.Condition()
        self._logs = ServerLogs(api, run_dir, self._emit)
        self._watches = False
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)

    # Requests of the driver.

    def begin(self, stage: str) -> None:
        serve = self._plan.stage(stage).serve
        assert serve is not None
        service = self._services[stage] = _ServeStage(stage, serve, names.service(self._run, stage), time.monotonic())
        if not self._watches:
            self._watches = True
            critical_threads.begin(self._watch)
        threading.Thread(target=self._keep, args=(service,), daemon=True).start()

    def end(self, stage: str) -> None:
        with self._changed:
            self._services[stage].ending = True
            self._changed.notify_all()

    def settled(self) -> None:
        threading.Thread(target=self._settled, daemon=True).start()

    def fileno(self) -> int:
        return self._wake

    def poll(self) -> Sequence[News]:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        with self._changed:
            news, self._news = list(self._news), collections.deque()
            return news

    def close(self) -> None:
        self._logs.close()

    def _emit(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            pass

    # One stage, from start to end.

    def _keep(self, service: _ServeStage) -> None:
        cause = self._safely(self._keep_up, service)
        wrong = self._safely(self._remove if cause is None or service.ending else self._roll_back, service)
        cause = cause or wrong
        self._emit(ServiceEnded(service.stage, replace(cause, stage=service.stage) if cause is not None else None))

    def _safely(self, step: Callable[[_ServeStage], Optional[Cause]], service: _ServeStage) -> Optional[Cause]:
        """Run a step; any exception becomes a cause, or the stage would never end."""
        try:
            return step(service)
        except OSError as error:
            return replace(exit_causes.of_writing(error), role=names.SERVER)
        except Exception:
            import traceback

            lines = tuple(traceback.format_exc().splitlines()[-8:])
            return Cause(CauseKind.INTERNAL, "Longboat itself failed", role=names.SERVER, lines=lines)

    def _keep_up(self, service: _ServeStage) -> Optional[Cause]:
        """Keep the stage running until it is stopped; returns why it fails before."""
        cause = self._deploy(service)
        while cause is None and not service.ending:
            with self._changed:
                self._changed.wait(SELDOM if service.ready else LOOK)
            try:
                cause = self._look(service)
            except ApiError as error:
                self._note(service, f"the API server reports: {error.message}")
        return cause

    def _deploy(self, service: _ServeStage) -> Optional[Cause]:
        """Snapshot the model and apply the objects; returns why that fails."""
        try:
            output = run_layout.output(self._run_dir, service.serve.model)
            service.snapshot = snapshot_model(self._run_dir, service.stage, output, bool(service.serve.image))
            made = filled(self._templates(service.stage), service.snapshot, self._address, self._root)
        except (LongboatError, OSError) as error:
            return Cause(CauseKind.MISSING_INPUT, f"{service.serve.model}: {error}", role=names.SERVER)
        kinds = {obj["kind"] for obj in made}
        try:
            for kind in OPTIONAL - kinds:  # an earlier plan may have had them
                self._api.delete(kind, service.name)
            for obj in made:
                if obj["kind"] == "Deployment" and "HorizontalPodAutoscaler" in kinds:
                    live = self._api.find("Deployment", service.name)
                    obj["spec"]["replicas"] = live["spec"]["replicas"] if live else service.serve.replicas
        except ApiError as error:
            return pod_status.refused(error, Seat("", names.SERVER, -1))
        return self._apply(service, made)

    def _templates(self, stage: str) -> List[Manifest]:
        templates: List[Manifest] = json.loads(self._root["data"][names.servers(stage)])
        return templates

    def _apply(self, service: _ServeStage, made: Sequence[Manifest]) -> Optional[Cause]:
        """Apply the objects; returns why that fails. Stops early if the stage is being stopped."""
        due = time.monotonic() + self._pending
        for obj in made:
            owned = copy.deepcopy(obj)
            owned["metadata"]["ownerReferences"] = [pod_templates.owner(self._root)]
            while not service.ending:
                try:
                    self._api.apply(owned)
                    break
                except ApiError as error:
                    if not error.transient or time.monotonic() >= due:
                        return pod_status.refused(error, Seat("", names.SERVER, -1))
                    self._note(service, f"the API server reports: {error.message}")
        return None

    def _look(self, service: _ServeStage) -> Optional[Cause]:
        """Check the Deployment; emits ServiceReady when it is, returns the cause if it never will be."""
        deployment = self._api.find("Deployment", service.name)
        if service.ending:
            return None
        if deployment is None:
            return Cause(CauseKind.PREEMPTED, f"the Deployment {service.name} was deleted", role=names.SERVER)
        if service.ready:
            return None
        if rolled(deployment) and self._responds(service):
            service.ready = True
            self._save_last_good(service)
            self._emit(ServiceReady(service.stage))
            return None
        return self._check_pods(service, deployment)

    def _responds(self, service: _ServeStage) -> bool:
        """Send a request through the Service, as a client would, and record the answer."""
        assert service.snapshot is not None
        serve, name = service.serve, service.serve.name
        space = self._root["metadata"]["namespace"]
        host = str(self._api.get("Service", service.name)["spec"]["clusterIP"])
        base = f"http://{bracketed(host)}:{serve.port}"
        description: Dict[str, Any] = {"url": f"http://{service.name}.{space}:{serve.port}", "model": name}
        description |= {"grpc": f"{service.name}.{space}:{serve.grpc_port}", "version": service.snapshot.version}
        description |= {} if serve.image else {"page": f"{description['url']}/models/{name}"}
        try:
            example_request.ask(f"{base}/v1/models/{name}", token=self._token)
        except (OSError, ValueError) as error:
            self._note(service, f"no response from {description['url']}, although the servers are ready: {error}")
            return False
        try:
            version = os.path.join(self._run_dir, service.snapshot.directory, str(service.snapshot.version))
            description.update(example_request.first_answer(base, name, version, self._token))
        except (OSError, ValueError, KeyError, IndexError, TypeError, LongboatError) as error:
            self._note(service, f"the first example request failed: {error}")
        directory = run_layout.output(self._run_dir, service.stage)
        os.makedirs(directory, exist_ok=True)
        _write(os.path.join(directory, run_layout.SERVING), description)
        return True

    def _check_pods(self, service: _ServeStage, deployment: Manifest) -> Optional[Cause]:
        """What keeps the servers from becoming ready: first a note, then the cause once nothing helps or time is up."""
        waited = time.monotonic() - service.started
        causes: List[Cause] = []
        crashes = 0
        for pod in self._new_pods(service):
            seat = Seat(service.stage, names.SERVER, self._logs.rank(str(pod["metadata"]["name"])))
            count, cause = pod_status.failures(pod, seat)
            cause = cause or pod_status.waiting(pod, seat)
            if cause is not None and (cause.evidence or cause.kind is not CauseKind.VOLUME):
                causes.append(cause)
            crashes = max(crashes, count)
        refusal = pod_status.replica_failure(deployment)
        causes += [refusal] if refusal is not None else []
        worst = next((each for each in causes if each.kind in HOPELESS), causes[0] if causes else None)
        if worst is not None and waited > SOON:
            self._note(service, f"a server is waiting: {worst.message}")
        if worst is not None and (crashes >= MAX_CRASHES or crashes and worst.kind in HOPELESS):
            return worst
        patience = self._plan.stage(service.stage).timeout or self._pending
        if waited > patience:
            return worst or Cause(
                CauseKind.TIMED_OUT,
                f"not all servers were ready within {patience:g} s",
                role=names.SERVER,
                evidence=(f"the Deployment {service.name} reports: {_conditions(deployment)}",),
            )
        return None

    def _new_pods(self, service: _ServeStage) -> List[Manifest]:
        """Pods of the model that is being rolled out."""
        number = str(service.snapshot.number) if service.snapshot else ""
        with self._changed:
            return [
                pod
                for pod in self._pods.values()
                if _stage_of(pod) == service.stage
                and (pod["metadata"].get("annotations") or {}).get(names.MODEL) == number
                and not pod["metadata"].get("deletionTimestamp")
            ]

    def _note(self, service: _ServeStage, text: str) -> None:
        if text != service.last_note:
            service.last_note = text
            self._emit(StageNote(service.stage, text))

    # The last good version.

    def _last_good_path(self, service: _ServeStage) -> str:
        return os.path.join(run_layout.models(self._run_dir, service.stage), LAST_GOOD)

    def _save_last_good(self, service: _ServeStage) -> None:
        assert service.snapshot is not None
        made = filled(self._templates(service.stage), service.snapshot, self._address, self._root)
        _write(self._last_good_path(service), {"objects": made, "version": service.snapshot.version})

    def _roll_back(self, service: _ServeStage) -> Optional[Cause]:
        """Remove what did not become ready; apply the last good objects again."""
        try:
            with open(self._last_good_path(service), encoding="utf-8") as file:
                before = json.load(file)
        except (OSError, ValueError):
            return self._remove(service)
        cause = self._apply(service, before["objects"])
        if service.ending:
            return self._remove(service)
        if cause is None:
            self._note(service, f"the servers continue with version {before['version']} of {service.serve.name}")
        return cause

    def _remove(self, service: _ServeStage) -> Optional[Cause]:
        """Delete all objects of the stage and its pods, without waiting for clients."""
        try:
            os.unlink(self._last_good_path(service))
        except OSError:
            pass
        chosen = f"{names.selector(self._run, names.SERVER)},{names.STAGE_LABEL}={service.stage}"
        due = time.monotonic() + GONE
        while time.monotonic() < due:
            try:
                for kind in ("HorizontalPodAutoscaler", "PodDisruptionBudget", "Service", "Deployment"):
                    self._api.delete(kind, service.name)
                left = self._api.list("Pod", chosen)
                for pod in left:
                    self._api.delete("Pod", pod["metadata"]["name"], grace=2)
                if not left:
                    return None
            except ApiError as error:
                self._note(service, f"the API server reports: {error.message}")
            time.sleep(LOOK)
        return None

    # Watching pods.

    def _watch(self) -> None:
        for event, obj in self._api.watch("Pod", names.selector(self._run, names.SERVER)):
            with self._changed:
                if event == "LISTED":
                    listed = {str(item["metadata"]["name"]): item for item in obj["items"]}
                    gone = [pod for name, pod in self._pods.items() if name not in listed]
                    self._pods = listed
                    came = sorted(listed.values(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
                elif event == "DELETED":
                    self._pods.pop(str(obj["metadata"]["name"]), None)
                    gone, came = [obj], []
                else:
                    self._pods[str(obj["metadata"]["name"])] = obj
                    gone, came = [], [obj]
                self._changed.notify_all()
            for pod in gone:
                self._logs.gone(_stage_of(pod), pod)
            for pod in came:
                self._logs.saw(_stage_of(pod), pod)


def filled(templates: Sequence[Manifest], snapshot: ModelSnapshot, address: str, root: Manifest) -> List[Manifest]:
    """The objects with the model to serve and the driver's file server."""
    objects = copy.deepcopy(list(templates))
    variables = {"LONGBOAT_MODEL": snapshot.directory, "LONGBOAT_DEPOT": f"{address}:{names.DEPOT_PORT}"}
    for obj in objects:
        if obj["kind"] == "Deployment":
            template = obj["spec"]["template"]
            template["metadata"]["annotations"][names.MODEL] = str(snapshot.number)
            for container in template["spec"]["containers"]:
                if container["name"] == names.SERVER:
                    pod_templates.pass_on_log_level(container, root)
            for container in template["spec"]["initContainers"]:
                if container["name"] == names.FETCHER:
                    for variable in container["env"]:
                        variable["value"] = variables.get(variable["name"], variable.get("value", ""))
    return objects


def rolled(deployment: Manifest) -> bool:
    """Whether all servers are of the latest revision and available, and no others are left."""
    status, wanted = deployment.get("status", {}), int(deployment["spec"].get("replicas", 1))
    return (
        int(status.get("observedGeneration", 0)) >= int(deployment["metadata"]["generation"])
        and int(status.get("updatedReplicas", 0)) == wanted == int(status.get("replicas", 0))
        and int(status.get("availableReplicas", 0)) >= wanted > 0
    )


def _conditions(deployment: Manifest) -> str:
    conditions = deployment.get("status", {}).get("conditions") or ()
    return "; ".join(str(each.get("message")) for each in conditions)


def _stage_of(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.STAGE_LABEL, ""))


def _write(path: str, value: Mapping[str, Any]) -> None:
    atomic_file.write(path, json.dumps(value, indent=2, ensure_ascii=False))
