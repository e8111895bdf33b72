"""One HTTP exchange with a bucket's server: streamed bodies, tries again on what passes, words for what does not."""

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
"""Answers that a later try may not get."""
SENSELESS = 502
"""As which an answer counts that cannot be read."""


class BucketError(OSError):
    """The store refused, or could not be reached. `status` is the answer's, or the one that the store would have given
    to whom nothing entitles; 0 without an answer, or when the next one may be another."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@contextlib.contextmanager
def understanding(url: str) -> Iterator[None]:
    """Around the reading of an answer: one that makes no sense (a proxy's page, a part) is as good as none."""
    try:
        yield
    except (ElementTree.ParseError, LookupError, ValueError, TypeError, AttributeError):
        raise BucketError(f"{place(url)}: the answer makes no sense", SENSELESS) from None


def exchange(
    make: Callable[[], urllib.request.Request],
    take: Callable[[IO[bytes]], Any] = lambda answer: answer.read(),
    tries: int = TRIES,
    patience: float = PATIENCE,
) -> Any:
    """What `take` makes of the answer; it may raise a BucketError with the status that the answer should have had.
    `make` is called for every try, for a signature ages and a body is read once."""
    for number in range(1, tries + 1):
        request = make()
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
                return take(answer)
        except urllib.error.HTTPError as error:
            found = BucketError(_told(request, error), error.code)
            if error.code not in PASSING or number == tries:
                raise found from None
        except BucketError as error:
            if error.status not in PASSING or number == tries:
                raise
        except (OSError, http.client.HTTPException) as error:
            if number == tries:
                reason = getattr(error, "reason", None) or error
                raise BucketError(f"{place(request.full_url)} cannot be reached: {reason}") from None
        finally:
            body = request.data
            if hasattr(body, "close"):
                body.close()  # type: ignore[union-attr]
        time.sleep(min(0.2 * 2**number, 5.0) * random.uniform(0.5, 1.0))
    raise AssertionError("the last try has returned or raised")


def request(
    method: str, url: str, headers: Mapping[str, str], path: Optional[str] = None, data: Optional[bytes] = None
) -> urllib.request.Request:
    """A request whose body is a file, bytes or nothing."""
    body: Any = open(path, "rb") if path is not None else data
    made = urllib.request.Request(url, body, dict(headers), method=method)
    if path is not None:
        made.add_unredirected_header("Content-Length", str(os.path.getsize(path)))
    return made


def save(path: str) -> Callable[[IO[bytes]], None]:
    """Takes an answer into a file; of one that breaks off nothing is left."""

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
                raise OSError(f"the answer ended after {got} of {wanted} bytes")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    return take


def place(url: str) -> str:
    """A URL without its query, which may hold secrets."""
    return urllib.parse.urlsplit(url)._replace(query="", fragment="").geturl()


def _told(request: urllib.request.Request, error: urllib.error.HTTPError) -> str:
    body = error.read(4096)
    return f"{request.get_method()} {place(request.full_url)}: {error.code} {words(body) or error.reason}"


def words(answer: bytes) -> str:
    """What a store says of an error."""
    body = answer.decode("utf-8", "replace")
    said = re.search(r"<Message>(.*?)</Message>", body, re.S) or re.search(r'"message":\s*"(.*?)"', body)
    kind = re.search(r"<Code>(.*?)</Code>", body)
    return " ".join(found[1] for found in (kind, said) if found) or " ".join(body.split())[:200]
