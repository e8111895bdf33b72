"""A cluster and the runs in one of its namespaces: list them, ask their drivers, stop and remove them.

No state is kept on this machine that another machine would need: runs are found by their labels.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping

from longboat.engines.kubernetes import kube_config, lost_driver, pending_pods, pod_exec, storage
from longboat.manifests import run_objects
from longboat.manifests.volumes import PART
from longboat.manifests.yaml_text import yaml_of
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import missing_rights, names
from longboat.runtime.kube_client.api import NO_JSON, Api, ApiError, Manifest
from longboat.runtime.kube_client.http_client import quoted
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan, from_json

PYTHON = "python3"
PATIENCE = 10.0
"""Seconds to retry while the API server cannot be reached."""
KILLED = 128
"""Greater exit codes mean a signal: the program was killed with its pod."""
OWNED = (
    "Deployment",
    "HorizontalPodAutoscaler",
    "PodDisruptionBudget",
    "StatefulSet",
    "Pod",
    "Service",
    "Secret",
    "ConfigMap",
    "PersistentVolumeClaim",
    "RoleBinding",
    "Role",
    "ServiceAccount",
)
"""Kinds that a run is made of."""


SERVING = ("HorizontalPodAutoscaler", "PodDisruptionBudget", "Service", "Deployment")
"""Kinds that a stage which serves is made of."""


@dataclass(frozen=True)
class ListedRun:
    """A run as its root object describes it."""

    id: str
    job: str
    state: str
    created: float
    started: float
    code: int | None
    plan: str


class NoResponse(LongboatError):
    """The driver's pod runs but does not answer; a retry may succeed."""


class Cluster:
    def __init__(self, environ: Mapping[str, str], context: str = "", namespace: str = "") -> None:
        self.context = context
        self.api = Api(kube_config.server(environ, context, namespace), PATIENCE)
        self.namespace = self.api.server.namespace

    @property
    def key(self) -> str:
        """Cluster and namespace as a directory name; clusters behind one proxy differ only by prefix."""
        server = self.api.server
        return f"{server.host}_{server.port}{quoted(server.prefix)}_{self.namespace}"

    def unheard(self, error: ApiError | OSError, run: str) -> LongboatError:
        """The error for a request that the driver did not answer."""
        if isinstance(error, ApiError) and not error.transient:
            return self.refusal(error)
        hint = f"its node may be lost: longboat why {run}; kubectl get nodes"
        return NoResponse(f"the driver of {run} does not answer: {error}", hint, FAILED)

    def gone(self, run: str) -> LongboatError:
        """The error for a driver's pod that ended during a request; another one will start."""
        return NoResponse(f"the driver of {run} ended during the request", f"longboat why {run}", FAILED)

    def absent(self, run: str) -> LongboatError:
        return LongboatError(f"the run {run} is not in {self.namespace}", "`longboat status --on kubernetes`")

    def refusal(self, error: ApiError, submitting: bool = False) -> LongboatError:
        """The API server's error, with a fix."""
        translated = refusal(error)
        forbidden = submitting and error.status == 403 and "cannot " in error.message
        if forbidden and ("roles" in error.message or "escalat" in error.message):
            translated.hint = (
                "an admin can make the driver's account once, and everybody may name it:\n"
                f"{rights_for_an_admin(self.namespace)}\n"
                "then: longboat run --on kubernetes --service-account longboat-driver"
            )
        return translated

    # Looking.

    def runs(self) -> list[ListedRun]:
        """All runs of the namespace, the newest first."""
        selector = f"app.kubernetes.io/managed-by=longboat,{names.PART_LABEL}=root"
        try:
            roots = self.api.list("ConfigMap", selector)
        except ApiError as error:
            raise self.refusal(error) from None
        return sorted((listed(root) for root in roots), key=lambda run: -run.created)

    def root(self, run: str) -> ListedRun | None:
        root = self.api.find("ConfigMap", run)
        return listed(root) if root is not None else None

    # Asking the driver.

    def reach(self, run: str, patience: float = 120.0) -> str:
        """Waits until the driver's pod runs; returns its name."""
        due, name = time.monotonic() + patience, names.driver_pod(run)
        while not self.has_driver(run):
            if time.monotonic() > due:
                cause = pending_pods.driver(self.api, run)
                why = f": {cause.message}" if cause else ""
                raise LongboatError(f"the driver of {run} does not run{why}", f"kubectl describe pod {name}")
            time.sleep(0.2)
        return name

    def has_driver(self, run: str) -> bool:
        """Whether the driver's pod runs. Scales a stopped driver up again, and deletes a lost one."""
        name = names.driver_pod(run)
        pod = self.api.find("Pod", name)
        if pod is None:
            workload = self.api.find("StatefulSet", names.driver(run))
            if workload is None:
                raise self.absent(run)
            if workload["spec"].get("replicas") == 0:
                self.api.patch("StatefulSet", names.driver(run), {"spec": {"replicas": 1}})
            return False
        if not is_running(pod) and 0.0 < lost_driver.over(pod) < self.api.now():
            self.api.delete("Pod", name, grace=0, uid=str(pod["metadata"]["uid"]))
        return is_running(pod)

    def ask(self, run: str, *arguments: str) -> tuple[int, bytes]:
        """Runs a pod command in the driver's pod; returns its exit code and output."""
        pod = self.reach(run)
        try:
            code, out, err = pod_exec.output(self.api, pod, command(*arguments), "driver")
        except (ApiError, OSError) as error:
            raise self.unheard(error, run) from None
        if code > KILLED:
            raise self.gone(run)
        if code and err:
            raise LongboatError(f"the driver of {run} says: {err.decode('utf-8', 'replace').strip()}")
        return code, out

    def stop(self, run: str, by: str, now: bool) -> bool:
        """Asks the driver to stop; False if the run has no driver."""
        code, _ = self.ask(run, "stop", by, *(["now"] if now else []))
        return code == 0

    def take_down(self, run: str, more: str = "") -> bool:
        """Deletes servers that outlived their run; False if there are none. more: narrows the selector."""
        chosen = names.selector(run, names.SERVER) + more
        objects = [obj for kind in SERVING for obj in self.api.list(kind, chosen)]
        for obj in objects:
            self.api.delete(obj["kind"], obj["metadata"]["name"])
        return bool(objects)

    def stands(self, run: str, stage: str) -> bool:
        """Whether servers of a stage exist; a run whose rollout failed leaves the old ones."""
        return self.api.find("Deployment", names.service(run, stage)) is not None

    # Removing.

    def remove(self, run: str) -> None:
        """Deletes the root object and what it owns; objects without an owner are found by their labels."""
        try:
            self.api.delete("ConfigMap", run)
            with contextlib.suppress(ApiError):  # all pods at once if permitted, else one by one
                self.api.delete_all("Pod", names.selector(run, "rank"), grace=2)
            for obj in self.left(run):  # what we may not list is deleted with its owner
                if obj["metadata"].get("deletionTimestamp"):
                    continue
                if is_data(obj) or _of_another(obj, run):
                    continue  # data outlives its run; shared objects are deleted with the last run
                grace = 2 if obj["kind"] == "Pod" else None
                self.api.delete(obj["kind"], obj["metadata"]["name"], grace=grace)
        except ApiError as error:
            raise self.refusal(error) from None

    def left(self, run: str = "") -> list[Manifest]:
        """All objects of one run, or of all."""
        selector = names.selector(run) if run else "app.kubernetes.io/managed-by=longboat"
        objects: list[Manifest] = []
        for kind in OWNED:
            try:
                objects += self.api.list(kind, selector)
            except ApiError as error:
                if error.status != 403:
                    raise self.refusal(error) from None
        return objects + storage.made_by(self, run, ("PersistentVolume",))

    def plans(self) -> dict[str, Plan]:
        """The plan of every run of the namespace that has one."""
        return {run.id: from_json(run.plan) for run in self.runs() if run.plan}

    def may(self, verb: str, resource: str, group: str = "", part: str = "", everywhere: bool = False) -> bool:
        """Whether the user may do this, in the namespace or cluster-wide."""
        attributes = {"verb": verb, "resource": resource, "group": group}
        if not everywhere:
            attributes["namespace"] = self.namespace
        if part:
            attributes["subresource"] = part
        kind = "SelfSubjectAccessReview"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": attributes}}
        return bool(self.api.request("POST", self.api.path(kind), review)["status"].get("allowed"))


