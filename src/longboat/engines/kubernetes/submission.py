"""Submits and resumes runs in a cluster: creates all objects of a run.

If something is refused or the user interrupts, the created objects are deleted again; the error names what could not be
deleted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from longboat.engines.kubernetes import admission, pending_pods, storage
from longboat.engines.kubernetes.cluster import Cluster, is_running
from longboat.manifests import payload, run_objects
from longboat.manifests.run_objects import SubmitOptions
from longboat.runs.store import fresh_id
from longboat.runtime import run_layout
from longboat.runtime.errors import FAILED, INTERRUPTED, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import dataclass, field, replace
from longboat.runtime.plan import Plan
from longboat.runtime.pod import pod_templates
from longboat.runtime.rank_env import bracketed
from longboat.runtime.seat import Seat

DRIVER_SOON = 2.0
"""Seconds to wait for the driver's pod before creating the first rank pods; after that the driver creates them."""
RESUMED = 120.0
"""Seconds to wait for the driver of a resumed run to start."""
AT_ONCE = 64
"""Most rank pods that this machine creates, so that they start together with the driver."""


@dataclass(frozen=True)
class ResumeOrder:
    """How to resume a run."""

    id: str
    again: tuple[str, ...] = ()
    """Stages that passed before and run again."""
    left_out: tuple[str, ...] = ()
    plan: Plan | None = None
    """None: the run's own plan."""
    reused: tuple[str, ...] = ()
    setting: SubmitOptions = field(default_factory=SubmitOptions)
    secrets: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The order as JSON, for the root object and the journal."""
        return json.dumps({"order": self.id, "again": self.again, "left_out": self.left_out})


def submit(
    cluster: Cluster,
    plan: Plan,
    setting: SubmitOptions,
    secrets: Mapping[str, str],
    say: Callable[[str], None] = lambda _text: None,
) -> str:
    """Creates all objects of a run and returns its id; deletes them again after an error or an interrupt."""
    try:
        plan = storage.settled(cluster, plan, say)
        admission.check(cluster, plan)
    except ApiError as error:
        raise cluster.refusal(error) from None
    packed = payload.load(plan)
    mark, run, root = os.urandom(8).hex(), "", None
    fresh: list[Manifest] = []
    try:
        while root is None:
            run = fresh_id(plan.name)
            first, *made = run_objects.objects(plan, run, packed, setting)
            first["metadata"]["annotations"][names.SUBMISSION] = mark
            root = _rooted(cluster, first)
        fresh = storage.make(cluster, plan, run, say)
        _make(cluster, made, _first(plan, run, packed), root, run, secrets)
    except BaseException as error:
        reason = cluster.refusal(error, submitting=True) if isinstance(error, ApiError) else error
        if run and (root is not None or not isinstance(error, ApiError)):
            if isinstance(error, KeyboardInterrupt):
                say(f"interrupted: deleting what was created of {run}")
            _take_back(cluster, run, mark, fresh, reason)
        raise reason from None
    return run


def _rooted(cluster: Cluster, root: Manifest) -> Manifest | None:
    """Creates the root object; None if another run has the name."""
    try:
        return cluster.api.create(root)
    except ApiError as error:
        if error.status != 409:
            raise
    there = cluster.api.find("ConfigMap", root["metadata"]["name"])  # ours, if the response was lost
    return there if there is not None and _mark(there) == _mark(root) else None


def _mark(root: Manifest) -> str:
    return str((root["metadata"].get("annotations") or {}).get(names.SUBMISSION, ""))


def _take_back(cluster: Cluster, run: str, mark: str, fresh: list[Manifest], why: BaseException) -> None:
    """Deletes everything created for a run, including objects whose creation was not confirmed."""
    try:
        storage.take_back(cluster, fresh)
        root = cluster.api.find("ConfigMap", run)
        if root is not None and _mark(root) == mark:
            since = str(root["metadata"]["creationTimestamp"])  # a run of the same name may have left data
            created = storage.made_by(cluster, run)
            storage.take_back(cluster, [o for o in created if str(o["metadata"]["creationTimestamp"]) >= since])
            cluster.api.delete("ConfigMap", run, uid=str(root["metadata"]["uid"]))
    except (ApiError, LongboatError, KeyboardInterrupt) as error:
        reasons = [str(each) or "interrupted" for each in (why, error)]
        raise LongboatError(
            f"{run} was not submitted ({reasons[0]}), and a part of it may be left in the cluster ({reasons[1]})",
            f"longboat rm --force {run} --on kubernetes -n {cluster.namespace}",
            INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED,
        ) from None


def _make(
    cluster: Cluster,
    made: list[Manifest],
    first: Mapping[Seat, Manifest],
    root: Manifest,
    run: str,
    secrets: Mapping[str, str],
) -> None:
    """Creates what the root owns, in two rounds: first what other objects need. The first rank pods start together with
    the driver, which adopts them; it creates the refused ones again and records why they fail."""
    labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "token"})
    made.append(_secret(names.token(run), labels, {"token": _token()}))
    if secrets:
        labels = dict(labels, **{names.PART_LABEL: "secrets"})
        made.append(_secret(names.secrets(run), labels, dict(secrets)))
    for obj in made:
        obj["metadata"]["ownerReferences"] = [pod_templates.owner(root)]
    for obj in [obj for obj in made if obj["metadata"]["labels"][names.PART_LABEL] == "account"]:
        made.remove(obj)
        _account(cluster, obj)
    later = [obj for obj in made if obj["kind"] in ("RoleBinding", "StatefulSet")]

    def make(seat: Seat) -> None:
        with contextlib.suppress(ApiError):
            cluster.api.create(
                pod_templates.pod(first[seat], pod_templates.new_name(run, seat), seat, root, address, ())
            )

    with ThreadPoolExecutor(4) as pool:
        there = list(pool.map(functools.partial(_bring, cluster), [obj for obj in made if obj not in later]))
        services = {obj["metadata"]["name"]: obj for obj in there if obj["kind"] == "Service"}
        address = bracketed(services[names.driver(run)]["spec"]["clusterIP"])
        list(pool.map(cluster.api.apply, later))
        if _driver_there(cluster, run):
            list(pool.map(make, first))


def _bring(cluster: Cluster, obj: Manifest) -> Manifest:
    """Creates immutable objects and applies others: creating a large object takes half as long."""
    if not obj.get("immutable"):
        return cluster.api.apply(obj)
    try:
        return cluster.api.create(obj)
    except ApiError as error:
        if error.status != 409:
            raise
        return obj  # the response to the first attempt was lost


def _account(cluster: Cluster, account: Manifest) -> None:
    """The service account of the ranks. A cloud knows it by name, so runs of a job share it: each owns it, and it is
    deleted with the last of them. An account that Longboat did not create is used unchanged."""
    while not _shared(cluster, account, cluster.api.find("ServiceAccount", account["metadata"]["name"])):
        pass  # another run was faster


def _shared(cluster: Cluster, account: Manifest, there: Manifest | None) -> bool:
    """Creates the account, or shares the existing one; False if it changed in the meantime."""
    meta = account["metadata"]
    held = there["metadata"] if there is not None else {}
    try:
        if there is None:
            cluster.api.create(account)
        elif (held.get("labels") or {}).get("app.kubernetes.io/managed-by") == "longboat":
            mine = meta["ownerReferences"]
            others = [owner for owner in held.get("ownerReferences") or () if owner not in mine]
            change = {"ownerReferences": [*others, *mine], "resourceVersion": held["resourceVersion"]}
            change |= {"annotations": meta["annotations"], "labels": meta["labels"]}
            cluster.api.patch("ServiceAccount", meta["name"], {"metadata": change})
        else:
            _check_foreign(cluster, account, held)
    except ApiError as error:
        if error.status == 409 or error.status == 404 and there is not None:
            return False
        raise
    return True


def _check_foreign(cluster: Cluster, account: Manifest, held: Manifest) -> None:
    meta = account["metadata"]
    missing = {k: v for k, v in meta["annotations"].items() if (held.get("annotations") or {}).get(k) != v}
    if missing:
        annotations = " ".join(f"{key}={value}" for key, value in missing.items())
        raise LongboatError(
            f"the service account {meta['name']} is not Longboat's, and does not have the annotation {annotations}",
            f"kubectl annotate serviceaccount {meta['name']} -n {cluster.namespace} {annotations}"
            ", or use another account",
        )


def _driver_there(cluster: Cluster, run: str) -> bool:
    """Waits for the driver's pod: in a namespace with a quota, rank pods must not use up its share."""
    due = time.monotonic() + DRIVER_SOON
    while cluster.api.find("Pod", names.driver_pod(run)) is None:
        if time.monotonic() > due:
            return False
        time.sleep(0.02)
    return True


