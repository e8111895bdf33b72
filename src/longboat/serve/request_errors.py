"""Table of request errors for all protocols.

Each reason has an HTTP status, a gRPC status and TensorFlow Serving's name for it, so that the same mistake gives the
same error over every protocol. The protocols only format the message.
"""

from __future__ import annotations

import enum

from longboat.runtime import debug_log


class RefusalReason(enum.Enum):
    """(HTTP status, gRPC status code, its name)."""

    INVALID = (400, 3, "INVALID_ARGUMENT")
    UNAUTHENTICATED = (401, 16, "UNAUTHENTICATED")
    NOT_FOUND = (404, 5, "NOT_FOUND")
    METHOD = (405, 12, "UNIMPLEMENTED")
    SLOW = (408, 4, "DEADLINE_EXCEEDED")
    TOO_LARGE = (413, 8, "RESOURCE_EXHAUSTED")
    MEDIA = (415, 3, "INVALID_ARGUMENT")
    BUSY = (429, 8, "RESOURCE_EXHAUSTED")
    HEADERS = (431, 3, "INVALID_ARGUMENT")
    FAILED = (500, 13, "INTERNAL")
    UNIMPLEMENTED = (501, 12, "UNIMPLEMENTED")
    UNAVAILABLE = (503, 14, "UNAVAILABLE")
    MEMORY = (503, 8, "RESOURCE_EXHAUSTED")
    DEADLINE = (504, 4, "DEADLINE_EXCEEDED")
    GONE = (499, 1, "CANCELLED")

    @property
    def http(self) -> int:
        return self.value[0]

    @property
    def grpc(self) -> int:
        return self.value[1]


class RequestRefused(Exception):
    """The error of a refused request."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def unforeseen(error: BaseException) -> RequestRefused:
    """The error for a bug in the server, with its position in the code for a bug report."""
    debug_log.warning("the server itself failed", error=error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})" if trace else ""
    return RequestRefused(RefusalReason.FAILED, f"the server itself failed: {type(error).__name__}: {error}{where}")


def log_refusal(call: str, request_id: str, refused: RequestRefused) -> None:
    debug_log.info("refused %s, request id %r: %s: %s", call, request_id, refused.reason.name, refused.message)


def invalid(message: str) -> RequestRefused:
    return RequestRefused(RefusalReason.INVALID, message)
