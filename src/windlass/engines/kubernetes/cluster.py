"""A cluster and the runs in one of its namespaces: submit, list, find trouble, stop, remove.

Nothing is kept on the laptop that another laptop would need: a run is found by its labels.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from windlass import layout
from windlass.engines.kubernetes import admission, config, lost, pending, storage, tunnel
from windlass.errors import FAILED, WindlassError
from windlass.export import cargo, objects
from windlass.export.objects import Setting
from windlass.export.storage import PART
from windlass.export.text import yaml_of
from windlass.kube import names, rights, seats
from windlass.kube.api import Api, ApiError, Manifest
from windlass.plan import Plan, from_json
from windlass.runs.store import fresh_id

PYTHON = "python3"
DRIVER_SOON = 2.0
"""Seconds to wait for the driver's pod to be made before the first pods; later the driver makes them itself."""
RESUMED = 120.0
"""Seconds that the driver of a run that goes on may take to start."""
AT_ONCE = 64
"""Pods that the laptop makes itself, so that they start together with the driver."""
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
class Order:
    """How a run is to go on."""

    id: str
    again: tuple[str, ...] = ()
    """Stages that had passed and are to run anew."""
    left_out: tuple[str, ...] = ()
    plan: Plan | None = None
    """None: the plan that it has."""
    reused: tuple[str, ...] = ()
    setting: Setting = field(default_factory=Setting)
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As the root holds it, and as the journal repeats it."""
        return json.dumps({"order": self.id, "again": self.again, "left_out": self.left_out})


@dataclass(frozen=True)
class Listed:
    """A run as the cluster's list of roots has it."""

    id: str
    job: str
    state: str
    created: float
    started: float
    code: int | None
    plan: str


class NoAnswer(WindlassError):
    """The driver's pod runs, says the cluster, and does not answer: worth another try."""


