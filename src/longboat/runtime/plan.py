"""The Plan: a job file resolved into one frozen value.

`longboat plan --json` prints this value, and an engine runs exactly this: no engine reads the job file again, and
nothing in here is decided later. It contains no secrets, no times, no run id. Roles have a count and do not list
their ranks, so a plan of ten thousand ranks is as small as one of two.

Writers are strict (these types); the reader accepts plans of other versions, drops unknown keys and fills in defaults.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from longboat.runtime.light_dataclasses import asdict, dataclass, fields, is_dataclass

SCHEMA = 1

Scalar = Union[str, int, float, bool, None]


@dataclass(frozen=True)
class Param:
    """A named value of the job, as resolved."""

    name: str
    value: Scalar
    help: str = ""
    required: bool = False
    set_by: str = "file"
    """Who set the value: "file", "preset NAME", "environment" or "--set"."""
    count: int = 0
    """In how many places of the job file it is used."""


@dataclass(frozen=True)
class Resources:
    """Resource requests of one rank; None: not given. Memory is in bytes, cpu in cores."""

    cpu: Optional[float] = None
    memory: Optional[int] = None
    gpu: int = 0
    cpu_limit: Optional[float] = None
    memory_limit: Optional[int] = None


@dataclass(frozen=True)
class Variable:
    """One environment variable of a rank: either a value or a secret."""

    name: str
    value: str = ""
    secret: str = ""
    """Name of the plan's Secret with the value, which is never in the plan."""


@dataclass(frozen=True)
class Secret:
    """Source of a secret's value. `env`: an environment variable of the process that starts the run; `file`: a file
    on that machine; `cluster`: a Kubernetes Secret `ref`, key `key`."""

    name: str
    source: str
    ref: str
    key: str = ""


@dataclass(frozen=True)
class Make:
    """Storage that the cluster creates if it does not exist: a claim, on request behind an NFS server."""

    size: int = 0
    """Bytes."""
    storage_class: str = ""
    mode: str = ""
    """ReadWriteMany or ReadWriteOnce; empty: ReadWriteMany if the storage class supports it."""
    nfs: bool = False
    disk: str = ""
    """The claim for the NFS server's files; empty: one is created."""
    image: str = ""


@dataclass(frozen=True)
class Mount:
    """A named directory for data, `$LONGBOAT_MOUNT_<NAME>` in every rank."""

    name: str
    kind: str
    """path, hostPath, emptyDir, nfs, pvc, gs, s3; run: a directory of the run instead of a local one."""
    source: str = ""
    """The path, claim name, `server:/path` or bucket URL, by kind."""
    read_only: bool = False
    path: str = ""
    """Local engine: the directory used; empty: a directory of the run."""
    in_run: bool = False
    """A directory of the run takes its place."""
    note: str = ""
    """Shown in the plan if this machine replaces the mount by something else."""
    make: Optional[Make] = None
    """A `pvc` whose claim is created if it does not exist; its data outlives the run."""


@dataclass(frozen=True)
class Role:
    """`ranks` equal processes of a stage."""

    name: str
    ranks: int
    finishes: bool = True
    alone: bool = False
    command: Tuple[str, ...] = ()
    """Command of each rank."""
    resources: Resources = Resources()
    env: Tuple[Variable, ...] = ()
    """Only for this role; overrides the stage's."""
    image: str = ""
    pull_policy: str = ""


@dataclass(frozen=True)
class Gate:
    """The target that a stage's metric must reach before later stages may run."""

    of: str
    metric: str
    at_least: Optional[float] = None
    at_most: Optional[float] = None
    retries: int = 0


@dataclass(frozen=True)
class Autoscale:
    """Autoscaling of servers; the stage's `replicas` are the minimum."""

    most: int
    cpu: int = 70
    """Average use of the requested cores, in per cent, above which a server is added."""


@dataclass(frozen=True)
class Serve:
    """How a stage serves the model of another stage."""

    model: str
    replicas: int = 1
    port: int = 8501
    grpc_port: int = 8500
    expose: str = "ClusterIP"
    image: str = ""
    """An image that serves by itself, e.g. TensorFlow Serving; empty: the job's image with Longboat's server."""
    name: str = ""
    autoscale: Optional[Autoscale] = None
    token: str = ""
    """The plan's Secret that clients must send; empty: no authentication."""


