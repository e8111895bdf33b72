"""The driver's pod: takes the run up where the journal stands, drives it to its end, then stays to be read.

Whoever kills it, at whatever moment, the next one goes on: nothing is kept but what is in the run
directory and in the cluster. Once the run has ended and nobody has asked for anything for a while,
it sends itself home (its StatefulSet is scaled to nothing); a reader brings it back.

A gang waits for it, and an image may have to compile all that it imports: what only some runs need is imported there.
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
from typing import Any, Dict, Mapping, Tuple

from longboat import __version__
from longboat.runtime import driver_lock, journal, run_layout
from longboat.runtime import plan as plans
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.archive import put_aside
from longboat.runtime.driver.driver import Driver
from longboat.runtime.driver.history import RunHistory, look_back
from longboat.runtime.driver.stop_signals import StopSignals
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Api, ApiError, Manifest, in_cluster
from longboat.runtime.pod import file_server, idle_tracker, pod_status, pod_templates, rank_pod
from longboat.runtime.pod.fencing import WriteFence
from longboat.runtime.pod.leadership import Leadership
from longboat.runtime.pod.pod_launcher import PodLauncher
from longboat.runtime.rank_env import bracketed

LINGER = 900.0
"""Seconds that a driver stays reachable after the run has ended and the last reader was there."""


def main(environ: Mapping[str, str]) -> int:
    signals = StopSignals(leave_on_term=True)  # a stop that comes while this driver starts waits for it
    run_dir, run = names.RUN, environ["LONGBOAT_RUN"]
    for directory in (environ.get("HOME", ""), run_dir):
        if directory:
            os.makedirs(directory, exist_ok=True)
    rank_pod.place_plan(run_dir)
    server = in_cluster()
    api = Api(server)
    lease = float(environ.get("LONGBOAT_DRIVER_LEASE", names.DRIVER_LEASE))
    Leadership(Api(server, patience=0.0), names.driver_pod(run), environ["LONGBOAT_POD_UID"], lease).begin()
    held = _take(run_dir)
    before = look_back(journal.stream(run_dir))
    if before.last == "run.ended":
        _stop_is_done(run_dir)
    if before.last != "run.ended" or _new_order(api.get("ConfigMap", run), before):
        _drive(api, run, run_dir, environ, before, signals)
    else:
        _say_end_again(api, run, run_dir)
    os.close(held)
    _linger(api, run, run_dir)
    return 0


def _take(run_dir: str) -> int:
    """The run's lock: a predecessor that is just being ended may still hold it."""
    while True:
        held = driver_lock.try_take(run_dir)
        if held is not None:
            return held
        time.sleep(0.2)


def _new_order(root: Manifest, before: RunHistory) -> Dict[str, Any]:
    """What was asked for last, as `run.started` keeps it; empty when it was taken up already."""
    told = names.order_in(root)
    return told if told and told["order"] != before.order else {}


def _drive(
    api: Api, run: str, run_dir: str, environ: Mapping[str, str], before: RunHistory, signals: StopSignals
) -> None:
    """To the run's end, whatever happens: that it has ended is in the journal and on the root."""
    redact = tuple(value for name, value in environ.items() if name.startswith("LONGBOAT_REDACT_") and value)
    writer = journal.JournalWriter(run_dir, redact=redact)
    code, state = FAILED, "failed"
    beside = contextlib.ExitStack()
    order: Dict[str, Any] = {}
    try:
        met = _patiently(api, run)
        order = _new_order(met[0], before)
        code, state = _follow(api, met, run, run_dir, environ, before, order, signals, writer, beside)
    except ApiError as error:
        cause = pod_status.refused(error, ("", "", -1))
        writer.write("run.ended", state="failed", code=FAILED, cause=cause, order=order.get("order"))
    except Exception:
        # With the order, which may not have got as far as `run.started`: else whoever reads this would wait for that.
        writer.write("run.ended", state="failed", code=FAILED, cause=_own_failure(run_dir), order=order.get("order"))
    finally:
        writer.close()
        beside.close()
        _say_end(api, run, state, code)
        _stop_is_done(run_dir)


