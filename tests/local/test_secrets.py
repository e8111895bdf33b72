"""A secret reaches the ranks and nothing that Longboat writes."""

from __future__ import annotations

from pathlib import Path

from tests.local.place import Place

VALUE = 's3cr3t-"quoted"-\\value'
JOB = "secrets: {TOKEN: {env: MY_TOKEN}, KEY: {file: key.txt}}\nrun: [python, work.py]\nrestarts: 0\n"


def test_secrets_reach_the_rank_and_are_hidden_in_all_that_we_write(longboat: Place) -> None:
    longboat.file("key.txt", "from-a-file-9876\n")
    said = longboat.run(
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

    assert hashlib.sha256((VALUE + "from-a-file-9876").encode()).hexdigest() in longboat.log()
    assert longboat.cause["error"] == "ValueError: cannot log in with ***"
    written = {path: path.read_bytes() for path in longboat.home.rglob("*") if path.is_file()}
    logs = {path for path in written if "logs" in path.parts}
    assert logs
    for path in set(written) - logs:
        assert b"9876" not in written[path], path
        assert b"s3cr3t" not in written[path], path
    for command in (("why",), ("status", longboat.id), ("plan", str(longboat.code / "job.yaml"), "--json")):
        shown = longboat(*command, env={"MY_TOKEN": VALUE})
        assert "9876" not in shown.out + shown.err, command
        assert "s3cr3t" not in shown.out + shown.err, command


def test_a_secret_of_one_character_leaves_the_run_its_state_and_its_cause(longboat: Place) -> None:
    said = longboat.run(
        "secrets: {TOKEN: {env: MY_TOKEN}}\nrun: [python, work.py]\nrestarts: 0\n",
        env={"MY_TOKEN": "1"},
        work="raise ValueError('no')",
    )
    assert said.code == 1
    assert longboat.cause["error"] == "ValueError: no"
    assert "ValueError: no" in longboat("why", env={"MY_TOKEN": "1"}).out


def test_a_secret_that_is_not_there_stops_the_run_before_it_begins(longboat: Place) -> None:
    longboat.file("key.txt", "x")
    said = longboat.run(JOB, work="")
    assert said.code == 2
    assert said.err.splitlines() == [
        "error: secret TOKEN: the environment variable MY_TOKEN is not set",
        "",
        "hint: set them (export NAME=...) or change the job file's `secrets:`",
    ]
    assert longboat.runs == []


def test_a_secret_file_that_is_missing_is_named(longboat: Place) -> None:
    said = longboat.run(JOB, env={"MY_TOKEN": VALUE}, work="")
    assert said.code == 2
    assert f"secret KEY: cannot read {longboat.code / 'key.txt'}: No such file or directory" in said.err


def test_all_secrets_that_are_missing_are_told_at_once(longboat: Place) -> None:
    said = longboat.run(JOB, work="")
    assert said.code == 2
    assert "secret TOKEN: the environment variable MY_TOKEN is not set" in said.err
    assert "secret KEY: cannot read" in said.err


def test_a_run_directory_is_closed_to_others(longboat: Place) -> None:
    assert longboat.run("run: 'true'\n").code == 0
    assert Path(longboat.dir).stat().st_mode & 0o077 == 0
