"""Staging: fetch files before an incarnation starts, send files before its end is reported.

Only with a file server. Without one, driver and rank share the run directory, and nothing waits.
"""

from __future__ import annotations

import os
from typing import Callable, List, Optional, Tuple

from longboat.runtime import run_layout
from longboat.runtime.agent.agent_config import AgentConfig, places_of, storage_of
from longboat.runtime.agent.file_sync import FileSync
from longboat.runtime.messages import CheckpointPart, StartOrder


class Staging:
    """File staging of one incarnation after the other; `wake` is called when a step is done."""

    def __init__(self, config: AgentConfig, wake: Callable[[], None]) -> None:
        self._config = config
        self._file_sync = (
            FileSync(config.file_server, config.token, config.seat.name, config.run_dir, wake)
            if config.file_server
            else None
        )
        self.awaited: Optional[StartOrder] = None
        """The start that waits for its files."""
        self._settling = False
        """The process has ended; its files are being sent."""

    def fetch(self, start: StartOrder) -> bool:
        """Whether this start has to wait for its files; `take` returns it once they are here."""
        if self._file_sync is None:
            return False
        config = self._config
        places = places_of(config, start["incarnation"][0])
        trees = [*places.inputs.values(), places.output, *storage_of(config), *filter(None, [start["resume_from"]])]
        logs = [run_layout.log(config.run_dir, config.seat.stage, config.seat.role, config.seat.rank)]
        if start["launcher"] and not start["spread"]:
            ranks = config.plan.stage(config.seat.stage).role("worker").ranks
            logs += [run_layout.log(config.run_dir, config.seat.stage, "worker", rank) for rank in range(ranks)]
        self.awaited, self._settling = start, False
        generation, restart = start["incarnation"]
        self._file_sync.begin(logs, trees, ("begin", start["incarnation"]), places.output, (generation, restart))
        return True

    def forget(self) -> None:
        """Cancel the start that waits."""
        self.awaited = None

    def carry(self, checkpoint: CheckpointPart) -> bool:
        """Whether this checkpoint must reach the file server before it is reported; `take` returns it then."""
        record = checkpoint["record"]
        if self._file_sync is None or record.get("error"):
            return False
        self._file_sync.send(os.path.join(self._config.run_dir, str(record["path"])), ("checkpoint", checkpoint))
        return True

    def take(self) -> Tuple[List[CheckpointPart], Optional[StartOrder], Optional[OSError]]:
        """Checkpoints that have arrived, the start whose files have, or why its files cannot be stored."""
        checkpoints: List[CheckpointPart] = []
        start: Optional[StartOrder] = None
        problem: Optional[OSError] = None
        for kind, token in self._file_sync.done() if self._file_sync is not None else ():
            incarnation, error = token if kind == "unable" else (token, None)
            if kind == "checkpoint":
                checkpoints.append(token)
            elif self.awaited is not None and self.awaited["incarnation"] == incarnation:
                start, problem, self.awaited = None if error else self.awaited, error, None
        return checkpoints, start, problem

    def settled(self, killed: bool) -> bool:
        """Whether all files of the ended process have been sent. killed: it had no time to end by itself, so only what
        is being sent already is still waited for."""
        file_sync = self._file_sync
        if file_sync is None:
            return True
        if not self._settling:
            self._settling = True
            if killed:
                file_sync.forget_checkpoints()
            else:
                for tree in (
                    run_layout.output(self._config.run_dir, self._config.seat.stage),
                    *storage_of(self._config),
                ):
                    file_sync.send_tree(tree)
        file_sync.hurry()
        return file_sync.settled
