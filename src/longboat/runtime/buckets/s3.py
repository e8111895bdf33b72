"""Amazon's S3 and all that speak as it does (MinIO, Ceph, versitygw ...): requests signed by version 4.

AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names another server; AWS_REGION the region. Buckets are named
in the path where an endpoint is given, in the host name else.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from functools import partial
from typing import IO, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from longboat.runtime.buckets import bucket_http
from longboat.runtime.buckets.credentials import AwsKeys, aws_keys

EMPTY = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
PART = 64 * 1024 * 1024
"""Bytes of a part: a larger file is sent in parts, for one request holds at most 5 GiB and may be cut off."""


class BucketObject(NamedTuple):
    key: str
    size: int
    mark: str
    """Another one when the object has changed."""


class S3:
    def __init__(self, bucket: str, environ: Mapping[str, str]) -> None:
        self.bucket = bucket
        self._environ = environ
        self._region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        if endpoint:
            self._base = f"{endpoint.rstrip('/')}/{bucket}"
        else:
            self._base = f"https://{bucket}.s3.{self._region}.amazonaws.com"
        self._keys: Optional[AwsKeys] = None

    def list(self, prefix: str) -> Iterator[BucketObject]:
        token = ""
        while True:
            query = {"list-type": "2", "prefix": prefix, **({"continuation-token": token} if token else {})}
            answer = bucket_http.exchange(partial(self._request, "GET", "", query))
            with bucket_http.understanding(self._base):
                found, token = _listed(ElementTree.fromstring(answer))
            yield from found
            if not token:
                return

    def get(self, key: str, path: str) -> None:
        bucket_http.exchange(lambda: self._request("GET", key), bucket_http.save(path))

    def put(self, key: str, path: str) -> None:
        size = os.path.getsize(path)
        if size > PART:
            self._put_parts(key, path, size)
        else:
            bucket_http.exchange(lambda: self._request("PUT", key, path=path, payload=UNSIGNED))

    def delete(self, key: str) -> None:
        bucket_http.exchange(lambda: self._request("DELETE", key))

    def _put_parts(self, key: str, path: str, size: int) -> None:
        begun = ElementTree.fromstring(bucket_http.exchange(lambda: self._request("POST", key, {"uploads": ""})))
        upload = next(item.text or "" for item in begun.iter() if item.tag.endswith("UploadId"))
        try:
            marks: List[Tuple[int, str]] = []
            with open(path, "rb") as file:
                for number in range(1, (size + PART - 1) // PART + 1):
                    query = {"partNumber": str(number), "uploadId": upload}
                    block = file.read(PART)
                    mark = bucket_http.exchange(
                        partial(self._request, "PUT", key, query, data=block),
                        lambda answer: answer.headers["ETag"],  # type: ignore[attr-defined]
                    )
                    marks.append((number, mark))
            parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{mark}</ETag></Part>" for n, mark in marks)
            whole = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            bucket_http.exchange(lambda: self._request("POST", key, {"uploadId": upload}, data=whole), _completed)
        except BaseException:
            with contextlib.suppress(bucket_http.BucketError):  # what was raised before says more
                bucket_http.exchange(lambda: self._request("DELETE", key, {"uploadId": upload}), tries=1)
            raise

    def _request(
        self,
        method: str,
        key: str,
        query: Optional[Mapping[str, str]] = None,
        path: Optional[str] = None,
        data: Optional[bytes] = None,
        payload: str = "",
    ) -> urllib.request.Request:
        """A signed request, made anew for every try."""
        if self._keys is None or self._keys.stale:
            self._keys = aws_keys(self._environ, self._region)
        place = self._base + "/" + urllib.parse.quote(key, safe="/-_.~")
        words = "&".join(f"{_quoted(k)}={_quoted(v)}" for k, v in sorted((query or {}).items()))
        payload = payload or (hashlib.sha256(data).hexdigest() if data is not None else EMPTY)
        headers = signed(method, place, words, payload, self._keys, self._region, "s3", time.gmtime())
        return bucket_http.request(method, place + (f"?{words}" if words else ""), headers, path, data)


def _listed(root: ElementTree.Element) -> Tuple[List[BucketObject], str]:
    """A page of a list, and what the next one is asked for with."""
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    found = []
    for item in root.iter(f"{space}Contents"):
        text = {child.tag.replace(space, ""): child.text or "" for child in item}
        found.append(BucketObject(text["Key"], int(text["Size"]), text.get("ETag", "")))
    return found, root.findtext(f"{space}NextContinuationToken") or ""


def signed(
    method: str, place: str, query: str, payload: str, keys: AwsKeys, region: str, service: str, now: time.struct_time
) -> Mapping[str, str]:
    """The headers of a request that is signed by version 4."""
    parts = urllib.parse.urlsplit(place)
    stamp, day = time.strftime("%Y%m%dT%H%M%SZ", now), time.strftime("%Y%m%d", now)
    headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, parts.path or "/", query, lines, names, payload])
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + keys.secret.encode()
    for word in (day, region, service, "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    mark = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={keys.key}/{scope}, SignedHeaders={names}, Signature={mark}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _completed(answer: IO[bytes]) -> None:
    """The store says 200 before it puts the parts together: whether that went well is in what follows."""
    body = answer.read().strip()
    try:
        failed = ElementTree.fromstring(body).tag.endswith("Error")
    except ElementTree.ParseError:
        failed = True
    if failed:
        where = bucket_http.place(answer.geturl())  # type: ignore[attr-defined]
        raise bucket_http.BucketError(f"POST {where}: {bucket_http.words(body) or 'an empty answer'}", 500)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
