"""Keeps up the stages that serve, as Deployments: lays in the model, applies the objects, says when all answer.

The cluster replaces servers that fall; here it is watched and written down. A roll that does not come up is taken
back: the objects that served before are applied again, and with them the model that they served. Threads talk to the
API server, so that the driver's loop never does. What a pod's state means is `verdicts`' business, their logs are
`serverlogs`'.
"""

from __future__ import annotations

import collections
import copy
import json
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence

from longboat.runtime import run_layout
from longboat.runtime.agent import exit_causes
from longboat.runtime.bundle import example_request
from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.driver.launcher import StageNote
from longboat.runtime.driver.services import News, ServiceEnded, ServiceReady
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest
from longboat.runtime.plan import Plan, Serve
from longboat.runtime.pod import critical_threads, pod_status, pod_templates
from longboat.runtime.pod.model_snapshots import ModelSnapshot, lay_in
from longboat.runtime.pod.server_logs import ServerLogs
from longboat.runtime.rank_env import bracketed

LOOK, SELDOM = 0.5, 30.0
"""Seconds between two looks at a Deployment: while it comes up, and when it is up."""
SOON = 4.0
"""How long a server may wait before the journal says what it waits for."""
FALLS = 3
"""Times that a server may fall before it has ever answered."""
OPTIONAL = frozenset({"HorizontalPodAutoscaler", "PodDisruptionBudget"})
"""Kinds that a stage which serves may have."""
GONE = 90.0
"""Seconds to wait for the pods of what was taken down."""
STANDING = ".standing.json"
"""Beside the models of a stage: the objects that served last."""


@dataclass
class _Site:
    """One stage that serves."""

    stage: str
    serve: Serve
    name: str
    began: float
    stock: Optional[ModelSnapshot] = None
    ready: bool = False
    ending: bool = False
    said: str = ""


