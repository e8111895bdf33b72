"""The Plan: a job file resolved into one frozen value.

What `longboat plan --json` prints is this value, and it is exactly what an engine runs: no
engine reads the job file again, and nothing in here is decided later. It holds no secret's
value, no clock reading, no run id. Roles are counted, not expanded, so that a plan of ten
thousand ranks is as small as one of two.

Writers are strict (these types); the reader takes a plan written by another version, drops
keys it does not know and fills in defaults.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

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
    """In how many places of the job file the value is used."""


@dataclass(frozen=True)
class Resources:
    """What one rank asks for; None is: not said. Memory is in bytes, cpu in cores."""

    cpu: Optional[float] = None
    memory: Optional[int] = None
    gpu: int = 0
    cpu_limit: Optional[float] = None
    memory_limit: Optional[int] = None


@dataclass(frozen=True)
class Variable:
    """One environment variable of a rank. Exactly one of value and secret is meant."""

    name: str
    value: str = ""
    secret: str = ""
    """Name of the Secret of the plan that fills it in; its value is never in the plan."""


@dataclass(frozen=True)
class Secret:
    """Where a secret's value is to be had. `env`: a variable of whoever starts the run;
    `file`: a file there; `cluster`: a Kubernetes Secret `ref`, key `key`."""

    name: str
    source: str
    ref: str
    key: str = ""


@dataclass(frozen=True)
class Make:
    """Storage that a cluster is to make where there is none: a claim, and behind it an NFS server if asked for."""

    size: int = 0
    """Bytes."""
    storage_class: str = ""
    mode: str = ""
    """ReadWriteMany or ReadWriteOnce; empty: for many nodes if the storage class can."""
    nfs: bool = False
    disk: str = ""
    """The claim that the NFS server keeps the files on; empty: one is made."""
    image: str = ""


@dataclass(frozen=True)
class Mount:
    """A named place for data, `$LONGBOAT_MOUNT_<NAME>` in every rank."""

    name: str
    kind: str
    """path, hostPath, emptyDir, nfs, pvc, gs, s3; run: a directory of the run, in the place of one that is here."""
    source: str = ""
    """The path, claim name, `server:/path` or bucket URL, by kind."""
    read_only: bool = False
    path: str = ""
    """Local engine: the directory used; empty: a directory of the run."""
    note: str = ""
    """Said in the plan when this machine puts something else in the mount's place."""
    make: Optional[Make] = None
    """A `pvc` whose claim is made if it is not there; its data outlives the run."""


@dataclass(frozen=True)
class Role:
    """`ranks` equal processes of a stage."""

    name: str
    ranks: int
    finishes: bool = True
    alone: bool = False
    command: Tuple[str, ...] = ()
    """What each rank executes."""
    resources: Resources = Resources()
    env: Tuple[Variable, ...] = ()
    """Of this role alone; stands above the stage's."""
    image: str = ""
    pull_policy: str = ""


@dataclass(frozen=True)
class Gate:
    """What a stage's result must reach before what comes after it may run."""

    of: str
    metric: str
    at_least: Optional[float] = None
    at_most: Optional[float] = None
    retries: int = 0


@dataclass(frozen=True)
class Autoscale:
    """More servers while they are busy; the fewest are the stage's `replicas`."""

    most: int
    cpu: int = 70
    """Per cent of the asked-for cores, on average, above which one more is started."""


@dataclass(frozen=True)
class Serve:
    """How a stage answers with the model of another."""

    model: str
    replicas: int = 1
    port: int = 8501
    grpc_port: int = 8500
    expose: str = "ClusterIP"
    image: str = ""
    """One that serves by itself, such as a stock TF Serving; empty: the job's, with our own server."""
    name: str = ""
    autoscale: Optional[Autoscale] = None
    token: str = ""
    """The Secret of the plan that clients must send; empty: anybody may ask."""


@dataclass(frozen=True)
class Bench:
    """How a server is loaded, and with what."""

    data: str
    batch: int = 1
    iterations: int = 40
    warm_up: int = 10
    concurrency: int = 1
    protocol: str = "grpc"


@dataclass(frozen=True)
class Stage:
    """One step. `kind` is gang, gate, serve or bench and says which of the parts below is meant."""

    name: str
    kind: str = "gang"
    after: Tuple[str, ...] = ()
    shape: str = ""
    roles: Tuple[Role, ...] = ()
    merge: Tuple[str, ...] = ()
    """`average`: the command that merges, run once after each round's trainers."""
    rounds: int = 1
    per_node: int = 1
    """Ranks per pod or node, on engines that have nodes."""
    env: Tuple[Variable, ...] = ()
    python: str = ""
    """Directory put first on PATH; empty: the environment that Longboat runs in."""
    restarts: int = 3
    retries: int = 0
    timeout: float = 0.0
    """Seconds for one attempt; 0: none."""
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
    """As whom the pods of a run act."""

    user: Optional[int] = None
    group: Optional[int] = None
    fs_group: Optional[int] = None
    user_name: str = ""
    group_name: str = ""
    service_account: str = ""
    annotations: Tuple[Tuple[str, str], ...] = ()
    """Of the service account, which is made for the run if it is not there."""


@dataclass(frozen=True)
class Board:
    """TensorBoard beside the run, on a cluster."""

    image: str = ""
    """Empty: the job's."""
    port: int = 5001
    expose: str = "ClusterIP"


@dataclass(frozen=True)
class Plan:
    """A job with every question answered; what runs is this and nothing else."""

    name: str
    engine: str = "local"
    schema: int = SCHEMA
    file: str = ""
    """The job file, as an absolute path: for messages and `--resume`, not for reading again."""
    preset: str = ""
    params: Tuple[Param, ...] = ()
    code: str = ""
    """Absolute path of the tree that ranks run in."""
    requirements: Tuple[str, ...] = ()
    image: str = ""
    base: str = ""
    """The image that `image` is built on; empty: `image` is not built, or is itself what is built on."""
    pull_secrets: Tuple[str, ...] = ()
    secrets: Tuple[Secret, ...] = ()
    storage: Tuple[Mount, ...] = ()
    security: Security = Security()
    board: Optional[Board] = None
    stages: Tuple[Stage, ...] = ()
    """In an order in which every stage stands behind those it comes after."""
    notes: Tuple[str, ...] = ()
    """What the reader of the plan should know before it runs."""

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)


def to_json(plan: Plan, indent: Optional[int] = 2) -> str:
    return json.dumps(dataclasses.asdict(plan), indent=indent, ensure_ascii=False)


def from_json(text: str) -> Plan:
    return build(Plan, json.loads(text))


T = TypeVar("T")

_hints: Dict[type, Mapping[str, Any]] = {}


def build(cls: Type[T], data: Mapping[str, Any]) -> T:
    """A frozen dataclass from parsed JSON: unknown keys dropped, missing ones defaulted."""
    if cls not in _hints:
        _hints[cls] = get_type_hints(cls)
    hints = _hints[cls]
    fields = {f.name for f in dataclasses.fields(cast(Any, cls))}
    return cls(**{key: _value(hints[key], value) for key, value in data.items() if key in fields})


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
    if dataclasses.is_dataclass(hint):
        return build(cast(Any, hint), value)
    return value
