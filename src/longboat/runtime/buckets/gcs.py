"""Google's Cloud Storage by its JSON interface. STORAGE_EMULATOR_HOST names another server."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from functools import partial
from typing import Iterator, Mapping, Optional

from longboat.runtime.buckets import bucket_http
from longboat.runtime.buckets.credentials import GoogleToken, google_token
from longboat.runtime.buckets.s3 import BucketObject


class Gcs:
    def __init__(self, bucket: str, environ: Mapping[str, str]) -> None:
        self.bucket = bucket
        self._environ = environ
        other = environ.get("STORAGE_EMULATOR_HOST", "")
        self._base = (other if "://" in other else f"http://{other}") if other else "https://storage.googleapis.com"
        self._free = bool(other)
        self._token: Optional[GoogleToken] = None

    def list(self, prefix: str) -> Iterator[BucketObject]:
        token = ""
        while True:
            query = {"prefix": prefix, **({"pageToken": token} if token else {})}
            answer = bucket_http.exchange(partial(self._request, "GET", "storage/v1", "", query))
            with bucket_http.understanding(self._base):
                told = json.loads(answer)
                items = told.get("items", ())
                found = [
                    BucketObject(item["name"], int(item["size"]), str(item.get("generation", ""))) for item in items
                ]
                token = told.get("nextPageToken", "")
            yield from found
            if not token:
                return

    def get(self, key: str, path: str) -> None:
        bucket_http.exchange(lambda: self._request("GET", "storage/v1", key, {"alt": "media"}), bucket_http.save(path))

    def put(self, key: str, path: str) -> None:
        query = {"uploadType": "media", "name": key}
        bucket_http.exchange(lambda: self._request("POST", "upload/storage/v1", "", query, path))

    def delete(self, key: str) -> None:
        bucket_http.exchange(lambda: self._request("DELETE", "storage/v1", key))

    def _request(
        self, method: str, door: str, key: str, query: Optional[Mapping[str, str]] = None, path: Optional[str] = None
    ) -> urllib.request.Request:
        if not self._free and (self._token is None or self._token.stale):
            self._token = google_token(self._environ)
        headers = {"Authorization": f"Bearer {self._token.token}"} if self._token else {}
        if path is not None:
            headers["Content-Type"] = "application/octet-stream"
        place = f"{self._base}/{door}/b/{urllib.parse.quote(self.bucket, safe='')}/o"
        place += f"/{urllib.parse.quote(key, safe='')}" if key else ""
        return bucket_http.request(
            method, place + (f"?{urllib.parse.urlencode(query)}" if query else ""), headers, path
        )
