"""Longboat from Python: what the commands do, with the same names.

job = longboat.load("job.yaml", set={"STEPS": 200})
print(job.plan())
run = job.run()
run.wait()
run.status().state, run.why().headline, list(run.logs())

longboat.load("job.yaml", on="kubernetes").run(namespace="team")

job = longboat.load("job.yaml", on="kubernetes")
job.run(image=job.build("ghcr.io/me/train"))
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from longboat import spec
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import ENGINES, Plan

if TYPE_CHECKING:
    from longboat.engines.local.opening import OpenedRun
    from longboat.engines.resolve import Where
    from longboat.images.building import BuiltImage
    from longboat.runs.explanation import Explanation
    from longboat.runs.logs import LogLine
    from longboat.runs.run_state import RunState


P = ParamSpec("P")
T = TypeVar("T")


def _told(ask: Callable[P, T]) -> Callable[P, T]:
    """What a cluster refuses is told as any other problem."""

    @functools.wraps(ask)
    def asked(*args: P.args, **named: P.kwargs) -> T:
        try:
            return ask(*args, **named)
        except LongboatError:
            raise
        except Exception as error:
            from longboat.engines.resolve import refusal_in

            refusal = refusal_in(error)
            if refusal is None:
                raise
            raise refusal from None

    return asked


@dataclass(frozen=True)
class Job:
    """A job file with its params settled."""

    spec: spec.LoadedJob

    def plan(self) -> Plan:
        """What a run would do: a frozen value, nothing is started."""
        return self.spec.plan()

    def build(
        self,
        tag: str = "",
        *,
        base: str = "",
        output: str = "",
        push: bool | None = None,
        tool: str = "",
        platform: str = "linux/amd64",
        python: str = "",
        insecure: bool = False,
        home: str | None = None,
    ) -> BuiltImage:
        """An image with the job's code and packages, pushed or written to a file; the arguments are the command's."""
        from longboat.images import build_request, building

        wish = build_request.BuildOptions(tag, base, tool, platform, python, insecure, output, push)
        order = build_request.order_of(self.plan(), wish, os.environ)
        return building.build(order, _home(home), os.environ, lambda _text: None)

    @_told
    def run(
        self,
        home: str | None = None,
        *,
        context: str = "",
        namespace: str = "",
        volume: str = "10Gi",
        storage_class: str = "",
        service_account: str = "",
        image: BuiltImage | None = None,
    ) -> Run:
        """Starts the job in the background, on the engine that it was loaded for. All arguments but `home` are for a
        cluster, and mean what they mean to the command; `image` is what `build` gave, if that is to run."""
        plan = self.plan()
        if plan.engine == "local":
            from longboat.engines.local import opening

            opened = opening.opened(plan, _home(home), os.environ)
            return _background(opened)
        where = _where(home, plan.engine, context, namespace)
        from longboat.engines import secret_values
        from longboat.engines.kubernetes.replica import submitted
        from longboat.manifests.run_objects import SubmitOptions

        setting = SubmitOptions(namespace, service_account, volume=volume, storage_class=storage_class)
        if image is not None:
            from longboat.images import build_request

            plan = build_request.in_image(plan, image)
        copy = submitted(plan, setting, secret_values.taken_along(plan, os.environ), where.cluster(), where.home)
        return Run(copy.run, where.home, on=plan.engine, context=context, namespace=namespace)


def load(
    path: str | os.PathLike[str] = ".",
    *,
    set: Mapping[str, object] | None = None,
    preset: str | None = None,
    on: str = "local",
    environ: Mapping[str, str] | None = None,
) -> Job:
    """Reads a job file. Raises longboat.LongboatError with every problem that it has."""
    sets = {name: _text(value) for name, value in (set or {}).items()}
    variables = os.environ if environ is None else environ
    return Job(spec.load(os.fspath(path), sets=sets, preset=preset, engine=on, environ=variables))


class Run:
    """A run by id, beginning of an id, or name of the job; without one, the newest. It is looked for on this machine
    and among the runs in clusters that this machine knows; `on`, `context` and `namespace` say where else."""

    @_told
    def __init__(
        self,
        run: str | None = None,
        home: str | None = None,
        *,
        on: str | None = None,
        context: str = "",
        namespace: str = "",
    ) -> None:
        self._where = _where(home, on, context, namespace)
        self.directory: Path
        """All that it left; of a run in a cluster, the part of it that was asked for."""
        self.directory, self._copy = self._where.find(run)
        self.id = self.directory.name

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.status().state}>"

    @_told
    def status(self) -> RunState:
        """How it stands now: a value, which does not change."""
        from longboat.engines.resolve import standing
        from longboat.runs.journal_fold import load as load_state

        return load_state(self.directory) if self._copy is None else standing(self._copy)

    def wait(self, timeout: float | None = None) -> RunState:
        """Until it has ended, or serves; TimeoutError when that takes longer."""
        from longboat.runs.watch import release

        due = None if timeout is None else time.monotonic() + timeout
        pause = 0.05 if self._copy is None else 0.5
        while not self._ended(state := self.status()) and state.state != "serving":
            if due is not None and time.monotonic() > due:
                raise TimeoutError(f"{self.id} is still {state.state} after {timeout:g} s")
            time.sleep(pause)
        if state.over:
            release(self.directory, due)
        return state

    def _ended(self, state: RunState) -> bool:
        """An end behind which the cluster was asked to go on is none."""
        return state.over and (self._copy is None or self._copy.whole())

    @_told
    def logs(self) -> Iterator[LogLine]:
        """What the ranks have printed so far, line by line."""
        from longboat.runs import logs

        if self._copy is not None:
            self._copy.sync(logs=True)
        return logs.lines(logs.read(self.directory))

    def why(self) -> Explanation:
        """What failed first and where, the evidence, what fell because of it, and what to do next."""
        from longboat.runs.explanation import explain

        return explain(self.status(), time.time())

    @_told
    def output(self, stage: str) -> Path:
        """The directory that a stage's ranks wrote to; of a run in a cluster it is fetched."""
        from longboat.runtime import run_layout

        path = run_layout.output(str(self.directory), stage)
        if self._copy is not None:
            self._copy.fetch_all(os.path.relpath(path, self.directory))
        return Path(path)

    @_told
    def stop(self, now: bool = False, wait: float | None = 600) -> bool:
        """Asks it to end. False when nobody drives it, or it has not ended after `wait` seconds."""
        from longboat.engines.local import driving

        if self._copy is None:
            return driving.stop(str(self.directory), by="Run.stop()", now=now, wait=wait)
        if not self._copy.stop("Run.stop()", now, wait):
            return False
        try:
            return wait is None or self.wait(wait).over
        except TimeoutError:
            return False

    @_told
    def resume(self) -> Run:
        """Goes on with a run that was stopped, lost or failed."""
        from longboat.engines.local import opening

        if self._copy is None:
            opened = opening.reopened(self.id, self._where.home, os.environ)
            return _background(opened)
        self._copy.go_on()
        return self

    @_told
    def rm(self, data: bool = False) -> None:
        """Removes it with all that it left. One that is under way is refused. Storage that a cluster made for the job
        stays, unless `data` says otherwise."""
        from longboat.runs.store import Store

        if self._copy is None:
            Store(self._where.home).remove(self.directory)
        else:
            self._copy.remove(data=data)


