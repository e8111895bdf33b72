"""Journals what happens to the ranks of a stage: starts, reports, stacks, workers that mpirun started, verdicts.

It decides nothing; `driver` does.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional

from longboat.runtime import atomic_file, run_layout
from longboat.runtime import messages as m
from longboat.runtime import pipeline as p
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.checkpoints import CompleteCheckpoint, DamagedFile
from longboat.runtime.driver.stage_run import StageRun
from longboat.runtime.journal import JournalWriter, cause_of
from longboat.runtime.light_dataclasses import replace

SERVING_KEYS = ("url", "page", "grpc", "model", "version", "example", "label", "prediction", "answer")
"""Keys of a server's description that the journal repeats."""


class RankJournal:
    """Writes rank events to the journal."""

    def __init__(self, journal: JournalWriter, run_dir: str) -> None:
        self._journal = journal
        self._run_dir = run_dir

    def started(self, run: StageRun, message: m.RankStart) -> None:
        self._journal.write(
            "rank.started",
            stage=run.stage.name,
            role=message["role"],
            rank=message["rank"],
            gen=message["incarnation"][0],
            restart=message["incarnation"][1],
            pid=message["pid"],
            log_offset=message["log_offset"],
            report_offset=message["report_offset"],
            word=message.get("word"),
        )

    def report(self, run: StageRun, message: m.RankReport) -> None:
        self._journal.write(
            "rank.report",
            stage=run.stage.name,
            role=message["role"],
            rank=message["rank"],
            gen=message["incarnation"][0],
            restart=message["incarnation"][1],
            word=message.get("word"),
            points=message["points"],
        )

    def stacks(self, run: StageRun, message: m.RankStacks) -> None:
        role, rank, states, text = message["role"], message["rank"], list(message["states"]), str(message["text"])
        run.stacks[f"{role}-{rank}"] = (states, text)
        gen = message["incarnation"][0]
        self._journal.write(
            "rank.stacks", stage=run.stage.name, role=role, rank=rank, gen=gen, states=states, text=text
        )

    def no_checkpoint(self, run: StageRun, rank: str, step: int, problem: str) -> None:
        text = f"{rank} could not write the checkpoint of step {step}: {problem}; training continues"
        self._journal.write("note", stage=run.stage.name, level="warning", text=text)

    def checkpoint(self, run: StageRun, checkpoint: CompleteCheckpoint, seconds: Any) -> None:
        self._journal.write(
            "checkpoint",
            stage=run.stage.name,
            gen=run.gang.generation,
            step=checkpoint.step,
            path=checkpoint.path,
            owner=checkpoint.owner or None,
            bytes=checkpoint.bytes,
            seconds=seconds,
        )

    def damaged_checkpoint(
        self, run: StageRun, file: DamagedFile, generation: int, owner: str, resume_step: Optional[int]
    ) -> None:
        self._journal.write(
            "checkpoint.damaged",
            stage=run.stage.name,
            gen=generation,
            step=file.step,
            path=file.path,
            owner=owner or None,
            reason=file.reason,
            resume_step=resume_step,
        )

    def observed_end(self, run: StageRun, message: Mapping[str, Any], stopping: bool) -> None:
        """A worker started by mpirun has ended."""
        rank, code = message["rank"], message.get("code")
        run.observed.discard(rank)
        cause = cause_of(dict(message))
        state, because = "succeeded", None
        if code != 0 and (stopping or run.halted):
            state = "stopped"
        elif code != 0:
            state = "killed" if run.first_failure else "failed"
            because = run.first_failure or None
            run.first_failure = run.first_failure or f"worker-{rank}"
        self._journal.write(
            "rank.ended",
            stage=run.stage.name,
            role="worker",
            rank=rank,
            gen=message["incarnation"][0],
            restart=message["incarnation"][1],
            state=state,
            code=code if code is not None and code >= 0 else None,
            signal=message.get("signal"),
            because=because,
            cause=self.explained(run, cause) if cause is not None and state == "failed" else None,
            word=message.get("word"),
        )

    def end_observed(self, run: StageRun, generation: int, state: str) -> None:
        """Workers whose end is not recorded: they died with mpirun."""
        for rank in sorted(run.observed):
            self._journal.write(
                "rank.ended",
                stage=run.stage.name,
                role="worker",
                rank=rank,
                gen=generation,
                restart=0,
                state="stopped" if state == "stopped" else "killed",
                because=run.first_failure or "launcher-0",
            )
        run.observed.clear()

    def explained(self, run: StageRun, cause: Cause) -> Cause:
        """The cause with its stage, and for a stall with what the ranks were doing."""
        if cause.kind is CauseKind.STALLED and not cause.evidence:
            states = [f"{name}: {state}" for name, (states_, _) in run.stacks.items() for state in states_]
            lines = [line for _, text in run.stacks.values() for line in text.splitlines()]
            cause = replace(cause, evidence=tuple(states[:20]), lines=tuple(lines[:60]))
        return cause if cause.stage else replace(cause, stage=run.stage.name)

    def serving(self, stage: str) -> Dict[str, Any]:
        """What a server wrote about itself: its address and an example."""
        try:
            with open(
                os.path.join(run_layout.output(self._run_dir, stage), run_layout.SERVING), encoding="utf-8"
            ) as file:
                description = json.load(file)
            return {key: description[key] for key in SERVING_KEYS if key in description}
        except (OSError, ValueError, TypeError):
            return {}

    def verdict(self, answer: p.GateVerdict) -> None:
        gate = answer.gate
        verdict = {
            "stage": answer.stage,
            "of": gate.of,
            "metric": gate.metric,
            "value": answer.value,
            "at_least": gate.at_least,
            "at_most": gate.at_most,
            "passed": answer.passed,
            "attempt": answer.attempt,
            "again": answer.again,
            "through": list(answer.through),
        }
        self._journal.write("verdict", **verdict)
        path = os.path.join(self._run_dir, run_layout.VERDICT)
        tries = [*_tries(path), verdict]
        atomic_file.write(path, json.dumps({"passed": answer.passed, "tries": tries}, indent=2))


def _tries(path: str) -> List[Dict[str, Any]]:
    """Verdicts of this run, including those of earlier drivers."""
    try:
        with open(path, encoding="utf-8") as file:
            return list(json.load(file)["tries"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
