"""Signatures against published examples, and which ranks have buckets around them. tests/e2e asks a real store."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from windlass.buckets import copying, s3
from windlass.buckets.http import TRIES, BucketError
from windlass.buckets.keys import AwsKeys, aws_keys
from windlass.buckets.s3 import EMPTY, S3, signed
from windlass.buckets.wrapping import wrapped
from windlass.plan import Mount, Plan

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
    headers = signed("GET", place, query, EMPTY, KEYS, "us-east-1", "s3", THEN)
    assert headers["Authorization"].endswith(f"Signature={signature}")


def test_a_command_has_its_buckets_around_it_and_is_itself_without() -> None:
    command = ("sh", "-c", "train")
    assert wrapped(Plan("job", storage=(Mount("data", "path", "/d", path="/d"),)), command) == command
    mounts = (Mount("data", "s3", "s3://b/d", read_only=True), Mount("weights", "gs", "gs://b/w"))
    found = wrapped(Plan("job", storage=mounts), command)
    assert found[1:] == ("-m", "windlass.buckets", "data=s3://b/d:ro", "weights=gs://b/w", "--", *command)


def test_keys_come_from_the_environment_or_a_file_and_their_absence_is_said(tmp_path: Path) -> None:
    given = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    assert aws_keys(given, "r") == AwsKeys("a", "b", "c")
    (tmp_path / "keys").write_text("[other]\naws_access_key_id = x\naws_secret_access_key = 50%\n")
    file = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "AWS_PROFILE": "other"}
    assert aws_keys(file, "r") == AwsKeys("x", "50%")
    with pytest.raises(BucketError, match="no right to use S3 was found"):
        aws_keys({**file, "AWS_PROFILE": "third"}, "r")


@pytest.mark.parametrize("url", ["s3:///x", "http://b/x", "bucket"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(BucketError, match="s3://BUCKET/PREFIX"):
        copying.opened(url, {})


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
    assert copying.send("s3://b/x", str(tmp_path / "d"), environ) == 1
    assert answers == []


def test_an_upload_that_the_store_never_ends_is_an_error_and_not_remembered_as_sent(
    tmp_path: Path, store: tuple[dict[str, str], list[bytes]]
) -> None:
    environ, answers = store
    (tmp_path / "d").mkdir()
    (tmp_path / "d/weights").write_bytes(b"123456")
    answers += [FAILED] * TRIES
    with pytest.raises(BucketError, match=r"/b/x/weights: InternalError We encountered an internal error\.$"):
        copying.send("s3://b/x", str(tmp_path / "d"), environ)
    answers.append(WHOLE)
    assert copying.send("s3://b/x", str(tmp_path / "d"), environ) == 1


@pytest.mark.parametrize(
    ("rights", "code", "said"),
    [
        ({}, 77, "no right to use S3 was found"),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, 74, "http://127.0.0.1:1/b/ cannot be reached: "),
    ],
)
def test_a_bucket_that_cannot_be_had_ends_the_rank_with_its_name(
    tmp_path: Path, rights: dict[str, str], code: int, said: str
) -> None:
    place = {"WINDLASS_MOUNT_DATA": str(tmp_path / "d"), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-m", "windlass.buckets", "data=s3://b/x", "--", "echo", "never"],
        env={**place, **rights, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: storage data could not be fetched: ")
    assert said in done.stderr
