"""Credentials for buckets, from the machine or pod. A key in a file is the last resort.

AWS: variables (AWS_ACCESS_KEY_ID ...), a pod's service account (AWS_ROLE_ARN and
AWS_WEB_IDENTITY_TOKEN_FILE), an agent on the node (AWS_CONTAINER_CREDENTIALS_FULL_URI), the file
~/.aws/credentials. Google: GOOGLE_OAUTH_ACCESS_TOKEN, the metadata server (workload identity),
`gcloud` on a laptop.
"""

from __future__ import annotations

import calendar
import configparser
import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from typing import Any, Mapping, Optional

from longboat.runtime.buckets import bucket_http
from longboat.runtime.buckets.bucket_http import BucketError
from longboat.runtime.light_dataclasses import dataclass

EARLY = 300.0
"""Seconds before expiry at which credentials are renewed."""
METADATA = "http://metadata.google.internal"


@dataclass(frozen=True)
class AwsKeys:
    """Keys for S3."""

    key: str
    secret: str
    token: str = ""
    ends: float = 0.0
    """Seconds since the epoch; 0: never."""

    @property
    def stale(self) -> bool:
        return bool(self.ends) and time.time() > self.ends - EARLY


@dataclass(frozen=True)
class GoogleToken:
    """An access token for Google Cloud Storage."""

    token: str
    ends: float = 0.0

    @property
    def stale(self) -> bool:
        return bool(self.ends) and time.time() > self.ends - EARLY


def aws_keys(environ: Mapping[str, str], region: str) -> AwsKeys:
    if environ.get("AWS_ACCESS_KEY_ID"):
        secret = environ.get("AWS_SECRET_ACCESS_KEY", "")
        return AwsKeys(environ["AWS_ACCESS_KEY_ID"], secret, environ.get("AWS_SESSION_TOKEN", ""))
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN"):
        return _web_identity(environ, region)
    if environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return _container_credentials(environ)
    keys = _credentials_file(environ)
    if keys is None:
        raise BucketError(
            "no credentials for S3 found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, use a service account with "
            "a role, or write ~/.aws/credentials",
            401,
        )
    return keys


def google_token(environ: Mapping[str, str]) -> GoogleToken:
    if environ.get("GOOGLE_OAUTH_ACCESS_TOKEN"):
        return GoogleToken(environ["GOOGLE_OAUTH_ACCESS_TOKEN"])
    try:
        return _metadata_token(environ)
    except BucketError as error:
        failure = error
    try:
        done = subprocess.run(["gcloud", "auth", "print-access-token"], capture_output=True, text=True, check=True)
        return GoogleToken(done.stdout.strip(), time.time() + 1800)
    except (OSError, subprocess.CalledProcessError):
        if failure.status in bucket_http.PASSING:
            raise failure from None
        raise BucketError(
            "no credentials for Google Cloud Storage found; use workload identity, GOOGLE_OAUTH_ACCESS_TOKEN or gcloud",
            401,
        ) from None


def _metadata_token(environ: Mapping[str, str]) -> GoogleToken:
    """A token from the metadata server of Google's cloud."""
    host = environ.get("GCE_METADATA_HOST")
    base = f"http://{host}" if host else METADATA
    url = f"{base}/computeMetadata/v1/instance/service-accounts/default/token"
    text = bucket_http.exchange(
        lambda: bucket_http.request("GET", url, {"Metadata-Flavor": "Google"}), tries=1, patience=3.0
    )
    with bucket_http.parsing(url):
        answer = json.loads(text)
        return GoogleToken(answer["access_token"], time.time() + float(answer["expires_in"]))


def _web_identity(environ: Mapping[str, str], region: str) -> AwsKeys:
    """Exchange a pod's service account token for keys that last an hour."""
    try:
        with open(environ["AWS_WEB_IDENTITY_TOKEN_FILE"], encoding="utf-8") as file:
            token = file.read().strip()
    except OSError as error:
        raise BucketError(f"{environ['AWS_WEB_IDENTITY_TOKEN_FILE']}: {error.strerror}") from None
    query = urllib.parse.urlencode(
        {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": environ["AWS_ROLE_ARN"],
            "RoleSessionName": environ.get("AWS_ROLE_SESSION_NAME", "longboat"),
            "WebIdentityToken": token,
        }
    )
    base = environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
    text = bucket_http.exchange(lambda: bucket_http.request("POST", base + "/", FORM, data=query.encode()))
    with bucket_http.parsing(base):
        answer = {item.tag.rpartition("}")[2]: item.text or "" for item in ElementTree.fromstring(text).iter()}
        ends = _timestamp(answer.get("Expiration"))
        return AwsKeys(answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"], ends)


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def _container_credentials(environ: Mapping[str, str]) -> AwsKeys:
    headers = {}
    if environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        with open(environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"], encoding="utf-8") as file:
            headers["Authorization"] = file.read().strip()
    elif environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"):
        headers["Authorization"] = environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
    url = environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    text = bucket_http.exchange(lambda: bucket_http.request("GET", url, headers))
    with bucket_http.parsing(url):
        answer: Any = json.loads(text)
        ends = _timestamp(answer.get("Expiration"))
        return AwsKeys(answer["AccessKeyId"], answer["SecretAccessKey"], answer.get("Token", ""), ends)


def _credentials_file(environ: Mapping[str, str]) -> Optional[AwsKeys]:
    path = environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
    config = configparser.ConfigParser(interpolation=None)
    try:
        config.read(path)
        part = config[environ.get("AWS_PROFILE") or "default"]
        return AwsKeys(part["aws_access_key_id"], part["aws_secret_access_key"], part.get("aws_session_token", ""))
    except (KeyError, configparser.Error, OSError):
        return None


def _timestamp(text: Optional[str]) -> float:
    """`2026-11-15T21:00:00Z` as seconds since the epoch."""
    try:
        return float(calendar.timegm(time.strptime((text or "")[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0