def _background(run: OpenedRun) -> Run:
    """A driver in a fresh interpreter: a notebook has threads, and must not be forked."""
    from longboat.engines.local import driver_orders, opening
    from longboat.runtime import run_layout

    words = [run.directory, str(run.events), *([driver_orders.to_json(run.orders)] if run.orders is not None else [])]
    with open(os.path.join(run.directory, run_layout.DRIVER_LOG), "ab") as log:
        command = [sys.executable, "-m", "longboat.engines.local", *words]
        driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    if not opening.begins(run, driver.pid, lambda: driver.poll() is not None):
        raise LongboatError(f"{run.id} did not start", f"see {run.directory}/{run_layout.DRIVER_LOG}")
    return Run(run.id, run.home)


def _where(home: str | None, on: str | None, context: str, namespace: str) -> Where:
    from longboat.engines.resolve import Where

    if on is not None and on not in ENGINES:
        raise LongboatError(f"there is no engine {on}", f"one of {', '.join(ENGINES)}")
    return Where(_home(home), os.environ, on, context, namespace)


def _home(home: str | None) -> str:
    return os.path.abspath(os.path.expanduser(home or os.environ.get("LONGBOAT_HOME") or "~/.longboat"))


def _text(value: object) -> str:
    """A value as `--set` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