class Cluster:
    def __init__(self, environ: Mapping[str, str], context: str = "", namespace: str = "") -> None:
        self.context = context
        self.api = Api(config.server(environ, context, namespace), patience=10.0)
        self.namespace = self.api.server.namespace

    @property
    def key(self) -> str:
        """Names cluster and namespace in a path."""
        server = self.api.server
        return f"{server.host}_{server.port}_{self.namespace}"

    # Submitting.

    def submit(
        self, plan: Plan, setting: Setting, secrets: Mapping[str, str], say: Callable[[str], None] = lambda _text: None
    ) -> str:
        """Makes all objects of a run; its id. What was made goes again when something is refused."""
        try:
            plan = storage.settled(self, plan, say)
            admission.check(self, plan)
        except ApiError as error:
            raise self.refusal(error) from None
        packed = cargo.load(plan)
        while True:
            run = fresh_id(plan.name)
            made = objects.objects(plan, run, packed, setting)
            try:
                root = self.api.create(made[0])
                break
            except ApiError as error:
                if error.status != 409:
                    raise self.refusal(error) from None
        fresh: list[Manifest] = []
        try:
            fresh = storage.make(self, plan, run, say)
            self._make(made[1:], self._first(plan, run, packed), root, run, secrets)
        except (ApiError, WindlassError) as error:
            storage.take_back(self, fresh)
            self.api.delete("ConfigMap", run)
            raise (self.refusal(error, submitting=True) if isinstance(error, ApiError) else error) from None
        return run

    def _make(
        self,
        made: list[Manifest],
        first: Mapping[seats.Seat, Manifest],
        root: Manifest,
        run: str,
        secrets: Mapping[str, str],
    ) -> None:
        """All that the root owns, in two rounds: what others need, then those. The first pods start together with
        the driver, which takes them over; what is refused of them is left to it, for it writes down why."""
        labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "token"})
        made.append(_secret(names.token(run), labels, {"token": _token()}))
        if secrets:
            labels = dict(labels, **{names.PART_LABEL: "secrets"})
            made.append(_secret(names.secrets(run), labels, dict(secrets)))
        for obj in made:
            obj["metadata"]["ownerReferences"] = [seats.owner(root)]
        for obj in [obj for obj in made if obj["metadata"]["labels"][names.PART_LABEL] == "account"]:
            made.remove(obj)
            self._account(obj)
        later = [obj for obj in made if obj["kind"] in ("RoleBinding", "StatefulSet")]

        def make(seat: seats.Seat) -> None:
            with contextlib.suppress(ApiError):
                self.api.create(seats.pod(first[seat], seats.new_name(run, seat), seat, root, address, ()))

        with ThreadPoolExecutor(4) as hands:
            there = list(hands.map(self.api.apply, [obj for obj in made if obj not in later]))
            services = {obj["metadata"]["name"]: obj for obj in there if obj["kind"] == "Service"}
            address = seats.host(services[names.driver(run)]["spec"]["clusterIP"])
            list(hands.map(self.api.apply, later))
            if self._driver_there(run):
                list(hands.map(make, first))

    def _account(self, account: Manifest) -> None:
        """The account of the ranks. Its name is one that a cloud knows, so runs of a job share it: each owns it, and it
        goes with the last of them. One that somebody else made is used as it is."""
        meta = account["metadata"]
        there = self.api.find("ServiceAccount", meta["name"])
        if there is None:
            self.api.create(account)
            return
        held = there["metadata"]
        if (held.get("labels") or {}).get("app.kubernetes.io/managed-by") == "windlass":
            owners = [*(held.get("ownerReferences") or ()), *meta["ownerReferences"]]
            change = {"ownerReferences": owners, "resourceVersion": held["resourceVersion"]}
            change |= {"annotations": meta["annotations"], "labels": meta["labels"]}
            self.api.patch("ServiceAccount", meta["name"], {"metadata": change})
            return
        missing = {k: v for k, v in meta["annotations"].items() if (held.get("annotations") or {}).get(k) != v}
        if missing:
            words = " ".join(f"{key}={value}" for key, value in missing.items())
            raise WindlassError(
                f"the service account {meta['name']} is not Windlass's, and has not the annotation {words}",
                f"kubectl annotate serviceaccount {meta['name']} -n {self.namespace} {words}, or name another account",
            )

    def _driver_there(self, run: str) -> bool:
        """Has the driver's pod been made? In a namespace with a quota the first pods must not take its place."""
        due = time.monotonic() + DRIVER_SOON
        while self.api.find("Pod", names.driver_pod(run)) is None:
            if time.monotonic() > due:
                return False
            time.sleep(0.02)
        return True

    def _first(self, plan: Plan, run: str, packed: cargo.Cargo) -> dict[seats.Seat, Manifest]:
        """Seat -> template, of the pods that are needed at once; none where there are very many."""
        inside = objects.for_pods(plan)
        templates = objects.templates(inside, run, packed)
        found = {
            (stage.name, role.name, rank): templates[names.template(stage.name, role.name)]
            for stage in inside.stages
            if not stage.after and stage.kind == "gang"
            for role in stage.roles
            for rank in range(0, role.ranks, stage.per_node)
        }
        return found if len(found) <= AT_ONCE else {}

    def unheard(self, error: ApiError | OSError, run: str) -> WindlassError:
        """Why a question to the driver was not answered."""
        if isinstance(error, ApiError) and not error.transient:
            return self.refusal(error)
        hint = f"its node may be lost: windlass why {run}; kubectl get nodes"
        return NoAnswer(f"the driver of {run} does not answer: {error}", hint, FAILED)

    def refusal(self, error: ApiError, submitting: bool = False) -> WindlassError:
        """What the API server said, with what can be done about it."""
        if error.status == 401:
            return WindlassError("the cluster does not know who you are", "log in again: the credentials have expired?")
        if error.status == 403 and "cannot " in error.message:
            lacks = rights.lacking(error.message)
            commands = "".join(f"\n{line}" for line in lacks.commands) if lacks else ""
            rule = f": a Role with the rule {lacks.rule}" if lacks else ""
            hint = f"ask an admin for that right in this namespace{rule}{commands}"
            if submitting and ("roles" in error.message or "escalat" in error.message):
                hint = (
                    "an admin can make the driver's account once, and everybody may name it:\n"
                    f"{rights_for_an_admin(self.namespace)}\n"
                    "then: windlass run --on kubernetes --service-account windlass-driver"
                )
            return WindlassError(f"the cluster forbids it: {error.message}", hint)
        if error.status == 404 and "namespaces" in error.message:
            return WindlassError(
                error.message, f"kubectl create namespace {self.namespace}, or choose one: --namespace"
            )
        return WindlassError(f"the cluster refused it: {error.message}")

    # Looking.

    def runs(self) -> list[Listed]:
        """All runs of the namespace, the newest first."""
        selector = f"app.kubernetes.io/managed-by=windlass,{names.PART_LABEL}=root"
        try:
            roots = self.api.list("ConfigMap", selector)
        except ApiError as error:
            raise self.refusal(error) from None
        return sorted((_listed(root) for root in roots), key=lambda run: -run.created)

    def root(self, run: str) -> Listed | None:
        found = self.api.find("ConfigMap", run)
        return _listed(found) if found is not None else None

    # Asking the driver.

    def reach(self, run: str, patience: float = 120.0) -> str:
        """The driver's pod, running: one that was sent home is brought back, one that was lost is given up."""
        due, name = time.monotonic() + patience, names.driver_pod(run)
        while True:
            pod = self.api.find("Pod", name)
            if pod is not None and is_running(pod):
                return name
            if pod is not None and 0.0 < lost.over(pod) < self.api.now():
                self.api.delete("Pod", name, grace=0, uid=str(pod["metadata"]["uid"]))
            if pod is None:
                home = self.api.find("StatefulSet", names.driver(run))
                if home is None:
                    raise WindlassError(
                        f"the run {run} is not in {self.namespace}", "`windlass status --on kubernetes`"
                    )
                if home["spec"].get("replicas") == 0:
                    self.api.patch("StatefulSet", names.driver(run), {"spec": {"replicas": 1}})
            if time.monotonic() > due:
                cause = pending.driver(self.api, run)
                why = f": {cause.message}" if cause else ""
                raise WindlassError(f"the driver of {run} does not run{why}", f"kubectl describe pod {name}")
            time.sleep(0.2)

    def ask(self, run: str, *words: str) -> tuple[int, bytes]:
        """A word of `kube.__main__` in the driver's pod: its exit code and output."""
        pod = self.reach(run)
        try:
            code, out, err = tunnel.output(self.api, pod, command(*words), "driver")
        except (ApiError, OSError) as error:
            raise self.unheard(error, run) from None
        if code and err:
            raise WindlassError(f"the driver of {run} says: {err.decode('utf-8', 'replace').strip()}")
        return code, out

    def stop(self, run: str, by: str, now: bool) -> bool:
        """False when nobody drives it."""
        code, _ = self.ask(run, "stop", by, *(["now"] if now else []))
        return code == 0

    def take_down(self, run: str, more: str = "") -> bool:
        """Servers that stand although their run has ended; False when there are none. more: chooses among them."""
        chosen = names.selector(run, names.SERVER) + more
        found = [obj for kind in SERVING for obj in self.api.list(kind, chosen)]
        for obj in found:
            self.api.delete(obj["kind"], obj["metadata"]["name"])
        return bool(found)

    def stands(self, run: str, stage: str) -> bool:
        """Whether servers of a stage are there; a run that failed to roll has ended and leaves the old ones."""
        return self.api.find("Deployment", names.service(run, stage)) is not None

    def changes(self, run: str, plan: Plan) -> dict[str, list[str]]:
        """Stage -> what it depends on that has changed since the run was made, in words."""
        from windlass.spec import fingerprint

        data = self.api.get("ConfigMap", run)["data"]
        recorded = fingerprint.from_json(data.get(layout.FINGERPRINTS, ""))
        unknown = ["what it was made of is not known"]
        return {
            stage: recorded[stage].changed(now) if stage in recorded else unknown
            for stage, now in fingerprint.fingerprints(plan).items()
        }

    def resume(self, run: str, order: Order) -> None:
        """Lets a run go on: the order stands in the root, and a new driver takes it up. Ranks of it are not running;
        servers go on meanwhile."""
        name = names.driver(run)
        try:
            root = self.api.get("ConfigMap", run)
            data: dict[str, str | None] = {names.ORDERS: order.text}
            if order.plan is not None:
                data |= dict.fromkeys(set(root["data"]) - {names.ORDERS}) | self._renewed(root, run, order)
            self.api.patch("ConfigMap", run, {"metadata": {"annotations": {names.STATE: "submitted"}}, "data": data})
            template = {"metadata": {"annotations": {names.ORDER: order.id}}}
            self.api.patch("StatefulSet", name, {"spec": {"replicas": 1, "template": template}})
        except ApiError as error:
            raise self.refusal(error, submitting=True) from None
        self._replaced(run, order.id)

    def _replaced(self, run: str, order: str) -> None:
        """Waits for the driver that was started for an order: whoever asked its predecessor would be cut off."""
        due = time.monotonic() + RESUMED
        while time.monotonic() < due:
            pod = self.api.find("Pod", names.driver_pod(run))
            notes = (pod or {}).get("metadata", {}).get("annotations") or {}
            if pod is not None and notes.get(names.ORDER) == order and is_running(pod):
                return
            time.sleep(0.2)
        cause = pending.driver(self.api, run)
        why = f": {cause.message}" if cause else ""
        raise WindlassError(
            f"the new driver of {run} does not run{why}", f"kubectl describe pod {names.driver_pod(run)}"
        )

    def _renewed(self, root: Manifest, run: str, order: Order) -> dict[str, str | None]:
        """Brings a new plan of the run with its code; what its root is to hold."""
        assert order.plan is not None
        plan, setting = storage.settled(self, order.plan, lambda _text: None), order.setting
        admission.check(self, plan)
        packed = cargo.load(plan, edition=True)
        driver = self.api.get("StatefulSet", names.driver(run))["spec"]["template"]["spec"]
        account = str(driver.get("serviceAccountName") or "")
        kept = any("emptyDir" in each for each in driver["volumes"] if each["name"] == "run")
        setting = replace(setting, namespace="", account="" if account == names.driver(run) else account)
        setting = replace(setting, volume="none" if kept else setting.volume)
        first, *made = objects.objects(plan, run, packed, setting)
        stages = [stage.name for stage in plan.stages if stage.serve is not None]
        self.take_down(run, f",{names.STAGE_LABEL} notin ({','.join(stages)})" if stages else "")
        if order.secrets:
            labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "secrets"})
            self.api.delete("Secret", names.secrets(run))
            made.append(_secret(names.secrets(run), labels, dict(order.secrets)))
        storage.make(self, plan, run, lambda _text: None)
        for obj in made:
            obj["metadata"]["ownerReferences"] = [seats.owner(root)]
            if obj["metadata"]["labels"][names.PART_LABEL] == "account":
                self._account(obj)
            elif obj["kind"] != "PersistentVolumeClaim":  # it is there, and cannot be another
                self.api.apply(obj)
        found: dict[str, str | None] = dict(first["data"])
        found[layout.FINGERPRINTS] = _kept(root["data"], packed.fingerprints, order.reused)
        return found

    # Removing.

    def remove(self, run: str) -> None:
        """The root, and with it all; what has lost its owner is found by its labels."""
        try:
            self.api.delete("ConfigMap", run)
            with contextlib.suppress(ApiError):  # a thousand pods at once, where one may; else one by one
                self.api.delete_all("Pod", names.selector(run, "rank"), grace=2)
            for obj in self.left(run):  # what one may not see goes with its owner
                if obj["metadata"].get("deletionTimestamp"):
                    continue
                if is_data(obj) or _of_another(obj, run):
                    continue  # data outlives its run, and what runs share goes with the last of them
                grace = 2 if obj["kind"] == "Pod" else None
                self.api.delete(obj["kind"], obj["metadata"]["name"], grace=grace)
        except ApiError as error:
            raise self.refusal(error) from None

    def left(self, run: str = "") -> list[Manifest]:
        """All objects of one run, or of all."""
        selector = names.selector(run) if run else "app.kubernetes.io/managed-by=windlass"
        found: list[Manifest] = []
        for kind in OWNED:
            try:
                found += self.api.list(kind, selector)
            except ApiError as error:
                if error.status != 403:
                    raise self.refusal(error) from None
        return found + storage.made_by(self, run, ("PersistentVolume",))

    def plans(self) -> dict[str, Plan]:
        """The plan of every run of the namespace that has one."""
        return {run.id: from_json(run.plan) for run in self.runs() if run.plan}

    def may(self, verb: str, resource: str, group: str = "", part: str = "", everywhere: bool = False) -> bool:
        """Whether we are allowed to: in this namespace, or where things belong to none."""
        attributes = {"verb": verb, "resource": resource, "group": group}
        if not everywhere:
            attributes["namespace"] = self.namespace
        if part:
            attributes["subresource"] = part
        kind = "SelfSubjectAccessReview"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": attributes}}
        return bool(self.api.request("POST", self.api.path(kind), review)["status"].get("allowed"))


