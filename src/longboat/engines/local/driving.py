"""Runs a Plan on this machine: checks what it needs, then hands it to the driver.

`check` finds what would fail before anything is created. `drive` makes the calling process the
run's driver until the run has ended. `stop` asks another process's run to end.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from longboat import __version__, host, runtime
from longboat.engines import secret_values
from longboat.engines.local import driver_orders, leftover_processes, scratch_dir
from longboat.engines.local.supervisor import LocalLauncher, SupervisorLost
from longboat.runtime import debug_log, driver_lock, run_layout
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.archive import archive_results
from longboat.runtime.driver.driver import Driver, DriverOptions
from longboat.runtime.driver.history import RunHistory, look_back, run_anew
from longboat.runtime.driver.stop_signals import catch, stopped_by
from longboat.runtime.errors import FAILED, INTERRUPTED, LongboatError
from longboat.runtime.journal import FULL, JournalFull, JournalWriter, stream
from longboat.runtime.plan import Plan, Stage
from longboat.runtime.seat import Seat
from longboat.runtime.shapes import SHAPES


def check(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raises an error for what this machine lacks, before anything is created."""
    debug_log.level_of(environ)
    _check_serving(plan)
    secret_values.values(plan, environ)
    _check_limits(plan)
    for mount in plan.storage:
        if mount.path and not os.path.isdir(mount.path) and (mount.read_only or os.path.lexists(mount.path)):
            raise LongboatError(
                f"storage {mount.name}: {mount.path} is not a directory",
                "create it, or change the path in the job file",
            )
    have = host.visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"))
    for stage in plan.stages:
        needed = sum(role.ranks * role.resources.gpu for role in stage.roles)
        if needed > len(have):
            raise LongboatError(
                f"stage {stage.name} asks for {needed} GPUs "
                f"({' + '.join(f'{r.ranks} x {r.resources.gpu} {r.name}' for r in stage.roles if r.resources.gpu)})"
                f" and this machine has {len(have)}",
                "ask for fewer ranks or fewer GPUs per rank",
            )
        if stage.kind == "gang" and SHAPES[stage.shape].launcher:
            from longboat.runtime.agent import mpi

            first = stage.python or host.programs()
            if mpi.find([first], environ.get("PATH", "")) is None:
                from longboat.install_hint import install_command

                raise LongboatError(
                    f"stage {stage.name} has shape {stage.shape} and no mpirun was found in {first} or on PATH",
                    f"install one: {install_command('mpi')}",
                )
    if plan.code and not os.path.isdir(plan.code):
        raise LongboatError(f"code: {plan.code} is not a directory", "change `code:` in the job file")


def _check_serving(plan: Plan) -> None:
    """Checks ports and packages now, so that a model trained for an hour does not find its port in use."""
    for stage in plan.stages:
        if stage.kind in ("serve", "bench"):
            missing = host.lacking((*host.SERVING, *host.SERVING_GRPC))
            if missing:
                from longboat.install_hint import install_command

                raise LongboatError(
                    f"stage {stage.name}: a {stage.kind} stage needs {', '.join(missing)}",
                    install_command("serve"),
                )
        for port in (stage.serve.port, stage.serve.grpc_port) if stage.serve is not None else ():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise LongboatError(
                        f"stage {stage.name}: cannot listen on port {port}: {error.strerror}",
                        "stop the program that uses it, or change the stage's `port` and `grpc_port`",
                    ) from None


def _check_limits(plan: Plan) -> None:
    """The driver holds a connection to each agent, and each rank is at least two processes."""
    ranks = max((stage.ranks for stage in plan.stages), default=0)
    for name, limit, each, spare in (
        ("open files (ulimit -n)", resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1, 64),
        ("processes (ulimit -u)", resource.getrlimit(resource.RLIMIT_NPROC)[1], 2, 16),
    ):
        if limit != resource.RLIM_INFINITY and ranks * each + spare > limit:
            raise LongboatError(
                f"{ranks} ranks on this machine need {ranks * each + spare} {name}, and the limit is {limit}",
                "ask for fewer ranks, or raise the limit",
            )


