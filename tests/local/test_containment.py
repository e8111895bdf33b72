"""The box that a run lives in, as root, as nobody, and where the kernel allows no box."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.engines.local import containment
from longboat.runtime.agent import syscalls
from tests.local.place import Place, until

LOOK = """
import json, os, subprocess, tempfile
here = os.environ["LONGBOAT_OUTPUT_DIR"]
open("/dev/shm/segment", "w").close()
with tempfile.NamedTemporaryFile(delete=False) as file:
    file.write(b"left")
with open(os.path.join(here, "seen"), "w") as file:
    json.dump({
        "pid": os.getpid(),
        "self": os.readlink("/proc/self"),
        "shm": os.listdir("/dev/shm"),
        "tmp": tempfile.gettempdir(),
        "processes": [n for n in os.listdir("/proc") if n.isdigit()],
        "uid": os.getuid(),
    }, file)
print("up", flush=True)
"""

CLING = """
import os, subprocess, time
subprocess.Popen(["setsid", "sleep", "600"])
print("up", flush=True)
time.sleep(600)
"""


def contained(longboat: Place) -> str:
    return str(longboat.events("run.started")[0]["contained"])


def seen(longboat: Place) -> dict[str, object]:
    import json

    found: dict[str, object] = json.loads(longboat.output("seen"))
    return found


@pytest.fixture
def nobody(longboat: Place) -> Iterator[Place]:
    """The place, for a user without rights: the interpreter may have to be another one, which nobody can read too."""
    if os.geteuid() != 0:
        yield longboat
        return
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv is needed to run as another user"
    become = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    candidates = [sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    for python in candidates:
        check = [*become, python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            works = subprocess.run(check, capture_output=True, check=False).returncode == 0
        except OSError:
            continue
        if works:
            break
    else:
        pytest.fail(f"none of {candidates} can be run by nobody")
    place = Path(tempfile.mkdtemp(prefix="lb-nobody-"))
    shutil.rmtree(longboat.code)
    longboat.home, longboat.code = place / "home", place / "code"
    longboat.code.mkdir()
    for path in (place, longboat.code, longboat.tmp):
        os.chown(path, 65534, 65534)
        path.chmod(0o755)
    longboat.python = [*become, python]
    yield longboat
    shutil.rmtree(place)


def as_nobody(longboat: Place) -> dict[str, str]:
    import yaml

    import longboat as package

    paths = [str(Path(package.__file__).parents[1]), str(Path(yaml.__file__).parents[1])]
    return {"HOME": str(longboat.home.parent), "PYTHONPATH": ":".join(paths)}


def test_a_run_has_processes_temporary_files_and_shared_memory_of_its_own(longboat: Place) -> None:
    said = longboat.run("run: [python, look.py]\n", look=LOOK)
    assert said.code == 0, said.err
    probe = "from longboat.engines.local import containment; print(containment.probe().kind)"
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert contained(longboat) == told.strip()
    found = seen(longboat)
    assert str(found["tmp"]).startswith(f"{longboat.tmp}/longboat-")
    assert longboat.scratch() == []
    if contained(longboat) == containment.NAMESPACE.kind:
        assert found["self"] == str(found["pid"])
        assert found["shm"] == ["segment"]
        assert str(os.getpid()) not in found["processes"]  # type: ignore[operator]
        assert not os.path.exists("/dev/shm/segment")


def test_a_user_without_rights_gets_the_same_box(nobody: Place) -> None:
    said = nobody.run("run: [python3, look.py]\n", env=as_nobody(nobody), look=LOOK)
    assert said.code == 0, said.err
    assert contained(nobody) == containment.NAMESPACE.kind
    assert seen(nobody)["uid"] == (65534 if os.geteuid() == 0 else os.geteuid())
    assert seen(nobody)["shm"] == ["segment"]
    if os.geteuid() == 0:
        assert (nobody.dir / "events.jsonl").stat().st_uid == 65534


def test_a_killed_driver_of_a_user_without_rights_leaves_nothing(nobody: Place) -> None:
    command = nobody.start("run: [python3, cling.py]\n", env=as_nobody(nobody), cling=CLING)
    nobody.printed("up")
    command.kill()
    nobody.nothing_is_left()


def without_namespaces(longboat: Place) -> None:
    """A longboat whose kernel refuses namespaces: it is denied by a limit of none in a user namespace of its own."""
    limits = Path("/proc/sys/user/max_pid_namespaces")
    script = f'echo 0 > {limits}; exec "$@"'
    unshare = ["unshare", "--user", "--map-root-user", "--", "sh", "-c", script, "sh"]
    denied = subprocess.run([*unshare, "unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    assert limits.exists(), "this kernel has no limits of namespaces"
    assert denied.returncode != 0, "namespaces must be refused, or this test shows nothing"
    longboat.python = [*unshare, sys.executable]


def test_without_namespaces_a_run_works_and_says_how_it_is_contained(longboat: Place) -> None:
    without_namespaces(longboat)
    said = longboat.run(
        "run: [python, once.py]\nshape: allreduce\nranks: 2\n",
        once="""
        import os, subprocess
        subprocess.Popen(["setsid", "sleep", "600"])
        if os.environ["LONGBOAT_GENERATION"] == "1" and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        """,
    )
    assert said.code == 0, said.err
    assert contained(longboat) == containment.REAPER.kind
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]


def test_without_namespaces_a_killed_driver_still_leaves_nothing(longboat: Place) -> None:
    without_namespaces(longboat)
    command = longboat.start("run: [python, cling.py]\nshape: allreduce\nranks: 2\n", cling=CLING)
    longboat.printed("up", 0)
    longboat.printed("up", 1)
    driver = until(lambda: longboat.events("run.started"))[0]["pid"]
    os.kill(driver, signal.SIGKILL)
    command.said()
    longboat.nothing_is_left()


def test_without_namespaces_a_killed_supervisor_leaves_nothing(longboat: Place) -> None:
    without_namespaces(longboat)
    command = longboat.start("run: [python, cling.py]\n", cling=CLING)
    longboat.printed("up")
    rank = until(lambda: longboat.events("rank.started"))[0]["pid"]
    supervisor = rank
    for _ in range(3):
        supervisor = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert command.said().code == 1
    longboat.nothing_is_left()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_namespaces_a_resumed_run_ends_what_the_earlier_driver_left(longboat: Place) -> None:
    without_namespaces(longboat)
    command = longboat.start(
        "run: |\n  python train.py\n  exit $?\nshape: allreduce\nranks: 2\n",
        train="""
        import os, time
        print("up", os.environ["LONGBOAT_GENERATION"], flush=True)
        while not os.path.exists("enough"):
            time.sleep(0.01)
        """,
    )
    longboat.printed("up 1", 0)
    longboat.printed("up 1", 1)
    until(lambda: len(longboat.events("rank.started")) == 2)
    shells = [event["pid"] for event in longboat.events("rank.started")]
    trainers = [pid for shell in shells for pid in syscalls.descendants(shell)]
    assert len(trainers) == 2
    for pid in (command.pid, *(pid for pid in syscalls.descendants(command.pid) if pid not in trainers)):
        os.kill(pid, signal.SIGSTOP)  # so that none of them can end another
    for pid in (*syscalls.descendants(command.pid), command.pid):
        if pid not in trainers:
            os.kill(pid, signal.SIGKILL)
    command.process.wait()
    assert all(runs(pid) for pid in trainers), "they must survive, or this test shows nothing"
    longboat.python = [sys.executable]  # a second user namespace could not look into the first one's processes
    resumed = longboat.begin("run", "--resume", longboat.id)
    longboat.printed("up 2", 0)
    assert not any(runs(pid) for pid in trainers)
    longboat.file("enough", "")
    said = resumed.said()
    assert said.code == 0, said.err
    assert any("ended 2 processes that an earlier driver left" in e["text"] for e in longboat.events("note"))
    for name in longboat.scratch():  # of the killed driver: its supervisor, which removes it, was killed as well
        shutil.rmtree(longboat.tmp / name)


def test_a_temporary_directory_with_a_very_long_name_is_no_hindrance(longboat: Place) -> None:
    long = longboat.code / ("x" * 100)
    long.mkdir()
    said = longboat.run("run: echo $TMPDIR\n", env={"TMPDIR": str(long)})
    assert said.code == 0, said.err


def test_a_temporary_directory_that_is_not_there_is_said_with_the_fix(longboat: Place) -> None:
    said = longboat.run("run: 'true'\n", env={"TMPDIR": "/no/such/place"})
    assert said.code == 2
    assert said.err.startswith("error: cannot create a directory in /no/such/place: No such file or directory\n")
    assert said.err.endswith("hint: set TMPDIR\n")
    assert longboat.status()["state"] == "failed"


def test_a_user_without_rights_can_run_a_command_beside_a_rank_of_his(nobody: Place) -> None:
    env = as_nobody(nobody)
    command = nobody.start("run: [python3, cling.py]\n", env=env, cling=CLING)
    nobody.printed("up")
    until(lambda: nobody.events("rank.started"))
    said = nobody(
        "exec", nobody.id, "--", "sh", "-c", "id -u; readlink /proc/self/ns/pid; ls /dev/shm; exit 3", env=env
    )
    assert said.code == 3, said.err
    uid, namespace = said.out.split()
    assert int(uid) == (65534 if os.geteuid() == 0 else os.geteuid())
    assert namespace != os.readlink("/proc/self/ns/pid")
    assert nobody("stop", "--now", env=env).code == 0
    assert command.said().code == 130
