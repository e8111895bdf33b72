"""HTTP requests to a bucket's server: streamed bodies, retries, readable errors."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from typing import IO, Any, Callable, Iterator, Mapping, Optional

TRIES = 5
PATIENCE = 60.0
PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses that are worth a retry."""
UNREADABLE = 502
"""The status of a response that cannot be parsed."""


class BucketError(OSError):
    """The storage refused a request, or could not be reached. `status` is that of the response, or the one that it
    would have without credentials; 0 without a response, or if the next one may differ."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@contextlib.contextmanager
def parsing(url: str) -> Iterator[None]:
    """Guard parsing of a response: one that cannot be parsed (a proxy's page, a truncated body) is an error."""
    try:
        yield
    except (ElementTree.ParseError, LookupError, ValueError, TypeError, AttributeError):
        raise BucketError(f"{without_query(url)}: the response cannot be parsed", UNREADABLE) from None


def exchange(
    make: Callable[[], urllib.request.Request],
    take: Callable[[IO[bytes]], Any] = lambda answer: answer.read(),
    tries: int = TRIES,
    patience: float = PATIENCE,
) -> Any:
    """Send a request with retries; returns what `take` makes of the response. `take` may raise a BucketError with the
    status that the response should have had. `make` is called for every attempt: signatures expire and bodies are
    read once."""
    for number in range(1, tries + 1):
        request = make()
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return take(answer)
        except urllib.error.HTTPError as error:
            failure = BucketError(_message(request, error), error.code)
            if error.code not in PASSING or number == tries:
                raise failure from None
        except BucketError as error:
            if error.status not in PASSING or number == tries:
                raise
        except (OSError, http.client.HTTPException) as error:
            if number == tries:
                reason = getattr(error, "reason", None) or error
                raise BucketError(f"{without_query(request.full_url)} cannot be reached: {reason}") from None
        finally:
            body = request.data
            if hasattr(body, "close"):
                body.close()  # type: ignore[union-attr]
        time.sleep(min(0.2 * 2**number, 5.0) * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt returned or raised")


def request(
    method: str, url: str, headers: Mapping[str, str], path: Optional[str] = None, data: Optional[bytes] = None
) -> urllib.request.Request:
    """A request whose body is a file, bytes or nothing."""
    body: Any = open(path, "rb") if path is not None else data
    result = urllib.request.Request(url, body, dict(headers), method=method)
    if path is not None:
        result.add_unredirected_header("Content-Length", str(os.path.getsize(path)))
    return result


def save(path: str) -> Callable[[IO[bytes]], None]:
    """Save a response to a file; an incomplete one leaves no file."""

    def take(answer: IO[bytes]) -> None:
        wanted = getattr(answer, "length", None)
        got = 0
        try:
            with open(path, "wb") as file:
                while True:
                    block = answer.read(1 << 20)
                    if not block:
                        break
                    got += file.write(block)
            if wanted is not None and got != wanted:
                raise OSError(f"the response ended after {got} of {wanted} bytes")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    return take


def without_query(url: str) -> str:
    """A URL without its query, which may hold secrets."""
    return urllib.parse.urlsplit(url)._replace(query="", fragment="").geturl()


def _message(request: urllib.request.Request, error: urllib.error.HTTPError) -> str:
    body = error.read(4096)
    return f"{request.get_method()} {without_query(request.full_url)}: {error.code} {error_text(body) or error.reason}"


def error_text(answer: bytes) -> str:
    """The message in a storage's error response."""
    body = answer.decode("utf-8", "replace")
    message = re.search(r"<Message>(.*?)</Message>", body, re.S) or re.search(r'"message":\s*"(.*?)"', body)
    code = re.search(r"<Code>(.*?)</Code>", body)
    return " ".join(match[1] for match in (code, message) if match) or " ".join(body.split())[:200]
