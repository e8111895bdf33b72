"""Ranks that mpirun starts: the launcher's agent runs mpirun, and mpirun runs our shim for each.

The shim (`shim.py`) gives each MPI process its own log, environment and record of how it
ended; the launcher's agent reads those records. mpirun is looked for in the stage's own
environment before PATH, because a wheel's mpirun beside a system library of another MPI is the
classic way to get N jobs of size 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from longboat import runtime
from longboat.runtime import run_layout
from longboat.runtime.agent import exit_causes, mpi_remote, syscalls, tracebacks
from longboat.runtime.agent.agent_config import AgentConfig, places_of
from longboat.runtime.agent.rank_output import FileTail, RankOutput
from longboat.runtime.agent.rank_process import ProgramNotFound
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.journal import cause_of, plain
from longboat.runtime.plan import Stage
from longboat.runtime.rank_env import World, environment

INSTALL = "pip install mpich mpi4py"


@dataclass(frozen=True)
class Mpirun:
    path: str
    vendor: str
    """mpich or openmpi."""


def find(first: Sequence[str], path: str) -> Optional[Mpirun]:
    """The mpirun that will be used: the one in the given directories, else the first on PATH."""
    for directory in [*first, *path.split(":")]:
        for name in ("mpirun", "mpiexec"):
            program = os.path.join(directory, name)
            if os.access(program, os.X_OK):
                return Mpirun(program, _vendor(program))
    return None


def _vendor(program: str) -> str:
    """By what stands beside it: asking it for its version costs more than starting a job."""
    directory = os.path.dirname(os.path.realpath(program))
    beside = {os.path.dirname(program), directory}
    real = os.path.basename(os.path.realpath(program))
    if (
        "hydra" in real
        or any(os.path.exists(os.path.join(d, "hydra_pmi_proxy")) for d in beside)
        and "orte" not in real
    ):
        return "mpich"
    return "openmpi"


def spread_command(
    config: AgentConfig, stage: Stage, world: World, restart: int, command: Sequence[str], env: Dict[str, str]
) -> Tuple[str, ...]:
    """What the process of a seat is where launcher and workers have pods of their own: mpirun over all workers, or
    the berth in which mpirun puts one. Changes `env` so that the right MPI is loaded."""
    first = [stage.python or config.python]
    found = find(first, config.base.get("PATH", ""))
    if found is None:
        raise ProgramNotFound(f"no mpirun was found; install one with: {INSTALL}", [*first, "PATH"])
    library = os.path.join(os.path.dirname(os.path.dirname(found.path)), "lib")
    if os.path.isdir(library):
        env["LD_LIBRARY_PATH"] = library + (":" + env["LD_LIBRARY_PATH"] if env.get("LD_LIBRARY_PATH") else "")
    # The same path in every pod: mpirun names the program of all its processes at once.
    place = os.path.join("/tmp", f"longboat-mpi-{config.stage}-{world.generation}-{restart}")
    workers = world.peers["worker"]
    cwd = config.plan.code or os.getcwd()
    settings: Dict[str, Any] = {"token": config.token.hex(), "size": len(workers), "cwd": cwd}
    if config.role == "worker":
        settings["port"] = workers[config.rank].ports[0]
        log = run_layout.log(config.run_dir, config.stage, config.role, config.rank)
        begins = os.path.getsize(log) if os.path.exists(log) else 0
        mpi_remote.prepare(place, {**settings, "env": env, "log": log, "begins": begins})
        return (*mpi_remote.PROGRAM, mpi_remote.NAME, place)
    settings["ports"] = {worker.host: worker.ports[0] for worker in workers}
    mpi_remote.prepare(place, settings)
    hosts, reach = [worker.host for worker in workers], os.path.join(place, mpi_remote.REACH)
    stand = os.path.join(place, mpi_remote.STAND)
    if found.vendor == "mpich":
        flags = ["-launcher", "ssh", "-launcher-exec", reach, "-localhost", config.host]
        return (found.path, *flags, "-hosts", ",".join(hosts), "-ppn", "1", "-n", str(len(hosts)), stand, *command)
    for name in ("PRTE_MCA_plm_ssh", "OMPI_MCA_plm_rsh"):
        env[f"{name}_agent"], env[f"{name}_no_tree_spawn"] = reach, "1"
    env.setdefault("SHELL", "/bin/sh")  # else it wonders, in the log, about a user that passwd does not know
    flags = ["--host", ",".join(f"{host}:1" for host in hosts), "--bind-to", "none"]
    return (found.path, *flags, "-n", str(len(hosts)), stand, *command)


@dataclass(frozen=True)
class MpiWorkerEvent:
    """Something a shim wrote down: `observed_start` or `observed_end`."""

    kind: str
    rank: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    follower: Optional[RankOutput] = None


class MpiWorkers:
    """The MPI processes of one life of the launcher."""

    def __init__(self, config: AgentConfig, stage: Stage, world: World, restart: int) -> None:
        self._config = config
        self._stage = stage
        self._world = world
        self._restart = restart
        self._scratch = tempfile.mkdtemp(prefix="mpi-", dir=config.base.get("TMPDIR"))
        self._records = os.path.join(self._scratch, "records.jsonl")
        self._tail = FileTail(self._records, 0)
        self._half = b""
        self._causes: List[Tuple[float, Cause]] = []
        self._running: Dict[int, int] = {}
        """Rank -> where its log began, of workers whose end nobody has written down."""

    def command(self, command: Sequence[str], env: Dict[str, str]) -> Tuple[str, ...]:
        """The mpirun command line; changes `env` so that the right MPI is loaded."""
        first = [self._stage.python or self._config.python]
        found = find(first, self._config.base.get("PATH", ""))
        if found is None:
            raise ProgramNotFound(f"no mpirun was found; install one with: {INSTALL}", [*first, "PATH"])
        workers = self._stage.role("worker").ranks
        library = os.path.join(os.path.dirname(os.path.dirname(found.path)), "lib")
        if os.path.isdir(library):
            env["LD_LIBRARY_PATH"] = library + (":" + env["LD_LIBRARY_PATH"] if env.get("LD_LIBRARY_PATH") else "")
        settings = os.path.join(self._scratch, "shim.json")
        with open(settings, "w", encoding="utf-8") as file:
            json.dump(self._settings(command, workers), file)
        os.chmod(settings, 0o600)
        shim = os.path.join(runtime.HERE, "agent", "mpi_shim.py")
        flags: Tuple[str, ...] = ()
        if found.vendor == "openmpi":
            flags = ("--oversubscribe", "--bind-to", "none")
            if os.geteuid() == 0:
                flags += ("--allow-run-as-root",)
        return (found.path, "-n", str(workers), *flags, sys.executable, "-S", "-E", shim, settings)

    def _settings(self, command: Sequence[str], workers: int) -> Dict[str, Any]:
        config, world = self._config, self._world
        ranks = []
        for rank in range(workers):
            places = places_of(config, world.generation, "worker", rank)
            env = environment(self._stage, "worker", rank, self._restart, world, places, {})
            for name in ("PATH", "PYTHONPATH"):
                env.pop(name)
            log = run_layout.log(config.run_dir, config.stage, "worker", rank)
            os.makedirs(os.path.dirname(log), exist_ok=True)
            ranks.append({"env": env, "log": log, "reports": places.report_file})
        return {
            "package": runtime.IMPORT_PATH,
            "records": self._records,
            "command": list(command),
            "size": workers,
            "ranks": ranks,
            "run_dir": config.run_dir,
        }

    def events(self) -> List[MpiWorkerEvent]:
        found: List[MpiWorkerEvent] = []
        for chunk in self._tail.chunks():
            *lines, self._half = (self._half + chunk).split(b"\n")
            found += [self._event(json.loads(line)) for line in lines]
        return found

    def _event(self, record: Dict[str, Any]) -> MpiWorkerEvent:
        rank = int(record["rank"])
        if record["is"] == "started":
            log = run_layout.log(self._config.run_dir, self._config.stage, "worker", rank)
            reports = run_layout.reports(self._config.run_dir, self._config.stage, "worker", rank)
            offsets = {key: record[key] for key in ("log_offset", "report_offset")}
            follower = RankOutput(log, offsets["log_offset"], reports, offsets["report_offset"])
            self._running[rank] = offsets["log_offset"]
            return MpiWorkerEvent(
                "observed_start", rank, {"pid": syscalls.outside_pid_of(record["pid"]), **offsets}, follower
            )
        self._running.pop(rank, None)
        cause = cause_of(record)
        if cause is not None:
            self._causes.append((float(record["at"]), cause))
        keys = {key: record.get(key) for key in ("code", "signal", "cause")}
        return MpiWorkerEvent("observed_end", rank, keys)

    @property
    def failed(self) -> bool:
        """A worker has failed or was killed: the others can only wait for it."""
        return bool(self._causes)

    @property
    def fallen(self) -> bool:
        """A worker has failed by itself, and told how."""
        return any(cause.exit_code > 0 for _, cause in self._causes)

    def left_unsaid(self) -> List[MpiWorkerEvent]:
        """Workers that were killed together with their shim after they had printed a traceback:
        an abort in one of them leaves mpirun no time for more."""
        found = []
        for rank, offset in sorted(self._running.items()):
            log = run_layout.log(self._config.run_dir, self._config.stage, "worker", rank)
            lines = exit_causes.tail(log, offset)
            left = tracebacks.last(lines)
            if left is not None:
                cause = Cause(
                    CauseKind.USER_ERROR,
                    left.error,
                    role="worker",
                    rank=rank,
                    frame=left.frame,
                    error=left.error,
                    lines=exit_causes.kept(lines),
                )
                self._causes.append((os.path.getmtime(log), cause))
                found.append((os.path.getmtime(log), MpiWorkerEvent("observed_end", rank, {"cause": plain(cause)})))
        return [event for _, event in sorted(found, key=lambda each: each[0])]

    def first_cause(self) -> Optional[Cause]:
        """Why the worker that fell first fell; mpirun ends the others by a signal."""
        falls = sorted(self._causes, key=lambda fall: fall[0])
        by_itself = [cause for _, cause in falls if cause.exit_code > 0 or cause.error]
        return by_itself[0] if by_itself else falls[0][1] if falls else None
