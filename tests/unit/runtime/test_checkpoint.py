"""`longboat.checkpoint` in a rank, and the driver's book of what is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat.runtime import checkpoint, run_layout, tensors
from longboat.runtime.driver.checkpoints import Checkpoints
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Role, Stage


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a rank; the report file is `reports`."""
    monkeypatch.setenv("LONGBOAT_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("LONGBOAT_REPORT_FILE", str(tmp_path / "reports"))
    monkeypatch.delenv("LONGBOAT_RESUME_FROM", raising=False)
    monkeypatch.setattr("longboat.runtime.rank_api._file", (-1, -1))
    return tmp_path


def told(rank: Path) -> list[dict[str, Any]]:
    """What the agent would read."""
    return [json.loads(line)["checkpoint"] for line in (rank / "reports").read_text().splitlines()]


def python(rank: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "LONGBOAT_CHECKPOINT_DIR": str(rank / "checkpoints"),
        "LONGBOAT_REPORT_FILE": str(rank / "reports"),
    }
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_there_is_nothing_to_load_at_the_first_start(rank: Path) -> None:
    assert checkpoint.load() is None


def test_what_was_saved_is_loaded_with_its_step_and_meta(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save({"w": np.arange(6.0).reshape(2, 3)}, step=np.int64(12), meta={"epoch": 3, "loss": 0.5}, wait=True)  # type: ignore[arg-type]
    (record,) = told(rank)
    monkeypatch.setenv("LONGBOAT_RESUME_FROM", os.path.dirname(record["path"]))
    found = checkpoint.load()
    assert found is not None
    assert (found.step, found.meta) == (12, {"epoch": 3, "loss": 0.5})
    assert found.arrays["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert record["bytes"] == os.path.getsize(record["path"])
    assert (record["step"], record["part"], record["of"], record["keep"]) == (12, 0, 1, checkpoint.KEEP)
    assert os.listdir(os.path.dirname(record["path"])) == ["part-00000-of-00001.safetensors"]


def test_outside_of_longboat_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGBOAT_CHECKPOINT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    checkpoint.save({"w": np.ones(3)}, step=1, wait=True)
    assert list(tmp_path.iterdir()) == []


def test_training_may_change_the_arrays_as_soon_as_save_has_returned(rank: Path) -> None:
    weights = np.ones(1_000_000)
    for step in range(5):
        weights[:] = step
        checkpoint.save({"w": weights}, step=step)
        weights[:] = -1
    checkpoint.wait()
    for step, record in enumerate(told(rank)):
        arrays, _ = tensors.read(record["path"])
        assert record["step"] == step
        assert (arrays["w"] == step).all()


def test_states_of_different_sizes_share_the_staging_memory(rank: Path) -> None:
    for step, size in enumerate((10, 100_000, 7, 0)):
        checkpoint.save({"w": np.full(size, step, np.int32)}, step=step)
    checkpoint.wait()
    assert [len(tensors.read(record["path"])[0]["w"]) for record in told(rank)] == [10, 100_000, 7, 0]


def test_a_program_that_ends_after_save_has_its_checkpoint_on_disk(rank: Path) -> None:
    done = python(
        rank,
        """
        import numpy as np, longboat
        longboat.checkpoint.save({"w": np.ones(5_000_000)}, step=1)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert told(rank)[0]["bytes"] > 40_000_000


def test_a_checkpoint_may_be_saved_while_the_interpreter_ends(rank: Path) -> None:
    done = python(
        rank,
        """
        import atexit
        import numpy as np, longboat
        longboat.checkpoint.save({"w": np.ones(5)}, step=1)
        atexit.register(lambda: longboat.checkpoint.save({"w": np.ones(5)}, step=2))
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [record["step"] for record in told(rank)] == [1, 2]


def test_a_forked_child_saves_by_itself_and_does_not_disturb_its_parent(rank: Path) -> None:
    done = python(
        rank,
        """
        import os
        import numpy as np, longboat
        longboat.checkpoint.save({"w": np.full(3_000_000, 1.0)}, step=1)
        child = os.fork()
        longboat.checkpoint.save({"w": np.full(3_000_000, 2.0 if child else 3.0)}, step=2 if child else 3)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert done.returncode == 0, done.stderr
    records = told(rank)
    assert sorted(record["step"] for record in records) == [1, 2, 3]
    for record in records:
        assert (tensors.read(record["path"])[0]["w"] == record["step"]).all()


def test_threads_may_save_at_the_same_time(rank: Path) -> None:
    done = python(
        rank,
        """
        import threading
        import numpy as np, longboat
        def save(step):
            longboat.checkpoint.save({"w": np.full(300_000, step)}, step=step)
        threads = [threading.Thread(target=save, args=(step,)) for step in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
    )
    assert done.returncode == 0, done.stderr
    records = told(rank)
    assert sorted(record["step"] for record in records) == list(range(8))
    for record in records:
        assert (tensors.read(record["path"])[0]["w"] == record["step"]).all()


def test_a_place_that_cannot_be_written_costs_the_checkpoint_and_is_told(rank: Path) -> None:
    (rank / "checkpoints").write_text("not a directory")
    checkpoint.save({"w": np.ones(3)}, step=4, wait=True)
    assert told(rank) == [{"step": 4, "error": "Not a directory"}]


def test_a_checkpoint_that_would_fill_the_disk_is_not_begun(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = os.statvfs(rank)
    monkeypatch.setattr(checkpoint, "LEFT_FREE", free.f_bavail * free.f_frsize + (1 << 40))
    checkpoint.save({"w": np.ones(3)}, step=4, wait=True)
    assert told(rank) == [{"step": 4, "error": "No space left on device"}]
    assert list((rank / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    ("arrays", "keys", "error"),
    [
        ({"w": {"nested": 1}}, {}, TypeError),
        ({"__metadata__": np.ones(1)}, {}, TypeError),
        ({1: np.ones(1)}, {}, TypeError),
        ({"w": np.ones(1)}, {"meta": {"rng": np.random.default_rng()}}, TypeError),
        ({"w": np.ones(1)}, {"shard": (2, 2)}, ValueError),
        ({"w": np.ones(1)}, {"step": 1.5}, TypeError),
    ],
)
def test_wrong_use_is_an_error_of_the_caller(rank: Path, arrays: Any, keys: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        checkpoint.save(arrays, **{"step": 1, **keys})
    checkpoint.save({"w": np.ones(1)}, step=2, wait=True)
    assert [record["step"] for record in told(rank)] == [2]


def test_loading_a_torn_file_says_which(rank: Path) -> None:
    checkpoint.save({"w": np.ones(100)}, step=1, wait=True)
    path = told(rank)[0]["path"]
    os.truncate(path, 200)
    with pytest.raises(ValueError, match=r"part-00000-of-00001\.safetensors is not a valid"):
        checkpoint.load(os.path.dirname(path))


def test_a_flipped_bit_is_found_on_loading(rank: Path) -> None:
    checkpoint.save({"w": np.ones(100)}, step=1, wait=True)
    path = told(rank)[0]["path"]
    flip(Path(path))
    with pytest.raises(ValueError, match=r"its checksum is \w{8}, expected " + told(rank)[0]["crc32"]):
        checkpoint.load(os.path.dirname(path))


def test_a_file_without_a_checksum_is_not_loaded(rank: Path) -> None:
    checkpoint.save({"w": np.ones(100)}, step=1, wait=True)
    path = Path(told(rank)[0]["path"])
    path.write_bytes(path.read_bytes().replace(b"crc32", b"crc31"))
    with pytest.raises(ValueError, match="its checksum is missing"):
        checkpoint.load(str(path.parent))


def test_another_number_of_shards_is_an_error_that_says_how_to_load_them(rank: Path) -> None:
    assert checkpoint.shards() == 0
    for number in range(3):
        checkpoint.save({"w": np.full(2, number)}, step=1, shard=(number, 3), wait=True)
    directory = os.path.dirname(told(rank)[0]["path"])
    for shard in ((0, 1), (1, 2), (3, 4)):
        with pytest.raises(ValueError, match=r"has 3 shards, and shard=\(\d, \d\) was .* resume with 3 ranks"):
            checkpoint.load(directory, shard=shard)
    count = checkpoint.shards(directory)
    states = [checkpoint.load(directory, shard=(number, count)) for number in range(count)]
    assert [state.arrays["w"][0] for state in states if state] == [0, 1, 2]


# The driver's book.


def flip(path: Path) -> None:
    """Flip one bit of the data."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)


class Book:
    """A stage whose ranks save through the real writer, and the driver's view of it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, shape: str = "allreduce") -> None:
        self.directory, self._monkeypatch = directory, monkeypatch
        self.incarnations = 0
        self.stage = Stage("main", "gang", shape=shape, roles=(Role("worker", 2),))
        self.open()

    def open(self, inherited: int = 0) -> None:
        self.book = Checkpoints(str(self.directory), self.stage, inherited)

    def save(self, step: int, generation: int = 1, rank: int = 0, round_: int = 1, **keys: Any) -> Any:
        place = run_layout.checkpoints(str(self.directory), "main", generation, self.book.owner("worker", rank))
        reports = self.directory / "reports"
        self._monkeypatch.setenv("LONGBOAT_CHECKPOINT_DIR", place)
        self._monkeypatch.setenv("LONGBOAT_REPORT_FILE", str(reports))
        self._monkeypatch.setattr("longboat.runtime.rank_api._file", (-1, -1))
        self._monkeypatch.setenv("LONGBOAT_ROUND", str(round_))
        checkpoint.save({"w": np.full(50, step)}, step, wait=True, **keys)
        record = json.loads(reports.read_text().splitlines()[-1])["checkpoint"]
        record["path"] = os.path.relpath(record["path"], self.directory)
        return self.book.part("worker", rank, generation, round_, record)

    def resume_point(self, rank: int = 0, round_: int = 1) -> tuple[str, int]:
        """As for another incarnation each time."""
        self.incarnations += 1
        return self.book.resume("worker", rank, round_, (1, self.incarnations))

    def resumes(self, rank: int = 0, round_: int = 1) -> int:
        path, step = self.resume_point(rank, round_)
        assert bool(path) == (step >= 0)
        if path:
            found = checkpoint.load(os.path.join(self.directory, path))
            assert found is not None
            assert found.step == step
        return step

    def file(self, step: int, generation: int = 1) -> Path:
        (found,) = self.directory.glob(f"checkpoints/main/generation-{generation}/step-{step:09d}/*.safetensors")
        return found

    def on_disk(self) -> list[str]:
        return sorted(
            f"{path.parent.parent.name}/{int(path.parent.name[5:])}"
            for path in self.directory.glob("checkpoints/**/part-*")
        )


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    return Book(tmp_path, monkeypatch)


def test_the_newest_whole_checkpoint_is_resumed_from_also_by_another_driver(book: Book) -> None:
    assert book.resumes() == -1
    assert book.save(10).step == 10
    assert book.save(20).step == 20
    assert book.resumes() == 20
    book.open()
    assert book.resumes() == 20


def test_only_the_newest_are_kept(book: Book) -> None:
    for step in (10, 20, 30, 40):
        book.save(step, keep=2)
    assert book.on_disk() == ["generation-1/30", "generation-1/40"]
    book.save(50, keep=1)
    assert book.on_disk() == ["generation-1/50"]
    assert book.resumes() == 50


@pytest.mark.parametrize("damage", ["truncated", "longer", "missing", "zeros", "scribbled", "a bit"])
def test_a_torn_file_is_never_chosen_and_its_step_can_be_kept_again(book: Book, damage: str) -> None:
    book.save(10)
    book.save(20)
    path = book.file(20)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        torn = {
            "truncated": data[:-1],
            "longer": data + b"x",
            "zeros": bytes(len(data)),
            "scribbled": b"{" * 64 + data[64:],
            "a bit": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
        }
        path.write_bytes(torn[damage])
    assert book.resumes() == 10
    (damaged,) = book.book.damaged
    assert (damaged.step, damaged.path) == (20, "checkpoints/main/generation-1/step-000000020")
    assert damaged.reason.startswith("part-00000-of-00001.safetensors: ")
    assert book.save(20, generation=2).step == 20
    assert book.resumes() == 20


def test_a_damaged_checkpoint_stays_on_disk_until_newer_ones_push_it_out(book: Book) -> None:
    for step in (10, 20):
        book.save(step)
    flip(book.file(20))
    assert book.resumes() == 10
    book.book.sweep(2)
    for step, on_disk in ((25, ["1/10", "1/20", "2/25"]), (30, ["2/25", "2/30"])):
        book.save(step, generation=2)
        assert book.on_disk() == [f"generation-{path}" for path in on_disk]


def test_a_checkpoint_that_can_be_read_again_is_used_by_the_next_driver(book: Book) -> None:
    book.save(10)
    book.save(20)
    away = book.file(20).rename(book.directory / "away")
    assert book.resumes() == 10
    away.rename(book.directory / "checkpoints/main/generation-1/step-000000020/part-00000-of-00001.safetensors")
    book.open()
    assert book.resumes() == 20


def test_a_checkpoint_is_verified_once_for_all_ranks_and_again_for_the_next_incarnation(book: Book) -> None:
    book.save(10)
    book.save(20)
    assert book.book.resume("worker", 0, 1, (2, 0))[1] == 20
    flip(book.file(20))
    assert book.book.resume("worker", 1, 1, (2, 0))[1] == 20
    assert book.book.resume("worker", 1, 1, (2, 1))[1] == 10


def test_all_torn_is_to_begin_anew(book: Book) -> None:
    book.save(10)
    book.save(20)
    for step in (10, 20):
        os.truncate(book.file(step), 30)
    assert book.resumes() == -1


def test_a_half_written_file_is_no_checkpoint(book: Book) -> None:
    book.save(10)
    place = Path(run_layout.checkpoints(str(book.directory), "main", 1)) / "step-000000020"
    place.mkdir()
    (place / ".part-00000-of-00001.safetensors.77.part").write_bytes(b"half")
    (place / "part-00000-of-00001.safetensors").write_bytes(book.file(10).read_bytes())
    assert book.resumes() == 10


def test_a_manifest_that_was_never_renamed_into_place_changes_nothing(book: Book) -> None:
    book.save(10)
    manifest = book.directory / "checkpoints/main/manifest.json"
    (manifest.parent / ".manifest.json.77.part").write_text('{"complete": [')
    book.open()
    assert book.resumes() == 10


@pytest.mark.parametrize("damage", ["another byte", "cut", "empty", "a digit", "another shape"])
@pytest.mark.parametrize("shape", ["allreduce", "average"])
def test_a_damaged_manifest_is_kept_and_rebuilt_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, shape: str
) -> None:
    book = Book(tmp_path, monkeypatch, shape)
    round_ = 2 if shape == "average" else 1
    book.save(10, round_=round_)
    book.save(20, round_=round_)
    manifest = tmp_path / "checkpoints/main/manifest.json"
    intact = manifest.read_bytes()
    damaged = {
        "another byte": intact + b"x",
        "cut": intact[:-5],
        "empty": b"",
        "a digit": intact.replace(b'"step": 20', b'"step": 22'),
        "another shape": b"[]",
    }[damage]
    assert damaged != intact
    manifest.write_bytes(damaged)
    reported = [["checkpoints/main/manifest.json"], []]  # the second driver finds no manifest
    for paths in reported:
        book.open(inherited=1)
        book.book.sweep(2)
        assert book.resumes(round_=round_) == 20
        assert [file.path for file in book.book.damaged] == paths
        assert manifest.with_name("manifest.json.damaged").read_bytes() == damaged
    book.save(30, generation=2, round_=round_)
    assert manifest.exists()
    assert len(book.on_disk()) == 2


def test_without_a_manifest_a_damaged_checkpoint_is_found_and_kept_and_an_incomplete_one_removed(book: Book) -> None:
    for step in (10, 20):
        book.save(step)
    book.save(30, shard=(0, 2))
    book.file(20).write_bytes(b"rubbish")
    (book.directory / "checkpoints/main/manifest.json").unlink()
    book.open(inherited=1)
    book.book.sweep(2)
    assert book.resumes() == 10
    assert [file.step for file in book.book.damaged] == [20]
    assert book.on_disk() == ["generation-1/10", "generation-1/20"]


def test_a_manifest_that_cannot_be_read_is_an_error_with_its_name_and_deletes_nothing(book: Book) -> None:
    book.save(10)
    manifest = book.directory / "checkpoints/main/manifest.json"
    manifest.unlink()
    manifest.mkdir()  # as root, every file can be read
    with pytest.raises(LongboatError, match=f"cannot read the list of checkpoints {manifest}: Is a directory") as error:
        book.open()
    assert error.value.code == 2
    assert str(manifest) in error.value.hint
    assert book.on_disk() == ["generation-1/10"]


def test_a_sharded_checkpoint_is_complete_with_its_last_part(book: Book) -> None:
    assert book.save(10, rank=0, shard=(0, 3)) is None
    assert book.save(10, rank=2, shard=(2, 3)) is None
    assert book.save(10, rank=2, shard=(2, 3)) is None
    assert book.resume_point() == ("", -1)
    found = book.save(10, rank=1, shard=(1, 3))
    assert [part.name for part in found.parts] == [f"part-{n:05d}-of-00003.safetensors" for n in range(3)]
    path, step = book.resume_point()
    assert step == 10
    for number in range(3):
        assert checkpoint.load(os.path.join(book.directory, path), shard=(number, 3)) is not None
    os.unlink(os.path.join(book.directory, path, "part-00001-of-00003.safetensors"))
    assert book.resume_point() == ("", -1)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_another_driver_completes_a_checkpoint_whose_parts_were_told_to_the_one_before(book: Book, last: int) -> None:
    for number in (0, 1, 2):
        if number != last:
            assert book.save(10, rank=number, shard=(number, 3)) is None
    for aside in ("part-00000-of-00004.safetensors", f".{run_layout.part(last, 3)}.77.part", "notes"):
        (Path(run_layout.checkpoints(str(book.directory), "main", 1)) / "step-000000010" / aside).touch()
    book.open(inherited=1)
    found = book.save(10, rank=last, shard=(last, 3))
    assert [part.name for part in found.parts] == [run_layout.part(number, 3) for number in range(3)]
    assert book.resume_point()[1] == 10


def test_a_part_that_lies_there_and_was_not_told_is_not_taken_for_one_of_a_new_generation(book: Book) -> None:
    assert book.save(10, generation=2, shard=(0, 2)) is None
    book.open(inherited=1)
    assert book.save(10, generation=2, shard=(1, 2)) is None


def test_parts_of_two_generations_are_never_put_together(book: Book) -> None:
    assert book.save(10, generation=1, shard=(0, 2)) is None
    assert book.save(10, generation=2, shard=(1, 2)) is None
    assert book.save(10, generation=2, shard=(0, 2)).generation == 2


def test_a_step_that_is_saved_twice_stays_whole(book: Book) -> None:
    book.save(10)
    assert book.save(10, meta={"and": "longer than before"}) is None
    assert book.resumes() == 10
    book.open()
    assert book.resumes() == 10


def test_a_step_that_is_older_than_the_newest_is_not_kept(book: Book) -> None:
    book.save(30)
    assert book.save(20, generation=2) is None
    assert book.on_disk() == ["generation-1/30"]
    assert book.resumes() == 30


def test_what_dead_generations_left_is_swept_away(book: Book) -> None:
    book.save(10)
    unheard = Path(run_layout.checkpoints(str(book.directory), "main", 1)) / "step-000000020"
    unheard.mkdir()
    (unheard / ".part-00000-of-00001.safetensors.5.part").write_bytes(b"x" * 1000)
    Path(run_layout.checkpoints(str(book.directory), "main", 2)).mkdir()
    present = Path(run_layout.checkpoints(str(book.directory), "main", 3)) / "step-000000030"
    present.mkdir(parents=True)
    foreign = unheard.parent / "my-own-format"
    foreign.mkdir()
    (foreign / "state").touch()
    book.book.sweep(3)
    assert not unheard.exists()
    assert (foreign / "state").exists()
    assert not present.parent.parent.joinpath("generation-2").exists()
    assert present.exists()
    assert book.resumes() == 10


def test_ranks_of_an_average_stage_have_each_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(tmp_path, monkeypatch, "average")
    book.save(10, rank=0)
    book.save(30, rank=1)
    assert (book.resumes(0), book.resumes(1), book.resumes(2)) == (10, 30, -1)
    (tmp_path / "checkpoints/main/generation-1/worker-0/step-000000020").mkdir()
    book.book.sweep(2)
    assert (book.resumes(0), book.resumes(1)) == (10, 30)
    assert not (tmp_path / "checkpoints/main/generation-1/worker-0/step-000000020").exists()


def test_a_new_round_begins_without_the_checkpoints_of_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(tmp_path, monkeypatch, "average")
    book.save(10, generation=1, round_=1)
    book.save(20, generation=1, round_=1)
    assert book.resumes(round_=2) == -1
    book.save(5, generation=3, round_=2)
    assert book.resumes(round_=2) == 5


def test_a_round_that_is_counted_anew_does_not_lose_its_checkpoints_to_older_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(tmp_path, monkeypatch, "average")
    for generation, round_ in ((1, 1), (3, 2), (5, 3)):
        book.save(10, generation=generation, round_=round_)
    book.save(4, generation=7, round_=1)
    assert book.resumes(round_=1) == 4


def test_a_manifest_that_cannot_be_written_costs_the_checkpoint_and_none_of_the_older_ones(book: Book) -> None:
    book.save(10)
    book.save(20)
    manifest = book.directory / "checkpoints/main/manifest.json"
    aside = manifest.rename(manifest.with_suffix(".aside"))
    manifest.mkdir()
    with pytest.raises(OSError):
        book.save(30)
    manifest.rmdir()
    aside.rename(manifest)
    assert book.resumes() == 20
    book.open()
    assert book.resumes() == 20
