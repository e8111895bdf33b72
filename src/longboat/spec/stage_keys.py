"""The keys of a stage. `keys` has those of the job around it."""

from __future__ import annotations

from longboat.runtime.shapes import SHAPES
from longboat.spec import scalars
from longboat.spec.value_types import Anything, Either, Field, Integer, ListOf, MapOf, Measure, Number, RecordOf, Text

MOST_RANKS = 100_000

NAME = Text("1 to 40 of a-z, 0-9 and -, with no - at either end", r"[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?")
VARIABLE = Text("letters, digits and _, with no digit first", r"[A-Za-z_][A-Za-z0-9_]*")
ENV_VALUE = Text("a text, a number, true or false", loose=True)
COMMAND = Either((Text("a command for the shell"), ListOf(ENV_VALUE, "a list of words to execute")))
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
    "What one rank may use at most.",
    (Field("cpu", CORES, "Cores."), Field("memory", MEMORY, "Memory.", also=("mem",))),
)

RESOURCES = RecordOf(
    "resources",
    "What each rank asks for.",
    (
        Field("cpu", CORES, "Cores.", example="2", also=("cpus", "cores")),
        Field("memory", MEMORY, "Memory.", example="4Gi", also=("mem", "ram")),
        Field("gpu", Integer(0, 1024), "GPUs.", 0, also=("gpus", "nvidia.com/gpu")),
        Field("limits", LIMITS, "What each rank may use at most.", also=("limit",)),
    ),
)

RANKS = Integer(0, MOST_RANKS)

ROLE = RecordOf(
    "role",
    "One role of a stage, where a number of ranks does not say enough.",
    (
        Field("count", RANKS, "How many ranks.", also=("ranks", "replicas", "number")),
        Field("run", COMMAND, "The command of this role, instead of the stage's.", also=("command", "cmd")),
        Field("resources", RESOURCES, "For this role; what it leaves out comes from the stage."),
        Field(
            "env", MapOf(ENV_VALUE, key=VARIABLE, word="variable"), "Above the stage's `env`.", also=("environment",)
        ),
        Field("image", IMAGE, "Instead of the job's image."),
        Field("pull_policy", PULL_POLICY, "When the image is pulled.", also=("imagePullPolicy",)),
    ),
)

GATE = RecordOf(
    "gate",
    "The condition that a model must meet. With neither target, or empty ones, nothing is checked.",
    (
        Field("of", NAME, "The stage whose report is asked.", required=True, example="train", also=("stage", "model")),
        Field("metric", Text(), "The reported figure that decides.", required=True, example="accuracy", also=("name",)),
        Field("at_least", Number(), "The figure must reach this.", example="0.75", also=("min", "target", "above")),
        Field("at_most", Number(), "The figure must not pass this.", example="0.1", also=("max", "below")),
        Field(
            "retries", Integer(0, 1_000_000), "New attempts at the stage while it is missed.", 0, also=("retry_limit",)
        ),
    ),
)

AUTOSCALE = RecordOf(
    "autoscale",
    "On a cluster with a metrics server: more servers while they are busy, never fewer than `replicas`.",
    (
        Field("max", Integer(1, MOST_RANKS), "The most servers.", required=True, example="5", also=("most",)),
        Field(
            "cpu", Integer(1, 1000), "Per cent of `resources: {cpu}` in use, on average, beyond which one comes.", 70
        ),
    ),
)

SERVE = RecordOf(
    "serve",
    "A served model.",
    (
        Field("model", NAME, "The stage that left the model.", required=True, example="train", also=("of", "stage")),
        Field("replicas", Integer(1, MOST_RANKS), "How many servers.", 1, also=("ranks", "count")),
        Field("port", PORT, "REST.", 8501, also=("rest_port", "http_port")),
        Field("grpc_port", PORT, "gRPC.", 8500, also=("grpc",)),
        Field(
            "expose",
            EXPOSE,
            "The type of the Service on a cluster.",
            "ClusterIP",
            also=("type", "service_type"),
        ),
        Field("image", IMAGE, "An image that serves the model, such as a stock TF Serving.", ""),
        Field("name", NAME, "The name under which the model is asked; the job's if left out."),
        Field("autoscale", AUTOSCALE, "Let a cluster start more servers.", also=("autoscaling", "hpa")),
        Field("token", VARIABLE, "The name in `secrets` of what clients must send. Left out: anybody may ask.", ""),
    ),
)