def _follow(
    api: Api,
    met: Tuple[Manifest, bytes, str],
    run: str,
    run_dir: str,
    environ: Mapping[str, str],
    before: RunHistory,
    order: Mapping[str, Any],
    signals: StopSignals,
    writer: journal.JournalWriter,
    beside: contextlib.ExitStack,
) -> Tuple[int, str]:
    """The plan, from where the run stands; what it ended with. What runs beside it is put into `beside`."""
    root, token, address = met
    resumed = bool(before.last)
    recover = resumed and before.last != "run.ended" and not order
    if order:
        _take_up(root, run_dir, before, order)
        before = look_back(itertools.chain(journal.stream(run_dir), [{"ev": "run.started", **order}]))
    plan = plans.from_json(root["data"][run_layout.PLAN])
    if not _has_shared_disk(root):
        beside.callback(_keep_files(run_dir, token, before).close)
    listener = _listener()
    telling = threading.Thread(target=say, args=(api, root, "running"), daemon=True)
    telling.start()
    beside.callback(telling.join, 30.0)  # else the end could be overwritten by the beginning
    if plan.board is not None:
        threading.Thread(target=_draw, args=(run_dir,), daemon=True).start()
    pending = float(environ.get("LONGBOAT_PENDING", "600"))
    launcher = PodLauncher(api, root, _templates(root), address, pending)
    servers = None
    if any(stage.serve is not None for stage in plan.stages):
        from longboat.runtime.pod.model_servers import ModelServers

        secret = environ.get("LONGBOAT_SERVE_TOKEN", "")
        serving = functools.partial(say, api, root, "serving")
        servers = ModelServers(api, root, plan, address, run_dir, pending, serving, secret)
    driver = Driver(
        plan,
        run,
        run_dir,
        writer,
        token,
        before,
        recover=recover,
        left_out=before.left_out,
        keep=True,
        pods=True,
        services=servers,
        signals=signals,
        stop_asked=os.path.exists(os.path.join(run_dir, run_layout.STOP)),
    )
    writer.write(
        "run.started",
        run=run,
        name=plan.name,
        pid=os.getpid(),
        host=environ.get("LONGBOAT_POD_NAME", socket.gethostname()),
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
    """Agents see the run directory themselves: nobody has to carry files."""
    return names.SHARED in (root["metadata"].get("annotations") or {})


def _keep_files(run_dir: str, token: bytes, before: RunHistory) -> file_server.FileServerProcess:
    return file_server.FileServerProcess(
        run_dir, token, names.DEPOT_PORT, WriteFence(before.generations, before.incarnations)
    )


def _listener() -> socket.socket:
    """Where agents call, by both families where there are two."""
    listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
    if listener.family is socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", names.PORT))
    listener.listen(1024)
    return listener


def _own_failure(run_dir: str) -> Cause:
    """The exception that is being handled, told to the log of the driver too."""
    import traceback

    text = traceback.format_exc()
    sys.stderr.write(text)
    with contextlib.suppress(OSError), open(os.path.join(run_dir, run_layout.DRIVER_LOG), "a", encoding="utf-8") as log:
        log.write(text)
    return Cause(CauseKind.INTERNAL, "longboat itself failed", lines=tuple(text.splitlines()[-8:]))


def _draw(run_dir: str) -> None:
    """What ranks report, as TensorBoard reads it."""
    import pathlib

    from longboat.runtime.driver.tensorboard_export import TensorBoardExport

    board = TensorBoardExport(pathlib.Path(run_dir))
    while True:
        try:
            board.poll()
        except LongboatError as error:
            sys.stderr.write(f"{error.message}\n")
        time.sleep(2.0)


def _take_up(root: Manifest, run_dir: str, before: RunHistory, order: Mapping[str, Any]) -> None:
    """The plan that is to be followed from now on, and room for the results of stages that run anew."""
    path = os.path.join(run_dir, run_layout.PLAN)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(root["data"][run_layout.PLAN])
    os.replace(path + ".new", path)
    put_aside(run_dir, before, order.get("again", ()))


def _patiently(api: Api, run: str) -> Tuple[Manifest, bytes, str]:
    """Rights that were given a moment ago may not be known everywhere yet; a server that is away comes back."""
    due = time.monotonic() + 15.0
    while True:
        try:
            return _met(api, run)
        except ApiError as error:
            if not error.transient and (error.status != 403 or time.monotonic() > due):
                raise
            time.sleep(0.1)


def _met(api: Api, run: str) -> Tuple[Manifest, bytes, str]:
    """The root, the run's token (made here if nobody has), and the address of the driver."""
    root = api.get("ConfigMap", run)
    name = names.token(run)
    found = api.find("Secret", name)
    if found is None:
        labels = dict(root["metadata"]["labels"], **{names.PART_LABEL: "token"})
        made = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [pod_templates.owner(root)]},
            "immutable": True,
            "stringData": {"token": os.urandom(32).hex()},
        }
        try:
            found = api.create(made)
        except ApiError as error:
            if error.status != 409:
                raise
            found = api.get("Secret", name)
    import base64

    address = str(api.get("Service", names.driver(run))["spec"]["clusterIP"])
    return root, base64.b64decode(found["data"]["token"]), bracketed(address)


