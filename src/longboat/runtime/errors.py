"""`LongboatError`: an error that the user can fix.

Any package may raise it. The CLI prints `error: ...`, a blank line, `hint: ...` and exits with its
code. Any other exception that escapes is a bug in Longboat.
"""

from __future__ import annotations

OK, FAILED, WRONG_USE, GATE_NOT_MET, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes of every command."""
PACKAGES_MISSING, PYTHON_TOO_OLD = 69, 78
"""Exit codes of a server, and of Longboat's programs in a pod, if the image lacks what they need."""


class LongboatError(Exception):
    """An error message for the user, with a hint on how to fix it."""

    def __init__(self, message: str, hint: str = "", code: int = WRONG_USE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
