"""Table of all keys of a stage. `job_keys` has the keys of the job around it."""

from __future__ import annotations

from longboat.runtime.shapes import SHAPES
from longboat.spec import scalars
from longboat.spec.value_types import Anything, Either, Field, Integer, ListOf, MapOf, Measure, Number, RecordOf, Text

MOST_RANKS = 100_000

NAME = Text("1 to 40 characters a-z, 0-9 and -, with no - at either end", r"[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?")
VARIABLE = Text("letters, digits and _, not starting with a digit", r"[A-Za-z_][A-Za-z0-9_]*")
ENV_VALUE = Text("a text, a number, true or false", loose=True)
COMMAND = Either((Text("a command for the shell"), ListOf(ENV_VALUE, "a list of program and arguments")))
SECONDS = Measure("a duration such as 30, 30s, 5m, 1h30m or 2d", scalars.duration, scalars.DURATION_PATTERN)
MEMORY = Measure("an amount of memory such as 4Gi, 500M or a number of bytes", scalars.memory, scalars.MEMORY_PATTERN)
CORES = Measure("a number of cores such as 2, 0.5 or 500m", scalars.cores, scalars.CORES_PATTERN)
PORT = Integer(1, 65535)
LABELS = MapOf(ENV_VALUE)
PULL_POLICY = Text(allowed=("Always", "IfNotPresent", "Never"))
IMAGE = Text("the name of an image", r"\S*")
EXPOSE = Text(allowed=("ClusterIP", "NodePort", "LoadBalancer"))

LIMITS = RecordOf(
    "limits",
    "Resource limits of each rank.",
    (Field("cpu", CORES, "CPU cores."), Field("memory", MEMORY, "Memory.", also=("mem",))),
)

RESOURCES = RecordOf(
    "resources",
    "Resource requests and limits of each rank.",
    (
        Field("cpu", CORES, "CPU cores.", example="2", also=("cpus", "cores")),
        Field("memory", MEMORY, "Memory.", example="4Gi", also=("mem", "ram")),
        Field("gpu", Integer(0, 1024), "GPUs.", 0, also=("gpus", "nvidia.com/gpu")),
        Field("limits", LIMITS, "Resource limits of each rank.", also=("limit",)),
    ),
)

RANKS = Integer(0, MOST_RANKS)

ROLE = RecordOf(
    "role",
    "One role of a stage, if the number of ranks is not enough to describe it.",
    (
        Field("count", RANKS, "Number of ranks.", also=("ranks", "replicas", "number")),
        Field("run", COMMAND, "Command of this role. Default: the stage's command.", also=("command", "cmd")),
        Field("resources", RESOURCES, "Resources of this role. Keys left out come from the stage."),
        Field(
            "env",
            MapOf(ENV_VALUE, key=VARIABLE, word="variable"),
            "Environment variables of this role; they override the stage's `env`.",
            also=("environment",),
        ),
        Field("image", IMAGE, "Image of this role. Default: the job's image."),
        Field("pull_policy", PULL_POLICY, "Image pull policy.", also=("imagePullPolicy",)),
    ),
)

GATE = RecordOf(
    "gate",
    "A condition that a model must meet. Without `at_least` and `at_most`, or with both empty, every model passes.",
    (
        Field(
            "of", NAME, "The stage that reports the metric.", required=True, example="train", also=("stage", "model")
        ),
        Field("metric", Text(), "The reported metric to check.", required=True, example="accuracy", also=("name",)),
        Field("at_least", Number(), "Minimum value of the metric.", example="0.75", also=("min", "target", "above")),
        Field("at_most", Number(), "Maximum value of the metric.", example="0.1", also=("max", "below")),
        Field(
            "retries",
            Integer(0, 1_000_000),
            "How often to run that stage again while the gate is missed.",
            0,
            also=("retry_limit",),
        ),
    ),
)

AUTOSCALE = RecordOf(
    "autoscale",
    "Horizontal autoscaling on a cluster with a metrics server. `replicas` is the minimum.",
    (
        Field("max", Integer(1, MOST_RANKS), "Maximum number of servers.", required=True, example="5", also=("most",)),
        Field("cpu", Integer(1, 1000), "Target average CPU utilization, in percent of `resources: {cpu}`.", 70),
    ),
)

SERVE = RecordOf(
    "serve",
    "A served model.",
    (
        Field("model", NAME, "The stage that wrote the model.", required=True, example="train", also=("of", "stage")),
        Field("replicas", Integer(1, MOST_RANKS), "Number of servers.", 1, also=("ranks", "count")),
        Field("port", PORT, "REST port.", 8501, also=("rest_port", "http_port")),
        Field("grpc_port", PORT, "gRPC port.", 8500, also=("grpc",)),
        Field(
            "expose",
            EXPOSE,
            "Type of the Service on a cluster.",
            "ClusterIP",
            also=("type", "service_type"),
        ),
        Field("image", IMAGE, "Another model server's image, for example TF Serving. Default: Longboat's server.", ""),
        Field("name", NAME, "Model name in request URLs. Default: the job's name."),
        Field("autoscale", AUTOSCALE, "Start more servers under load.", also=("autoscaling", "hpa")),
        Field(
            "token",
            VARIABLE,
            "Name of the entry in `secrets` with the token that clients must send. Default: no token needed.",
            "",
        ),
    ),
)

