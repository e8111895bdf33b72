"""What this machine can do, and whether it can do what a plan asks: a list of findings.

Each finding names the command that mends it. Looking changes nothing: no package is imported, no
rank is started, and the one file written (is the home writable?) is removed again. Nothing here prints.
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
"""`note`: not there, and nothing that was asked about needs it."""

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
"""First words that the shell itself understands."""


def of_machine(home: str, environ: Mapping[str, str]) -> list[Finding]:
    """What there is, whatever the job."""
    cores, memory = host.cores(), host.memory()
    quota = "" if cores.quota is None else f"; the cgroup grants {cores.quota:g}"
    limit = "" if memory.limit is None else f"; the cgroup grants {syscalls.size(memory.limit)}"
    return [
        Finding("Python", OK, f"{sys.version.split()[0]}, {sys.executable}"),
        Finding("cores", OK, f"{cores.allowed}{quota}"),
        Finding("memory", OK, syscalls.size(memory.total) + limit),
        *_home(home),
        _containment(),
        _mpirun(host.programs(), environ)
        or Finding("mpirun", NOTE, "not found; shape mpi needs it", install_command("mpi")),
        _gpus(environ),
        *_frameworks(),
    ]


def of_job(plan: Plan, environ: Mapping[str, str]) -> list[Finding]:
    """What the plan's own needs are, met or not."""
    found: list[Finding] = []
    for stage in plan.stages:
        for role in stage.roles:
            found += _command(plan, stage, role, environ)
        if stage.merge:
            found += _command(plan, stage, Role("merge", 1, command=stage.merge), environ)
    if any(stage.shape == "mpi" for stage in plan.stages):
        first = next(stage.python for stage in plan.stages if stage.shape == "mpi") or host.programs()
        missing = Finding("mpirun", MISSING, "not found; a stage has the shape mpi", install_command("mpi"))
        found.append(_mpirun(first, environ) or missing)
    found += [_mount(mount) for mount in plan.storage]
    found += [_secret(secret, environ) for secret in plan.secrets]
    found += [_requirement(text) for text in plan.requirements]
    found += _resources(plan, environ)
    return found


def _home(home: str) -> Iterator[Finding]:
    place = home
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if os.path.lexists(home) and not os.path.isdir(home):
        yield Finding("home", MISSING, f"{home} is not a directory", "export LONGBOAT_HOME=/another/directory")
    elif not _writable(place):
        yield Finding("home", MISSING, f"{home} cannot be written", "export LONGBOAT_HOME=/another/directory")
    else:
        yield Finding("home", OK, home + ("" if place == home else " (will be made)"))
    free = shutil.disk_usage(place).free
    state, fix = (OK, "") if free >= _LOW_DISK else (NOTE, "longboat prune --older-than 7d")
    yield Finding("disk", state, f"{syscalls.size(free)} free at {place}", fix)


def _containment() -> Finding:
    from longboat.engines.local import containment

    probed = containment.probe()
    return Finding("containment", OK if probed.complete else NOTE, f"{probed.kind}: {probed.detail}")


