"""The driver's pod: continues the run from its journal, drives it to its end, then stays readable for a while.

It may be killed at any moment; the next one continues. All state is in the run directory and in the
cluster. Once the run has ended and no request came for a while, it scales its StatefulSet to zero; a
reader brings it back.

The gang waits for this pod, and an image may have to compile everything it imports: what only some runs
need is imported where it is used.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from longboat import __version__
from longboat.runtime import atomic_file, debug_log, driver_lock, journal, run_layout
from longboat.runtime import plan as plans
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.archive import archive_results
from longboat.runtime.driver.driver import Driver, DriverOptions
from longboat.runtime.driver.history import RunHistory, look_back
from longboat.runtime.driver.services import Services
from longboat.runtime.driver.stop_signals import StopSignals
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest, in_cluster
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.pod import file_server, idle_tracker, pod_status, pod_templates, rank_pod
from longboat.runtime.pod.fencing import WriteFence
from longboat.runtime.pod.leadership import Leadership
from longboat.runtime.pod.pod_launcher import PodLauncher
from longboat.runtime.rank_env import bracketed
from longboat.runtime.seat import Seat

LINGER = 900.0
"""Seconds that the driver stays reachable after the end of the run and the last request."""


def main(environ: Mapping[str, str]) -> int:
    signals = StopSignals(leave_on_term=True)  # a stop during the start waits for the driver
    run_dir, run = names.RUN, environ["LONGBOAT_RUN"]
    for directory in (environ.get("HOME", ""), run_dir):
        if directory:
            os.makedirs(directory, exist_ok=True)
    rank_pod.place_plan(run_dir)
    server = in_cluster()
    api = Api(server)
    lease = float(environ.get("LONGBOAT_DRIVER_LEASE", names.DRIVER_LEASE))
    Leadership(Api(server, patience=0.0), names.driver_pod(run), environ["LONGBOAT_POD_UID"], lease).begin()
    held = _take_lock(run_dir)
    before = look_back(journal.stream(run_dir))
    if before.last == "run.ended":
        _clear_stop(run_dir)
    if before.last != "run.ended" or _new_order(api.get("ConfigMap", run), before):
        _drive(api, run, environ, before, signals)
    else:
        _repeat_end(api, run, run_dir)
    os.close(held)
    _linger(api, run, run_dir)
    return 0


def _take_lock(run_dir: str) -> int:
    """Take the run's lock; a predecessor that is being deleted may still hold it."""
    while True:
        held = driver_lock.try_take(run_dir)
        if held is not None:
            return held
        time.sleep(0.2)


def _new_order(root: Manifest, before: RunHistory) -> Dict[str, Any]:
    """The latest order as `run.started` records it; empty if it was accepted already."""
    order = names.order_in(root)
    return order if order and order["order"] != before.order else {}


def _drive(api: Api, run: str, environ: Mapping[str, str], before: RunHistory, signals: StopSignals) -> None:
    """Drive the run to its end. Whatever happens, the end is recorded in the journal and on the root ConfigMap."""
    run_dir = names.RUN
    redact = tuple(value for name, value in environ.items() if name.startswith("LONGBOAT_REDACT_") and value)
    writer = journal.JournalWriter(run_dir, redact=redact)
    code, state = FAILED, "failed"
    cleanup = contextlib.ExitStack()
    order: Dict[str, Any] = {}
    try:
        root, token, address = _connect_patiently(api, run)
        debug_log.begin(names.log_level(root), "driver", os.path.join(run_dir, run_layout.DRIVER_LOG))
        order = _new_order(root, before)
        pods = _Pods(api, root, address, environ)
        options = DriverOptions(
            recover=before.last not in ("", "run.ended") and not order,
            keep=True,
            pods=True,
            signals=signals,
            stop_asked=os.path.exists(os.path.join(run_dir, run_layout.STOP)),
        )
        code, state = _follow(pods, token, before, order, options, writer, cleanup)
    except ApiError as error:
        cause = pod_status.refused(error, Seat("", "", -1))
        writer.write("run.ended", state="failed", code=FAILED, cause=cause, order=order.get("order"))
    except LongboatError as error:
        cause = Cause(CauseKind.MISSING_INPUT, error.message, evidence=(error.hint,))
        code = error.code
        writer.write("run.ended", state="failed", code=code, cause=cause, order=order.get("order"))
    except Exception:
        # With the order, which may not have reached `run.started`: else readers would wait for it.
        writer.write("run.ended", state="failed", code=FAILED, cause=_internal_error(run_dir), order=order.get("order"))
    finally:
        writer.close()
        cleanup.close()
        _publish_end(api, run, state, code)
        _clear_stop(run_dir)


