"""What ranks print is kept byte by byte, and shown whole."""

from __future__ import annotations

from tests.local.place import Place

ODD = b"plain\nno \x00 nul\nbad \xff\xfe utf-8\nbar 1%\rbar 50%\rbar 100%\nlast line without an end"


def test_a_log_holds_exactly_the_bytes_that_were_printed(longboat: Place) -> None:
    said = longboat.run("run: python odd.py\n", odd=f"import sys\nsys.stdout.buffer.write({ODD!r})\n")
    assert said.code == 0
    assert longboat.log().encode("utf-8", "surrogateescape") == ODD
    assert longboat("logs", "--raw").out.encode("utf-8", "surrogateescape") == ODD
    shown = longboat("logs").out
    assert "[worker-0] plain\n" in shown
    assert "[worker-0] bar 100%\n" in shown
    assert shown.endswith("[worker-0] last line without an end\n")
    assert "last line without an end" in said.err


def test_a_line_of_ten_megabytes_is_kept_and_shown_whole(longboat: Place) -> None:
    said = longboat.run("run: python long.py\n", long="print('x' * 10_000_000)\nprint('longboat: step=3')\n")
    assert said.code == 0
    shown = longboat("logs").out
    assert shown.count("x") == 10_000_000
    assert longboat.status()["stages"][0]["ranks"][0]["step"] == 3


def test_200000_lines_of_two_ranks_arrive_each_once_and_in_order(longboat: Place) -> None:
    script = """
        import os
        print("".join(f"{os.environ['RANK']} line {n}\\n" for n in range(100_000)), end="")
    """
    said = longboat.run("run: python work.py\nshape: allreduce\nranks: 2\n", work=script)
    assert said.code == 0
    for shown in (said.err, longboat("logs").out):
        lines = shown.splitlines()
        for rank in (0, 1):
            mine = [line for line in lines if line.startswith(f"[worker-{rank}] ")]
            assert mine == [f"[worker-{rank}] {rank} line {n}" for n in range(100_000)]


def test_following_waits_for_later_stages_misses_nothing_and_ends_with_the_run(longboat: Place) -> None:
    script = """
        import os, sys, time
        print(os.environ["LONGBOAT_STAGE"], os.environ["LONGBOAT_GENERATION"], "begins", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.005)
        for n in range(3000):
            print(n, flush=n % 100 == 0)
        if os.environ["LONGBOAT_STAGE"] == "one" and os.environ["LONGBOAT_GENERATION"] == "1":
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
    """
    command = longboat.start(
        "stages:\n  one: {run: [python, work.py]}\n  two: {run: [python, work.py], after: one}\n", work=script
    )
    longboat.printed("begins", stage="one")
    follower = longboat.begin("logs", "-f", longboat.id)
    longboat.file("go", "")
    assert command.said().code == 0, command.err
    said = follower.said()
    assert said.code == 0
    numbers = [str(n) for n in range(3000)]
    one = [line.split("] ")[1] for line in said.out.splitlines() if line.startswith("[one/worker-0] ")]
    two = [line.split("] ")[1] for line in said.out.splitlines() if line.startswith("[two/worker-0] ")]
    assert one == ["one 1 begins", *numbers, "one 2 begins", *numbers]
    assert two == ["two 1 begins", *numbers]


def test_logs_can_be_narrowed_to_a_rank_the_last_lines_and_a_pattern(longboat: Place) -> None:
    longboat.file("work.sh", "for n in 1 2 3 4 5; do echo rank $RANK line $n; done\n")
    assert longboat.run("run: sh work.sh\nshape: allreduce\nranks: 2\n").code == 0
    assert longboat("logs", "--rank", "1", "--tail", "2").out == "[worker-1] rank 1 line 4\n[worker-1] rank 1 line 5\n"
    assert longboat("logs", "--grep", "0 line [12]").out == "[worker-0] rank 0 line 1\n[worker-0] rank 0 line 2\n"
    said = longboat("logs", "--rank", "7")
    assert (said.code, said.out) == (2, "")
    assert "there is no rank 7" in said.err


def test_a_run_that_goes_on_shows_what_is_printed_from_then_on_and_nothing_twice(longboat: Place) -> None:
    longboat.run(
        "run: 'echo part $LONGBOAT_GENERATION begins; echo part $LONGBOAT_GENERATION ends; exit 1'\nrestarts: 0\n"
    )
    said = longboat("run", "--resume", longboat.id)
    shown = [line.partition("] ")[2] for line in said.err.splitlines() if line.startswith("[")]
    assert shown == ["part 2 begins", "part 2 ends"]
