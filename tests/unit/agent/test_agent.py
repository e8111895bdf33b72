"""The agent as a process of its own, against a driver that the test plays: real sockets, a real depot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.runtime import plan, run_layout, wire
from longboat.runtime.agent import stack_dump
from longboat.runtime.causes import CauseKind
from longboat.runtime.pod import file_server
from tests.local.place import until
from tests.ports import free_port

TOKEN = b"the run's token"
SEAT = "train/worker-0"
LIFE = [1, 0]


class Played:
    """The driver's side of one seat, word by word. Heartbeats are answered by the way."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(30)
        self.last_beat: wire.Message = {}

    def meet(self) -> wire.Message:
        """The agent joins; whoever only knocks is not it."""
        while True:
            self._link, _ = self._listener.accept()
            self._link.settimeout(30)
            self._decoder, self._heard = wire.Decoder(), list[wire.Message]()
            try:
                handshake = wire.ServerHandshake(TOKEN, wire.DRIVER)
                self._link.sendall(wire.encode(handshake.hello()))
                join = self.next()
                self._link.sendall(wire.encode(handshake.welcome(join)))
            except OSError:
                continue
            return join

    def hang_up(self) -> None:
        self._link.close()

    def say(self, kind: str, **keys: Any) -> None:
        self._link.sendall(wire.encode({"is": kind, **keys}))

    def start(self, incarnation: list[int] = LIFE, resume_from: str = "") -> None:
        peers = {"worker": [["127.0.0.1", [1, 2, 3]]]}
        told = {"peers": peers, "resume_from": resume_from, "merge_role": "", "launcher": False, "spread": False}
        self.say("start", incarnation=incarnation, attempt=1, round=1, **told)

    def hear(self, kind: str) -> wire.Message:
        """The next word that is no heartbeat must be this one."""
        while (message := self.next())["is"] == "alive":
            self.say("alive", beat=message["beat"], said=message.get("said", 0))
        assert message["is"] == kind, message
        return message

    def answer(self) -> None:
        """Of the last heartbeat that `beats_until` has read."""
        self.say("alive", beat=self.last_beat["beat"], said=self.last_beat.get("said", 0))

    def next(self) -> wire.Message:
        while not self._heard:
            data = self._link.recv(65536)
            if not data:
                raise ConnectionError("the agent is gone")
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)


class Seat:
    """The agent of a seat, in a directory of its own, with its driver."""

    def __init__(self, here: Path) -> None:
        self.here = here
        here.mkdir()
        self.driver = Played(here / "door")
        self.program = ("-m", "longboat.runtime.agent")
        self._agent: subprocess.Popen[bytes] | None = None

    def occupy(self, command: str, lease: float = 0.0, **more: str) -> Played:
        """An agent comes, and is welcomed by the driver."""
        stages = (
            plan.Stage("prepare", shape="allreduce", roles=(plan.Role("worker", 1),)),
            plan.Stage(
                "train",
                shape="allreduce",
                after=("prepare",),
                roles=(plan.Role("worker", 1, command=("sh", "-c", command)),),
            ),
        )
        (self.here / run_layout.PLAN).write_text(plan.to_json(plan.Plan("job", stages=stages)))
        (self.here / "token").write_bytes(TOKEN)
        told = {"SEAT": SEAT, "RUN": "run", "DIRECTORY": str(self.here), "DRIVER": self.driver.path}
        told |= {"TOKEN_FILE": str(self.here / "token"), "LEASE": str(lease), "TERMINATION": str(self.here / "last")}
        env = {**os.environ, **{f"LONGBOAT_AGENT_{name}": value for name, value in {**told, **more}.items()}}
        self._agent = subprocess.Popen([sys.executable, *self.program], env=env, cwd=self.here)
        self.driver.meet()
        return self.driver

    def warn(self) -> None:
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        assert self._agent is not None
        self._agent.send_signal(number)

    def left(self) -> int:
        assert self._agent is not None
        return self._agent.wait(30)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    seat = Seat(tmp_path / "here")
    yield seat
    seat.close()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A depot: its directory and its address."""
    (tmp_path / "there").mkdir()
    port = free_port()
    pid = file_server.serve(str(tmp_path / "there"), TOKEN, port)
    yield tmp_path / "there", f"127.0.0.1:{port}"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_life_is_told_from_its_start_to_its_end_and_then_another_one(seat: Seat) -> None:
    driver = seat.occupy("echo 'longboat: step=3'; exit $LONGBOAT_RESTART")
    driver.start()
    assert driver.hear("started")["incarnation"] == LIFE
    assert driver.hear("report")["points"][0]["step"] == 3
    ended = driver.hear("exited")
    assert (ended["code"], ended["asked"], ended["cause"]) == (0, False, None)
    driver.start([1, 1])
    driver.hear("started")
    driver.hear("report")
    assert driver.hear("exited")["code"] == 1
    driver.say("bye")
    assert seat.left() == 0
    assert (seat.here / "last").read_text().startswith("train/worker-0, generation 1: ")


OUTRUN = """
import os, runpy, time
from longboat.runtime.agent import agent

