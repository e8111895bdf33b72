"""What the lives of a rank wait for where its files have to be carried: those it needs before it begins, those it
wrote before its end is told.

Without a depot the run directory is on a disk that driver and rank both see, and nothing waits.
"""

from __future__ import annotations

import os
from typing import Callable, List, Optional, Tuple

from longboat.runtime import run_layout, wire
from longboat.runtime.agent.agent_config import AgentConfig, places_of, storage_of
from longboat.runtime.agent.file_sync import FileSync


class Staging:
    """The courier's errands for one life after the other; `wake` is called when one is done."""

    def __init__(self, config: AgentConfig, wake: Callable[[], None]) -> None:
        self._config = config
        self._courier = (
            FileSync(config.depot, config.token, config.name, config.run_dir, wake) if config.depot else None
        )
        self.awaited: Optional[wire.Message] = None
        """The start that waits for its files."""
        self._settling = False
        """The process has ended; what it wrote is being carried away."""

    def fetch(self, start: wire.Message) -> bool:
        """Whether this start has to wait for its files; it is taken once they are here."""
        if self._courier is None:
            return False
        config = self._config
        places = places_of(config, start["incarnation"][0])
        trees = [*places.inputs.values(), places.output, *storage_of(config), *filter(None, [start["resume_from"]])]
        logs = [run_layout.log(config.run_dir, config.stage, config.role, config.rank)]
        if start["launcher"] and not start.get("spread"):
            ranks = config.plan.stage(config.stage).role("worker").ranks
            logs += [run_layout.log(config.run_dir, config.stage, "worker", rank) for rank in range(ranks)]
        self.awaited, self._settling = start, False
        generation, restart = start["incarnation"]
        self._courier.begin(logs, trees, ("begin", start["incarnation"]), places.output, (generation, restart))
        return True

    def forget(self) -> None:
        """The start that waits is not to happen."""
        self.awaited = None

    def carry(self, checkpoint: wire.Message) -> bool:
        """Whether this checkpoint has to arrive in the depot before it may be told of; it is taken once it has."""
        record = checkpoint["record"]
        if self._courier is None or record.get("error"):
            return False
        self._courier.send(os.path.join(self._config.run_dir, str(record["path"])), ("checkpoint", checkpoint))
        return True

    def take(self) -> Tuple[List[wire.Message], Optional[wire.Message], Optional[OSError]]:
        """Checkpoints that have arrived, and the start whose files have; or why those of the awaited one cannot."""
        checkpoints: List[wire.Message] = []
        start: Optional[wire.Message] = None
        problem: Optional[OSError] = None
        for kind, what in self._courier.done() if self._courier is not None else ():
            incarnation, error = what if kind == "unable" else (what, None)
            if kind == "checkpoint":
                checkpoints.append(what)
            elif self.awaited is not None and self.awaited["incarnation"] == incarnation:
                start, problem, self.awaited = None if error else self.awaited, error, None
        return checkpoints, start, problem

    def settled(self, asked: bool) -> bool:
        """Whether all that the ended process wrote is where it will be looked for. asked: it was told to end."""
        courier = self._courier
        if courier is None:
            return True
        if not self._settling:
            self._settling = True
            if asked:
                courier.forget_checkpoints()
            else:
                for tree in (run_layout.output(self._config.run_dir, self._config.stage), *storage_of(self._config)):
                    courier.send_tree(tree)
        courier.hurry()
        return courier.settled