BENCH = RecordOf(
    "bench",
    "A load test of the served model.",
    (
        Field(
            "data",
            Text(),
            "The file with the examples to send.",
            required=True,
            example="eval.csv",
            also=("data_file", "file"),
        ),
        Field("batch", Integer(1, 1_000_000), "Examples per request.", 1, also=("batch_size",)),
        Field("iterations", Integer(1, 10**9), "Requests, warm-up included.", 40, also=("num_iteration", "requests")),
        Field("warm_up", Integer(0, 10**9), "Requests that are not counted.", 10, also=("warmup", "warm_up_iteration")),
        Field("concurrency", Integer(1, 100_000), "Requests under way at once.", 1, also=("parallel",)),
        Field("protocol", Text(allowed=("grpc", "rest", "v2")), "How the model is asked.", "grpc"),
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
            "What every rank runs. A text goes to `sh -c`, a list is executed as it stands.",
            example="python train.py --steps ${STEPS}",
            also=("command", "cmd", "script", "args", "entrypoint", "exec"),
        ),
        Field("gate", GATE, "Ask whether a model is good enough."),
        Field("serve", SERVE, "Serve a model."),
        Field("bench", BENCH, "Load-test the served model.", also=("load_test", "benchmark")),
        Field(
            "shape",
            Text(allowed=tuple(SHAPES)),
            "How the ranks relate: "
            + "; ".join(f"`{shape.name}`: {shape.help}" for shape in SHAPES.values())
            + ". Left out: `average` where there is a `merge`, else the first of these that fits the ranks given.",
            only=_GANG,
            also=("strategy", "type", "kind"),
        ),
        Field(
            "ranks",
            Either((Integer(1, MOST_RANKS), MapOf(Either((RANKS, ROLE)), "a mapping of roles", word="role"))),
            "How many processes: a number, or for each role a number or a mapping. Left out: the shape's default.",
            example="{worker: 4, ps: 2}",
            only=_GANG,
            also=("workers", "replicas", "nproc", "processes", "roles", "nprocs", "world_size", "np"),
        ),
        Field(
            "per_node",
            Integer(1, 1024),
            "Ranks that share a node or pod.",
            1,
            only=_GANG,
            also=("slots", "nproc_per_node"),
        ),
        Field(
            "after",
            ListOf(NAME, "a stage or a list of stages", or_one=True),
            "Stages that must have succeeded before. Left out: none but the one that a `gate` or `serve` names.",
            also=("needs", "depends_on", "depends", "requires"),
        ),
        Field("resources", RESOURCES, "What each rank asks for.", only=_PODS, also=("requests",)),
        Field(
            "env",
            MapOf(ENV_VALUE, key=VARIABLE, word="variable"),
            "Variables of this stage, above the job's.",
            only=("run", "serve", "bench"),
            also=("environment", "envs"),
        ),
        Field(
            "python",
            Text(),
            "An interpreter, or an environment such as `.venv`, to put first on PATH. Left out: Longboat's own.",
            only=_GANG,
            also=("interpreter", "venv"),
        ),
        Field(
            "restarts",
            Integer(0, 1_000_000),
            "New generations of the gang after a failure; refilled by each complete checkpoint. Preemption costs none. "
            "From the third failure in a row without progress on, there is a pause before each: 1, 2, 4 ... 60 s.",
            3,
            only=_GANG,
            also=("max_restarts", "backoff_limit"),
        ),
        Field(
            "retries",
            Integer(0, 1_000_000),
            "New attempts once the restarts are spent.",
            0,
            only=_GANG,
            also=("retry", "max_retries"),
        ),
        Field(
            "timeout",
            SECONDS,
            "The longest that one attempt may take. Left out: as long as it likes.",
            only=("run", "serve", "bench"),
            also=("deadline", "max_time"),
        ),
        Field(
            "stall_after",
            SECONDS,
            "Without progress for so long, the gang counts as hung. Left out: never.",
            only=_GANG,
            also=("stall", "stall_timeout"),
        ),
        Field("on_stall", Text(allowed=("restart", "fail")), "What is done with a hung gang.", "restart", only=_GANG),
        Field(
            "grace",
            SECONDS,
            "From SIGTERM to SIGKILL when the run is stopped or preempted.",
            10,
            only=_PODS,
            also=("grace_period",),
        ),
        Field("merge", COMMAND, "Shape `average`: the command that merges, after each round's trainers.", only=_GANG),
        Field("rounds", Integer(1, 1_000_000), "Shape `average`: how often to train and merge.", 1, only=_GANG),
        Field("node_selector", LABELS, "Labels that a node must have.", only=_PODS, also=("nodeSelector",)),
        Field("tolerations", Anything("a list", "list"), "Taints that are put up with, as in a pod.", only=_PODS),
        Field(
            "topology",
            Text(),
            "A node label over whose values the ranks are spread, by preference.",
            only=_PODS,
            also=("topology_key",),
        ),
        Field(
            "pod",
            Anything(),
            "Merged into the pod template: the way out for all that has no key here.",
            only=_PODS,
            also=("pod_template", "template"),
        ),
    ),
    one_of=("run", "gate", "serve", "bench"),
)