class Outrun(agent.RankProcess):
    def __init__(self, command, env, *rest):
        super().__init__(command, env, *rest)
        while not os.path.exists(env["LONGBOAT_REPORT_FILE"]):
            time.sleep(0.01)

agent.RankProcess = Outrun
runpy.run_module("longboat.runtime.agent", run_name="__main__")
"""


def test_what_a_rank_reports_before_its_agent_gets_to_look_is_heard(seat: Seat) -> None:
    seat.program = ("-c", OUTRUN)
    driver = seat.occupy("""file=$LONGBOAT_REPORT_FILE; echo '{"step": 3}' > "$file.new"; mv "$file.new" "$file" """)
    driver.start()
    assert driver.hear("started")["report_offset"] == 0
    assert driver.hear("report")["points"][0]["step"] == 3
    assert driver.hear("exited")["code"] == 0


def test_what_a_rank_says_behind_a_flood_is_heard_before_its_end(seat: Seat) -> None:
    driver = seat.occupy(f"{sys.executable} -c 'import os; os.ftruncate(1, 400 << 20)'; echo; echo 'longboat: step=7'")
    driver.start()
    driver.hear("started")
    assert driver.hear("report")["points"][0]["step"] == 7
    assert driver.hear("exited")["code"] == 0


def test_without_a_lease_the_drivers_end_is_the_agents(seat: Seat) -> None:
    driver = seat.occupy("exec sleep 600")
    driver.start()
    pid = driver.hear("started")["pid"]
    driver.hang_up()
    assert seat.left() == 1
    assert not Path(f"/proc/{pid}").exists()


def test_what_could_not_be_said_is_said_once_the_driver_is_found(seat: Seat) -> None:
    driver = seat.occupy("until [ -e go ]; do sleep 0.05; done; echo 'longboat: step=7'; exit 2", lease=60)
    driver.start()
    pid = driver.hear("started")["pid"]
    driver.hang_up()
    (seat.here / "go").touch()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of its process")
    driver.meet()
    assert driver.hear("report")["points"][0]["step"] == 7
    assert driver.hear("exited")["code"] == 2


def test_what_a_driver_took_to_its_grave_is_said_again_and_the_end_after_it(seat: Seat) -> None:
    driver = seat.occupy("until [ -e go ]; do sleep 0.05; done; echo 'longboat: accuracy=0.9'", lease=60)
    driver.start()
    driver.hear("started")
    (seat.here / "go").touch()
    told = driver.hear("report")
    driver.hear("exited")
    driver.hang_up()
    assert driver.meet()["owes"] is True
    assert driver.next() == told
    seen = driver.next()
    assert (seen["is"], seen["exit"]["code"], seen["said"]) == ("alive", 0, told["word"])


def test_what_a_driver_has_answered_for_is_not_said_again(seat: Seat) -> None:
    driver = seat.occupy("echo 'longboat: step=1'; exec sleep 600", lease=60)
    driver.start()
    driver.hear("started")
    word = driver.hear("report")["word"]
    while (beat := driver.next()).get("said") != word:
        pass
    driver.say("alive", beat=beat["beat"], said=word)
    driver.say("stacks", incarnation=LIFE)
    driver.hear("stacks")  # so it has heard the answer too
    driver.hang_up()
    assert driver.meet()["owes"] is False


def test_a_driver_that_is_silent_for_a_third_of_the_lease_is_looked_for(seat: Seat) -> None:
    driver = seat.occupy("exec sleep 600", lease=9)
    driver.start()
    assert driver.meet()["running"] is True
    driver.say("kill", incarnation=LIFE, grace=0.0)
    assert driver.hear("exited")["asked"] is True


def test_one_that_is_cut_off_for_longer_than_its_lease_ends_its_process(seat: Seat) -> None:
    driver = seat.occupy("exec sleep 600", lease=6)
    driver.start()
    pid = driver.hear("started")["pid"]
    driver.hang_up()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of its process")
    ended = driver.meet()["exit"] or driver.hear("exited")
    assert (ended["asked"], ended["cause"]["kind"]) == (False, CauseKind.NODE_LOST.value)


def test_a_loop_that_hangs_in_a_read_does_not_outlive_the_lease(seat: Seat) -> None:
    reports = Path(run_layout.reports(str(seat.here), "train", "worker", 0))
    reports.parent.mkdir(parents=True)
    os.mkfifo(reports)  # whoever opens it waits, as for a file server that does not answer
    driver = seat.occupy("setsid sleep 600 & echo $! > other; exec sleep 600", lease=6)
    driver.start()
    pid = driver.hear("started")["pid"]
    until(lambda: (seat.here / "other").exists() and (seat.here / "other").read_text(), "all its processes")
    for each in (pid, int((seat.here / "other").read_text())):
        until(lambda each=each: not runs(each), "the end of its processes")  # type: ignore[misc]


def runs(pid: int) -> bool:
    """It is there, and not only waits for somebody to notice its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_stacks_are_told_with_the_states_of_all_processes(seat: Seat) -> None:
    driver = seat.occupy(f"exec {sys.executable} -c 'import os, time; os.mkdir(\"up\"); time.sleep(600)'")
    driver.start()
    driver.hear("started")
    until((seat.here / "up").exists, "its first line")
    driver.say("stacks", incarnation=LIFE)
    told = driver.hear("stacks")
    assert stack_dump.innermost(told["text"]) == ("<string>:1 in <module>",)
    (state,) = told["states"]
    assert "time.sleep(600)" in state


