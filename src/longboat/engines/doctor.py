"""Checks whether this machine or a cluster can run a job, for `longboat doctor`.

The result is a list of findings, each with the command that fixes it. The checks change nothing: they import no
package and start no rank; the one file they write, to check that the home is writable, is removed. Nothing here prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from longboat import host
from longboat.engines.interface import Finding
from longboat.install_hint import install_command
from longboat.runtime.agent import mpi, syscalls
from longboat.runtime.plan import Mount, Plan, Role, Secret, Stage

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster

OK, MISSING, NOTE = "ok", "missing", "note"
"""`note`: missing, but not needed by what was checked."""

_FRAMEWORKS = (
    ("JAX", "jax", ("jax",), "jax"),
    ("mpi4py", "mpi4py", ("mpi4py",), "mpi"),
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu"), "tensorflow"),
    ("PyTorch", "torch", ("torch",), ""),
    ("Keras", "keras", ("keras",), "keras"),
)
"""Name, module, distributions that provide it, the extra of Longboat that installs it."""

_LOW_DISK = 1 << 30

_SHELL = re.compile(
    r"[^\w/.].*|\.|alias|case|cd|command|echo|eval|exit|export|false|for|function|if|printf|pwd|read|set|source|test|trap|true"
    r"|ulimit|umask|unset|until|wait|while"
)
"""Shell builtins and keywords."""


def of_machine(home: str, environ: Mapping[str, str]) -> list[Finding]:
    """Findings about this machine, independent of a job."""
    cores, memory = host.cores(), host.memory()
    quota = "" if cores.quota is None else f"; cgroup limit {cores.quota:g}"
    limit = "" if memory.limit is None else f"; cgroup limit {syscalls.size(memory.limit)}"
    return [
        Finding("Python", OK, f"{sys.version.split()[0]}, {sys.executable}"),
        Finding("cores", OK, f"{cores.allowed}{quota}"),
        Finding("memory", OK, syscalls.size(memory.total) + limit),
        *_home(home),
        _containment(),
        _mpirun(host.programs(), environ)
        or Finding("mpirun", NOTE, "not found; needed for shape mpi", install_command("mpi")),
        _gpus(environ),
        *_frameworks(),
    ]


def of_job(plan: Plan, environ: Mapping[str, str]) -> list[Finding]:
    """Findings about what the plan needs on this machine."""
    findings: list[Finding] = []
    for stage in plan.stages:
        for role in stage.roles:
            findings += _command(plan, stage, role, environ)
        if stage.merge:
            findings += _command(plan, stage, Role("merge", 1, command=stage.merge), environ)
    if any(stage.shape == "mpi" for stage in plan.stages):
        first = next(stage.python for stage in plan.stages if stage.shape == "mpi") or host.programs()
        missing = Finding("mpirun", MISSING, "not found, but a stage has shape mpi", install_command("mpi"))
        findings.append(_mpirun(first, environ) or missing)
    findings += [_mount(mount) for mount in plan.storage]
    findings += [_secret(secret, environ) for secret in plan.secrets]
    findings += [_requirement(text) for text in plan.requirements]
    findings += _resources(plan, environ)
    return findings


def _home(home: str) -> Iterator[Finding]:
    directory = home
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    if os.path.lexists(home) and not os.path.isdir(home):
        yield Finding("home", MISSING, f"{home} is not a directory", "export LONGBOAT_HOME=/another/directory")
    elif not _writable(directory):
        yield Finding("home", MISSING, f"{home} is not writable", "export LONGBOAT_HOME=/another/directory")
    else:
        yield Finding("home", OK, home + ("" if directory == home else " (will be created)"))
    free = shutil.disk_usage(directory).free
    state, fix = (OK, "") if free >= _LOW_DISK else (NOTE, "longboat prune --older-than 7d")
    yield Finding("disk", state, f"{syscalls.size(free)} free at {directory}", fix)


def _containment() -> Finding:
    from longboat.engines.local import containment

    probed = containment.probe()
    return Finding("containment", OK if probed.complete else NOTE, f"{probed.kind}: {probed.detail}")


def _mpirun(first: str, environ: Mapping[str, str]) -> Finding | None:
    program = mpi.find([first], environ.get("PATH", ""))
    if program is None:
        return None
    import subprocess

    try:
        done = subprocess.run([program.path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("mpirun", MISSING, f"{program.path} does not run: {error}", install_command("mpi"))
    version = re.search(r"(?:Version:\s*|\) |version )(\d[\w.]*)", done.stdout)
    vendor = {"mpich": "MPICH", "openmpi": "Open MPI"}.get(program.vendor, program.vendor)
    return Finding("mpirun", OK, f"{vendor} {version[1] if version else '(unknown version)'}, {program.path}")


def _gpus(environ: Mapping[str, str]) -> Finding:
    gpus = host.gpus(environ.get("PATH"))
    if not gpus:
        return Finding("GPUs", NOTE, "nvidia-smi lists none")
    kinds = {gpu: gpus.count(gpu) for gpu in gpus}
    return Finding("GPUs", OK, ", ".join(f"{count} x {gpu.name} ({gpu.memory})" for gpu, count in kinds.items()))


def _frameworks() -> Iterator[Finding]:
    from importlib.util import find_spec

    for name, module, distributions, extra in _FRAMEWORKS:
        if find_spec(module) is None:
            fix = install_command(extra) if extra else install_command(packages=distributions[:1])
            yield Finding(name, NOTE, "not installed", fix)
        else:
            yield Finding(name, OK, host.version(*distributions) or "installed")


def _command(plan: Plan, stage: Stage, role: Role, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the command's program and script exist, as far as that is possible without a shell."""
    arguments = _arguments(role.command)
    if not arguments or _SHELL.fullmatch(arguments[0]) or "$" in arguments[0]:
        return
    about = f"{stage.name}/{role.name}"
    code = plan.code or "."
    program = arguments[0]
    if "/" in program:
        path = os.path.join(code, program)
        if not os.path.exists(path):
            yield Finding(about, MISSING, f"{program} does not exist in {code}", "fix the stage's `run:`")
        elif not os.access(path, os.X_OK):
            yield Finding(about, MISSING, f"{program} is not executable", f"chmod +x {shlex.quote(path)}")
        else:
            yield Finding(about, OK, program)
        return
    search = os.pathsep.join([stage.python or host.programs(), environ.get("PATH", os.defpath)])
    path_found = shutil.which(program, path=search)
    if path_found is None:
        yield Finding(about, MISSING, f"{program} is not on PATH", f"install {program}, or fix the stage's `run:`")
        return
    yield Finding(about, OK, f"{program} is {path_found}")
    script = next((word for word in arguments[1:] if not word.startswith("-")), "")
    plain = program.startswith("python") and script.endswith(".py") and "$" not in script
    if plain and not os.path.exists(os.path.join(code, script)):
        yield Finding(
            about, MISSING, f"{script} does not exist in {code}", "fix the stage's `run:` or the job's `code:`"
        )