def refusal(error: ApiError) -> LongboatError:
    """The API server's error, or that it did not answer, with a fix."""
    if error.status == 0:
        hint = "is this machine in its network (VPN)? kubectl cluster-info; another cluster: --context or $KUBECONFIG"
        return LongboatError(error.message, hint)
    if error.reason == NO_JSON:
        return LongboatError(error.message, "a proxy wants you to log in? check the kubeconfig: kubectl cluster-info")
    if error.status == 401:
        return LongboatError("the cluster does not know who you are", "log in again: the credentials have expired?")
    if error.status == 403 and "cannot " in error.message:
        lacks = missing_rights.lacking(error.message)
        commands = "".join(f"\n{line}" for line in lacks.commands) if lacks else ""
        rule = f": a Role with the rule {lacks.rule}" if lacks else ""
        hint = f"ask an admin for that right in this namespace{rule}{commands}"
        return LongboatError(f"the cluster forbids it: {error.message}", hint)
    if error.status == 404 and (missing := re.match(r'namespaces "(.+?)"', error.message)):
        return LongboatError(error.message, f"kubectl create namespace {missing[1]}, or choose one: --namespace")
    return LongboatError(f"the cluster refused it: {error.message}")


def is_data(obj: Manifest) -> bool:
    """Whether this is storage that was created for a job; it outlives the run."""
    return (obj["metadata"].get("labels") or {}).get(names.PART_LABEL) == PART


def _of_another(obj: Manifest, run: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == "ConfigMap" and owner["name"] != run for owner in owners)


def command(*arguments: str) -> list[str]:
    return [PYTHON, "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", *arguments]


def is_running(pod: Manifest) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return (
        not pod["metadata"].get("deletionTimestamp")
        and any((each.get("state") or {}).get("running") for each in statuses)
        and pod["status"].get("phase") == "Running"
    )


def listed(root: Manifest) -> ListedRun:
    """The run that a root object describes."""
    meta = root["metadata"]
    notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    code = notes.get(names.EXIT_CODE, "")
    return ListedRun(
        str(meta["name"]),
        str(labels.get("app.kubernetes.io/name", "")),
        str(notes.get(names.STATE, "submitted")),
        kube_config.moment(meta.get("creationTimestamp")),
        float(notes.get(names.STARTED) or 0.0),
        int(code) if code else None,
        str((root.get("data") or {}).get("plan.json", "")),
    )


def rights_for_an_admin(namespace: str) -> str:
    """A Role for any run, its account and its binding, as YAML."""
    name = "longboat-driver"
    rules = [
        {key: value for key, value in rule.items() if key != "resourceNames"} for rule in run_objects.rules("", ("",))
    ]
    meta = {"name": name, "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    return yaml_of(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules},
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
        ]
    )
