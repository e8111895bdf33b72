"""What a user can do wrong, as one exception.

Any room may raise it; the command line prints it as `error: ...`, a blank line, `hint: ...`
and exits with its code. Everything else that escapes is a bug of ours.
"""

from __future__ import annotations

OK, FAILED, WRONG_USE, GATE_NOT_MET, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes of every command."""


class LongboatError(Exception):
    """A message for the user: what is wrong, and the fix as a hint."""

    def __init__(self, message: str, hint: str = "", code: int = WRONG_USE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