class ModelServers:
    """The driver's Services on a cluster."""

    def __init__(
        self,
        api: Api,
        root: Manifest,
        plan: Plan,
        address: str,
        run_dir: str,
        pending: float,
        settled: Callable[[], None],
        token: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """token: what clients must send to the servers, if anything."""
        self._api, self._root, self._plan, self._address = api, root, plan, address
        self._run_dir, self._pending, self._settled, self._token, self._clock = run_dir, pending, settled, token, clock
        self._run = str(root["metadata"]["name"])
        self._sites: Dict[str, _Site] = {}
        self._pods: Dict[str, Manifest] = {}
        self._news: Deque[News] = collections.deque()
        self._changed = threading.Condition()
        self._logs = ServerLogs(api, run_dir, self._tell)
        self._watches = False
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)

    # What the driver asks for.

    def begin(self, stage: str) -> None:
        serve = self._plan.stage(stage).serve
        assert serve is not None
        site = self._sites[stage] = _Site(stage, serve, names.service(self._run, stage), self._clock())
        if not self._watches:
            self._watches = True
            critical_threads.begin(self._watch)
        threading.Thread(target=self._keep, args=(site,), daemon=True).start()

    def end(self, stage: str) -> None:
        with self._changed:
            self._sites[stage].ending = True
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
            found, self._news = list(self._news), collections.deque()
            return found

    def close(self) -> None:
        self._logs.close()

    def _tell(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            pass

    # One stage, from its beginning to its end.

    def _keep(self, site: _Site) -> None:
        cause = self._safely(self._keep_up, site)
        wrong = self._safely(self._remove if cause is None or site.ending else self._take_back, site)
        cause = cause or wrong
        self._tell(ServiceEnded(site.stage, replace(cause, stage=site.stage) if cause is not None else None))

    def _safely(self, step: Callable[[_Site], Optional[Cause]], site: _Site) -> Optional[Cause]:
        """Whatever goes wrong here, a stage that is neither ready nor over would never end."""
        try:
            return step(site)
        except OSError as error:
            return replace(exit_causes.of_writing(error), role=names.SERVER)
        except Exception:
            import traceback

            lines = tuple(traceback.format_exc().splitlines()[-8:])
            return Cause(CauseKind.INTERNAL, "longboat itself failed", role=names.SERVER, lines=lines)

    def _keep_up(self, site: _Site) -> Optional[Cause]:
        """Until it is told to end; why it has to before."""
        cause = self._raise(site)
        while cause is None and not site.ending:
            with self._changed:
                self._changed.wait(SELDOM if site.ready else LOOK)
            try:
                cause = self._look(site)
            except ApiError as error:
                self._note(site, f"the API server: {error.message}")
        return cause

    def _raise(self, site: _Site) -> Optional[Cause]:
        """Lays in the model and makes the objects; why that cannot be."""
        try:
            output = run_layout.output(self._run_dir, site.serve.model)
            site.stock = lay_in(self._run_dir, site.stage, output, bool(site.serve.image))
            made = filled(self._templates(site.stage), site.stock, self._address)
        except (LongboatError, OSError) as error:
            return Cause(CauseKind.MISSING_INPUT, f"{site.serve.model}: {error}", role=names.SERVER)
        kinds = {obj["kind"] for obj in made}
        try:
            for kind in OPTIONAL - kinds:  # an earlier plan may have had them
                self._api.delete(kind, site.name)
            for obj in made:
                if obj["kind"] == "Deployment" and "HorizontalPodAutoscaler" in kinds:
                    live = self._api.find("Deployment", site.name)
                    obj["spec"]["replicas"] = live["spec"]["replicas"] if live else site.serve.replicas
        except ApiError as error:
            return pod_status.refused(error, ("", names.SERVER, -1))
        return self._apply(site, made)

    def _templates(self, stage: str) -> List[Manifest]:
        found: List[Manifest] = json.loads(self._root["data"][names.servers(stage)])
        return found

    def _apply(self, site: _Site, made: Sequence[Manifest]) -> Optional[Cause]:
        """Why not all could be applied; it does not go on once the stage is to end."""
        due = self._clock() + self._pending
        for obj in made:
            owned = copy.deepcopy(obj)
            owned["metadata"]["ownerReferences"] = [pod_templates.owner(self._root)]
            while not site.ending:
                try:
                    self._api.apply(owned)
                    break
                except ApiError as error:
                    if not error.transient or self._clock() >= due:
                        return pod_status.refused(error, ("", names.SERVER, -1))
                    self._note(site, f"the API server: {error.message}")
        return None

    def _look(self, site: _Site) -> Optional[Cause]:
        """Says Ready when it is time; the cause when it will never be."""
        deployment = self._api.find("Deployment", site.name)
        if site.ending:
            return None
        if deployment is None:
            return Cause(CauseKind.PREEMPTED, f"the Deployment {site.name} was deleted", role=names.SERVER)
        if site.ready:
            return None
        if rolled(deployment) and self._answers(site):
            site.ready = True
            self._remember(site)
            self._tell(ServiceReady(site.stage))
            return None
        return self._trouble(site, deployment)

    def _answers(self, site: _Site) -> bool:
        """Asks through the Service, as a client would, and keeps the answer."""
        assert site.stock is not None
        serve, name = site.serve, site.serve.name
        space = self._root["metadata"]["namespace"]
        host = str(self._api.get("Service", site.name)["spec"]["clusterIP"])
        base = f"http://{bracketed(host)}:{serve.port}"
        told: Dict[str, Any] = {"url": f"http://{site.name}.{space}:{serve.port}", "model": name}
        told |= {"grpc": f"{site.name}.{space}:{serve.grpc_port}", "version": site.stock.version}
        told |= {} if serve.image else {"page": f"{told['url']}/models/{name}"}
        try:
            example_request.ask(f"{base}/v1/models/{name}", token=self._token)
        except (OSError, ValueError) as error:
            self._note(site, f"the servers are ready and do not answer at {told['url']}: {error}")
            return False
        try:
            version = os.path.join(self._run_dir, site.stock.place, str(site.stock.version))
            told.update(example_request.first_answer(base, name, version, self._token))
        except (OSError, ValueError, KeyError, IndexError, TypeError, LongboatError) as error:
            self._note(site, f"the first example was not answered: {error}")
        place = run_layout.output(self._run_dir, site.stage)
        os.makedirs(place, exist_ok=True)
        _write(os.path.join(place, run_layout.SERVING), told)
        return True

    def _trouble(self, site: _Site, deployment: Manifest) -> Optional[Cause]:
        """What keeps it from coming up: said first, and the end of it when nothing will help or time is up."""
        waited = self._clock() - site.began
        found: List[Cause] = []
        fallen = 0
        for pod in self._new_pods(site):
            seat = (site.stage, names.SERVER, self._logs.rank(str(pod["metadata"]["name"])))
            falls, cause = pod_status.fallen(pod, seat)
            cause = cause or pod_status.waiting(pod, seat)
            if cause is not None and (cause.evidence or cause.kind is not CauseKind.VOLUME):
                found.append(cause)
            fallen = max(fallen, falls)
        refusal = pod_status.unmade(deployment)
        found += [refusal] if refusal is not None else []
        worst = next((each for each in found if each.kind in HOPELESS), found[0] if found else None)
        if worst is not None and waited > SOON:
            self._note(site, f"a server waits: {worst.message}")
        if worst is not None and (fallen >= FALLS or fallen and worst.kind in HOPELESS):
            return worst
        patience = self._plan.stage(site.stage).timeout or self._pending
        if waited > patience:
            return worst or Cause(
                CauseKind.TIMED_OUT,
                f"not all servers were ready within {patience:g} s",
                role=names.SERVER,
                evidence=(f"the Deployment {site.name} says: {_conditions(deployment)}",),
            )
        return None

    def _new_pods(self, site: _Site) -> List[Manifest]:
        """The pods of the model that is being brought up."""
        number = str(site.stock.number) if site.stock else ""
        with self._changed:
            return [
                pod
                for pod in self._pods.values()
                if _stage_of(pod) == site.stage
                and (pod["metadata"].get("annotations") or {}).get(names.MODEL) == number
                and not pod["metadata"].get("deletionTimestamp")
            ]

    def _note(self, site: _Site, text: str) -> None:
        if text != site.said:
            site.said = text
            self._tell(StageNote(site.stage, text))

    # What served before.

    def _standing(self, site: _Site) -> str:
        return os.path.join(run_layout.models(self._run_dir, site.stage), STANDING)

    def _remember(self, site: _Site) -> None:
        assert site.stock is not None
        made = filled(self._templates(site.stage), site.stock, self._address)
        _write(self._standing(site), {"objects": made, "version": site.stock.version})

    def _take_back(self, site: _Site) -> Optional[Cause]:
        """What could not be brought up goes; what served before it serves again."""
        try:
            with open(self._standing(site), encoding="utf-8") as file:
                before = json.load(file)
        except (OSError, ValueError):
            return self._remove(site)
        cause = self._apply(site, before["objects"])
        if site.ending:
            return self._remove(site)
        if cause is None:
            self._note(site, f"the servers go on with version {before['version']} of {site.serve.name}")
        return cause

    def _remove(self, site: _Site) -> Optional[Cause]:
        """All objects of the stage, and its pods without waiting for clients: nobody is to be served any more."""
        try:
            os.unlink(self._standing(site))
        except OSError:
            pass
        chosen = f"{names.selector(self._run, names.SERVER)},{names.STAGE_LABEL}={site.stage}"
        due = self._clock() + GONE
        while self._clock() < due:
            try:
                for kind in ("HorizontalPodAutoscaler", "PodDisruptionBudget", "Service", "Deployment"):
                    self._api.delete(kind, site.name)
                left = self._api.list("Pod", chosen)
                for pod in left:
                    self._api.delete("Pod", pod["metadata"]["name"], grace=2)
                if not left:
                    return None
            except ApiError as error:
                self._note(site, f"the API server: {error.message}")
            time.sleep(LOOK)
        return None

    # Eyes.

    def _watch(self) -> None:
        for event, obj in self._api.watch("Pod", names.selector(self._run, names.SERVER)):
            with self._changed:
                if event == "LISTED":
                    there = {str(item["metadata"]["name"]): item for item in obj["items"]}
                    gone = [pod for name, pod in self._pods.items() if name not in there]
                    self._pods = there
                    came = sorted(there.values(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
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


def filled(templates: Sequence[Manifest], stock: ModelSnapshot, address: str) -> List[Manifest]:
    """The objects with the model that is served and where the driver gives it."""
    found = copy.deepcopy(list(templates))
    told = {"LONGBOAT_MODEL": stock.place, "LONGBOAT_DEPOT": f"{address}:{names.DEPOT_PORT}"}
    for obj in found:
        if obj["kind"] == "Deployment":
            template = obj["spec"]["template"]
            template["metadata"]["annotations"][names.MODEL] = str(stock.number)
            for container in template["spec"]["initContainers"]:
                if container["name"] == names.FETCHER:
                    for variable in container["env"]:
                        variable["value"] = told.get(variable["name"], variable.get("value", ""))
    return found


def rolled(deployment: Manifest) -> bool:
    """All servers are of the newest kind and available, and no others are left."""
    status, wanted = deployment.get("status", {}), int(deployment["spec"].get("replicas", 1))
    return (
        int(status.get("observedGeneration", 0)) >= int(deployment["metadata"]["generation"])
        and int(status.get("updatedReplicas", 0)) == wanted == int(status.get("replicas", 0))
        and int(status.get("availableReplicas", 0)) >= wanted > 0
    )


def _conditions(deployment: Manifest) -> str:
    told = deployment.get("status", {}).get("conditions") or ()
    return "; ".join(str(each.get("message")) for each in told)


def _stage_of(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.STAGE_LABEL, ""))


def _write(path: str, value: Mapping[str, Any]) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
    os.replace(path + ".new", path)
