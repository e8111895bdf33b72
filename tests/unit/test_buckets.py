"""Signatures against published examples, which ranks have buckets around them, and stores that answer as no real one
would in a test. tests/e2e asks a real store."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longboat.runtime.buckets import directory_sync, s3
from longboat.runtime.buckets.bucket_http import PASSING, TRIES, BucketError
from longboat.runtime.buckets.bucket_mounts import CANNOT, REFUSED, wrapped
from longboat.runtime.buckets.credentials import AwsKeys, aws_keys, google_token
from longboat.runtime.buckets.gcs import Gcs
from longboat.runtime.buckets.s3 import EMPTY, S3, signed
from longboat.runtime.plan import Mount, Plan
from tests.local.place import until

KEYS = AwsKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
THEN = time.strptime("20130524T000000Z", "%Y%m%dT%H%M%SZ")


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_signatures_of_amazons_own_examples_come_out(query: str, signature: str) -> None:
    place = "https://examplebucket.s3.amazonaws.com/"
    headers = signed("GET", place, query, EMPTY, KEYS, "us-east-1", THEN)
    assert headers["Authorization"].endswith(f"Signature={signature}")


def test_a_command_has_its_buckets_around_it_and_is_itself_without() -> None:
    command = ("sh", "-c", "train")
    assert wrapped(Plan("job", storage=(Mount("data", "path", "/d", path="/d"),)), command) == command
    mounts = (Mount("data", "s3", "s3://b/d", read_only=True), Mount("weights", "gs", "gs://b/w"))
    found = wrapped(Plan("job", storage=mounts), command)
    assert found[1:] == ("-m", "longboat.runtime.buckets", "data=s3://b/d:ro", "weights=gs://b/w", "--", *command)


def test_keys_come_from_the_environment_or_a_file_and_their_absence_is_said(tmp_path: Path) -> None:
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    assert aws_keys(given, "r") == AwsKeys("a", "b", "c")
    (tmp_path / "keys").write_text("[other]\naws_access_key_id = x\naws_secret_access_key = 50%\n")
    file = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "AWS_PROFILE": "other"}
    assert aws_keys(file, "r") == AwsKeys("x", "50%")
    with pytest.raises(BucketError, match="no credentials for S3 found"):
        aws_keys({**file, "AWS_PROFILE": "third"}, "r")


@pytest.mark.parametrize("url", ["s3:///x", "http://b/x", "bucket"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(BucketError, match="s3://BUCKET/PREFIX"):
        directory_sync.opened(url, {})


def test_buckets_are_named_in_the_path_of_another_server_and_in_the_host_of_amazons() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-north-1"}
    assert S3("b", keys)._request("GET", "k e/y").full_url == "https://b.s3.eu-north-1.amazonaws.com/k%20e/y"
    other = {**keys, "AWS_ENDPOINT_URL": "http://127.0.0.1:9/"}
    assert S3("b", other)._request("GET", "k").full_url == "http://127.0.0.1:9/b/k"


FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
WHOLE = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, str], list[bytes]]]:
    """A store: where it is, and what follows its 200 at the ends of uploads. Parts are of four bytes."""
    answers: list[bytes] = []

    class Store(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            if self.command == "POST":
                begins = self.path.endswith("?uploads=")
                body = b"<Begun><UploadId>1</UploadId></Begun>" if begins else answers.pop(0)
            self.send_response(200)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(s3, "PART", 4)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        yield {**environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}, answers
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("first", [FAILED, WHOLE[:40]], ids=["an error", "a torn answer"])
def test_the_end_of_an_upload_is_asked_for_again_when_the_store_says_200_and_means_an_error(
    tmp_path: Path, store: tuple[dict[str, str], list[bytes]], first: bytes
) -> None:
    environ, answers = store
    (tmp_path / "d").mkdir()
    (tmp_path / "d/weights").write_bytes(b"123456")
    answers += [first, WHOLE]
    assert directory_sync.send("s3://b/x", str(tmp_path / "d"), environ) == 1
    assert answers == []


def test_an_upload_that_the_store_never_ends_is_an_error_and_not_remembered_as_sent(
    tmp_path: Path, store: tuple[dict[str, str], list[bytes]]
) -> None:
    environ, answers = store
    (tmp_path / "d").mkdir()
    (tmp_path / "d/weights").write_bytes(b"123456")
    answers += [FAILED] * TRIES
    with pytest.raises(BucketError, match=r"/b/x/weights: InternalError We encountered an internal error\.$"):
        directory_sync.send("s3://b/x", str(tmp_path / "d"), environ)
    answers.append(WHOLE)
    assert directory_sync.send("s3://b/x", str(tmp_path / "d"), environ) == 1


@pytest.mark.parametrize(
    ("rights", "code", "said"),
    [
        ({}, REFUSED, "no credentials for S3 found"),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, CANNOT, "http://127.0.0.1:1/b/ cannot be reached: "),
    ],
)
def test_a_bucket_that_cannot_be_had_ends_the_rank_with_its_name(
    tmp_path: Path, rights: dict[str, str], code: int, said: str
) -> None:
    place = {"LONGBOAT_MOUNT_DATA": str(tmp_path / "d"), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-m", "longboat.runtime.buckets", "data=s3://b/x", "--", "echo", "never"],
        env={**place, **rights, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: storage data could not be fetched: ")
    assert said in done.stderr


def listing(*keys: str) -> bytes:
    items = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    return f"<ListBucketResult>{items}</ListBucketResult>".encode()


class Scripted(ThreadingHTTPServer):
    """A store that answers as a test says: method and path -> status and body, and refuses all else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.answers: dict[tuple[str, str], tuple[int, bytes]] = {}
        self.taken: dict[str, bytes] = {}
        """Path -> what was put there."""
        self.torn = ""
        """Path of which the first half is sent, and then nothing until whoever asked is gone."""
        self.host = f"127.0.0.1:{self.server_port}"
        self.environ = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_ENDPOINT_URL": f"http://{self.host}",
        }