def _arguments(command: tuple[str, ...]) -> list[str]:
    """Arguments of the first program that the command starts; [] if only a shell can tell."""
    if len(command) >= 3 and os.path.basename(command[0]) in ("sh", "bash") and command[1] == "-c":
        first = re.split(r"&&|\|\||[;|&\n<>]", command[2], maxsplit=1)[0]
        try:
            arguments = shlex.split(first)
        except ValueError:
            return []
    else:
        arguments = list(command)
    while arguments and (re.fullmatch(r"\w+=.*", arguments[0]) or arguments[0] in ("exec", "nohup", "time")):
        arguments.pop(0)
    return arguments


def _mount(mount: Mount) -> Finding:
    about = f"mount {mount.name}"
    if not mount.path:
        return Finding(about, OK, mount.note or "a directory of the run")
    make = f"mkdir -p {shlex.quote(mount.path)}"
    if not os.path.isdir(mount.path):
        return Finding(about, MISSING, f"{mount.path} does not exist", make)
    if not mount.read_only and not _writable(mount.path):
        fix = f"chown {os.geteuid()} {shlex.quote(mount.path)}, or set `read_only: true`"
        return Finding(about, MISSING, f"{mount.path} is not writable for user {os.geteuid()}", fix)
    return Finding(about, OK, mount.path + (", read-only" if mount.read_only else ""))


def _secret(secret: Secret, environ: Mapping[str, str]) -> Finding:
    about = f"secret {secret.name}"
    if secret.source == "env":
        if environ.get(secret.ref):
            return Finding(about, OK, f"${secret.ref} is set")
        return Finding(about, MISSING, f"${secret.ref} is not set", f"export {secret.ref}=...")
    if secret.source == "file":
        if os.access(secret.ref, os.R_OK):
            return Finding(about, OK, secret.ref)
        return Finding(
            about, MISSING, f"{secret.ref} is not readable", f"write the value into {shlex.quote(secret.ref)}"
        )
    return Finding(about, NOTE, f"in the cluster's Secret {secret.ref}; not available to a local run")