def _mpirun(first: str, environ: Mapping[str, str]) -> Finding | None:
    found = mpi.find([first], environ.get("PATH", ""))
    if found is None:
        return None
    import subprocess

    try:
        done = subprocess.run([found.path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("mpirun", MISSING, f"{found.path} does not run: {error}", install_command("mpi"))
    said = re.search(r"(?:Version:\s*|\) |version )(\d[\w.]*)", done.stdout)
    vendor = {"mpich": "MPICH", "openmpi": "Open MPI"}.get(found.vendor, found.vendor)
    return Finding("mpirun", OK, f"{vendor} {said[1] if said else '(version not told)'}, {found.path}")


def _gpus(environ: Mapping[str, str]) -> Finding:
    found = host.gpus(environ.get("PATH"))
    if not found:
        return Finding("GPUs", NOTE, "none that nvidia-smi lists")
    kinds = {gpu: found.count(gpu) for gpu in found}
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
    """Is the program there, and the script that it is to run? Only what can be told without a shell is told."""
    words = _words(role.command)
    if not words or _SHELL.fullmatch(words[0]) or "$" in words[0]:
        return
    about = f"{stage.name}/{role.name}"
    code = plan.code or "."
    program = words[0]
    if "/" in program:
        path = os.path.join(code, program)
        if not os.path.exists(path):
            yield Finding(about, MISSING, f"{program} is not in {code}", "correct the stage's `run:`")
        elif not os.access(path, os.X_OK):
            yield Finding(about, MISSING, f"{program} is not executable", f"chmod +x {shlex.quote(path)}")
        else:
            yield Finding(about, OK, program)
        return
    search = os.pathsep.join([stage.python or host.programs(), environ.get("PATH", os.defpath)])
    path_found = shutil.which(program, path=search)
    if path_found is None:
        yield Finding(about, MISSING, f"{program} is not on PATH", f"install {program}, or correct the stage's `run:`")
        return
    yield Finding(about, OK, f"{program} is {path_found}")
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    plain = program.startswith("python") and script.endswith(".py") and "$" not in script
    if plain and not os.path.exists(os.path.join(code, script)):
        yield Finding(about, MISSING, f"{script} is not in {code}", "correct the stage's `run:` or the job's `code:`")


def _words(command: tuple[str, ...]) -> list[str]:
    """The words of the first program that the command starts; none where only a shell could tell."""
    if len(command) >= 3 and os.path.basename(command[0]) in ("sh", "bash") and command[1] == "-c":
        first = re.split(r"&&|\|\||[;|&\n<>]", command[2], maxsplit=1)[0]
        try:
            words = shlex.split(first)
        except ValueError:
            return []
    else:
        words = list(command)
    while words and (re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("exec", "nohup", "time")):
        words.pop(0)
    return words


def _mount(mount: Mount) -> Finding:
    about = f"mount {mount.name}"
    if not mount.path:
        return Finding(about, OK, mount.note or "a directory of the run")
    make = f"mkdir -p {shlex.quote(mount.path)}"
    if not os.path.isdir(mount.path):
        return Finding(about, MISSING, f"{mount.path} is not there", make)
    if not mount.read_only and not _writable(mount.path):
        fix = f"chown {os.geteuid()} {shlex.quote(mount.path)}, or say `read_only: true`"
        return Finding(about, MISSING, f"{mount.path} cannot be written by user {os.geteuid()}", fix)
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
            about, MISSING, f"{secret.ref} cannot be read", f"write the value into {shlex.quote(secret.ref)}"
        )
    return Finding(about, NOTE, f"in the cluster's Secret {secret.ref}; a local run does not have it")


def _requirement(text: str) -> Finding:
    """What is not there is no obstacle: the run installs it beside the code."""
    name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text.strip())
    installed = host.version(name[0]) if name else None
    if installed is None:
        return Finding("requirement", NOTE, f"{text}: not installed; the run will install it for itself")
    if _satisfies(installed, text) is False:
        return Finding("requirement", NOTE, f"{text}: {installed} is here; the run will install another for itself")
    return Finding("requirement", OK, f"{text}: {installed}")


def _satisfies(installed: str, requirement: str) -> bool | None:
    """None: there is nothing here that can compare versions."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return None
    try:
        return Requirement(requirement).specifier.contains(installed, prereleases=True)
    except InvalidRequirement:
        return None


def _resources(plan: Plan, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The largest stage against the machine: stages that run one after another do not add up."""

    memory, cores = host.memory().usable, host.cores().usable
    for stage in plan.stages:
        asked_memory = sum(role.ranks * (role.resources.memory or 0) for role in stage.roles)
        asked_cores = sum(role.ranks * (role.resources.cpu or 0) for role in stage.roles)
        asked_gpus = sum(role.ranks * role.resources.gpu for role in stage.roles)
        if asked_memory > memory:
            detail = (
                f"its ranks ask for {syscalls.size(asked_memory)} together, the machine has {syscalls.size(memory)}"
            )
            yield Finding(f"{stage.name} memory", MISSING, detail, "fewer ranks, or less `memory:` for each")
        if asked_cores > cores:
            detail = f"its ranks ask for {asked_cores:g} cores together, the machine has {cores:g}: they will share"
            yield Finding(f"{stage.name} cores", NOTE, detail)
        if asked_gpus:
            there = len(host.visible_gpus(environ.get("CUDA_VISIBLE_DEVICES")))
            state = OK if there >= asked_gpus else MISSING
            detail = f"its ranks ask for {asked_gpus} together, the machine has {there}"
            yield Finding(f"{stage.name} GPUs", state, detail, "" if state == OK else "fewer ranks, or `gpu: 0`")


def _writable(directory: str) -> bool:
    """By trying: root may write where the mode forbids it, and nobody may on a read-only file system."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


_RIGHTS = (
    ("make runs", "create", "", "configmaps"),
    ("make runs", "create", "", "services"),
    ("make runs", "create", "", "secrets"),
    ("make runs", "create", "", "persistentvolumeclaims"),
    ("make runs", "create", "apps", "statefulsets"),
    ("give the driver its rights", "create", "", "serviceaccounts"),
    ("give the driver its rights", "create", "rbac.authorization.k8s.io", "roles"),
    ("give the driver its rights", "create", "rbac.authorization.k8s.io", "rolebindings"),
    ("see runs", "list", "", "configmaps"),
    ("see runs", "list", "", "pods"),
    ("read runs", "create", "", "pods/exec"),
    ("reach what runs serve", "create", "", "pods/portforward"),
    ("remove runs", "delete", "", "configmaps"),
)
"""What it is needed for, verb, API group, resource."""


def of_cluster(cluster: Cluster) -> list[Finding]:
    """What a cluster and one's rights in a namespace of it allow."""
    from longboat.runtime.kube_client.api import ApiError

    server = cluster.api.server
    try:
        version = cluster.api.request("GET", "/version")["gitVersion"]
    except ApiError as error:
        fix = "check the kubeconfig: `kubectl cluster-info`"
        return [Finding("cluster", MISSING, f"{server.authority}: {error.message}", fix)]
    found = [Finding("cluster", OK, f"Kubernetes {version} at {server.authority}")]
    found += [_namespace(cluster), *_rights(cluster), _classes(cluster), _names(cluster), *_nodes(cluster)]
    return found