def is_data(obj: Manifest) -> bool:
    """Storage that was made for a job: it outlives the run."""
    return (obj["metadata"].get("labels") or {}).get(names.PART_LABEL) == PART


def _of_another(obj: Manifest, run: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == "ConfigMap" and owner["name"] != run for owner in owners)


def command(*words: str) -> list[str]:
    return [PYTHON, "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", *words]


def is_running(pod: Manifest) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return (
        not pod["metadata"].get("deletionTimestamp")
        and any((each.get("state") or {}).get("running") for each in statuses)
        and pod["status"].get("phase") == "Running"
    )


def _listed(root: Manifest) -> Listed:
    meta = root["metadata"]
    notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    code = notes.get("windlass.dev/code", "")
    return Listed(
        str(meta["name"]),
        str(labels.get("app.kubernetes.io/name", "")),
        str(notes.get(names.STATE, "submitted")),
        config.moment(meta.get("creationTimestamp")),
        float(notes.get(names.STARTED) or 0.0),
        int(code) if code else None,
        str((root.get("data") or {}).get("plan.json", "")),
    )


def _secret(name: str, labels: Mapping[str, str], data: Mapping[str, str]) -> Manifest:
    meta = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "immutable": True, "stringData": dict(data)}


def _kept(data: Mapping[str, str], now: str, reused: Collection[str]) -> str:
    """What stages depend on that run this time; those that are reused keep what they were made of."""
    from windlass.spec import fingerprint

    found, before = fingerprint.from_json(now), fingerprint.from_json(data.get(layout.FINGERPRINTS, ""))
    found.update((name, before[name]) for name in reused if name in before)
    return fingerprint.to_json(found)


def _token() -> str:
    import secrets

    return secrets.token_hex(32)


def rights_for_an_admin(namespace: str) -> str:
    """A Role for any run, its account and its binding, as YAML."""
    name = "windlass-driver"
    rules = [{key: value for key, value in rule.items() if key != "resourceNames"} for rule in objects.rules("", ("",))]
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
