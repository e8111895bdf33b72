"""A signal that comes in the moment in which a process begins, before it has let go of its parent's handlers."""

import os


def signal_children_as_they_begin(number: int) -> None:
    """From now on every child of this process gets the signal before it does anything."""
    fork = os.fork

    def hasty() -> int:
        pid = fork()
        if pid == 0:
            os.kill(os.getpid(), number)
        return pid

    os.fork = hasty
