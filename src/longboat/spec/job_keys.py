"""Table of all keys of the job file, except those of a stage (`stage_keys`).

The checks, the hints, `longboat schema` and docs/job-file.md are generated from it.
"""

from __future__ import annotations

from longboat.spec import scalars
from longboat.spec.stage_keys import ENV_VALUE, EXPOSE, IMAGE, LABELS, NAME, PORT, STAGE, VARIABLE
from longboat.spec.value_types import (
    AnyScalar,
    Anything,
    Either,
    Field,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Measure,
    RecordOf,
    Text,
)

VERSION = 1

PARAM = RecordOf(
    "param",
    "A named value of the job. `NAME: value` is short for `NAME: {value: value}`.",
    (
        Field("value", AnyScalar(), "The default value.", also=("default",)),
        Field(
            "help",
            Text(),
            "What the value means, in a few words; shown by `longboat params`.",
            "",
            also=("description", "doc", "about"),
        ),
        Field("required", Flag(), "Refuse to run while the value is empty or `0.0.0.0`.", False),
    ),
)

NFS = RecordOf(
    "nfs",
    "An NFS export.",
    (
        Field("server", Text("a host", r"\S+"), "Host name or address.", required=True),
        Field(
            "path", Text("an absolute path", r"/.*"), "The exported directory.", required=True, example="/exports/data"
        ),
    ),
)

SIZE = Measure("a size such as 10Gi, 500M or a number of bytes", scalars.memory, scalars.MEMORY_PATTERN)

MAKE = RecordOf(
    "make",
    "A volume created by the cluster if it does not exist, named after job and mount. The next run reuses it; "
    "`longboat rm --data` deletes it. A size alone is short for `{size: …}`.",
    (
        Field("size", SIZE, "Capacity.", example="10Gi", also=("storage", "capacity")),
        Field(
            "class",
            Text("the name of a storage class", r"\S+"),
            "Storage class. Default: the cluster's default class.",
            "",
            also=("storage_class", "storageClassName", "storageClass"),
        ),
        Field(
            "mode",
            Text(allowed=("ReadWriteMany", "ReadWriteOnce")),
            "Access mode: `ReadWriteMany` for pods on many nodes, `ReadWriteOnce` for all ranks on one node. Default: "
            "`ReadWriteMany` if the storage class supports it.",
            "",
            also=("access_mode", "accessModes"),
        ),
        Field("nfs", Flag(), "Start an NFS server in the cluster: `ReadWriteMany` with any storage class.", False),
        Field(
            "disk",
            Text("the name of a claim", r"\S+"),
            "PersistentVolumeClaim for the NFS server's files. Default: a new one.",
            "",
            also=("pvc", "claim"),
        ),
        Field("image", IMAGE, "Image of the NFS server.", ""),
    ),
)

MOUNT = RecordOf(
    "mount",
    "A directory, volume or bucket for data. A text is short for `{path: …}`, `{gs: …}` or `{s3: …}`.",
    (
        Field("path", Text(), "A directory, relative to the job file.", also=("local", "directory", "dir")),
        Field("nfs", NFS, "An NFS export."),
        Field(
            "pvc",
            Text("the name of a claim", r"\S+"),
            "A PersistentVolumeClaim.",
            also=("persistentVolumeClaim", "claim"),
        ),
        Field("hostPath", Text("an absolute path", r"[/~].*"), "A directory on the node.", also=("host_path",)),
        Field("emptyDir", Anything(), "An empty directory, deleted with the run.", also=("empty_dir",)),
        Field("gs", Text("a URL starting with gs://", r"gs://\S+"), "A Google Cloud Storage bucket."),
        Field("s3", Text("a URL starting with s3://", r"s3://\S+"), "An S3 bucket."),
        Field(
            "make",
            Either((SIZE, MAKE)),
            "A volume created by the cluster and reused by the job's next run.",
            also=("create", "new"),
        ),
        Field("read_only", Flag(), "Mount read-only.", False, also=("readOnly", "ro")),
    ),
    one_of=("path", "nfs", "pvc", "hostPath", "emptyDir", "gs", "s3", "make"),
)

SECRET = RecordOf(
    "secret",
    "Where to read a secret's value; the value itself is never part of a job file or plan. In errors and notes of the "
    "journal, and so in `status` and `why`, it is replaced by `***` (if it has at least 4 characters). Logs of the "
    "ranks are not changed.",
    (
        Field("env", VARIABLE, "An environment variable of the command that starts the run.", also=("variable",)),
        Field("file", Text(), "A file, relative to the job file.", also=("path",)),
        Field("secret", Text("the name of a Secret", r"\S+"), "A Secret in the cluster.", also=("secretKeyRef",)),
        Field("key", Text(), "The key in that Secret.", only=("secret",)),
    ),
    one_of=("env", "file", "secret"),
)

ID = Integer(0, 2**31 - 1)
LOGIN = Text("a name of up to 32 letters, digits, _, - and .", r"(?:[A-Za-z_][A-Za-z0-9_.-]{0,31})?")