def beats_until(driver: Played, key: str) -> None:
    """Reads heartbeats, none of which is answered, up to one with this key."""
    while True:
        message = driver.next()
        assert message["is"] == "alive", message
        if message.get(key):
            driver.last_beat = message
            return


def test_one_whose_machine_goes_away_says_so_and_leaves_when_its_process_has_ended(seat: Seat) -> None:
    driver = seat.occupy("exec sleep 600", NAME="pod")
    driver.start()
    driver.hear("started")
    seat.warn()
    beats_until(driver, "notice")
    driver.say("kill", incarnation=LIFE, grace=5.0)
    beats_until(driver, "left")
    driver.say("start", incarnation=[2, 0])
    driver.answer()
    assert seat.left() == 0


def test_a_new_driver_hears_again_that_the_machine_goes_away(seat: Seat) -> None:
    driver = seat.occupy("trap '' TERM; touch up; while :; do sleep 0.05; done", NAME="pod", lease=60)
    driver.start()
    driver.hear("started")
    until((seat.here / "up").exists, "its trap")
    seat.warn()
    beats_until(driver, "notice")
    driver.hang_up()
    assert driver.meet()["notice"] is True
    driver.say("kill", incarnation=LIFE, grace=0.0)
    beats_until(driver, "left")
    driver.answer()
    assert seat.left() == 0


def test_without_a_driver_a_rank_whose_machine_goes_away_gets_time_to_save_and_a_later_driver_hears_of_it(
    seat: Seat, there: tuple[Path, str]
) -> None:
    depot_dir, address = there
    record = '{"checkpoint": {"step": 1, "part": 0, "of": 1, "bytes": 5, "crc32": "0", "path": "\'$PLACE\'/part"}}'
    save = f'echo five > "$PLACE/part"; echo \'{record}\' >> "$LONGBOAT_REPORT_FILE"; exit 1'
    wait = "trap save TERM; touch up; while :; do sleep 0.05; done"
    script = f"PLACE=$LONGBOAT_CHECKPOINT_DIR; save() {{ {save}; }}; {wait}"
    driver = seat.occupy(script, NAME="pod", DEPOT=address, lease=60)
    driver.start()
    driver.hear("started")
    until((seat.here / "up").exists, "its trap")
    driver.hang_up()
    seat.warn()
    while driver.meet()["running"]:  # drivers that come too early and go
        driver.hang_up()
    told = driver.hear("checkpoint")
    assert (depot_dir / told["record"]["path"]).read_text() == "five\n"
    beats_until(driver, "left")
    driver.answer()
    assert seat.left() == 0


# Where the run directory is on no disk that the driver sees.


def test_a_life_begins_with_its_files_and_its_end_is_told_when_what_it_wrote_is_there(
    seat: Seat, there: tuple[Path, str]
) -> None:
    depot_dir, address = there
    earlier, output = (Path(run_layout.output(str(depot_dir), stage)) for stage in ("prepare", "train"))
    earlier.mkdir(parents=True)
    (earlier / "data").write_text("prepared")
    driver = seat.occupy('cp "$LONGBOAT_INPUT_PREPARE/data" "$LONGBOAT_OUTPUT_DIR/copy"; echo done', DEPOT=address)
    driver.start()
    driver.hear("started")
    assert driver.hear("exited")["code"] == 0
    assert (output / "copy").read_text() == "prepared"
    assert Path(run_layout.log(str(depot_dir), "train", "worker", 0)).read_text() == "done\n"