def _first(plan: Plan, run: str, packed: payload.Payload) -> dict[Seat, Manifest]:
    """Seat -> template of the pods of the first stages; empty if there are too many."""
    inside = run_objects.for_pods(plan)
    templates = run_objects.templates(inside, run, packed)
    first = {
        Seat(stage.name, role.name, rank): templates[names.template(stage.name, role.name)]
        for stage in inside.stages
        if not stage.after and stage.kind == "gang"
        for role in stage.roles
        for rank in range(0, role.ranks, stage.per_node)
    }
    return first if len(first) <= AT_ONCE else {}


def resume(cluster: Cluster, run: str, order: ResumeOrder, root: Manifest) -> None:
    """Resumes a run: writes the order into the root object, where a new driver reads it. Its ranks do not run; its
    servers keep running. `root` is the state on which the decision is based: if it changed, another resume won."""
    name, before = names.driver(run), _ordered(root)
    mine = {names.ORDER: order.id}
    try:
        ours = (order.id, before[1])  # the response to the claim was lost
        claim = {"metadata": {"annotations": mine}}
        root = _noted(cluster, root, claim, lambda now: _ordered(now) in (before, ours))
        data: dict[str, str | None] = {names.ORDERS: order.text}
        if order.plan is not None:
            data |= dict.fromkeys(set(root["data"]) - {names.ORDERS}) | _renewed(cluster, root, run, order)
        change = {
            "metadata": {"annotations": {**mine, names.STATE: "submitted", names.LOG: order.setting.log or None}},
            "data": data,
        }
        _noted(cluster, root, change, lambda now: _ordered(now)[0] == order.id)
        template = {"metadata": {"annotations": mine}}
        cluster.api.patch("StatefulSet", name, {"spec": {"replicas": 1, "template": template}})
    except ApiError as error:
        raise cluster.refusal(error, submitting=True) from None
    _replaced(cluster, run, order.id)


