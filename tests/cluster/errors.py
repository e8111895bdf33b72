"""The one exception of this package: a message for whoever typed the command, and what to do about it."""


class ClusterError(Exception):
    """Something that the reader can mend; `hint` says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