def drive(
    plan: Plan,
    run_dir: str,
    home: str,
    environ: Mapping[str, str],
    settle: Callable[[], None],
    say: Callable[[str], None],
    begun: Callable[[], None],
) -> int:
    """Runs the plan in this process to its end and returns the exit code. A run directory that already has a journal is
    resumed. `settle` is called once this process holds the run's lock and is its only writer, `say` before slow steps,
    and `begun` once the first agents are launched."""
    catch(_interrupt)  # until the driver listens
    held = driver_lock.take(run_dir)
    debug_log.begin(debug_log.level_of(environ), "driver", os.path.join(run_dir, run_layout.DRIVER_LOG))
    settle()
    _forget(os.path.join(run_dir, run_layout.STOP))
    values = secret_values.values(plan, environ)
    orders = driver_orders.read(run_dir)
    before = look_back(stream(run_dir))
    archive_results(run_dir, before, orders.again)
    before = run_anew(before, orders.again)
    journal = JournalWriter(run_dir, redact=tuple(values.values()))
    scratch = ""
    try:
        packages = _packages(plan, home, say)
        scratch = scratch_dir.make(environ)
        configs = AgentConfigs(plan, run_dir, home, {**environ, **values}, packages, scratch)
        listener, launcher, driver = _start(configs, journal, before, orders)
        with _all_files():  # the fork server already runs, with the limit that the user set
            return driver.run(listener, launcher, begun)
    except LongboatError as error:
        facts = (error.hint,) if error.hint else ()
        cause = Cause(CauseKind.MISSING_INPUT, error.message, evidence=facts)
        _end(journal, "failed", error.code, cause)
        raise
    except KeyboardInterrupt as interrupt:
        cause = Cause(CauseKind.STOPPED, f"stopped by {stopped_by(interrupt.args[0], run_dir)}")
        return _end(journal, "stopped", INTERRUPTED, cause)
    except SupervisorLost as error:
        cause = Cause(CauseKind.DRIVER_LOST, str(error), evidence=("the driver itself was alive",))
        return _end(journal, "failed", FAILED, cause)
    except Exception as error:
        if not os.path.isdir(run_dir):
            raise LongboatError(f"{run_dir} was removed while the run was under way; its ranks were ended") from None
        return _end(journal, "failed", FAILED, _failure(run_dir, error))
    finally:
        journal.close()
        if scratch:
            scratch_dir.remove(scratch)
        os.close(held)


def _end(journal: JournalWriter, state: str, code: int, cause: Cause) -> int:
    """Records how the run ended, if the disk has room for it; returns the exit code."""
    with contextlib.suppress(JournalFull):
        journal.write("run.ended", state=state, code=code, cause=cause)
    return code


def _failure(run_dir: str, error: Exception) -> Cause:
    """The cause for an unexpected error; its traceback goes to the driver's log."""
    import traceback

    text = "".join(traceback.format_exception(error))
    log = os.path.join(run_dir, run_layout.DRIVER_LOG)
    with contextlib.suppress(OSError), open(log, "a", encoding="utf-8") as file:
        file.write(text)
    if isinstance(error, OSError) and error.errno in FULL:
        return Cause(CauseKind.DISK_FULL, f"the disk of {error.filename or run_dir} is full")
    return Cause(CauseKind.INTERNAL, "Longboat itself failed", lines=tuple(text.splitlines()[-8:]))


def _start(
    configs: AgentConfigs, journal: JournalWriter, before: RunHistory, orders: driver_orders.DriverOrders
) -> tuple[socket.socket, LocalLauncher, Driver]:
    """Starts the supervisor, and announces the run."""
    plan, run_dir = configs.plan, configs.run_dir
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(configs.address)
    listener.listen(1024)
    read_only = [m.path for m in plan.storage if m.read_only and m.path]
    protected = [path for path in read_only if not (run_dir + "/").startswith(path.rstrip("/") + "/")]
    leftovers = leftover_processes.end(run_dir) if before.last else []
    launcher = LocalLauncher(configs.config, configs.scratch, protected)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, lambda *_: launcher.pause())
    options = DriverOptions(left_out=orders.left_out, keep=orders.keep)
    driver = Driver(plan, run_dir, journal, configs.token, before, options)
    journal.write(
        "run.started",
        run=configs.run_id,
        name=plan.name,
        pid=os.getpid(),
        host=socket.gethostname(),
        engine="local",
        contained=launcher.containment.kind,
        version=__version__,
        resumed=bool(before.last) or None,
    )
    if leftovers:
        text = f"ended {len(leftovers)} processes that an earlier driver left: {', '.join(map(str, leftovers))}"
        journal.write("note", text=text, level="warning")
    if read_only and (read_only != protected or not launcher.containment.complete):
        text = f"nothing keeps ranks from writing to {', '.join(read_only)} on this machine"
        journal.write("note", text=text, level="warning")
    for stage in before.passed:
        journal.write("stage.reused", stage=stage)
    return listener, launcher, driver


