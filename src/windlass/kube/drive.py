"""The driver's pod: takes the run up where the journal stands, drives it to its end, then stays to be read.

Whoever kills it, at whatever moment, the next one goes on: nothing is kept but what is in the run
directory and in the cluster. Once the run has ended and nobody has asked for anything for a while,
it sends itself home (its StatefulSet is scaled to nothing); a reader brings it back.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, Mapping, Tuple

from windlass import __version__, journal, layout, lock
from windlass import plan as plans
from windlass.causes import Cause, Kind
from windlass.driver.driver import Driver
from windlass.driver.history import look_back
from windlass.errors import FAILED
from windlass.kube import depot, names, pod, seats, verdicts, visits
from windlass.kube.api import Api, ApiError, Manifest, in_cluster
from windlass.kube.launcher import PodLauncher
from windlass.kube.tenure import Tenure

LINGER = 900.0
"""Seconds that a driver stays reachable after the run has ended and the last reader was there."""


def main(environ: Mapping[str, str]) -> int:
    run_dir, run = names.RUN, environ["WINDLASS_RUN"]
    for directory in (environ.get("HOME", ""), run_dir):
        if directory:
            os.makedirs(directory, exist_ok=True)
    pod.place_plan(run_dir)
    server = in_cluster()
    api = Api(server)
    lease = float(environ.get("WINDLASS_DRIVER_LEASE", names.DRIVER_LEASE))
    Tenure(Api(server, patience=0.0), names.driver_pod(run), environ["WINDLASS_POD_UID"], lease).begin()
    if not _over(run_dir) or _asked_again(api, run, run_dir):
        held = _take(run_dir)
        _drive(api, run, run_dir, environ)
        os.close(held)
    _linger(api, run, run_dir)
    os.execv(sys.executable, [sys.executable, "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", "drive"])


def _take(run_dir: str) -> int:
    """The run's lock: a predecessor that is just being ended may still hold it."""
    while True:
        held = lock.try_take(run_dir)
        if held is not None:
            return held
        time.sleep(0.2)


def _over(run_dir: str) -> bool:
    events = journal.read(run_dir)
    return bool(events) and events[-1]["ev"] == "run.ended"


def _asked_again(api: Api, run: str, run_dir: str) -> bool:
    """Somebody wants the run to go on behind the end that the journal has now."""
    try:
        asked = (api.get("ConfigMap", run)["metadata"].get("annotations") or {}).get(names.RESUME)
    except ApiError:
        return False
    return asked == str(len(journal.read(run_dir)))


def _drive(api: Api, run: str, run_dir: str, environ: Mapping[str, str]) -> None:
    events = journal.read(run_dir)
    recover = bool(events) and events[-1]["ev"] != "run.ended"
    redact = tuple(value for name, value in environ.items() if name.startswith("WINDLASS_REDACT_") and value)
    writer = journal.Writer(run_dir, redact=redact)
    code, state, beside = FAILED, "failed", 0
    try:
        root, token, address = _patiently(api, run)
        with open(os.path.join(run_dir, layout.PLAN)) as file:
            plan = plans.from_json(file.read())
        if names.SHARED not in (root["metadata"].get("annotations") or {}):
            beside = depot.serve(run_dir, token, names.DEPOT_PORT)
        listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        if listener.family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", names.PORT))
        listener.listen(1024)
        threading.Thread(target=say, args=(api, root, "running"), daemon=True).start()
        launcher = PodLauncher(api, root, _templates(), address, float(environ.get("WINDLASS_PENDING", "600")))
        before = look_back(events)
        driver = Driver(plan, run, run_dir, writer, token, before, recover=recover, pods=True)
        writer.write(
            "run.started",
            run=run,
            name=plan.name,
            pid=os.getpid(),
            host=environ.get("WINDLASS_POD_NAME", socket.gethostname()),
            engine="kubernetes",
            contained="pods",
            version=__version__,
            resumed=bool(events) or None,
        )
        code = driver.run(listener, launcher)
        state = str(journal.read(run_dir)[-1].get("state"))
    except ApiError as error:
        cause = verdicts.refused(error, ("", "", -1))
        writer.write("run.ended", state="failed", code=FAILED, cause=cause)
    except Exception:
        import traceback

        text = traceback.format_exc()
        sys.stderr.write(text)
        with open(os.path.join(run_dir, layout.DRIVER_LOG), "a") as log:
            log.write(text)
        cause = Cause(Kind.INTERNAL, "windlass itself failed", lines=tuple(text.splitlines()[-8:]))
        writer.write("run.ended", state="failed", code=FAILED, cause=cause)
    finally:
        writer.close()
        if beside:
            os.kill(beside, signal.SIGKILL)
            os.waitpid(beside, 0)
        _say_end(api, run, state, code)


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
            "metadata": {"name": name, "labels": labels, "ownerReferences": [seats.owner(root)]},
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
    return root, base64.b64decode(found["data"]["token"]), seats.host(address)


def _templates() -> Dict[Tuple[str, str], Manifest]:
    found = {}
    for name in os.listdir(names.SHIP):
        word, _, rest = name.partition(".")
        if word == "pod" and rest.endswith(".json"):
            stage, _, role = rest[: -len(".json")].rpartition(".")
            with open(os.path.join(names.SHIP, name)) as file:
                found[stage, role] = json.load(file)
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
        "source": {"component": "windlass"},
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
        api.patch("ConfigMap", run, {"metadata": {"annotations": {"windlass.dev/code": str(code)}}})
    except ApiError:
        pass


def _linger(api: Api, run: str, run_dir: str) -> None:
    """Reachable until nobody has asked for a while, or the run is to go on."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    visits.note()
    while visits.quiet() < LINGER:
        if _asked_again(api, run, run_dir):
            return
        time.sleep(2.0)
    try:
        api.patch("StatefulSet", names.driver(run), {"spec": {"replicas": 0}})
    except ApiError:
        pass
    while True:
        time.sleep(60.0)