def _requirement(text: str) -> Finding:
    """A missing requirement is only a note: the run installs it."""
    name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text.strip())
    installed = host.version(name[0]) if name else None
    if installed is None:
        return Finding("requirement", NOTE, f"{text}: not installed; the run will install it")
    if _satisfies(installed, text) is False:
        return Finding(
            "requirement", NOTE, f"{text}: {installed} is installed; the run will install another version for itself"
        )
    return Finding("requirement", OK, f"{text}: {installed}")


def _satisfies(installed: str, requirement: str) -> bool | None:
    """Whether the installed version meets the requirement; None if `packaging` is not available."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return None
    try:
        return Requirement(requirement).specifier.contains(installed, prereleases=True)
    except InvalidRequirement:
        return None


def _resources(plan: Plan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the requests of each stage with the machine."""

    memory, cores = host.memory().usable, host.cores().usable
    for stage in plan.stages:
        asked_memory = sum(role.ranks * (role.resources.memory or 0) for role in stage.roles)
        asked_cores = sum(role.ranks * (role.resources.cpu or 0) for role in stage.roles)
        asked_gpus = sum(role.ranks * role.resources.gpu for role in stage.roles)
        if asked_memory > memory:
            detail = (
                f"its ranks request {syscalls.size(asked_memory)} in total, the machine has {syscalls.size(memory)}"
            )
            yield Finding(f"{stage.name} memory", MISSING, detail, "use fewer ranks, or less `memory:` for each")
        if asked_cores > cores:
            detail = f"its ranks request {asked_cores:g} cores in total, the machine has {cores:g}: they will share"
            yield Finding(f"{stage.name} cores", NOTE, detail)
        if asked_gpus:
            there = len(host.visible_gpus(environ.get("CUDA_VISIBLE_DEVICES")))
            state = OK if there >= asked_gpus else MISSING
            detail = f"its ranks request {asked_gpus} in total, the machine has {there}"
            yield Finding(f"{stage.name} GPUs", state, detail, "" if state == OK else "use fewer ranks, or `gpu: 0`")


def _writable(directory: str) -> bool:
    """Whether a file can be created: mode bits do not tell for root and on read-only file systems."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


_GRANT = "grant the driver its permissions"
_RIGHTS = (
    ("create runs", "create", "", "configmaps"),
    ("create runs", "create", "", "services"),
    ("create runs", "create", "", "secrets"),
    ("create runs", "create", "", "persistentvolumeclaims"),
    ("create runs", "create", "apps", "statefulsets"),
    (_GRANT, "create", "", "serviceaccounts"),
    (_GRANT, "create", "rbac.authorization.k8s.io", "roles"),
    (_GRANT, "create", "rbac.authorization.k8s.io", "rolebindings"),
    ("list runs", "list", "", "configmaps"),
    ("list runs", "list", "", "pods"),
    ("read runs", "create", "", "pods/exec"),
    ("reach served models", "create", "", "pods/portforward"),
    ("remove runs", "delete", "", "configmaps"),
)
"""Purpose, verb, API group, resource."""


def of_cluster(cluster: Cluster) -> list[Finding]:
    """Findings about a cluster and the user's permissions in a namespace."""
    from longboat.runtime.kube_client.api import ApiError

    server = cluster.api.server
    try:
        version = cluster.api.request("GET", "/version")["gitVersion"]
    except ApiError as error:
        fix = "check the kubeconfig: `kubectl cluster-info`"
        return [Finding("cluster", MISSING, f"{server.authority}: {error.message}", fix)]
    findings = [Finding("cluster", OK, f"Kubernetes {version} at {server.authority}")]
    findings += [_namespace(cluster), *_rights(cluster), _classes(cluster), _names(cluster), *_nodes(cluster)]
    return findings


def of_job_there(cluster: Cluster, plan: Plan, environ: Mapping[str, str], probe: bool) -> list[Finding]:
    """Findings about what the plan needs on the cluster. With `probe`, a temporary pod tries images and mounts."""
    from longboat.engines.kubernetes import cluster_checks
    from longboat.runtime.kube_client.api import ApiError

    states = {True: OK, False: MISSING, None: NOTE}
    try:
        findings = [
            Finding(n.about, states[n.met], n.detail, n.fix) for n in cluster_checks.of_job(cluster, plan, probe)
        ]
    except ApiError as error:
        return [Finding("job", MISSING, error.message, "ask an admin for that permission")]
    return findings + [_secret(secret, environ) for secret in plan.secrets if secret.source != "cluster"]


