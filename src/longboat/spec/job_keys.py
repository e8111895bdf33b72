"""Every key of the job file: one table, from which come the checks, the hints, `longboat schema`
and the reference page. A key that is neither in here nor in `stage_keys` does not exist.
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
        Field("value", AnyScalar(), "The value, if nobody sets another.", also=("default",)),
        Field("help", Text(), "What the value means, in a few words.", "", also=("description", "doc", "about")),
        Field("required", Flag(), "The plan is refused while the value is empty or `0.0.0.0`.", False),
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
    "Storage that a cluster makes where there is none, named after job and mount. It outlives the run: `rm --data` "
    "removes it. A size alone is short for `{size: …}`.",
    (
        Field("size", SIZE, "How much it holds.", example="10Gi", also=("storage", "capacity")),
        Field(
            "class",
            Text("the name of a storage class", r"\S+"),
            "The storage class; without it the cluster's default.",
            "",
            also=("storage_class", "storageClassName", "storageClass"),
        ),
        Field(
            "mode",
            Text(allowed=("ReadWriteMany", "ReadWriteOnce")),
            "`ReadWriteMany` for pods on many nodes, `ReadWriteOnce` for all ranks on one node. Without it, for many "
            "nodes if the storage class can.",
            "",
            also=("access_mode", "accessModes"),
        ),
        Field("nfs", Flag(), "By an NFS server in the cluster, for pods on many nodes with any storage class.", False),
        Field(
            "disk",
            Text("the name of a claim", r"\S+"),
            "The claim that the NFS server keeps the files on; without it one is made.",
            "",
            also=("pvc", "claim"),
        ),
        Field("image", IMAGE, "The image of the NFS server.", ""),
    ),
)

MOUNT = RecordOf(
    "mount",
    "A place for data. A text is short for `{path: …}`, `{gs: …}` or `{s3: …}`.",
    (
        Field("path", Text(), "A directory; relative to the job file.", also=("local", "directory", "dir")),
        Field("nfs", NFS, "An NFS export."),
        Field(
            "pvc",
            Text("the name of a claim", r"\S+"),
            "A PersistentVolumeClaim.",
            also=("persistentVolumeClaim", "claim"),
        ),
        Field("hostPath", Text("an absolute path", r"[/~].*"), "A directory of the node.", also=("host_path",)),
        Field("emptyDir", Anything(), "An empty directory that ends with the run.", also=("empty_dir",)),
        Field("gs", Text("a URL that begins with gs://", r"gs://\S+"), "A Google Cloud Storage bucket."),
        Field("s3", Text("a URL that begins with s3://", r"s3://\S+"), "An S3 bucket."),
        Field(
            "make",
            Either((SIZE, MAKE)),
            "Storage that the cluster makes; it is there again for the job's next run.",
            also=("create", "new"),
        ),
        Field("read_only", Flag(), "Ranks may not write to it.", False, also=("readOnly", "ro")),
    ),
    one_of=("path", "nfs", "pvc", "hostPath", "emptyDir", "gs", "s3", "make"),
)

SECRET = RecordOf(
    "secret",
    "Where a secret's value is to be had; the value itself never stands in a job file or plan. Where an error or a "
    "note would repeat it, the run's journal, and with it `status` and `why`, has `***`; a value of fewer than 4 "
    "characters is not looked for. What a rank itself prints or writes stays as it is: nobody changes its log.",
    (
        Field("env", VARIABLE, "A variable of whoever starts the run.", also=("variable",)),
        Field("file", Text(), "A file; relative to the job file.", also=("path",)),
        Field("secret", Text("the name of a Secret", r"\S+"), "A Secret of the cluster.", also=("secretKeyRef",)),
        Field("key", Text(), "The key in that Secret.", only=("secret",)),
    ),
    one_of=("env", "file", "secret"),
)

ID = Integer(0, 2**31 - 1)
LOGIN = Text("a name of up to 32 letters, digits, _, - and .", r"(?:[A-Za-z_][A-Za-z0-9_.-]{0,31})?")

SECURITY = RecordOf(
    "security",
    "As whom the ranks run on a cluster.",
    (
        Field("user", ID, "User id.", also=("uid", "runAsUser", "user_id")),
        Field("group", ID, "Group id.", also=("gid", "runAsGroup", "group_id")),
        Field("fs_group", ID, "Group that owns the volumes.", also=("fsGroup", "fs_id")),
        Field("user_name", LOGIN, "Name of the user id inside the pod: `whoami` gives it.", ""),
        Field("group_name", LOGIN, "Name of the group id inside the pod.", ""),
        Field(
            "service_account",
            Text(),
            "The service account of the ranks; one that is there, unless `annotations` are given.",
            "",
            also=("serviceAccount", "serviceAccountName"),
        ),
        Field(
            "annotations",
            LABELS,
            "Of the service account, for workload identity: with them it is made for the run if it is not there, and "
            "is named after the job unless `service_account` says otherwise.",
        ),
    ),
)

BOARD = RecordOf(
    "board",
    "TensorBoard in the cluster, for as long as the run is there. It has no login.",
    (
        Field("image", IMAGE, "An image that has TensorBoard; the job's if left out.", ""),
        Field("port", PORT, "Where it listens.", 5001),
        Field("expose", EXPOSE, "The type of its Service.", "ClusterIP", also=("type", "service_type")),
    ),
)

_JOB_FIELDS = (
    Field("longboat", Integer(1), "Version of the job file's schema.", VERSION, also=("version",)),
    Field("name", NAME, "Name of the job; runs are named after it.", required=True, example="wide-deep"),
    Field(
        "params",
        MapOf(Either((AnyScalar(), PARAM)), "a mapping of params", key=VARIABLE, word="param"),
        "Every knob of the job; `${NAME}` anywhere below stands for the value.",
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
        "Named sets of values for params, chosen with `--preset`.",
        also=("profiles",),
    ),
    Field(
        "code",
        Text(),
        "The tree that every rank runs in; relative to the job file. What a `.longboatignore` in it names, in the "
        "syntax of .gitignore, is not sent to a cluster and not looked at for changes.",
        ".",
        also=("source", "src", "context", "workdir"),
    ),
    Field(
        "requirements",
        Either((Text("a path that ends in .txt", r".*\.txt"), ListOf(Text(), "a list of requirements"))),
        "Python packages put beside the code: a list, or a requirements file.",
        example="[numpy>=2]",
        also=("packages", "pip", "dependencies"),
    ),
    Field("image", IMAGE, "The image on a cluster.", ""),
    Field("base", IMAGE, "The image that `longboat build` builds `image` on.", "", also=("base_image", "from")),
    Field(
        "pull_secrets",
        ListOf(Text(), "a name or a list of names", or_one=True),
        "Secrets that let the cluster pull the image.",
        also=("imagePullSecrets", "pull_secret"),
    ),
    Field(
        "env", MapOf(ENV_VALUE, key=VARIABLE, word="variable"), "Variables of every rank.", also=("environment", "envs")
    ),
    Field(
        "env_files",
        ListOf(Text(), "a path or a list of paths", or_one=True),
        "Files of KEY=VALUE lines: variables of every rank, below `env`. Later files win.",
        also=("env_file", "envFrom", "dotenv"),
    ),
    Field(
        "secrets",
        MapOf(SECRET, "a mapping of secrets", key=VARIABLE, word="secret"),
        "Variables of every rank whose value is fetched when the run starts and not written down.",
        also=("secret",),
    ),
    Field(
        "storage",
        MapOf(Either((Text(), MOUNT)), "a mapping of mounts", key=NAME, word="mount"),
        "Named places for data: mount `NAME` is `$LONGBOAT_MOUNT_NAME` in every rank.",
        also=("volumes", "mounts", "data"),
    ),
    Field("security", SECURITY, "As whom the ranks run on a cluster.", also=("securityContext",)),
    Field(
        "board",
        BOARD,
        "TensorBoard beside the run on a cluster; `longboat board` needs no such key.",
        also=("tensorboard",),
    ),
)

STAGES = Field(
    "stages",
    MapOf(STAGE, "a mapping of stages", key=NAME, word="stage", not_empty=True),
    "The steps of the job, by name.",
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
"""What a job of one stage may say at the top, without `stages`."""

SHORT_JOB = RecordOf(
    "short job",
    "A job of one stage, `main`.",
    (*_JOB_FIELDS, STAGES, *SHORT_STAGE.fields),
    one_of=("run", "stages"),
    extensions=True,
)
