"""A secret reaches the ranks and nothing that Windlass writes."""

from __future__ import annotations

from pathlib import Path

from tests.local.place import Place

VALUE = 's3cr3t-"quoted"-\\value'
JOB = "secrets: {TOKEN: {env: MY_TOKEN}, KEY: {file: key.txt}}\nrun: [python, work.py]\nrestarts: 0\n"


def test_secrets_reach_the_rank_and_are_hidden_in_all_that_we_write(windlass: Place) -> None:
    windlass.file("key.txt", "from-a-file-9876\n")
    said = windlass.run(
        JOB,
        env={"MY_TOKEN": VALUE},
        work="""
            import hashlib, os
            print(hashlib.sha256((os.environ["TOKEN"] + os.environ["KEY"]).encode()).hexdigest(), flush=True)
            raise ValueError("cannot log in with " + os.environ["KEY"])
        """,
    )
    assert said.code == 1
    import hashlib

    assert hashlib.sha256((VALUE + "from-a-file-9876").encode()).hexdigest() in windlass.log()
    assert windlass.cause["error"] == "ValueError: cannot log in with ***"
    written = {path: path.read_bytes() for path in windlass.home.rglob("*") if path.is_file()}
    logs = {path for path in written if "logs" in path.parts}
    assert logs
    for path in set(written) - logs:
        assert b"9876" not in written[path], path
        assert b"s3cr3t" not in written[path], path
    for command in (("why",), ("status", windlass.id), ("plan", str(windlass.code / "job.yaml"), "--json")):
        shown = windlass(*command, env={"MY_TOKEN": VALUE})
        assert "9876" not in shown.out + shown.err, command
        assert "s3cr3t" not in shown.out + shown.err, command


def test_a_secret_of_one_character_leaves_the_run_its_state_and_its_cause(windlass: Place) -> None:
    said = windlass.run(
        "secrets: {TOKEN: {env: MY_TOKEN}}\nrun: [python, work.py]\nrestarts: 0\n",
        env={"MY_TOKEN": "1"},
        work="raise ValueError('no')",
    )
    assert said.code == 1
    assert windlass.cause["error"] == "ValueError: no"
    assert "ValueError: no" in windlass("why", env={"MY_TOKEN": "1"}).out


def test_a_secret_that_is_not_there_stops_the_run_before_it_begins(windlass: Place) -> None:
    windlass.file("key.txt", "x")
    said = windlass.run(JOB, work="")
    assert said.code == 2
    assert said.err.splitlines() == [
        "error: secret TOKEN: the environment variable MY_TOKEN is not set",
        "",
        "hint: set them (export NAME=...) or change the job file's `secrets:`",
    ]
    assert windlass.runs == []


def test_a_secret_file_that_is_missing_is_named(windlass: Place) -> None:
    said = windlass.run(JOB, env={"MY_TOKEN": VALUE}, work="")
    assert said.code == 2
    assert f"secret KEY: cannot read {windlass.code / 'key.txt'}: No such file or directory" in said.err


def test_all_secrets_that_are_missing_are_told_at_once(windlass: Place) -> None:
    said = windlass.run(JOB, work="")
    assert said.code == 2
    assert "secret TOKEN: the environment variable MY_TOKEN is not set" in said.err
    assert "secret KEY: cannot read" in said.err


def test_a_run_directory_is_closed_to_others(windlass: Place) -> None:
    assert windlass.run("run: 'true'\n").code == 0
    assert Path(windlass.dir).stat().st_mode & 0o077 == 0
