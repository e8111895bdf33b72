"""Amazon S3 and compatible storage (MinIO, Ceph, versitygw ...): requests with signature version 4.

AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names another server; AWS_REGION the region. Buckets are part of the path if
an endpoint is given, else of the host name.
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
"""Bytes of a part. Larger files are sent in parts: one request holds at most 5 GiB and may be cut off."""


class BucketObject(NamedTuple):
    """An object of a bucket."""

    key: str
    size: int
    mark: str
    """Changes with the object's contents."""


class S3:
    """A bucket on S3."""

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
            with bucket_http.parsing(self._base):
                objects, token = _listed(ElementTree.fromstring(answer))
            yield from objects
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
        started = ElementTree.fromstring(bucket_http.exchange(lambda: self._request("POST", key, {"uploads": ""})))
        upload = next(item.text or "" for item in started.iter() if item.tag.endswith("UploadId"))
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
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            bucket_http.exchange(lambda: self._request("POST", key, {"uploadId": upload}, data=body), _completed)
        except BaseException:
            with contextlib.suppress(bucket_http.BucketError):  # the first error says more
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
        """A signed request, created for every attempt."""
        if self._keys is None or self._keys.stale:
            self._keys = aws_keys(self._environ, self._region)
        url = self._base + "/" + urllib.parse.quote(key, safe="/-_.~")
        text = "&".join(f"{_quoted(k)}={_quoted(v)}" for k, v in sorted((query or {}).items()))
        payload = payload or (hashlib.sha256(data).hexdigest() if data is not None else EMPTY)
        headers = signed(method, url, text, payload, self._keys, self._region, time.gmtime())
        return bucket_http.request(method, url + (f"?{text}" if text else ""), headers, path, data)


def _listed(root: ElementTree.Element) -> Tuple[List[BucketObject], str]:
    """A page of a list, and the token of the next page."""
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    objects = []
    for item in root.iter(f"{space}Contents"):
        text = {child.tag.replace(space, ""): child.text or "" for child in item}
        objects.append(BucketObject(text["Key"], int(text["Size"]), text.get("ETag", "")))
    return objects, root.findtext(f"{space}NextContinuationToken") or ""


def signed(
    method: str, url: str, query: str, payload: str, keys: AwsKeys, region: str, now: time.struct_time
) -> Mapping[str, str]:
    """The headers of a request to S3 with signature version 4."""
    parts = urllib.parse.urlsplit(url)
    stamp, day = time.strftime("%Y%m%dT%H%M%SZ", now), time.strftime("%Y%m%d", now)
    headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join([method, parts.path or "/", query, lines, names, payload])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + keys.secret.encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    mark = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={keys.key}/{scope}, SignedHeaders={names}, Signature={mark}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def _completed(answer: IO[bytes]) -> None:
    """Check a completed upload: S3 sends status 200 before it joins the parts; the body says whether that worked."""
    body = answer.read().strip()
    try:
        failed = ElementTree.fromstring(body).tag.endswith("Error")
    except ElementTree.ParseError:
        failed = True
    if failed:
        where = bucket_http.without_query(answer.geturl())  # type: ignore[attr-defined]
        raise bucket_http.BucketError(f"POST {where}: {bucket_http.error_text(body) or 'an empty answer'}", 500)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")
