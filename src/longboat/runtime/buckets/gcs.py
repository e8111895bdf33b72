"""Google Cloud Storage through its JSON API. STORAGE_EMULATOR_HOST names another server."""

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
    """A bucket on Google Cloud Storage."""

    def __init__(self, bucket: str, environ: Mapping[str, str]) -> None:
        self.bucket = bucket
        self._environ = environ
        other = environ.get("STORAGE_EMULATOR_HOST", "")
        self._base = (other if "://" in other else f"http://{other}") if other else "https://storage.googleapis.com"
        self._unauthenticated = bool(other)
        self._token: Optional[GoogleToken] = None

    def list(self, prefix: str) -> Iterator[BucketObject]:
        token = ""
        while True:
            query = {"prefix": prefix, **({"pageToken": token} if token else {})}
            answer = bucket_http.exchange(partial(self._request, "GET", "storage/v1", "", query))
            with bucket_http.parsing(self._base):
                page = json.loads(answer)
                items = page.get("items", ())
                objects = [
                    BucketObject(item["name"], int(item["size"]), str(item.get("generation", ""))) for item in items
                ]
                token = page.get("nextPageToken", "")
            yield from objects
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
        self, method: str, api: str, key: str, query: Optional[Mapping[str, str]] = None, path: Optional[str] = None
    ) -> urllib.request.Request:
        if not self._unauthenticated and (self._token is None or self._token.stale):
            self._token = google_token(self._environ)
        headers = {"Authorization": f"Bearer {self._token.token}"} if self._token else {}
        if path is not None:
            headers["Content-Type"] = "application/octet-stream"
        url = f"{self._base}/{api}/b/{urllib.parse.quote(self.bucket, safe='')}/o"
        url += f"/{urllib.parse.quote(key, safe='')}" if key else ""
        return bucket_http.request(method, url + (f"?{urllib.parse.urlencode(query)}" if query else ""), headers, path)
