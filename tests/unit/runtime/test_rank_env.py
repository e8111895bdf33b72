"""Every variable of a rank, and the table that names them."""

from __future__ import annotations

import json
import re

import pytest

from longboat.runtime.plan import Role, Stage, Variable
from longboat.runtime.rank_env import TABLE, THREADS, Address, Places, World, counted, environment, variable, with_pid

PLACES = Places("demo-babab", "/data", "/out", "/ckpt", "/reports", "/stacks", "/rank_path", "/venv/bin")


def addresses(count: int, host: str = "10.0.0.1", first: int = 100) -> tuple[Address, ...]:
    return tuple(Address(host, (first + 3 * n, first + 3 * n + 1, first + 3 * n + 2)) for n in range(count))


def env(stage: Stage, role: str = "worker", rank: int = 0, peers: object = None, **more: object) -> dict[str, str]:
    if peers is None:
        peers = {r.name: addresses(r.ranks, first=1000 * (n + 1)) for n, r in enumerate(stage.roles)}
    world = World(more.pop("generation", 1), 1, peers, more.pop("round", 1))  # type: ignore[arg-type]
    places = more.pop("places", PLACES)
    base = more.pop("base", {})
    return environment(stage, role, rank, 0, world, places, base)  # type: ignore[arg-type]


ALLREDUCE = Stage("train", shape="allreduce", roles=(Role("worker", 3),))
PS = Stage(
    "train",
    shape="ps",
    roles=(
        Role("chief", 1),
        Role("worker", 2, finishes=False, alone=True),
        Role("ps", 1, finishes=False),
        Role("evaluator", 1, finishes=False),
    ),
)
AVERAGE = Stage("train", shape="average", roles=(Role("worker", 2),), merge=("m",), rounds=3)
MPI = Stage("train", shape="mpi", roles=(Role("launcher", 1), Role("worker", 4, finishes=False)))


def test_pytorch_and_jax_find_rank_0_and_count_alike() -> None:
    found = [env(ALLREDUCE, rank=rank, generation=3) for rank in range(3)]
    assert {e["MASTER_ADDR"] for e in found} == {"10.0.0.1"}
    assert {e["MASTER_PORT"] for e in found} == {"1001"}
    assert (
        {e["COORDINATOR_ADDRESS"] for e in found} == {e["JAX_COORDINATOR_ADDRESS"] for e in found} == {"10.0.0.1:1002"}
    )
    assert [e["RANK"] for e in found] == [e["PROCESS_ID"] for e in found] == ["0", "1", "2"]
    assert {e["WORLD_SIZE"] for e in found} == {e["NUM_PROCESSES"] for e in found} == {"3"}
    assert {e["TORCHELASTIC_RESTART_COUNT"] for e in found} == {"2"}