BENCH = RecordOf(
    "bench",
    "A load test of the served model.",
    (
        Field(
            "data",
            Text(),
            "File with the examples to send.",
            required=True,
            example="eval.csv",
            also=("data_file", "file"),
        ),
        Field("batch", Integer(1, 1_000_000), "Examples per request.", 1, also=("batch_size",)),
        Field(
            "iterations",
            Integer(1, 10**9),
            "Number of requests, including warm-up.",
            40,
            also=("num_iteration", "requests"),
        ),
        Field(
            "warm_up",
            Integer(0, 10**9),
            "Requests before the measurement starts.",
            10,
            also=("warmup", "warm_up_iteration"),
        ),
        Field("concurrency", Integer(1, 100_000), "Concurrent requests.", 1, also=("parallel",)),
        Field("protocol", Text(allowed=("grpc", "rest", "v2")), "Protocol of the requests.", "grpc"),
    ),
)

_GANG = ("run",)
_PODS = ("run", "serve")

STAGE = RecordOf(
    "stage",
    "One step of the job: a command run by a gang (`run`), or a `gate`, `serve` or `bench`.",
    (
        Field(
            "run",
            COMMAND,
            "Command of every rank. A text is run by `sh -c`, a list is executed directly.",
            example="python train.py --steps ${STEPS}",
            also=("command", "cmd", "script", "args", "entrypoint", "exec"),
        ),
        Field("gate", GATE, "Check a reported metric."),
        Field("serve", SERVE, "Serve a model."),
        Field("bench", BENCH, "Load-test the served model.", also=("load_test", "benchmark")),
        Field(
            "shape",
            Text(allowed=tuple(SHAPES)),
            "How the ranks relate: "
            + "; ".join(f"`{shape.name}`: {shape.help}" for shape in SHAPES.values())
            + ". Default: `average` if there is a `merge`, else the first in this list that fits `ranks`.",
            only=_GANG,
            also=("strategy", "type", "kind"),
        ),
        Field(
            "ranks",
            Either((Integer(1, MOST_RANKS), MapOf(Either((RANKS, ROLE)), "a mapping of roles", word="role"))),
            "Number of processes: one number, or a number or mapping for each role. Default: the shape's default.",
            example="{worker: 4, ps: 2}",
            only=_GANG,
            also=("workers", "replicas", "nproc", "processes", "roles", "nprocs", "world_size", "np"),
        ),
        Field(
            "per_node",
            Integer(1, 1024),
            "Ranks per node or pod.",
            1,
            only=_GANG,
            also=("slots", "nproc_per_node"),
        ),
        Field(
            "after",
            ListOf(NAME, "a stage or a list of stages", or_one=True),
            "Stages that must succeed first. Default: none, except the stage that a `gate` or `serve` names.",
            also=("needs", "depends_on", "depends", "requires"),
        ),
        Field("resources", RESOURCES, "Resource requests and limits of each rank.", only=_PODS, also=("requests",)),
        Field(
            "env",
            MapOf(ENV_VALUE, key=VARIABLE, word="variable"),
            "Environment variables of this stage; they override the job's `env`.",
            only=("run", "serve", "bench"),
            also=("environment", "envs"),
        ),
        Field(
            "python",
            Text(),
            "A Python interpreter or virtual environment to put first on PATH. Default: the Python that runs Longboat.",
            only=_GANG,
            also=("interpreter", "venv"),
        ),
        Field(
            "restarts",
            Integer(0, 1_000_000),
            "Restarts after a failure. A complete checkpoint refills the budget; preemption is free. From the third "
            "failure in a row without progress, restarts back off: 1, 2, 4 ... 60 s.",
            3,
            only=_GANG,
            also=("max_restarts", "backoff_limit"),
        ),
        Field(
            "retries",
            Integer(0, 1_000_000),
            "New attempts after the restarts are used up.",
            0,
            only=_GANG,
            also=("retry", "max_retries"),
        ),
        Field(
            "timeout",
            SECONDS,
            "Time limit of one attempt. Default: none.",
            only=("run", "serve", "bench"),
            also=("deadline", "max_time"),
        ),
        Field(
            "stall_after",
            SECONDS,
            "Treat the gang as hung after this long without progress. Default: never.",
            only=_GANG,
            also=("stall", "stall_timeout"),
        ),
        Field("on_stall", Text(allowed=("restart", "fail")), "What to do with a hung gang.", "restart", only=_GANG),
        Field(
            "grace",
            SECONDS,
            "Time between SIGTERM and SIGKILL when the run is stopped or preempted.",
            10,
            only=_PODS,
            also=("grace_period",),
        ),
        Field("merge", COMMAND, "Shape `average`: command that merges the models after each round.", only=_GANG),
        Field(
            "rounds", Integer(1, 1_000_000), "Shape `average`: number of rounds of training and merging.", 1, only=_GANG
        ),
        Field("node_selector", LABELS, "Labels that a node must have.", only=_PODS, also=("nodeSelector",)),
        Field("tolerations", Anything("a list", "list"), "Tolerated taints, as in a pod spec.", only=_PODS),
        Field(
            "topology",
            Text(),
            "Node label to spread the ranks over, if possible.",
            only=_PODS,
            also=("topology_key",),
        ),
        Field(
            "pod",
            Anything(),
            "Merged into the pod template, for settings without a key of their own.",
            only=_PODS,
            also=("pod_template", "template"),
        ),
    ),
    one_of=("run", "gate", "serve", "bench"),
)