def of_job_there(cluster: Cluster, plan: Plan, environ: Mapping[str, str], probe: bool) -> list[Finding]:
    """What the plan needs of the cluster. With a probe, a pod tries images and mounts, and goes again."""
    from longboat.engines.kubernetes import cluster_checks
    from longboat.runtime.kube_client.api import ApiError

    states = {True: OK, False: MISSING, None: NOTE}
    try:
        found = [Finding(n.about, states[n.met], n.detail, n.fix) for n in cluster_checks.of_job(cluster, plan, probe)]
    except ApiError as error:
        return [Finding("job", MISSING, error.message, "ask an admin for that right")]
    return found + [_secret(secret, environ) for secret in plan.secrets if secret.source != "cluster"]


def _namespace(cluster: Cluster) -> Finding:
    from longboat.runtime.kube_client.api import ApiError

    name = cluster.namespace
    try:
        found = cluster.api.find("Namespace", name)
    except ApiError:
        return Finding("namespace", NOTE, f"{name}; you may not look at it")
    if found is None:
        return Finding("namespace", MISSING, f"there is no {name}", f"kubectl create namespace {name}")
    level = (found["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "none")
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
        elif what.startswith("give"):
            role = rights_for_an_admin(cluster.namespace)
            fix = f"an admin applies this once; then run with --service-account longboat-driver:\n{role}"
            yield Finding(what, NOTE, f"you may not {', '.join(missing[what])}", fix)
        else:
            yield Finding(what, MISSING, f"you may not {', '.join(missing[what])}", "ask an admin for these rights")


def _classes(cluster: Cluster) -> Finding:
    from longboat.runtime.kube_client.api import ApiError

    try:
        classes = cluster.api.list("StorageClass")
    except ApiError:
        return Finding("storage", NOTE, "you may not list storage classes")
    key = "storageclass.kubernetes.io/is-default-class"
    default = [c for c in classes if (c["metadata"].get("annotations") or {}).get(key) == "true"]
    names = ", ".join(c["metadata"]["name"] for c in classes) or "none"
    if not cluster.may("create", "persistentvolumes", everywhere=True):
        names += " (`make: {nfs: true}` needs the right to create persistentvolumes, which you have not)"
    if default:
        return Finding("storage", OK, f"default class: {default[0]['metadata']['name']}; classes: {names}")
    fix = "name one with --storage-class, a volume of your own as the mount `run`, or --volume none"
    return Finding("storage", NOTE, f"classes: {names}; none is the default", fix)


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    from longboat.engines.kubernetes import pending_pods
    from longboat.runtime.kube_client.api import ApiError

    try:
        nodes = pending_pods.free(cluster.api)
    except ApiError:
        yield Finding("nodes", NOTE, "you may not list nodes and all pods: what is free cannot be told")
        return
    for each in nodes:
        gpus = f", {each.gpu:g} GPUs" if each.gpu else ""
        taken = "" if each.usable else f"{each.closed}; "
        detail = f"{taken}free: {each.cpu:.3g} cpu, {syscalls.size(int(each.memory))} memory{gpus}; {each.version}"
        yield Finding(f"node {each.node}", OK if each.usable else NOTE, detail)


def _names(cluster: Cluster) -> Finding:
    """The cluster's DNS: where pods are told to ask, and whether somebody answers there."""
    from longboat.runtime.kube_client.api import ApiError

    try:
        service = cluster.api.find("Service", "kube-dns", "kube-system")
        slices = cluster.api.request(
            "GET",
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            query={"labelSelector": "kubernetes.io/service-name=kube-dns"},
        )["items"]
    except ApiError:
        return Finding("names", NOTE, "you may not look at kube-system: whether the cluster has DNS cannot be told")
    fix = "ranks that are found by name (`ps`, `average`) need it; the others do without"
    if service is None:
        return Finding("names", NOTE, "there is no Service kube-dns in kube-system", fix)
    ends = [each for one in slices for each in one.get("endpoints") or ()]
    ready = sum((each.get("conditions") or {}).get("ready") is not False for each in ends)
    address = service["spec"].get("clusterIP")
    if not ready:
        return Finding("names", MISSING, f"nobody answers at {address}: kube-dns has no pod that is ready", fix)
    return Finding("names", OK, f"DNS at {address}, {ready} of {len(ends)} pods ready")