def test_local_ranks_are_counted_on_each_machine() -> None:
    peers = {"worker": (*addresses(2, "a"), *addresses(1, "b"))}
    found = [env(ALLREDUCE, rank=rank, peers=peers) for rank in range(3)]
    assert [(e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"]) for e in found] == [("0", "2"), ("1", "2"), ("0", "1")]


def test_tensorflow_sees_every_role_but_the_evaluator_in_its_cluster() -> None:
    config = json.loads(env(PS, "ps")["TF_CONFIG"])
    assert config["task"] == {"type": "ps", "index": 0}
    assert {role: len(places) for role, places in config["cluster"].items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert json.loads(env(PS, "evaluator")["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}


def test_addresses_of_ipv6_stand_in_brackets_before_a_port() -> None:
    found = env(
        Stage("train", shape="allreduce", roles=(Role("worker", 2),)), peers={"worker": addresses(2, "fd00::7")}
    )
    assert found["MASTER_ADDR"] == "fd00::7", "PyTorch is given the port apart"
    for name in ("COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"):
        host, _, port = found[name].rpartition(":")
        assert (host, port.isdigit()) == ("[fd00::7]", True)
    peers = json.loads(found["TF_CONFIG"])["cluster"]["worker"]
    assert [peer.rpartition(":")[0] for peer in peers] == ["[fd00::7]", "[fd00::7]"]


def test_only_ranks_that_must_finish_are_counted_for_pytorch() -> None:
    assert counted(PS) == [("chief", 0)]
    assert env(PS, "chief")["WORLD_SIZE"] == "1"
    assert "RANK" not in env(PS, "ps")
    workers = Stage("t", shape="ps", roles=(Role("worker", 2), Role("ps", 1, finishes=False)))
    assert counted(workers) == [("worker", 0), ("worker", 1)]


def test_mpi_workers_are_counted_though_the_launcher_is_what_must_finish() -> None:
    peers = {"launcher": addresses(1)}
    found = [env(MPI, rank=rank, peers=peers) for rank in range(4)]
    assert [(e["RANK"], e["WORLD_SIZE"], e["LOCAL_RANK"]) for e in found] == [(str(n), "4", str(n)) for n in range(4)]
    assert "RANK" not in env(MPI, "launcher", peers=peers)
    assert "TF_CONFIG" not in found[0]


def test_single_and_average_ranks_are_told_of_no_peers() -> None:
    single = env(Stage("s", shape="single", roles=(Role("worker", 1),)))
    assert not {"RANK", "MASTER_ADDR", "TF_CONFIG", "LONGBOAT_ROUND"} & set(single)
    average = env(AVERAGE, rank=1, round=2)
    assert (average["LONGBOAT_RANK"], average["LONGBOAT_WORLD_SIZE"]) == ("1", "2")
    assert (average["LONGBOAT_ROUND"], average["LONGBOAT_ROUNDS"], average["LONGBOAT_WORKERS"]) == ("2", "3", "2")
    assert env(AVERAGE, "merge")["LONGBOAT_WORLD_SIZE"] == "1"


def test_ours_stand_above_the_jobs_and_the_jobs_above_the_callers() -> None:
    stage = Stage(
        "train",
        shape="single",
        roles=(Role("worker", 1, env=(Variable("C", "role"),)),),
        env=(Variable("B", "stage"), Variable("C", "stage"), Variable("S", secret="TOKEN")),
    )
    found = env(stage, base={"A": "caller", "B": "caller", "S": "from the base", "LONGBOAT_RANK": "9"})
    assert (found["A"], found["B"], found["C"]) == ("caller", "stage", "role")
    assert found["S"] == "from the base", "a secret's value comes with the base, never with the plan"
    assert found["LONGBOAT_RANK"] == "0"


def test_threads_are_set_unless_somebody_did() -> None:
    from longboat.runtime.light_dataclasses import replace

    found = env(ALLREDUCE, places=replace(PLACES, threads=2), base={"MKL_NUM_THREADS": "7"})
    assert {name: found[name] for name in THREADS} == {**dict.fromkeys(THREADS, "2"), "MKL_NUM_THREADS": "7"}
    assert not set(THREADS) & set(env(ALLREDUCE))


def test_gpus_are_named_only_when_they_are_asked_for() -> None:
    from longboat.runtime.light_dataclasses import replace

    assert env(ALLREDUCE, places=replace(PLACES, gpus=("4", "5")))["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "CUDA_VISIBLE_DEVICES" not in env(ALLREDUCE)
    assert env(ALLREDUCE, base={"CUDA_VISIBLE_DEVICES": "3"})["CUDA_VISIBLE_DEVICES"] == "3"


def test_paths_begin_with_ours_and_keep_the_callers() -> None:
    found = env(ALLREDUCE, base={"PATH": "/usr/bin", "PYTHONPATH": "/own"})
    assert (found["PATH"], found["PYTHONPATH"]) == ("/venv/bin:/usr/bin", "/rank_path:/own")
    bare = env(ALLREDUCE)
    assert bare["PATH"] == "/venv/bin:/usr/local/bin:/usr/bin:/bin"
    assert bare["PYTHONPATH"] == "/rank_path"


@pytest.mark.parametrize(
    ("command", "pid"),
    [
        ("python train.py", "sh 7"),
        ("cd src && X=1 python train.py --name ${NAME} $X\n", "sh 7"),
        ("python train.py 2>&1", "sh 7"),
        ("python train.py || true", "7"),
        ("python train.py; python report.py", "7"),
        ("python train.py &\nwait", "7"),
        ("python train.py | tee log", "7"),
        ("if python train.py", "7"),
        ("! python train.py", "7"),
        ("{ python train.py", "7"),
        ("python $(which train)", "7"),
    ],
)
def test_a_shell_counts_as_its_child_unless_it_may_continue_after_a_failure(command: str, pid: str) -> None:
    assert with_pid({"A": "1"}, ("sh", "-c", command), 7) == {"A": "1", "LONGBOAT_RANK_PID": pid}
    assert with_pid({}, (*command.split(),), 7) == {"LONGBOAT_RANK_PID": "7"}


def test_mounts_and_earlier_stages_have_variables() -> None:
    from longboat.runtime.light_dataclasses import replace

    places = replace(PLACES, mounts={"my-data.v2": "/m"}, inputs={"pre-train": "/i"})
    found = env(ALLREDUCE, places=places)
    assert (found["LONGBOAT_MOUNT_MY_DATA_V2"], found["LONGBOAT_INPUT_PRE_TRAIN"]) == ("/m", "/i")
    assert variable("a-b.c") == "A_B_C"


@pytest.mark.parametrize(
    ("stage", "role"), [(ALLREDUCE, "worker"), (PS, "chief"), (PS, "ps"), (AVERAGE, "merge"), (MPI, "worker")]
)
def test_the_table_names_exactly_what_is_set(stage: Stage, role: str) -> None:
    from longboat.runtime.light_dataclasses import replace

    places = replace(PLACES, mounts={"data": "/m"}, inputs={"pre": "/i"}, gpus=("0",))
    peers = {"launcher": addresses(1)} if stage is MPI else None
    named = re.compile("|".join(_pattern(row[0]) for row in TABLE))
    unnamed = [name for name in env(stage, role, places=places, peers=peers) if not named.fullmatch(name)]
    assert unnamed == []


def test_the_table_names_nothing_that_is_never_set() -> None:
    from longboat.runtime.light_dataclasses import replace

    places = replace(PLACES, mounts={"data": "/m"}, inputs={"pre": "/i"}, gpus=("0",), threads=1)
    set_ = {
        name for stage, role in ((ALLREDUCE, "worker"), (AVERAGE, "merge")) for name in env(stage, role, places=places)
    }
    for row in TABLE:
        for name in row[0].split(", "):
            if name in ("TMPDIR", "LONGBOAT_RANK_PID"):  # the engine's own; of the process that executes the command
                continue
            assert any(re.fullmatch(_pattern(name), each) for each in set_), name


def _pattern(names: str) -> str:
    return "|".join(re.sub(r"<\w+>", r"[A-Z0-9_]+", name) for name in names.split(", "))