def order_of(root: Manifest) -> str:
    """Id of the newest resume order; empty if the run was never resumed."""
    return str(names.order_in(root).get("order", ""))


def is_handed_over(cluster: Cluster, root: Manifest) -> bool:
    """Whether a driver was requested for the newest order: the resuming process may have died before."""
    workload = cluster.api.find("StatefulSet", names.driver(str(root["metadata"]["name"])))
    template = workload["spec"]["template"]["metadata"] if workload is not None else {}
    return bool((template.get("annotations") or {}).get(names.ORDER, "") == order_of(root))


def _ordered(root: Manifest) -> tuple[str, str]:
    """The last claim on the run, and its order."""
    notes = root["metadata"].get("annotations") or {}
    return str(notes.get(names.ORDER, "")), str(root["data"].get(names.ORDERS, ""))


def _noted(cluster: Cluster, root: Manifest, change: Manifest, holds: Callable[[Manifest], bool]) -> Manifest:
    """Patches the root as long as `holds` is true for it; retries if its driver changed it meanwhile."""
    run = str(root["metadata"]["name"])
    while holds(root):
        meta = {**change["metadata"], "resourceVersion": root["metadata"]["resourceVersion"]}
        try:
            return cluster.api.patch("ConfigMap", run, {**change, "metadata": meta})
        except ApiError as error:
            if error.status != 409:
                raise
        root = cluster.api.get("ConfigMap", run)
    raise _taken(cluster, run)


