"""What ranks print is kept byte by byte, and shown whole."""

from __future__ import annotations

from tests.local.place import Place

ODD = b"plain\nno \x00 nul\nbad \xff\xfe utf-8\nbar 1%\rbar 50%\rbar 100%\nlast line without an end"


def test_a_log_holds_exactly_the_bytes_that_were_printed(windlass: Place) -> None:
    said = windlass.run("run: python odd.py\n", odd=f"import sys\nsys.stdout.buffer.write({ODD!r})\n")
    assert said.code == 0
    assert windlass.log().encode("utf-8", "surrogateescape") == ODD
    assert windlass("logs", "--raw").out.encode("utf-8", "surrogateescape") == ODD
    shown = windlass("logs").out
    assert "[worker-0] plain\n" in shown
    assert "[worker-0] bar 100%\n" in shown
    assert shown.endswith("[worker-0] last line without an end\n")
    assert "last line without an end" in said.err


def test_a_line_of_ten_megabytes_is_kept_and_shown_whole(windlass: Place) -> None:
    said = windlass.run("run: python long.py\n", long="print('x' * 10_000_000)\nprint('windlass: step=3')\n")
    assert said.code == 0
    shown = windlass("logs").out
    assert shown.count("x") == 10_000_000
    assert windlass.status()["stages"][0]["ranks"][0]["step"] == 3


def test_200000_lines_of_two_ranks_arrive_each_once_and_in_order(windlass: Place) -> None:
    script = """
        import os
        print("".join(f"{os.environ['RANK']} line {n}\\n" for n in range(100_000)), end="")
    """
    said = windlass.run("run: python work.py\nshape: allreduce\nranks: 2\n", work=script)
    assert said.code == 0
    for shown in (said.err, windlass("logs").out):
        lines = shown.splitlines()
        for rank in (0, 1):
            mine = [line for line in lines if line.startswith(f"[worker-{rank}] ")]
            assert mine == [f"[worker-{rank}] {rank} line {n}" for n in range(100_000)]


def test_following_waits_for_later_stages_misses_nothing_and_ends_with_the_run(windlass: Place) -> None:
    script = """
        import os, sys, time
        print(os.environ["WINDLASS_STAGE"], os.environ["WINDLASS_GENERATION"], "begins", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.005)
        for n in range(3000):
            print(n, flush=n % 100 == 0)
        if os.environ["WINDLASS_STAGE"] == "one" and os.environ["WINDLASS_GENERATION"] == "1":
            sys.stdout.flush()
            os.kill(os.getpid(), 9)
    """
    command = windlass.start(
        "stages:\n  one: {run: [python, work.py]}\n  two: {run: [python, work.py], after: one}\n", work=script
    )
    windlass.printed("begins", stage="one")
    follower = windlass.begin("logs", "-f", windlass.id)
    windlass.file("go", "")
    assert command.said().code == 0, command.err
    said = follower.said()
    assert said.code == 0
    numbers = [str(n) for n in range(3000)]
    one = [line.split("] ")[1] for line in said.out.splitlines() if line.startswith("[one/worker-0] ")]
    two = [line.split("] ")[1] for line in said.out.splitlines() if line.startswith("[two/worker-0] ")]
    assert one == ["one 1 begins", *numbers, "one 2 begins", *numbers]
    assert two == ["two 1 begins", *numbers]


def test_logs_can_be_narrowed_to_a_rank_the_last_lines_and_a_pattern(windlass: Place) -> None:
    windlass.file("work.sh", "for n in 1 2 3 4 5; do echo rank $RANK line $n; done\n")
    assert windlass.run("run: sh work.sh\nshape: allreduce\nranks: 2\n").code == 0
    assert windlass("logs", "--rank", "1", "--tail", "2").out == "[worker-1] rank 1 line 4\n[worker-1] rank 1 line 5\n"
    assert windlass("logs", "--grep", "0 line [12]").out == "[worker-0] rank 0 line 1\n[worker-0] rank 0 line 2\n"
    said = windlass("logs", "--rank", "7")
    assert (said.code, said.out) == (2, "")
    assert "there is no rank 7" in said.err


def test_a_run_that_goes_on_shows_what_is_printed_from_then_on_and_nothing_twice(windlass: Place) -> None:
    windlass.run(
        "run: 'echo part $WINDLASS_GENERATION begins; echo part $WINDLASS_GENERATION ends; exit 1'\nrestarts: 0\n"
    )
    said = windlass("run", "--resume", windlass.id)
    shown = [line.partition("] ")[2] for line in said.err.splitlines() if line.startswith("[")]
    assert shown == ["part 2 begins", "part 2 ends"]