def _templates(root: Manifest) -> Dict[Tuple[str, str], Manifest]:
    found = {}
    for name, text in root["data"].items():
        word, _, rest = name.partition(".")
        if word == "pod" and rest.endswith(".json"):
            stage, _, role = rest[: -len(".json")].rpartition(".")
            found[stage, role] = json.loads(text)
    return found


def say(api: Api, root: Manifest, state: str) -> None:
    """On the root, for who lists runs; and as an Event, for who looks with kubectl."""
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
        "message": f"the run {meta['name']} is {state.replace('_', ' ')}",
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
        pass  # the journal is what counts


def _say_end(api: Api, run: str, state: str, code: int) -> None:
    try:
        root = api.get("ConfigMap", run)
        say(api, root, state)
        api.patch("ConfigMap", run, {"metadata": {"annotations": {names.EXIT_CODE: str(code)}}})
    except ApiError:
        pass


def _say_end_again(api: Api, run: str, run_dir: str) -> None:
    """The driver that ended the run may not have lived to say so."""
    ended = journal.last(run_dir)
    try:
        notes = api.get("ConfigMap", run)["metadata"].get("annotations") or {}
    except ApiError:
        return
    if names.EXIT_CODE not in notes or notes.get(names.STATE) != ended["state"]:
        _say_end(api, run, ended["state"], ended["code"])


def _stop_is_done(run_dir: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(run_dir, run_layout.STOP))


def _linger(api: Api, run: str, run_dir: str) -> None:
    """Reachable until nobody has asked for a while. While servers stand that the end of the run has left, their next
    pods get the model from here."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if _standing(api, run):
        root, token, _ = _met(api, run)
        if not _has_shared_disk(root):
            _keep_files(run_dir, token, look_back(journal.stream(run_dir)))
    idle_tracker.note()
    while idle_tracker.quiet() < LINGER or _standing(api, run):
        time.sleep(10.0)
    try:
        api.patch("StatefulSet", names.driver(run), {"spec": {"replicas": 0}})
    except ApiError:
        pass
    while True:
        time.sleep(60.0)


def _standing(api: Api, run: str) -> bool:
    try:
        return bool(api.list("Deployment", names.selector(run, names.SERVER)))
    except ApiError:
        return False  # a run that serves nothing has no right to look