class _Pods(NamedTuple):
    """Where the run's pods are made."""

    api: Api
    root: Manifest
    address: str
    """The driver's stable address."""
    environ: Mapping[str, str]

    @property
    def pending(self) -> float:
        return float(self.environ.get("LONGBOAT_PENDING", "600"))

    def launcher(self) -> PodLauncher:
        return PodLauncher(self.api, self.root, _templates(self.root), self.address, self.pending)

    def servers(self, plan: plans.Plan) -> Optional[Services]:
        if not any(stage.serve is not None for stage in plan.stages):
            return None
        from longboat.runtime.pod.model_servers import ModelServers, ServiceSettings

        settings = ServiceSettings(self.address, self.pending, self.environ.get("LONGBOAT_SERVE_TOKEN", ""))
        serving = functools.partial(publish_state, self.api, self.root, "serving")
        return ModelServers(self.api, self.root, plan, names.RUN, settings, serving)


def _follow(
    pods: _Pods,
    token: bytes,
    before: RunHistory,
    order: Mapping[str, Any],
    options: DriverOptions,
    writer: journal.JournalWriter,
    cleanup: contextlib.ExitStack,
) -> Tuple[int, str]:
    """Follow the plan from where the run stands; returns exit code and state. What to close later goes to `cleanup`."""
    root, run_dir, resumed = pods.root, names.RUN, bool(before.last)
    if order:
        _accept_order(root, run_dir, before, order)
        before = look_back(itertools.chain(journal.stream(run_dir), [{"ev": "run.started", **order}]))
    plan = plans.from_json(root["data"][run_layout.PLAN])
    if not _has_shared_disk(root):
        cleanup.callback(_start_file_server(run_dir, token, before).close)
    listener = _listener()
    publishing = threading.Thread(target=publish_state, args=(pods.api, root, "running"), daemon=True)
    publishing.start()
    cleanup.callback(publishing.join, 30.0)  # else "running" could overwrite the final state
    if plan.board is not None:
        threading.Thread(target=_export_board, args=(run_dir,), daemon=True).start()
    launcher = pods.launcher()
    options = replace(options, left_out=before.left_out, services=pods.servers(plan))
    driver = Driver(plan, run_dir, writer, token, before, options)
    writer.write(
        "run.started",
        run=root["metadata"]["name"],
        name=plan.name,
        pid=os.getpid(),
        host=pods.environ.get("LONGBOAT_POD_NAME", socket.gethostname()),
        engine="kubernetes",
        contained="pods",
        version=__version__,
        resumed=resumed or None,
        **order,
    )
    for stage in before.passed if order else ():
        writer.write("stage.reused", stage=stage)
    code = driver.run(listener, launcher)
    return code, driver.state


def _has_shared_disk(root: Manifest) -> bool:
    """Whether agents share the run directory, so that no files have to be copied."""
    return names.SHARED in (root["metadata"].get("annotations") or {})


def _start_file_server(run_dir: str, token: bytes, before: RunHistory) -> file_server.FileServerProcess:
    return file_server.FileServerProcess(
        run_dir, token, names.DEPOT_PORT, WriteFence(before.generations, before.incarnations)
    )


def _listener() -> socket.socket:
    """The socket that agents connect to; IPv4 and IPv6 if both exist."""
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    if listener.family is socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", names.PORT))
    listener.listen(1024)
    return listener


