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

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longboat import spec
from longboat.engines import registry
from longboat.engines.interface import EngineContext, RunHandle, RunRequest, StopOutcome, silent
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan

if TYPE_CHECKING:
    from longboat.images.building import BuiltImage
    from longboat.runs.explanation import Explanation
    from longboat.runs.logs import LogLine
    from longboat.runs.run_state import RunState


@dataclass(frozen=True)
class Job:
    """A job file with its params resolved."""

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

        options = build_request.BuildOptions(tag, base, tool, platform, python, insecure, output, push)
        order = build_request.order_of(self.plan(), options, os.environ)
        return building.build(order, _home(home), os.environ, silent)

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
        cluster and mean what they mean to the command; `image` is what `build` returned, if that is to run."""
        plan = self.plan()
        if image is not None:
            from longboat.images import build_request

            plan = build_request.in_image(plan, image)
        engine = registry.engine(plan.engine, EngineContext(_home(home), os.environ, context, namespace))
        options = {"service_account": service_account, "volume": volume, "storage_class": storage_class}
        run, _ = engine.submit(RunRequest(plan, options=options), silent)
        return _started(run, _home(home))


def load(
    path: str | os.PathLike[str] = ".",
    *,
    set: Mapping[str, object] | None = None,
    preset: str | None = None,
    on: str = registry.DEFAULT,
    environ: Mapping[str, str] | None = None,
) -> Job:
    """Reads a job file. Raises longboat.LongboatError with every problem that it has."""
    sets = {name: _text(value) for name, value in (set or {}).items()}
    variables = os.environ if environ is None else environ
    remote = registry.is_remote(on)
    return Job(spec.load(os.fspath(path), sets=sets, preset=preset, engine=on, remote=remote, environ=variables))


class Run:
    """A run by id, beginning of an id, or name of the job; without one, the newest. It is looked for on this machine
    and among the runs in clusters that this machine knows; `on`, `context` and `namespace` say where else."""

    def __init__(
        self,
        run: str | RunHandle | None = None,
        home: str | None = None,
        *,
        on: str | None = None,
        context: str = "",
        namespace: str = "",
    ) -> None:
        self._home = _home(home)
        if run is None or isinstance(run, str):
            run = registry.find(on, EngineContext(self._home, os.environ, context, namespace), run)
        self._handle = run
        self.id = run.id
        self.directory: Path = run.directory
        """Everything it left; of a run in a cluster, the part that was asked for."""

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.status().state}>"

    def status(self) -> RunState:
        """How it stands now: a value that does not change."""
        return self._handle.state()

    def wait(self, timeout: float | None = None) -> RunState:
        """Until it has ended, or serves; TimeoutError when that takes longer."""
        return self._handle.wait(timeout)

    def logs(self) -> Iterator[LogLine]:
        """What the ranks have printed so far, line by line."""
        return self._handle.logs()

    def why(self) -> Explanation:
        """What failed first and where, the evidence, the consequences, and what to do next."""
        import time

        from longboat.runs.explanation import explain

        return explain(self._handle.state(explain=True), time.time())

    def output(self, stage: str) -> Path:
        """The directory that a stage's ranks wrote to; of a run in a cluster it is downloaded."""
        from longboat.runtime import run_layout

        return self._handle.fetch(os.path.relpath(run_layout.output(str(self.directory), stage), self.directory))

    def stop(self, now: bool = False, wait: float | None = 600) -> bool:
        """Asks it to end. False when it was not running, or has not ended after `wait` seconds."""
        return self._handle.stop("Run.stop()", now, wait) in (StopOutcome.ASKED, StopOutcome.ENDED)

    def resume(self) -> Run:
        """Continues a run that was stopped, lost or failed."""
        engine = registry.engine(self._handle.engine, EngineContext(self._home, os.environ))
        run, _ = engine.resume(self._handle, RunRequest(), silent)
        return _started(run, self._home)

    def rm(self, data: bool = False) -> None:
        """Removes it with everything it left. A running one is refused. Storage that a cluster created for the job
        stays, unless `data` is true."""
        self._handle.remove(data=data)


def _started(run: RunHandle, home: str) -> Run:
    """Never by a fork: a notebook has threads."""
    if not run.detach(fork=False):
        from longboat.runtime import run_layout

        raise LongboatError(f"{run.id} did not start", f"see {run.directory}/{run_layout.DRIVER_LOG}")
    return Run(run, home)


def _home(home: str | None) -> str:
    return os.path.abspath(os.path.expanduser(home or os.environ.get("LONGBOAT_HOME") or "~/.longboat"))


def _text(value: object) -> str:
    """A value as `--set` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
