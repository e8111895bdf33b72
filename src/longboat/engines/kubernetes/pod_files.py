"""The files of a run in a cluster for `ls`, `cat` and `cp`, read and written through exec in a pod.

The driver's pod has the run directory. For storage, a helper pod mounts it and is deleted when the command is done; a
helper that is left behind exits by itself (`runtime.pod.file_access`).
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterable, Iterator
from typing import Self, cast

from longboat.engines.kubernetes.cluster import Cluster, command, is_running
from longboat.engines.kubernetes.pod_exec import FRAME, STDERR, STDOUT, ExecLost, PodExec
from longboat.manifests import rank_pods
from longboat.runs import run_files
from longboat.runs.run_files import RunPath
from longboat.runtime import filetree
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.filetree import FileEntry, FileItem, PathNotFound
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Mount, Plan
from longboat.runtime.pod import file_access, pod_status, pod_templates
from longboat.runtime.seat import Seat

PATIENCE = 120.0
"""Seconds to wait for a helper pod to start."""


class PodFiles:
    """Files of one run. Use it in a `with`, which deletes the helper pods at its end."""

    def __init__(self, cluster: Cluster, run: str, plan: Plan | None) -> None:
        self.run, self.where = run, f"in the namespace {cluster.namespace}"
        self._cluster, self._plan = cluster, plan
        self.mounts = run_files.mounts(plan, lambda mount: mount.kind not in ("emptyDir", "run"))
        self._helpers: dict[str, str] = {}
        """Mount -> pod."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self._helpers.values():
            with contextlib.suppress(ApiError):
                self._cluster.api.delete("Pod", pod, grace=1)

    def entries(self, path: str, depth: int) -> list[FileEntry]:
        target = run_files.spot(self._plan, path)
        with self._start(target, "list", depth=depth) as program:
            out = b"".join(self._output(program, target))
        listed = [FileEntry(*json.loads(line)) for line in out.decode().splitlines()]
        return [replace(entry, path=target.within + entry.path) for entry in listed]

    def items(self, path: str) -> Iterator[FileItem]:
        target = run_files.spot(self._plan, path)
        with self._start(target, "get") as program:
            stream = io.BufferedReader(filetree.PieceStream(self._output(program, target)), FRAME)
            yield from filetree.unpack(cast("io.BytesIO", stream))
            while stream.read(FRAME):  # the padding after the end, and the exit code
                pass

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        target = run_files.spot(self._plan, path)
        run_files.writable(self.run, target)
        with self._start(target, "put", stdin=True, name=name) as program:
            sender = _Sender(program)
            with contextlib.suppress(_Answered, ExecLost):  # then the program reports why
                filetree.pack(items, cast("io.BytesIO", sender))
            stored = b"".join(self._output(program, target, sender.heard)).decode().strip()
        return target.within + stored

    # The pods.

    def _start(self, target: RunPath, word: str, stdin: bool = False, **more: object) -> PodExec:
        mount = target.mount
        if mount is None and target.path.strip("/") == run_files.STORAGE and self.mounts:
            listed = "\n".join(f"longboat ls {self.run}:{each}" for each in self.mounts)
            raise LongboatError("choose one mount of storage", listed)
        if mount is None:
            pod, container, top = self._cluster.reach(self.run), "driver", names.RUN
        else:
            pod, container = self._helper(mount), names.HELPER
            top = mount.source if mount.kind in SCHEMES else f"{names.MOUNTS}/{mount.name}"
        arguments = command(word, json.dumps({"top": top, "path": target.path, **more}))
        try:
            return PodExec(self._cluster.api, pod, arguments, container, stdin)
        except ExecLost as error:
            raise LongboatError(f"{error}", "try again", FAILED) from None
        except ApiError as error:
            raise self._cluster.refusal(error) from None

    def _output(self, program: PodExec, target: RunPath, heard: Iterable[tuple[int, bytes]] = ()) -> Iterator[bytes]:
        """What the program writes to stdout; raises an error if it fails."""
        errors, early = b"", iter(heard)
        try:
            while (piece := next(early, None) or program.receive()) is not None:
                if piece[0] == STDOUT:
                    yield piece[1]
                elif piece[0] == STDERR:
                    errors += piece[1]
        except ExecLost as error:
            raise LongboatError(f"{error}", "try again", FAILED) from None
        except ApiError as error:
            raise self._cluster.refusal(error) from None
        message = errors.decode("utf-8", "replace").strip()
        if program.code == file_access.MISSING:
            raise run_files.not_there(self.run, target, PathNotFound(**json.loads(message)))
        if program.code:
            raise LongboatError(f"{self.run}: {message or f'exit code {program.code}'}", code=FAILED)

    def _helper(self, mount: Mount) -> str:
        if mount.name in self._helpers:
            return self._helpers[mount.name]
        if mount.kind == "emptyDir":
            raise LongboatError(
                f"storage {mount.name} is an emptyDir: it ends with the pod of each rank",
                f"while a rank runs: `longboat exec {self.run} -- ls $LONGBOAT_MOUNT_...`",
            )
        assert self._plan is not None
        api = self._cluster.api
        try:
            root = api.get("ConfigMap", self.run)
            made = rank_pods.helper_of(self._plan, self.run, mount)
            name = pod_templates.new_name(self.run, Seat("storage", mount.name, 0))
            made["metadata"] |= {"name": name, "ownerReferences": [pod_templates.owner(root)]}
            self._helpers[mount.name] = name
            api.create(made)
        except ApiError as error:
            raise self._cluster.refusal(error) from None
        self._wait(name, mount)
        return name

    def _wait(self, name: str, mount: Mount) -> None:
        due, seat = time.monotonic() + PATIENCE, Seat("", "helper", 0)
        while True:
            pod = self._cluster.api.find("Pod", name)
            if pod is None or pod_status.over(pod):
                why = "it was deleted" if pod is None else pod_status.ended(pod, seat).message
                raise LongboatError(f"the helper pod for storage {mount.name} does not run: {why}", code=FAILED)
            if is_running(pod):
                return
            if time.monotonic() > due:
                cause = pod_status.waiting(pod, seat)
                if cause is not None and not cause.evidence:
                    events = self._cluster.api.list("Event", fields=f"involvedObject.name={name}")
                    cause = pod_status.with_events(cause, events) or cause
                why = cause.message if cause is not None else "no reason is known"
                raise LongboatError(f"the helper pod for storage {mount.name} does not start: {why}", code=FAILED)
            time.sleep(0.2)


class _Answered(Exception):
    """The program exited before everything was sent."""


class _Sender:
    """A program's input as a file; collects the program's output meanwhile."""

    def __init__(self, program: PodExec) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self._program = program
        self._rest = bytearray()

    def write(self, data: bytes) -> int:
        self._rest += data
        while len(self._rest) >= FRAME:
            self._listen()
            self._program.send(bytes(self._rest[:FRAME]))
            del self._rest[:FRAME]
        return len(data)

    def flush(self) -> None:
        self._program.send(bytes(self._rest))
        self._rest.clear()

    def _listen(self) -> None:
        try:
            while (piece := self._program.receive(timeout=0.0)) is not None:
                self.heard.append(piece)
        except TimeoutError:
            return
        raise _Answered