class ScriptedHandler(BaseHTTPRequestHandler):
    server: Scripted

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        status, found = self.server.answers.get((self.command, path), (403, b"<Code>AccessDenied</Code>"))
        if self.command == "PUT" and status == 200:
            self.server.taken[path] = body
        self.send_response(status)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        if path == self.server.torn:
            self.wfile.write(found[: len(found) // 2])
            self.rfile.read(1)
            return
        self.wfile.write(found)

    do_GET = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def around(command: str, tmp_path: Path, scripted: Scripted, *mounts: str) -> subprocess.CompletedProcess[str]:
    """A shell's command with buckets of those names around it; what both printed, in order."""
    process = begun(command, tmp_path, scripted, *mounts)
    said, _ = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said)


def begun(command: str, tmp_path: Path, scripted: Scripted, *mounts: str) -> subprocess.Popen[str]:
    places = {f"LONGBOAT_MOUNT_{name.upper()}": str(tmp_path / name) for name in mounts}
    for name in mounts:
        scripted.answers.setdefault(("GET", f"/{name}/"), (200, listing()))
    words = [f"{name}=s3://{name}/" for name in mounts]
    return subprocess.Popen(
        [sys.executable, "-m", "longboat.runtime.buckets", *words, "--", "sh", "-c", command],
        env={**scripted.environ, **places, "PATH": "/bin:/usr/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("true", REFUSED)])
def test_what_could_not_be_sent_is_told_and_ends_only_a_command_that_succeeded(
    tmp_path: Path, scripted: Scripted, end: str, code: int
) -> None:
    done = around(f"echo new > $LONGBOAT_MOUNT_OUT/file; {end}", tmp_path, scripted, "out")
    assert done.returncode == code
    assert "error: storage out could not be sent: PUT " in done.stdout


def test_a_mount_that_cannot_be_sent_does_not_keep_the_next_one_from_it(tmp_path: Path, scripted: Scripted) -> None:
    scripted.answers["PUT", "/second/file"] = (200, b"")
    command = "for place in $LONGBOAT_MOUNT_FIRST $LONGBOAT_MOUNT_SECOND; do echo new > $place/file; done"
    done = around(command, tmp_path, scripted, "first", "second")
    assert done.returncode == REFUSED
    assert scripted.taken == {"/second/file": b"new\n"}
    assert done.stdout.splitlines()[-1].startswith("error: storage first could not be sent: ")


@pytest.mark.parametrize(
    ("lists", "code"), [((200, listing("gone")), CANNOT), ((404, b"<Code>NoSuchBucket</Code>"), REFUSED)]
)
def test_what_is_deleted_between_list_and_fetch_is_worth_another_try_and_a_bucket_that_is_not_there_is_none(
    tmp_path: Path, scripted: Scripted, lists: tuple[int, bytes], code: int
) -> None:
    scripted.answers |= {("GET", "/data/"): lists, ("GET", "/data/gone"): (404, b"<Code>NoSuchKey</Code>")}
    done = around("echo never", tmp_path, scripted, "data")
    assert done.returncode == code
    assert done.stdout.startswith("error: storage data could not be fetched: GET ")


@pytest.mark.parametrize(
    ("way", "answer"),
    [
        *itertools.product(["web identity", "node", "metadata", "s3", "gs"], [b"", b"<html><p>Log in", b"[]", b"\xff"]),
        ("web identity", b"<Result/>"),
        ("node", b"{}"),
        ("metadata", b"{}"),
    ],
)
def test_an_answer_that_makes_no_sense_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Scripted, way: str, answer: bytes
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    base = f"http://{scripted.host}"
    (tmp_path / "token").write_text("t")
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "r", "AWS_ENDPOINT_URL_STS": base}
    google = "/computeMetadata/v1/instance/service-accounts/default/token"
    for asked in (("POST", "/"), ("GET", "/"), ("GET", google), ("GET", "/b/"), ("GET", "/storage/v1/b/b/o")):
        scripted.answers[asked] = (200, answer)
    ways: dict[str, Callable[[], object]] = {
        "web identity": lambda: aws_keys(web, "r"),
        "node": lambda: aws_keys({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{base}/"}, "r"),
        "metadata": lambda: google_token({"GCE_METADATA_HOST": scripted.host}),
        "s3": lambda: list(S3("b", scripted.environ).list("")),
        "gs": lambda: list(Gcs("b", {"STORAGE_EMULATOR_HOST": scripted.host}).list("")),
    }
    with pytest.raises(BucketError, match=f"^{base}.*: the response cannot be parsed$") as raised:
        ways[way]()
    assert raised.value.status in PASSING


def test_whoever_is_killed_in_the_middle_of_a_fetch_leaves_nothing_that_the_next_life_sends(
    tmp_path: Path, scripted: Scripted
) -> None:
    scripted.answers |= {
        ("GET", "/data/"): (200, listing("deep/big")),
        ("GET", "/data/deep/big"): (200, b"whole"),
        ("PUT", "/data/deep/big"): (200, b""),
    }
    scripted.torn = "/data/deep/big"
    first = begun("true", tmp_path, scripted, "data")
    until(lambda: {each.suffix for each in tmp_path.rglob("*") if each.is_file()} - {".bucket-lock"}, "a file")
    first.kill()
    first.communicate()
    assert [each for each in (tmp_path / "data").rglob("*") if each.is_file()] == []
    scripted.torn = ""
    assert around("true", tmp_path, scripted, "data").returncode == 0
    assert (tmp_path / "data/deep/big").read_bytes() == b"whole"
    assert scripted.taken == {}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "data.bucket-json", "data.bucket-lock"]
