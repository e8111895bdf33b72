"""How each kind of cause is told: one table. docs/failures.md is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longboat.runtime.causes import CauseKind

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
    """For the headline: what happened, in a few words."""
    meaning: str
    """What is known when this kind is named, and from what."""
    advice: str
    """What to do about it."""
    next: tuple[str, ...] = (LOGS, RESUME)
    """The commands to type next."""
    alone: tuple[str, ...] = ()
    """Beginnings of messages that say it all: the phrase need not stand before them."""


CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
"""Signals that a process brings upon itself."""
CRASHED = "it crashed in compiled code: see the frame and the last lines; native libraries of one build may help"
UNREPORTED = "let the program report it, `longboat.report(step=..., {metric}=...)`, then continue the run"

WORDS: Mapping[CauseKind, CauseText] = {
    CauseKind.USER_ERROR: CauseText(
        "the program failed",
        "It exited with a code other than 0. If a Python traceback ended it, its error and the innermost line of your "
        "own code are shown; else the code and the last line it printed.",
        "mend the program, then continue the run from its last checkpoint",
    ),
    CauseKind.NOT_FOUND: CauseText(
        "the command was not found",
        "There is no such program, neither as given nor on the rank's PATH; or a script names in its first line an "
        "interpreter that does not exist. No restart is tried.",
        "check `run:` in the job file, what is installed, and a script's first line",
        (PLAN, AGAIN),
        ("the command ", "the interpreter ", "no mpirun "),
    ),
    CauseKind.NOT_EXECUTABLE: CauseText(
        "the command may not be executed",
        "The file is there and lacks its run bit, is a directory, or does not say what executes it. "
        "No restart is tried.",
        "give the file its run bit (chmod +x), or name its interpreter in `run:`",
        (PLAN, AGAIN),
        ("the file ",),
    ),
    CauseKind.OUT_OF_MEMORY: CauseText(
        "out of memory",
        "The kernel's own counter of out-of-memory kills rose while the rank ran, and the rank was killed or failed; "
        "or the program's error says that memory could not be had. A SIGKILL without such a record is not called this.",
        "smaller batches, fewer ranks on this machine, or more `resources: {memory: ...}`; after a change to the job "
        "file: `longboat run FILE --resume RUN`",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.KILLED: CauseText(
        "killed by a signal",
        "A signal ended the process: its own crash (SIGSEGV, SIGABRT) or somebody's kill. Who sent it cannot be known. "
        "For SIGKILL it is said whether the kernel counted an out-of-memory kill.",
        "something outside of the run may have sent it: ask who or what ends processes on this machine",
        alone=("killed by signal",),
    ),
    CauseKind.PREEMPTED: CauseText(
        "preempted",
        "The rank's machine was announced to go away. The gang starts again elsewhere or here; it costs no restart.",
        "nothing, if the run went on; else continue it",
        (RESUME,),
    ),
    CauseKind.NODE_LOST: CauseText(
        "the node was lost",
        "Nothing was heard of a rank's agent for longer than its lease.",
        "see whether the machine is up, then continue the run",
        (RESUME, DOCTOR),
    ),
    CauseKind.AGENT_LOST: CauseText(
        "the agent beside the rank was lost",
        "The small program that starts and watches a rank ended, and its rank with it.",
        "continue the run; if it happens again, see who kills processes on this machine",
        alone=("the agent ",),
    ),
    CauseKind.SUPERVISOR_LOST: CauseText(
        "the driver was lost",
        "The process that drives the run was killed, or the machine went down. Its ranks ended with it.",
        "continue the run: what had passed is kept, the rest goes on from the last checkpoint",
        (RESUME, LOGS),
        ("the keeper ",),
    ),
    CauseKind.STALLED: CauseText(
        "stalled",
        "No rank, or not every rank, reported progress for as long as `stall_after` says. The state of each rank's "
        "processes, and the stacks of those that are Python and not stopped, are in the journal and shown.",
        "see where each rank stood; if steps may take that long, raise `stall_after:` and start a new run",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.TIMED_OUT: CauseText(
        "timed out",
        "The stage ran longer than its `timeout`.",
        "raise `timeout:` of the stage and start a new run, or continue this one with as much time again",
        (LOGS, RESUME, AGAIN),
    ),
    CauseKind.LOST_RENDEZVOUS: CauseText(
        "a connection was lost or never made",
        "The gang did not come together in time; or a rank's error is a lost connection and no rank fell before it. "
        "Where another rank fell, that one is named instead.",
        "see the last lines of the other ranks too: whoever closed the connection may say why",
        (LOGS, DOCTOR, RESUME),
    ),
    CauseKind.NO_NAME: CauseText(
        "a name could not be resolved",
        "A rank's error is that a host's name has no address. Whether the name servers of its machine or pod answer at "
        "all is said beside it.",
        "where a name server answers, the name is wrong; where none does, the cluster has no DNS or a NetworkPolicy "
        "keeps pods from it: allow UDP and TCP port 53 to kube-system",
        (LOGS, NODES, RESUME),
    ),
    CauseKind.MPI_MISMATCH: CauseText(
        "mpirun and the program's MPI library do not belong together",
        "mpirun started N processes and each sees itself alone: N jobs of size 1 instead of one of size N.",
        "use one MPI for both: the program's environment must have the library of that very mpirun",
        (LOGS, DOCTOR),
    ),
    CauseKind.DISK_FULL: CauseText(
        "the disk is full",
        "A write was refused for lack of space or quota. How much is free where the run is kept is said beside it; if "
        "that is much, another disk is meant.",
        "free space on it; the run's own disk is where LONGBOAT_HOME is",
        ("longboat prune --older-than 7d", RESUME),
    ),
    CauseKind.NOT_WRITABLE: CauseText(
        "a directory is not writable",
        "A file or directory that the rank needs cannot be made; the message names it, and as whom it was tried.",
        "move what is in the way, or give that user the right to write there",
        (PLAN, RESUME),
        ("cannot write ",),
    ),
    CauseKind.MISSING_INPUT: CauseText(
        "an input is missing",
        "Something that the job names is not there: the code directory, a requirement, a secret.",
        "put it there, or change the job file",
        (PLAN, AGAIN),
        ("the code directory ",),
    ),
    CauseKind.UNSCHEDULABLE: CauseText(
        "no node has room for it",
        "The scheduler found no node for a pod, for longer than the run would wait; its own words are shown, with what "
        "the pod asks for.",
        "ask for less (`resources:`), for fewer ranks, or for nodes that exist (`node_selector`, `tolerations`)",
        (NODES, PLAN),
    ),
    CauseKind.IMAGE_PULL: CauseText(
        "the image cannot be had",
        "A node could not pull a pod's image, for longer than the run would wait; the registry's answer is shown.",
        "check `image:`, and `pull_secrets:` if the registry wants to know who asks",
        (PLAN, AGAIN),
        ("the image ",),
    ),
    CauseKind.NO_PYTHON: CauseText(
        "the image has no Python",
        "The pod's first program, python3, is not in the image.",
        "take an image with Python 3.9 or newer, for example python:3.12-slim",
        (PLAN, AGAIN),
        ("the image ",),
    ),
    CauseKind.VOLUME: CauseText(
        "a volume is not there",
        "A volume of a pod was not bound or could not be mounted, for longer than the run would wait; the cluster's "
        "own words are shown.",
        "check the claims that `storage:` names; for the run's own volume name a class: --storage-class, --volume",
        (NODES, PLAN),
        ("a volume ", "the volume "),
    ),
    CauseKind.QUOTA: CauseText(
        "the namespace's quota is used up",
        "The API server refused a pod because of a ResourceQuota, for longer than the run would wait "
        "(--pending-timeout), or at once where all the pods of a role would never fit; what was asked for, what is "
        "used and what is allowed are in its message.",
        "ask for less, remove other runs, or have the quota raised",
        (LEFT, PLAN),
    ),
    CauseKind.REFUSED: CauseText(
        "the cluster refused a pod",
        "The API server, or a policy of the cluster, would not take an object; its words are shown.",
        "change what it names: `security:`, `storage:`, `pod:` or the namespace's policy",
        (NODES, PLAN),
    ),
    CauseKind.FORBIDDEN: CauseText(
        "the driver lacks a right",
        "The service account of the driver may not do what it must; verb and resource are in the message.",
        "give the account the Role that `longboat doctor --on kubernetes` prints",
        (NODES, AGAIN),
    ),
    CauseKind.GATE_NOT_MET: CauseText(
        "the gate was not met",
        "The metric was below or above what the gate asks for, was not a number, or was never reported. Exit code 3.",
        "train longer or differently: continuing trains the stage again from its last checkpoint; or change the gate",
        (STATUS, RESUME),
    ),
    CauseKind.STOPPED: CauseText(
        "stopped by the user",
        "Ctrl-C, `longboat stop`, a signal to the supervisor, or the terminal's end. Exit code 130.",
        "continue it when you like",
        (RESUME,),
        ("stopped ",),
    ),
    CauseKind.INTERNAL: CauseText(
        "Longboat itself failed",
        "A bug of Longboat, with its own traceback.",
        "please report it with the lines above; the run can be continued",
        (LOGS, DOCTOR, RESUME),
        ("longboat itself failed",),
    ),
}