def test_a_life_whose_files_cannot_be_kept_fails_and_says_why(seat: Seat, there: tuple[Path, str]) -> None:
    depot_dir, address = there
    earlier = Path(run_layout.output(str(depot_dir), "prepare"))
    earlier.mkdir(parents=True)
    (earlier / "data").write_text("prepared")
    in_the_way = Path(run_layout.output(str(seat.here), "prepare"))
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    driver = seat.occupy("touch began", DEPOT=address)
    driver.start()
    ended = driver.hear("exited")
    assert (ended["code"], ended["cause"]["kind"]) == (-1, CauseKind.NOT_WRITABLE.value)
    assert str(in_the_way) in ended["cause"]["message"]
    in_the_way.unlink()
    driver.start([2, 0])
    driver.hear("started")
    assert driver.hear("exited")["code"] == 0


def test_a_checkpoint_is_told_once_it_is_there_and_an_end_by_order_leaves_the_output(
    seat: Seat, there: tuple[Path, str]
) -> None:
    depot_dir, address = there
    record = '{"checkpoint": {"step": 1, "part": 0, "of": 1, "bytes": 5, "crc32": "", "path": "\'$PLACE\'/part"}}'
    record = record.replace("$PLACE", "$LONGBOAT_CHECKPOINT_DIR")
    save = f'touch "$LONGBOAT_OUTPUT_DIR/half"; echo five > "$LONGBOAT_CHECKPOINT_DIR/part"; echo \'{record}\''
    driver = seat.occupy(f'{save} >> "$LONGBOAT_REPORT_FILE"; exec sleep 600', DEPOT=address)
    driver.start()
    driver.hear("started")
    told = driver.hear("checkpoint")
    assert (told["incarnation"], told["record"]["step"]) == (LIFE, 1)
    assert (depot_dir / told["record"]["path"]).read_text() == "five\n", "told from the run's directory"
    driver.say("kill", incarnation=LIFE, grace=0.0)
    assert driver.hear("exited")["asked"] is True
    assert not Path(run_layout.output(str(depot_dir), "train")).exists()


def test_a_checkpoint_is_resumed_from_where_the_agent_has_the_runs_directory(
    seat: Seat, there: tuple[Path, str]
) -> None:
    depot_dir, address = there
    step = "checkpoints/train/generation-1/step-000000005"
    (depot_dir / step).mkdir(parents=True)
    (depot_dir / step / "part").write_text("five\n")
    driver = seat.occupy("cp $LONGBOAT_RESUME_FROM/part resumed", DEPOT=address)
    driver.start([2, 0], step)
    driver.hear("started")
    assert driver.hear("exited")["code"] == 0
    assert (seat.here / "resumed").read_text() == "five\n"


def test_one_that_was_given_up_and_comes_back_leaves_the_files_of_its_successor_alone(
    seat: Seat, there: tuple[Path, str], tmp_path: Path
) -> None:
    depot_dir, address = there
    write = 'echo {0}-one; until [ -e go ]; do sleep 0.05; done; echo {0}-two; echo {0} > "$LONGBOAT_OUTPUT_DIR/model"'
    log = run_layout.log("", "train", "worker", 0)
    given_up = seat.occupy(write.format("A"), lease=60, DEPOT=address)
    given_up.start()
    given_up.hear("started")
    until(lambda: (depot_dir / log).exists() and (depot_dir / log).read_text() == "A-one\n", "its first line")
    seat.signal(signal.SIGSTOP)  # the network is cut: its rank goes on, and nothing of it arrives
    (seat.here / "go").touch()
    until(lambda: Path(run_layout.output(str(seat.here), "train"), "model").exists(), "the end of its rank")
    successor = Seat(tmp_path / "successor")
    try:
        driver = successor.occupy(write.format("B"), lease=60, DEPOT=address)
        driver.start([2, 0])
        driver.hear("started")
        (successor.here / "go").touch()
        assert driver.hear("exited")["code"] == 0
        seat.signal(signal.SIGCONT)
        assert given_up.hear("exited")["code"] == 0
    finally:
        successor.close()
    assert (depot_dir / log).read_text() == "A-one\nB-one\nB-two\n"
    assert Path(run_layout.output(str(depot_dir), "train"), "model").read_text() == "B\n"


def test_a_life_that_is_ended_while_it_waits_for_its_files_never_begins(seat: Seat) -> None:
    driver = seat.occupy("touch began", DEPOT=f"127.0.0.1:{free_port()}")
    driver.start()
    driver.say("kill", incarnation=LIFE, grace=10.0)
    ended = driver.hear("exited")
    assert (ended["code"], ended["asked"]) == (-1, True)
    assert not (seat.here / "began").exists()
