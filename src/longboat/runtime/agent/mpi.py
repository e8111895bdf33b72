"""Ranks started by mpirun: the launcher's agent runs mpirun, and mpirun runs our shim for each rank.

The shim (`mpi_shim`) gives each MPI process its log, environment and a record of how it ended; the
launcher's agent reads those records. mpirun is searched in the stage's environment before PATH: a wheel's
mpirun with a system library of another MPI is the classic way to get N jobs of size 1.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from longboat import runtime
from longboat.runtime import run_layout
from longboat.runtime.agent import exit_causes, mpi_remote, syscalls, tracebacks
from longboat.runtime.agent.agent_config import AgentConfig, places_of
from longboat.runtime.agent.rank_output import FileTail, RankOutput
from longboat.runtime.agent.rank_process import ProgramNotFound
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.journal import cause_of, plain
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.plan import Stage
from longboat.runtime.rank_env import World, environment

INSTALL = "pip install mpich mpi4py"


@dataclass(frozen=True)
class Mpirun:
    """An mpirun program."""

    path: str
    vendor: str
    """mpich or openmpi."""


def find(first: Sequence[str], path: str) -> Optional[Mpirun]:
    """Find mpirun: in the given directories, else the first on PATH."""
    for directory in [*first, *path.split(":")]:
        for name in ("mpirun", "mpiexec"):
            program = os.path.join(directory, name)
            if os.access(program, os.X_OK):
                return Mpirun(program, _vendor(program))
    return None


def _vendor(program: str) -> str:
    """Guess the vendor from the files next to mpirun: running it for its version takes longer than starting a job."""
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
    """The command of a seat whose launcher and workers have pods of their own: mpirun over all workers, or the server
    that runs mpirun's process in a worker's pod. Changes `env` so that the right MPI is loaded."""
    first = [stage.python or config.python]
    mpirun = find(first, config.base.get("PATH", ""))
    if mpirun is None:
        raise ProgramNotFound(f"no mpirun was found; install it with: {INSTALL}", [*first, "PATH"])
    library = os.path.join(os.path.dirname(os.path.dirname(mpirun.path)), "lib")
    if os.path.isdir(library):
        env["LD_LIBRARY_PATH"] = library + (":" + env["LD_LIBRARY_PATH"] if env.get("LD_LIBRARY_PATH") else "")
    # The same path in every pod: mpirun passes one program path to all its processes.
    directory = os.path.join("/tmp", f"longboat-mpi-{config.seat.stage}-{world.generation}-{restart}")
    workers = world.peers["worker"]
    cwd = config.plan.code or os.getcwd()
    settings: Dict[str, Any] = {"token": config.token.hex(), "size": len(workers), "cwd": cwd}
    if config.seat.role == "worker":
        settings["port"] = workers[config.seat.rank].ports[0]
        log = run_layout.log(config.run_dir, config.seat.stage, config.seat.role, config.seat.rank)
        begins = os.path.getsize(log) if os.path.exists(log) else 0
        mpi_remote.prepare(directory, {**settings, "env": env, "log": log, "begins": begins})
        return (*mpi_remote.PROGRAM, mpi_remote.NAME, directory)
    settings["ports"] = {worker.host: worker.ports[0] for worker in workers}
    mpi_remote.prepare(directory, settings)
    hosts, remote_shell = [worker.host for worker in workers], os.path.join(directory, mpi_remote.REMOTE_SHELL)
    run_rank = os.path.join(directory, mpi_remote.RUN_RANK)
    if mpirun.vendor == "mpich":
        flags = ["-launcher", "ssh", "-launcher-exec", remote_shell, "-localhost", config.host]
        return (mpirun.path, *flags, "-hosts", ",".join(hosts), "-ppn", "1", "-n", str(len(hosts)), run_rank, *command)
    for name in ("PRTE_MCA_plm_ssh", "OMPI_MCA_plm_rsh"):
        env[f"{name}_agent"], env[f"{name}_no_tree_spawn"] = remote_shell, "1"
    env.setdefault("SHELL", "/bin/sh")  # else it logs a warning about a user that passwd does not list
    flags = ["--host", ",".join(f"{host}:1" for host in hosts), "--bind-to", "none"]
    return (mpirun.path, *flags, "-n", str(len(hosts)), run_rank, *command)


@dataclass(frozen=True)
class MpiWorkerEvent:
    """An event that a shim recorded: `observed_start` or `observed_end`."""

    kind: str
    rank: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    follower: Optional[RankOutput] = None


class MpiWorkers:
    """The MPI processes of one incarnation of the launcher."""

    def __init__(self, config: AgentConfig, stage: Stage, world: World, restart: int) -> None:
        self._config = config
        self._stage = stage
        self._world = world
        self._restart = restart
        import tempfile

        self._scratch = tempfile.mkdtemp(prefix="mpi-", dir=config.base.get("TMPDIR"))
        self._records = os.path.join(self._scratch, "records.jsonl")
        self._tail = FileTail(self._records, 0)
        self._half = b""
        self._causes: List[Tuple[float, Cause]] = []
        self._running: Dict[int, int] = {}
        """Rank -> start of its log, for workers whose end is not recorded."""

    def command(self, command: Sequence[str], env: Dict[str, str]) -> Tuple[str, ...]:
        """The mpirun command line; changes `env` so that the right MPI is loaded."""
        first = [self._stage.python or self._config.python]
        mpirun = find(first, self._config.base.get("PATH", ""))
        if mpirun is None:
            raise ProgramNotFound(f"no mpirun was found; install it with: {INSTALL}", [*first, "PATH"])
        workers = self._stage.role("worker").ranks
        library = os.path.join(os.path.dirname(os.path.dirname(mpirun.path)), "lib")
        if os.path.isdir(library):
            env["LD_LIBRARY_PATH"] = library + (":" + env["LD_LIBRARY_PATH"] if env.get("LD_LIBRARY_PATH") else "")
        settings = os.path.join(self._scratch, "shim.json")
        with open(settings, "w", encoding="utf-8") as file:
            json.dump(self._settings(command, workers), file)
        os.chmod(settings, 0o600)
        shim = os.path.join(runtime.HERE, "agent", "mpi_shim.py")
        flags: Tuple[str, ...] = ()
        if mpirun.vendor == "openmpi":
            flags = ("--oversubscribe", "--bind-to", "none")
            if os.geteuid() == 0:
                flags += ("--allow-run-as-root",)
        return (mpirun.path, "-n", str(workers), *flags, sys.executable, "-S", "-E", shim, settings)

    def _settings(self, command: Sequence[str], workers: int) -> Dict[str, Any]:
        config, world = self._config, self._world
        ranks = []
        for rank in range(workers):
            places = places_of(config, world.generation, "worker", rank)
            env = environment(self._stage, "worker", rank, self._restart, world, places, {})
            for name in ("PATH", "PYTHONPATH"):
                env.pop(name)
            log = run_layout.log(config.run_dir, config.seat.stage, "worker", rank)
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
        """Events recorded since the last call."""
        events: List[MpiWorkerEvent] = []
        for chunk in self._tail.chunks():
            *lines, self._half = (self._half + chunk).split(b"\n")
            events += [self._event(json.loads(line)) for line in lines]
        return events

    def _event(self, record: Dict[str, Any]) -> MpiWorkerEvent:
        rank = int(record["rank"])
        if record["is"] == "started":
            log = run_layout.log(self._config.run_dir, self._config.seat.stage, "worker", rank)
            reports = run_layout.reports(self._config.run_dir, self._config.seat.stage, "worker", rank)
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
        """A worker failed or was killed: the others can only wait for it."""
        return bool(self._causes)

    @property
    def failed_alone(self) -> bool:
        """A worker failed by itself, and its exit is recorded."""
        return any(cause.exit_code > 0 for _, cause in self._causes)

    def unrecorded_ends(self) -> List[MpiWorkerEvent]:
        """Ends of workers that were killed together with their shim after they printed a traceback: an abort in
        one of them leaves mpirun no time for more."""
        ends = []
        for rank, offset in sorted(self._running.items()):
            log = run_layout.log(self._config.run_dir, self._config.seat.stage, "worker", rank)
            lines = exit_causes.tail(log, offset)
            traceback = tracebacks.last(lines)
            if traceback is not None:
                cause = Cause(
                    CauseKind.USER_ERROR,
                    traceback.error,
                    role="worker",
                    rank=rank,
                    frame=traceback.frame,
                    error=traceback.error,
                    lines=exit_causes.kept(lines),
                )
                self._causes.append((os.path.getmtime(log), cause))
                ends.append((os.path.getmtime(log), MpiWorkerEvent("observed_end", rank, {"cause": plain(cause)})))
        return [event for _, event in sorted(ends, key=lambda each: each[0])]

    def first_cause(self) -> Optional[Cause]:
        """The cause of the worker that failed first; mpirun kills the others with a signal."""
        failures = sorted(self._causes, key=lambda failure: failure[0])
        by_itself = [cause for _, cause in failures if cause.exit_code > 0 or cause.error]
        return by_itself[0] if by_itself else failures[0][1] if failures else None