def _namespace(cluster: Cluster) -> Finding:
    from longboat.runtime.kube_client.api import ApiError

    name = cluster.namespace
    try:
        namespace = cluster.api.find("Namespace", name)
    except ApiError:
        return Finding("namespace", NOTE, f"{name}; you lack the permission to read it")
    if namespace is None:
        return Finding("namespace", MISSING, f"{name} does not exist", f"kubectl create namespace {name}")
    level = (namespace["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "none")
    return Finding("namespace", OK, f"{name}, Pod Security: {level}")


def _rights(cluster: Cluster) -> Iterator[Finding]:
    from longboat.engines.kubernetes.cluster import rights_for_an_admin

    missing: dict[str, list[str]] = {}
    for what, verb, group, resource in _RIGHTS:
        name, _, part = resource.partition("/")
        if not cluster.may(verb, name, group, part):
            missing.setdefault(what, []).append(f"{verb} {resource}")
    for what in dict.fromkeys(right[0] for right in _RIGHTS):
        if what not in missing:
            yield Finding(what, OK, "allowed")
        elif what == _GRANT:
            role = rights_for_an_admin(cluster.namespace)
            fix = f"an admin applies this once; then run with --service-account longboat-driver:\n{role}"
            yield Finding(what, NOTE, f"you lack the permission to {', '.join(missing[what])}", fix)
        else:
            yield Finding(
                what,
                MISSING,
                f"you lack the permission to {', '.join(missing[what])}",
                "ask an admin for these permissions",
            )


def _classes(cluster: Cluster) -> Finding:
    from longboat.runtime.kube_client.api import ApiError

    try:
        classes = cluster.api.list("StorageClass")
    except ApiError:
        return Finding("storage", NOTE, "you lack the permission to list storage classes")
    key = "storageclass.kubernetes.io/is-default-class"
    default = [c for c in classes if (c["metadata"].get("annotations") or {}).get(key) == "true"]
    names = ", ".join(c["metadata"]["name"] for c in classes) or "none"
    if not cluster.may("create", "persistentvolumes", everywhere=True):
        names += " (`make: {nfs: true}` needs the permission to create persistentvolumes, which you lack)"
    if default:
        return Finding("storage", OK, f"default class: {default[0]['metadata']['name']}; classes: {names}")
    fix = "use --storage-class, a volume of your own as the mount `run`, or --volume none"
    return Finding("storage", NOTE, f"classes: {names}; no default class", fix)


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    from longboat.engines.kubernetes import pending_pods
    from longboat.runtime.kube_client.api import ApiError

    try:
        nodes = pending_pods.free(cluster.api)
    except ApiError:
        yield Finding("nodes", NOTE, "free resources are unknown: you lack the permission to list nodes and all pods")
        return
    for each in nodes:
        gpus = f", {each.gpu:g} GPUs" if each.gpu else ""
        taken = "" if each.usable else f"{each.closed}; "
        detail = f"{taken}free: {each.cpu:.3g} cpu, {syscalls.size(int(each.memory))} memory{gpus}; {each.version}"
        yield Finding(f"node {each.node}", OK if each.usable else NOTE, detail)


def _names(cluster: Cluster) -> Finding:
    """Whether the cluster has DNS and its pods are ready."""
    from longboat.runtime.kube_client.api import ApiError

    try:
        service = cluster.api.find("Service", "kube-dns", "kube-system")
        slices = cluster.api.request(
            "GET",
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            query={"labelSelector": "kubernetes.io/service-name=kube-dns"},
        )["items"]
    except ApiError:
        return Finding("names", NOTE, "DNS is unknown: you lack the permission to read kube-system")
    fix = "shapes `ps` and `average` need DNS; others work without it"
    if service is None:
        return Finding("names", NOTE, "Service kube-dns does not exist in kube-system", fix)
    endpoints = [endpoint for endpoint_slice in slices for endpoint in endpoint_slice.get("endpoints") or ()]
    ready = sum((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints)
    address = service["spec"].get("clusterIP")
    if not ready:
        return Finding("names", MISSING, f"no response from {address}: kube-dns has no ready pods", fix)
    return Finding("names", OK, f"DNS at {address}, {ready} of {len(endpoints)} pods ready")