@dataclass(frozen=True)
class Bench:
    """Load test of a server."""

    data: str
    batch: int = 1
    iterations: int = 40
    warm_up: int = 10
    concurrency: int = 1
    protocol: str = "grpc"


@dataclass(frozen=True)
class Stage:
    """One step of the job. `kind` is gang, gate, serve or bench, and decides which fields below apply."""

    name: str
    kind: str = "gang"
    after: Tuple[str, ...] = ()
    shape: str = ""
    roles: Tuple[Role, ...] = ()
    merge: Tuple[str, ...] = ()
    """`average`: the merge command, run once after each round's trainers."""
    rounds: int = 1
    per_node: int = 1
    """Ranks in each pod or node, on engines with nodes."""
    env: Tuple[Variable, ...] = ()
    python: str = ""
    """Directory put first on PATH; empty: the environment that Longboat runs in."""
    restarts: int = 3
    retries: int = 0
    timeout: float = 0.0
    """Seconds for one attempt; 0: unlimited."""
    stall_after: float = 0.0
    """Seconds without progress until the gang counts as hung; 0: never."""
    on_stall: str = "restart"
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL on stop and preemption."""
    node_selector: Tuple[Tuple[str, str], ...] = ()
    tolerations: str = "[]"
    topology: str = ""
    pod: str = "{}"
    """JSON merged into the pod template: the escape hatch."""
    gate: Optional[Gate] = None
    serve: Optional[Serve] = None
    bench: Optional[Bench] = None

    def role(self, name: str) -> Role:
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    @property
    def ranks(self) -> int:
        return sum(role.ranks for role in self.roles)


@dataclass(frozen=True)
class Security:
    """User and group IDs, and the service account, of a run's pods."""

    user: Optional[int] = None
    group: Optional[int] = None
    fs_group: Optional[int] = None
    user_name: str = ""
    group_name: str = ""
    service_account: str = ""
    annotations: Tuple[Tuple[str, str], ...] = ()
    """Annotations of the service account, which is created for the run if it does not exist."""


@dataclass(frozen=True)
class Board:
    """TensorBoard for a run on a cluster."""

    image: str = ""
    """Empty: the job's."""
    port: int = 5001
    expose: str = "ClusterIP"


@dataclass(frozen=True)
class Plan:
    """A job with every setting resolved; exactly this is run."""

    name: str
    engine: str = "local"
    schema: int = SCHEMA
    file: str = ""
    """Absolute path of the job file: for messages and `--resume`; it is not read again."""
    preset: str = ""
    params: Tuple[Param, ...] = ()
    code: str = ""
    """Absolute path of the code tree that ranks run in."""
    requirements: Tuple[str, ...] = ()
    image: str = ""
    base: str = ""
    """The base image of `image`; empty: `image` is not built, or is itself the base."""
    pull_secrets: Tuple[str, ...] = ()
    secrets: Tuple[Secret, ...] = ()
    storage: Tuple[Mount, ...] = ()
    security: Security = Security()
    board: Optional[Board] = None
    stages: Tuple[Stage, ...] = ()
    """Sorted: every stage comes after the stages it depends on."""
    notes: Tuple[str, ...] = ()
    """What users should know before the plan runs."""

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)


def to_json(plan: Plan, indent: Optional[int] = 2) -> str:
    return json.dumps(asdict(plan), indent=indent, ensure_ascii=False)


def from_json(text: str) -> Plan:
    return build(Plan, json.loads(text))


T = TypeVar("T")

_hints: Dict[type, Mapping[str, Any]] = {}


def build(cls: Type[T], data: Mapping[str, Any]) -> T:
    """Create a frozen dataclass from parsed JSON: unknown keys are dropped, missing ones get their defaults."""
    if cls not in _hints:
        _hints[cls] = get_type_hints(cls)
    hints = _hints[cls]
    known = {f.name for f in fields(cast(Any, cls))}
    return cls(**{key: _value(hints[key], value) for key, value in data.items() if key in known})


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if value is None:
        return None
    if origin is Union:
        inner = [a for a in get_args(hint) if a is not type(None)]
        return _value(inner[0], value) if len(inner) == 1 else value
    if origin is tuple:
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_value(args[0], item) for item in value)
        return tuple(_value(arg, item) for arg, item in zip(args, value))
    if is_dataclass(hint):
        return build(cast(Any, hint), value)
    return value