def _taken(cluster: Cluster, run: str) -> LongboatError:
    hint = f"watch it: longboat attach {run} --on kubernetes -n {cluster.namespace}"
    return LongboatError(f"somebody else has just resumed {run}", hint)


def _replaced(cluster: Cluster, run: str, order: str) -> None:
    """Waits for the driver of this order: requests to its predecessor would be cut off."""
    due = time.monotonic() + RESUMED
    while time.monotonic() < due:
        pod = cluster.api.find("Pod", names.driver_pod(run))
        notes = (pod or {}).get("metadata", {}).get("annotations") or {}
        if pod is not None and notes.get(names.ORDER) == order and is_running(pod):
            return
        root = cluster.api.find("ConfigMap", run)
        if root is not None and _ordered(root)[0] != order:
            raise _taken(cluster, run)
        time.sleep(0.2)
    cause = pending_pods.driver(cluster.api, run)
    why = f": {cause.message}" if cause else ""
    raise LongboatError(f"the new driver of {run} does not run{why}", f"kubectl describe pod {names.driver_pod(run)}")


def _renewed(cluster: Cluster, root: Manifest, run: str, order: ResumeOrder) -> dict[str, str | None]:
    """Applies the objects of the run's new plan; returns the data for its root object."""
    assert order.plan is not None
    plan, setting = storage.settled(cluster, order.plan, lambda _text: None), order.setting
    admission.check(cluster, plan)
    packed = payload.load(plan, edition=True)
    driver = cluster.api.get("StatefulSet", names.driver(run))["spec"]["template"]["spec"]
    account = str(driver.get("serviceAccountName") or "")
    kept = any("emptyDir" in each for each in driver["volumes"] if each["name"] == "run")
    setting = replace(setting, namespace="", account="" if account == names.driver(run) else account)
    setting = replace(setting, volume="none" if kept else setting.volume)
    first, *made = run_objects.objects(plan, run, packed, setting)
    stages = [stage.name for stage in plan.stages if stage.serve is not None]
    cluster.take_down(run, f",{names.STAGE_LABEL} notin ({','.join(stages)})" if stages else "")
    if order.secrets:
        labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "secrets"})
        cluster.api.delete("Secret", names.secrets(run))
        made.append(_secret(names.secrets(run), labels, dict(order.secrets)))
    storage.make(cluster, plan, run, lambda _text: None)
    for obj in made:
        obj["metadata"]["ownerReferences"] = [pod_templates.owner(root)]
        if obj["metadata"]["labels"][names.PART_LABEL] == "account":
            _account(cluster, obj)
        elif obj["kind"] != "PersistentVolumeClaim":  # exists, and cannot be changed
            cluster.api.apply(obj)
    root_data: dict[str, str | None] = dict(first["data"])
    root_data[run_layout.FINGERPRINTS] = _kept(root["data"], packed.fingerprints, order.reused)
    return root_data


def _secret(name: str, labels: Mapping[str, str], data: Mapping[str, str]) -> Manifest:
    meta = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "immutable": True, "stringData": dict(data)}


def _kept(data: Mapping[str, str], now: str, reused: Collection[str]) -> str:
    """Fingerprints of the stages; reused stages keep their recorded ones."""
    from longboat.spec import fingerprint

    fingerprints, before = fingerprint.from_json(now), fingerprint.from_json(data.get(run_layout.FINGERPRINTS, ""))
    fingerprints.update((name, before[name]) for name in reused if name in before)
    return fingerprint.to_json(fingerprints)


def _token() -> str:
    import secrets

    return secrets.token_hex(32)
