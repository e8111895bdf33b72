"""From how a process ended to a cause: no guess, only what was seen."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from longboat.runtime.agent import exit_causes
from longboat.runtime.agent.rank_process import CannotStart, StartStep
from longboat.runtime.buckets.bucket_mounts import CANNOT, REFUSED
from longboat.runtime.causes import Cause, CauseKind, signal_name

TRACEBACK = """\
step 1
Traceback (most recent call last):
  File "/code/train.py", line 9, in <module>
    main()
  File "/code/train.py", line 5, in main
    raise ValueError("no data")
ValueError: no data
""".splitlines()


def of_exit(code: int, signum: int = 0, lines: Sequence[str] = (), oom: int = 0, buckets: bool = False) -> Cause:
    cause = exit_causes.of_exit(code, signum, lines, oom, False, "/", buckets)
    assert cause is not None
    return cause


def test_a_clean_end_has_no_cause() -> None:
    assert exit_causes.of_exit(0, 0, TRACEBACK, 0, False, "/") is None


def test_a_traceback_gives_its_error_and_the_innermost_frame() -> None:
    cause = of_exit(1, lines=TRACEBACK)
    assert (cause.kind, cause.error, cause.frame) == (
        CauseKind.USER_ERROR,
        "ValueError: no data",
        "/code/train.py:5 in main",
    )
    assert cause.lines == tuple(TRACEBACK)


def test_the_last_of_several_tracebacks_counts() -> None:
    later = ["Traceback (most recent call last):", '  File "b.py", line 2, in <module>', "KeyError: 'x'"]
    assert of_exit(1, lines=[*TRACEBACK, "handled", *later]).error == "KeyError: 'x'"


def test_without_a_traceback_the_exit_code_speaks() -> None:
    cause = of_exit(5, lines=["bye"])
    assert (cause.message, cause.error, cause.exit_code) == ("exited with code 5", "", 5)


@pytest.mark.parametrize(("code", "kind"), [(REFUSED, CauseKind.MISSING_INPUT), (CANNOT, CauseKind.USER_ERROR)])
def test_storage_that_could_not_be_had_is_told_in_its_own_words(code: int, kind: CauseKind) -> None:
    lines = ["error: storage data could not be fetched: no credentials for S3 found"]
    cause = of_exit(code, lines=lines, buckets=True)
    assert (cause.kind, cause.message) == (kind, "storage data could not be fetched: no credentials for S3 found")
    assert of_exit(code, lines=[], buckets=True).message == f"exited with code {code}"


@pytest.mark.parametrize("code", [REFUSED, CANNOT])
def test_without_buckets_the_wrapper_s_exit_codes_are_the_program_s_own(code: int) -> None:
    cause = of_exit(code, lines=["my own error"])
    assert (cause.kind, cause.message) == (CauseKind.USER_ERROR, f"exited with code {code}")


@pytest.mark.parametrize("oom", [-1, 0])
def test_an_exit_code_is_no_lack_of_memory_unless_the_kernel_counted_a_kill(oom: int) -> None:
    assert of_exit(1, lines=TRACEBACK, oom=oom).kind is CauseKind.USER_ERROR
    assert of_exit(1, lines=TRACEBACK, oom=1).kind is CauseKind.OUT_OF_MEMORY


def test_sigkill_is_out_of_memory_only_if_the_kernel_counted_it() -> None:
    assert of_exit(-1, 9, oom=2).kind is CauseKind.OUT_OF_MEMORY
    assert of_exit(-1, 9, oom=0).evidence == ("no out-of-memory kill was counted",)
    assert of_exit(-1, 9, oom=-1).evidence == ("the kernel's out-of-memory counter cannot be read here",)
    assert of_exit(-1, 9, oom=0).kind is CauseKind.KILLED


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_other_signals_are_named(number: signal.Signals) -> None:
    cause = of_exit(-1, number)
    assert (cause.kind, cause.signal) == (CauseKind.KILLED, number)
    assert number.name in cause.message


def test_what_the_shell_could_not_find_or_execute_is_told_apart_from_a_scripts_own_code() -> None:
    assert of_exit(127, lines=["sh: 1: trian: not found"]).kind is CauseKind.NOT_FOUND
    assert of_exit(127, lines=["done"]).kind is CauseKind.USER_ERROR
    assert of_exit(126, lines=["sh: 1: ./x: Permission denied"]).kind is CauseKind.NOT_EXECUTABLE
    assert of_exit(126).kind is CauseKind.USER_ERROR


def test_a_torn_connection_is_known_by_its_words() -> None:
    assert (
        of_exit(1, lines=["RuntimeError: Connection closed by peer [127.0.0.1]:1234"]).kind is CauseKind.LOST_RENDEZVOUS
    )


def test_words_about_a_full_disk_are_believed_only_if_the_runs_disk_is_full() -> None:
    assert of_exit(1, lines=["OSError: [Errno 28] No space left on device"]).kind is CauseKind.USER_ERROR


def test_a_file_system_that_reports_no_blocks_is_not_called_full() -> None:
    assert os.statvfs("/proc").f_blocks == 0
    cause = exit_causes.of_exit(1, 0, [], 0, False, "/proc")
    assert cause is not None
    assert cause.kind is CauseKind.USER_ERROR


def test_an_mpi_mismatch_is_known_by_our_own_words() -> None:
    assert of_exit(1, lines=["longboat: mpi mismatch: mpirun started 2 ranks"]).kind is CauseKind.MPI_MISMATCH


def test_a_start_that_failed_is_told_with_what_was_tried() -> None:
    missing = exit_causes.of_start(CannotStart(errno.ENOENT, StartStep.EXECUTE, "trian", "/code"), "/bin:/usr/bin")
    assert missing.kind is CauseKind.NOT_FOUND
    assert missing.evidence[-1] == "looked for it on PATH=/bin:/usr/bin"
    closed = exit_causes.of_start(CannotStart(errno.EACCES, StartStep.EXECUTE, "./x.sh", "/code"), "")
    assert closed.kind is CauseKind.NOT_EXECUTABLE
    assert closed.message.startswith("./x.sh is not executable")
    nowhere = exit_causes.of_start(CannotStart(errno.ENOENT, StartStep.ENTER_DIRECTORY, "/gone", "/gone"), "")
    assert nowhere.kind is CauseKind.MISSING_INPUT


def test_the_tail_of_a_log_takes_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n" + b"bar 1%\rbar 2%\n\n\xff\x00bad\n" + b"x" * 5000 + b"\nlast")
    lines = exit_causes.tail(str(path), 4)
    assert lines[0] == "bar 2%"
    assert lines[1] == "\ufffd\\0bad"
    assert len(lines[2]) < 600
    assert lines[-1] == "last"
    assert exit_causes.tail(str(tmp_path / "none"), 0) == []


def test_of_a_huge_log_only_the_end_is_read_and_a_cause_carries_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(100_000)))
    lines = exit_causes.tail(str(path), 0)
    assert sum(len(line) + 1 for line in lines) <= exit_causes.TAIL_BYTES
    assert of_exit(1, lines=lines).lines == tuple(f"line {n}" for n in range(100_000 - exit_causes.TAIL_LINES, 100_000))


def test_the_kernels_counter_is_a_number_or_says_that_it_cannot_be_read() -> None:
    assert exit_causes.oom_kills() >= -1


def test_an_unknown_signal_has_a_name_too() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"


def test_a_torn_connection_is_not_called_lack_of_memory_because_a_peer_was_killed_for_it() -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ConnectionResetError: gone"]
    assert of_exit(1, lines=lines, oom=1).kind is CauseKind.LOST_RENDEZVOUS


@pytest.mark.parametrize("error", ["MemoryError", "numpy._core._exceptions._ArrayMemoryError: Unable"])
def test_an_error_that_says_that_memory_could_not_be_had_is_believed(error: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', error]
    assert of_exit(1, lines=lines).kind is CauseKind.OUT_OF_MEMORY


def test_a_traceback_far_above_the_end_is_evidence_and_not_the_error() -> None:
    cause = of_exit(1, lines=[*TRACEBACK, *(f"step {n}" for n in range(50))])
    assert (cause.error, cause.frame, cause.message) == ("", "", "exited with code 1")
    assert "50 lines before the end of the log: ValueError: no data at /code/train.py:5 in main" in cause.evidence[0]


def test_a_crash_of_a_child_is_not_taken_for_where_a_killed_process_stood() -> None:
    fatal = ["Fatal Python error: Segmentation fault", "Stack (most recent call first):", '  File "a.py", line 3 in f']
    assert of_exit(-1, signal.SIGSEGV, fatal).frame == "a.py:3 in f"
    assert of_exit(139, lines=fatal).frame == "a.py:3 in f"
    assert of_exit(-1, signal.SIGKILL, fatal).frame == ""


def test_an_mpich_program_under_open_mpis_mpirun_is_called_a_mismatch() -> None:
    line = "check_MPIR_CVAR_PMI_VERSION(167): Runtime environment uses unsupported PMI version PMIx. Aborting."
    assert of_exit(16, lines=[line]).kind is CauseKind.MPI_MISMATCH