SECURITY = RecordOf(
    "security",
    "User, group and service account of the ranks on a cluster.",
    (
        Field("user", ID, "User ID.", also=("uid", "runAsUser", "user_id")),
        Field("group", ID, "Group ID.", also=("gid", "runAsGroup", "group_id")),
        Field("fs_group", ID, "Group ID that owns the volumes.", also=("fsGroup", "fs_id")),
        Field("user_name", LOGIN, "User name inside the pod, as printed by `whoami`.", ""),
        Field("group_name", LOGIN, "Group name inside the pod.", ""),
        Field(
            "service_account",
            Text(),
            "Service account of the ranks. It must exist, unless `annotations` are given.",
            "",
            also=("serviceAccount", "serviceAccountName"),
        ),
        Field(
            "annotations",
            LABELS,
            "Annotations of the service account, for workload identity. With them the account is created if it does "
            "not exist; its default name is the job's.",
        ),
    ),
)

BOARD = RecordOf(
    "board",
    "TensorBoard in the cluster, until the run is removed. It has no login.",
    (
        Field("image", IMAGE, "An image with TensorBoard. Default: the job's image.", ""),
        Field("port", PORT, "Port.", 5001),
        Field("expose", EXPOSE, "Type of its Service.", "ClusterIP", also=("type", "service_type")),
    ),
)

_JOB_FIELDS = (
    Field("longboat", Integer(1), "Version of the job file format.", VERSION, also=("version",)),
    Field("name", NAME, "Name of the job. Run IDs start with it.", required=True, example="wide-deep"),
    Field(
        "params",
        MapOf(Either((AnyScalar(), PARAM)), "a mapping of params", key=VARIABLE, word="param"),
        "Parameters of the job. `${NAME}` in any other value is replaced by the param's value.",
        also=("parameters", "variables", "vars"),
    ),
    Field(
        "presets",
        MapOf(
            MapOf(AnyScalar(), "a mapping of params", key=VARIABLE, word="param"),
            "a mapping of presets",
            key=NAME,
            word="preset",
        ),
        "Named sets of param values, selected with `--preset`.",
        also=("profiles",),
    ),
    Field(
        "code",
        Text(),
        "Code directory and working directory of every rank, relative to the job file. Files matched by its "
        "`.longboatignore` (.gitignore syntax) are not uploaded to a cluster and not checked for changes.",
        ".",
        also=("source", "src", "context", "workdir"),
    ),
    Field(
        "requirements",
        Either((Text("a path that ends in .txt", r".*\.txt"), ListOf(Text(), "a list of requirements"))),
        "Python packages to install for the ranks: a list, or a requirements file.",
        example="[numpy>=2]",
        also=("packages", "pip", "dependencies"),
    ),
    Field("image", IMAGE, "Container image of the ranks on a cluster.", ""),
    Field("base", IMAGE, "Base image for `longboat build`.", "", also=("base_image", "from")),
    Field(
        "pull_secrets",
        ListOf(Text(), "a name or a list of names", or_one=True),
        "Image pull secrets.",
        also=("imagePullSecrets", "pull_secret"),
    ),
    Field(
        "env",
        MapOf(ENV_VALUE, key=VARIABLE, word="variable"),
        "Environment variables of every rank.",
        also=("environment", "envs"),
    ),
    Field(
        "env_files",
        ListOf(Text(), "a path or a list of paths", or_one=True),
        "Files with KEY=VALUE lines: environment variables of every rank. Later files override earlier ones, `env` "
        "overrides all of them.",
        also=("env_file", "envFrom", "dotenv"),
    ),
    Field(
        "secrets",
        MapOf(SECRET, "a mapping of secrets", key=VARIABLE, word="secret"),
        "Environment variables of every rank whose values are read when the run starts and never stored in the plan.",
        also=("secret",),
    ),
    Field(
        "storage",
        MapOf(Either((Text(), MOUNT)), "a mapping of mounts", key=NAME, word="mount"),
        "Named directories, volumes and buckets. `$LONGBOAT_MOUNT_NAME` is the path of mount `NAME` in every rank.",
        also=("volumes", "mounts", "data"),
    ),
    Field(
        "security", SECURITY, "User, group and service account of the ranks on a cluster.", also=("securityContext",)
    ),
    Field(
        "board",
        BOARD,
        "Run TensorBoard with the run on a cluster. `longboat board` works without this key.",
        also=("tensorboard",),
    ),
)

STAGES = Field(
    "stages",
    MapOf(STAGE, "a mapping of stages", key=NAME, word="stage", not_empty=True),
    "Steps of the job, by name.",
    also=("steps", "tasks", "jobs"),
)

JOB = RecordOf("job", "The job file.", (*_JOB_FIELDS, STAGES), extensions=True)

_TAKEN = {field.name for field in _JOB_FIELDS} | {"gate", "serve", "bench"}

SHORT_STAGE = RecordOf(
    "short stage",
    STAGE.help,
    tuple(f for f in STAGE.fields if f.name not in _TAKEN and f.name != "after"),
    one_of=("run",),
)
"""Stage keys allowed at the top level of a job with a single stage."""

SHORT_JOB = RecordOf(
    "short job",
    "A job with a single stage, `main`.",
    (*_JOB_FIELDS, STAGES, *SHORT_STAGE.fields),
    one_of=("run", "stages"),
    extensions=True,
)