@contextlib.contextmanager
def _all_files() -> Iterator[None]:
    """Raises the limit of open files to the maximum: the driver holds one for each agent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _packages(plan: Plan, home: str, say: Callable[[str], None]) -> dict[str, str]:
    """Stage -> directory of the job's requirements for its Python; empty if that Python has them already."""
    if not plan.requirements:
        return {}
    from longboat.engines.local import requirements

    pythons = {stage.name: stage.python or host.programs() for stage in plan.stages if stage.kind == "gang"}
    directories = {python: requirements.directory(plan, python, home, say) for python in set(pythons.values())}
    return {stage: directories[python] for stage, python in pythons.items()}


def _interrupt(signum: int, _frame: object) -> None:
    raise KeyboardInterrupt(signum)


class AgentConfigs:
    """The config that each agent of a run starts with."""

    def __init__(
        self,
        plan: Plan,
        run_dir: str,
        home: str,
        base: Mapping[str, str],
        packages: Mapping[str, str],
        scratch: str,
    ) -> None:
        self.plan = plan
        self.run_id = os.path.basename(run_dir)
        self.run_dir = run_dir
        self.scratch = scratch
        self.address = os.path.join(scratch, scratch_dir.SOCKET)
        """The driver's socket."""
        self.token = os.urandom(32)
        temporary = os.path.join(scratch, "tmp")
        os.mkdir(temporary, 0o700)
        self._base = {**base, "TMPDIR": temporary}
        self._packages = packages
        self._mounts = {m.name: m.path or run_layout.storage(run_dir, m.name) for m in plan.storage}
        for mount in plan.storage:
            if not mount.read_only or not mount.path:
                _make(self._mounts[mount.name])
        self._data = self._mounts.get("data", os.path.join(home, "data"))
        _make(self._data)
        self._gpus = host.visible_gpus(base.get("CUDA_VISIBLE_DEVICES"))
        self._cores = max(1, int(host.cores().usable))

    def config(self, seat: Seat, ports: Sequence[int]) -> AgentConfig:
        stage = self.plan.stage(seat.stage)
        return AgentConfig(
            plan=self.plan,
            run_id=self.run_id,
            run_dir=self.run_dir,
            seat=seat,
            driver=self.address,
            token=self.token,
            base=self._base_of(seat.stage),
            data=self._data,
            rank_path=runtime.RANK_PATH,
            python=host.programs(),
            threads=self._threads(stage, seat.role),
            gpus=self._gpus_of(stage, seat.role, seat.rank),
            mounts=self._mounts,
            ports=tuple(ports),
        )

    def _base_of(self, stage: str) -> Mapping[str, str]:
        packages = self._packages.get(stage)
        if not packages:
            return self._base
        rest = self._base.get("PYTHONPATH")
        path = self._base.get("PATH") or os.defpath
        added = {"PYTHONPATH": f"{packages}:{rest}" if rest else packages, "PATH": f"{path}:{packages}/bin"}
        return {**self._base, **added}

    def _threads(self, stage: Stage, role: str) -> int:
        ranks = stage.ranks
        cores = next((r.resources.cpu for r in stage.roles if r.name == role), None)
        if cores:
            return max(1, int(cores))
        return max(1, self._cores // ranks) if ranks > 1 else 0

    def _gpus_of(self, stage: Stage, role: str, rank: int) -> tuple[str, ...]:
        first = 0
        for each in stage.roles:
            if each.name == role:
                begin = first + rank * each.resources.gpu
                return self._gpus[begin : begin + each.resources.gpu]
            first += each.ranks * each.resources.gpu
        return ()


def stop(run_dir: str, by: str = "longboat stop", now: bool = False, wait: float | None = None) -> bool:
    """Asks a run to stop, with its grace period or at once. False if it has no driver, or if it has not ended after
    `wait` seconds."""
    pid, name = driver_lock.holder(run_dir), os.path.basename(run_dir)
    if not pid:
        return False
    if pid < 0:  # a negative PID would signal a process group
        raise LongboatError(
            f"{name} is driven from another PID namespace and cannot be signalled from here",
            "stop it where it was started: outside of its ranks, or in that container",
        )
    try:
        with open(os.path.join(run_dir, run_layout.STOP), "w", encoding="utf-8") as file:
            file.write(by)
        os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
    except ProcessLookupError:
        return True
    except OSError as error:
        raise LongboatError(f"cannot stop {name}: {error.strerror}", "ask the user who started it") from None
    due = time.monotonic() + (wait or 0)
    while wait is not None and driver_lock.holder(run_dir) == pid:
        if time.monotonic() > due:
            return False
        time.sleep(0.02)
    return True


def driven(run_dir: str) -> bool:
    return driver_lock.holder(run_dir) != 0


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise LongboatError(
            f"cannot create the directory {directory}: {error.strerror}",
            "create it yourself, or change the path in the job file",
        ) from None


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
