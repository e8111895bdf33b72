"""Table of the texts for each kind of cause. docs/failures.md is generated from it."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.runtime.causes import CauseKind
from longboat.runtime.light_dataclasses import dataclass

LOGS, RESUME, AGAIN, STATUS, DOCTOR, PLAN, NODES, LEFT = (
    "longboat logs {run}{rank} --tail 50",
    "longboat run --resume {run}",
    "longboat run {file}",
    "longboat status {run}",
    "longboat doctor",
    "longboat plan {file}",
    "longboat doctor --on kubernetes",
    "longboat left --on kubernetes",
)


@dataclass(frozen=True)
class CauseText:
    phrase: str
    """What happened, in a few words, for the headline."""
    meaning: str
    """When this kind is reported, and on what evidence."""
    advice: str
    """What to do about it."""
    next: tuple[str, ...] = (LOGS, RESUME)
    """Commands to run next."""
    self_contained: bool = False
    """Messages of this kind say what happened, so a headline needs no phrase before them."""


CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
"""Signals of a crash in the process itself."""
CRASHED = "compiled code crashed: see the frame and the last lines; check that native libraries match each other"
UNREPORTED = "report it in the program with `longboat.report(step=..., {metric}=...)`, then resume the run"

WORDS: Mapping[CauseKind, CauseText] = {
    CauseKind.USER_ERROR: CauseText(
        "the program failed",
        "The program exited with a code other than 0. After a Python traceback, its error and the innermost line of "
        "your own code are shown, otherwise the exit code and the last line of output.",
        "fix the program, then resume the run from its last checkpoint",
    ),
    CauseKind.NOT_FOUND: CauseText(
        "the command was not found",
        "The program does not exist, neither as a path nor on the rank's PATH; or the interpreter in a script's `#!` "
        "line does not exist. The gang is not restarted.",
        "check `run:` in the job file, the installed programs, and the script's `#!` line",
        (PLAN, AGAIN),
        self_contained=True,
    ),
    CauseKind.NOT_EXECUTABLE: CauseText(
        "the command is not executable",
        "The file has no execute permission, is a directory, or has no `#!` line. The gang is not restarted.",
        "make the file executable (chmod +x), or name its interpreter in `run:`",
        (PLAN, AGAIN),
    ),
    CauseKind.OUT_OF_MEMORY: CauseText(
        "out of memory",
        "The kernel counted an out-of-memory kill while the rank ran, and the rank was killed or failed; or the "
        "program's error says that it could not allocate memory. A SIGKILL alone is not reported as out of memory.",
        "use smaller batches, fewer ranks on this machine, or more `resources: {memory: ...}`; after a change to the "
        "job file: `longboat run FILE --resume RUN`",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.KILLED: CauseText(
        "killed by a signal",
        "A signal ended the process: a crash (SIGSEGV, SIGABRT) or a kill from outside. The sender is unknown. For "
        "SIGKILL the evidence says whether the kernel counted an out-of-memory kill.",
        "find out who or what kills processes on this machine: the signal may come from outside the run",
        self_contained=True,
    ),
    CauseKind.PREEMPTED: CauseText(
        "preempted",
        "The rank's machine announced its shutdown. The gang restarts there or elsewhere, without using a restart.",
        "nothing if the run continued; otherwise resume it",
        (RESUME,),
    ),
    CauseKind.NODE_LOST: CauseText(
        "the node was lost",
        "A rank's agent sent nothing for longer than its lease.",
        "check that the machine is up, then resume the run",
        (RESUME, DOCTOR),
    ),
    CauseKind.AGENT_LOST: CauseText(
        "the rank's agent was lost",
        "The agent, the small program that starts and watches a rank, exited, and its rank with it.",
        "resume the run; if it happens again, find out what kills processes on this machine",
        self_contained=True,
    ),
    CauseKind.DRIVER_LOST: CauseText(
        "the driver was lost",
        "The driver or its supervisor was killed, or the machine went down. The ranks ended with it.",
        "resume the run: finished stages are kept, the rest continues from the last checkpoint",
        (RESUME, LOGS),
        self_contained=True,
    ),
    CauseKind.STALLED: CauseText(
        "stalled",
        "At least one rank reported no progress for `stall_after`. The states of each rank's processes, and the stacks "
        "of its running Python processes, are in the journal and shown.",
        "see where each rank hung; if steps can take that long, raise `stall_after:` and start a new run",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.TIMED_OUT: CauseText(
        "timed out",
        "The stage ran longer than its `timeout`.",
        "raise the stage's `timeout:` and start a new run, or resume this one with the same time again",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.LOST_RENDEZVOUS: CauseText(
        "a connection was lost or never made",
        "Not all ranks connected in time; or a rank's error is a lost connection and no other rank failed before it. "
        "If another rank failed first, that rank is the cause.",
        "read the last lines of the other ranks too: the one that closed the connection may say why",
        (LOGS, DOCTOR, RESUME),
    ),
    CauseKind.NO_NAME: CauseText(
        "a name could not be resolved",
        "A rank could not resolve a host name. The evidence says whether the name servers of its machine or pod "
        "respond.",
        "if a name server responds, the name is wrong; if none does, the cluster has no DNS or a NetworkPolicy blocks "
        "it: allow UDP and TCP port 53 to kube-system",
        (LOGS, NODES, RESUME),
    ),
    CauseKind.MPI_MISMATCH: CauseText(
        "mpirun and the program's MPI library do not match",
        "mpirun started N processes, but each one is alone in its world: N worlds of size 1 instead of one of size N.",
        "use the same MPI for both: install the library of that mpirun in the program's environment",
        (LOGS, DOCTOR),
    ),
    CauseKind.DISK_FULL: CauseText(
        "the disk is full",
        "A write failed for lack of space or quota. The evidence shows the free space on the run's disk; if there is "
        "plenty, another disk is full.",
        "free some space; the run's disk is the one with LONGBOAT_HOME",
        ("longboat prune --older-than 7d", RESUME),
    ),
    CauseKind.NOT_WRITABLE: CauseText(
        "a directory is not writable",
        "A file or directory that the rank needs cannot be created; the message names it and the user.",
        "move what is in the way, or give that user write permission",
        (PLAN, RESUME),
        self_contained=True,
    ),
    CauseKind.MISSING_INPUT: CauseText(
        "an input is missing",
        "Something that the job names does not exist: the code directory, a requirement, a secret.",
        "create it, or change the job file",
        (PLAN, AGAIN),
    ),
    CauseKind.UNSCHEDULABLE: CauseText(
        "no node has room for the pod",
        "The scheduler found no node for a pod within --pending-timeout. Its message and the pod's requests are shown.",
        "request less (`resources:`), fewer ranks, or nodes that exist (`node_selector`, `tolerations`)",
        (NODES, PLAN),
    ),
    CauseKind.IMAGE_PULL: CauseText(
        "cannot pull the image",
        "A node could not pull a pod's image within --pending-timeout. The registry's answer is shown.",
        "check `image:`, and `pull_secrets:` if the registry needs a login",
        (PLAN, AGAIN),
        self_contained=True,
    ),
    CauseKind.NO_PYTHON: CauseText(
        "the image has no Python",
        "The image has no python3, which every pod starts with.",
        "use an image with Python 3.9 or newer, for example python:3.12-slim",
        (PLAN, AGAIN),
        self_contained=True,
    ),
    CauseKind.VOLUME: CauseText(
        "a volume is not available",
        "A volume of a pod was not bound or not mounted within --pending-timeout. The cluster's message is shown.",
        "check the claims in `storage:`; for the run's own volume set a class: --storage-class, --volume",
        (NODES, PLAN),
        self_contained=True,
    ),
    CauseKind.QUOTA: CauseText(
        "the namespace's quota is used up",
        "The API server rejected a pod because of a ResourceQuota, for longer than --pending-timeout, or at once if "
        "the pods of a role can never fit. Its message has the requested, used and allowed amounts.",
        "request less, remove other runs, or ask for a larger quota",
        (LEFT, PLAN),
    ),
    CauseKind.REFUSED: CauseText(
        "the cluster rejected a pod",
        "The API server or an admission policy rejected an object; its message is shown.",
        "change what the message names: `security:`, `storage:`, `pod:` or the namespace's policy",
        (NODES, PLAN),
    ),
    CauseKind.FORBIDDEN: CauseText(
        "the driver lacks a permission",
        "The driver's service account lacks a permission; verb and resource are in the message.",
        "give the account the Role that `longboat doctor --on kubernetes` prints",
        (NODES, AGAIN),
    ),
    CauseKind.GATE_NOT_MET: CauseText(
        "the gate was not met",
        "The metric was out of the gate's bounds, was not a number, or was never reported. Exit code 3.",
        "train longer or differently (resuming trains the stage again from its last checkpoint), or change the gate",
        (STATUS, RESUME),
    ),
    CauseKind.STOPPED: CauseText(
        "stopped by the user",
        "Ctrl-C, `longboat stop`, a signal to the driver, or a closed terminal. Exit code 130.",
        "resume it at any time",
        (RESUME,),
        self_contained=True,
    ),
    CauseKind.INTERNAL: CauseText(
        "Longboat itself failed",
        "A bug in Longboat; its traceback is shown.",
        "please report it with the lines above and the debug logs of another try (run -v); the run can be resumed",
        (LOGS, DOCTOR, RESUME),
        self_contained=True,
    ),
}