def _internal_error(run_dir: str) -> Cause:
    """A cause for the current exception, which is also written to the driver's log."""
    import traceback

    text = traceback.format_exc()
    sys.stderr.write(text)
    with contextlib.suppress(OSError), open(os.path.join(run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as log:
        log.write(text)
    return Cause(CauseKind.INTERNAL, "Longboat itself failed", lines=tuple(text.splitlines()[-8:]))


def _export_board(run_dir: str) -> None:
    """Write reported metrics for TensorBoard, for ever."""
    import pathlib

    from longboat.runtime.driver.tensorboard_export import TensorBoardExport

    board = TensorBoardExport(pathlib.Path(run_dir))
    while True:
        try:
            board.poll()
        except LongboatError as error:
            sys.stderr.write(f"{error.message}\n")
        time.sleep(2.0)


def _accept_order(root: Manifest, run_dir: str, before: RunHistory, order: Mapping[str, Any]) -> None:
    """Install the plan of a new order, and archive the results of stages that run again."""
    atomic_file.write(os.path.join(run_dir, run_layout.PLAN), root["data"][run_layout.PLAN])
    archive_results(run_dir, before, order.get("again", ()))


def _connect_patiently(api: Api, run: str) -> Tuple[Manifest, bytes, str]:
    """Connect to the API server; retries while new rights spread (15 s) and while the server is away."""
    due = time.monotonic() + 15.0
    while True:
        try:
            return _connect(api, run)
        except ApiError as error:
            if not error.transient and (error.status != 403 or time.monotonic() > due):
                raise
            time.sleep(0.1)


def _connect(api: Api, run: str) -> Tuple[Manifest, bytes, str]:
    """The root ConfigMap, the run's token (created if it does not exist), and the driver's address."""
    root = api.get("ConfigMap", run)
    name = names.token(run)
    secret = api.find("Secret", name)
    if secret is None:
        labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "token"})
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [pod_templates.owner(root)]},
            "immutable": True,
            "stringData": {"token": os.urandom(32).hex()},
        }
        try:
            secret = api.create(manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            secret = api.get("Secret", name)
    import base64

    address = str(api.get("Service", names.driver(run))["spec"]["clusterIP"])
    return root, base64.b64decode(secret["data"]["token"]), bracketed(address)


def _templates(root: Manifest) -> Dict[Tuple[str, str], Manifest]:
    templates = {}
    for name, text in root["data"].items():
        kind, _, rest = name.partition(".")
        if kind == "pod" and rest.endswith(".json"):
            stage, _, role = rest[: -len(".json")].rpartition(".")
            templates[stage, role] = json.loads(text)
    return templates


def publish_state(api: Api, root: Manifest, state: str) -> None:
    """Publish the run's state on the root ConfigMap, for `longboat ps`, and as an Event, for kubectl."""
    meta = root["metadata"]
    notes: Dict[str, Any] = {names.STATE: state}
    if names.STARTED not in (meta.get("annotations") or {}):
        notes[names.STARTED] = f"{time.time():.3f}"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {key: meta[key] for key in ("name", "namespace", "uid")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name']}.", "labels": dict(meta["labels"])},
        "involvedObject": {"kind": "ConfigMap", "apiVersion": "v1", **about},
        "reason": state.title().replace("_", ""),
        "message": f"the run {meta['name']} {journal.state_text(state)}",
        "type": "Warning" if state in ("failed", "gate_missed") else "Normal",
        "source": {"component": "longboat"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        api.patch("ConfigMap", meta["name"], {"metadata": {"annotations": notes}})
        api.create(event)
    except ApiError:
        pass  # only the journal counts


def _publish_end(api: Api, run: str, state: str, code: int) -> None:
    try:
        root = api.get("ConfigMap", run)
        publish_state(api, root, state)
        api.patch("ConfigMap", run, {"metadata": {"annotations": {names.EXIT_CODE: str(code)}}})
    except ApiError:
        pass


def _repeat_end(api: Api, run: str, run_dir: str) -> None:
    """Publish the end of the run if the driver that ended it could not."""
    ended = journal.last(run_dir)
    try:
        notes = api.get("ConfigMap", run)["metadata"].get("annotations") or {}
    except ApiError:
        return
    if names.EXIT_CODE not in notes or notes.get(names.STATE) != ended["state"]:
        _publish_end(api, run, ended["state"], ended["code"])


def _clear_stop(run_dir: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(run_dir, run_layout.STOP))


def _linger(api: Api, run: str, run_dir: str) -> None:
    """Stay reachable until no request came for a while. While model servers outlive the run, their new pods get the
    model from here."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if _has_servers(api, run):
        root, token, _ = _connect(api, run)
        if not _has_shared_disk(root):
            _start_file_server(run_dir, token, look_back(journal.stream(run_dir)))
    idle_tracker.note()
    while idle_tracker.quiet() < LINGER or _has_servers(api, run):
        time.sleep(10.0)
    try:
        api.patch("StatefulSet", names.driver(run), {"spec": {"replicas": 0}})
    except ApiError:
        pass
    while True:
        time.sleep(60.0)


def _has_servers(api: Api, run: str) -> bool:
    try:
        return bool(api.list("Deployment", names.selector(run, names.SERVER)))
    except ApiError:
        return False  # a run without servers lacks the right to list them
