"""Every shape, from the job file to the last rank's exit."""

from __future__ import annotations

import json
import os
import signal

from tests.local.place import Place, until

WRITE_ENV = """
import json, os
name = os.environ["LONGBOAT_ROLE"] + os.environ["LONGBOAT_RANK"]
with open(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], name), "w") as file:
    json.dump(dict(os.environ), file)
"""

WAIT = """
import os, time
def wait_for(name):
    path = os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], name)
    while not os.path.exists(path):
        time.sleep(0.005)
def leave(name, text=""):
    path = os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
me = os.environ["LONGBOAT_ROLE"] + "-" + os.environ["LONGBOAT_RANK"]
"""


def test_a_single_process_runs_in_the_code_directory_and_leaves_its_output(longboat: Place) -> None:
    longboat.file("text", "hello")
    said = longboat.run("run: cp text $LONGBOAT_OUTPUT_DIR/copy; echo done")
    assert said.code == 0
    assert longboat.output("copy") == "hello"
    assert longboat.log() == "done\n"
    assert "[worker-0] done" in said.err
    assert f"{longboat.id} succeeded" in said.err
    assert said.out == ""


def test_ranks_of_an_allreduce_stage_see_one_world_and_their_own_number_in_it(longboat: Place) -> None:
    said = longboat.run("run: python show.py\nshape: allreduce\nranks: 3\n", show=WRITE_ENV)
    assert said.code == 0, said.err
    envs = [json.loads(longboat.output(f"worker{rank}")) for rank in range(3)]
    for name in ("MASTER_ADDR", "MASTER_PORT", "COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS", "LONGBOAT_RUN_ID"):
        assert len({env[name] for env in envs}) == 1, name
    for name in ("RANK", "LOCAL_RANK", "PROCESS_ID", "LONGBOAT_RANK"):
        assert [env[name] for env in envs] == ["0", "1", "2"], name
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NUM_PROCESSES", "LONGBOAT_WORLD_SIZE"):
        assert [env[name] for env in envs] == ["3", "3", "3"], name
    clusters = [json.loads(env["TF_CONFIG"]) for env in envs]
    assert [config["task"] for config in clusters] == [{"type": "worker", "index": rank} for rank in range(3)]
    assert clusters[0]["cluster"] == clusters[1]["cluster"] == clusters[2]["cluster"]
    ports = [address.rpartition(":")[2] for address in clusters[0]["cluster"]["worker"]]
    assert len({*ports, envs[0]["MASTER_PORT"], envs[0]["COORDINATOR_ADDRESS"].rpartition(":")[2]}) == 5


def test_a_bare_jax_distributed_initialize_joins_the_ranks_in_a_real_sum(longboat: Place) -> None:
    script = """
        import jax
        jax.distributed.initialize()
        import jax.numpy as jnp
        from jax.experimental import multihost_utils
        mine = jnp.array([jax.process_index() + 1.0])
        every = multihost_utils.process_allgather(mine)
        print("of", jax.process_count(), "sum", float(every.sum()), flush=True)
    """
    said = longboat.run("run: python sum.py\nshape: allreduce\nranks: 2\nrestarts: 0\n", sum=script)
    assert said.code == 0, said.err
    assert "of 2 sum 3.0" in longboat.log(0)
    assert "of 2 sum 3.0" in longboat.log(1)


def test_the_chiefs_end_ends_workers_and_parameter_servers_which_are_stopped_not_failed(longboat: Place) -> None:
    script = (
        WAIT
        + """
if me == "chief-0":
    for name in ("worker-0", "worker-1", "ps-0"):
        wait_for(name)
else:
    leave(me)
    wait_for("never")
"""
    )
    said = longboat.run("run: python role.py\nshape: ps\nranks: {chief: 1, worker: 2, ps: 1}\n", role=script)
    assert said.code == 0, said.err
    assert longboat.ends() == {
        "main/chief-0": "succeeded",
        "main/worker-0": "stopped",
        "main/worker-1": "stopped",
        "main/ps-0": "stopped",
    }
    assert longboat.status()["state"] == "succeeded"
    assert "cause" not in longboat.events("run.ended")[0]


def test_without_a_chief_a_ps_stage_is_done_when_all_workers_are(longboat: Place) -> None:
    script = (
        WAIT
        + """
if me == "ps-0":
    leave(me, os.environ["TF_CONFIG"])
    wait_for("never")
wait_for("ps-0")
leave(me, os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"])
"""
    )
    said = longboat.run("run: python role.py\nshape: ps\nranks: {worker: 2, ps: 1}\n", role=script)
    assert said.code == 0, said.err
    assert longboat.ends() == {"main/worker-0": "succeeded", "main/worker-1": "succeeded", "main/ps-0": "stopped"}
    assert [longboat.output(f"worker-{rank}") for rank in (0, 1)] == ["0 of 2", "1 of 2"]
    config = json.loads(longboat.output("ps-0"))
    assert config["task"] == {"type": "ps", "index": 0}
    assert {role: len(addresses) for role, addresses in config["cluster"].items()} == {"worker": 2, "ps": 1}


def test_a_killed_ps_worker_restarts_alone_at_its_address_while_its_peers_train_on(longboat: Place) -> None:
    script = (
        WAIT
        + """
leave(f"{me}.{os.environ['LONGBOAT_RESTART']}", os.environ["TF_CONFIG"])
if me == "worker-1" and os.environ["LONGBOAT_RESTART"] == "0":
    wait_for("never")
if me != "ps-0":
    wait_for("worker-1.1")
else:
    wait_for("never")
"""
    )
    command = longboat.start("run: python role.py\nshape: ps\nranks: {worker: 2, ps: 1}\n", role=script)
    until(lambda: os.path.exists(f"{longboat.dir}/output/main/worker-1.0"))
    started = until(lambda: [e for e in longboat.events("rank.started") if (e["role"], e["rank"]) == ("worker", 1)])
    os.kill(started[0]["pid"], signal.SIGKILL)
    assert command.said().code == 0, command.err
    starts = [(e["role"], e["rank"], e["gen"], e["restart"]) for e in longboat.events("rank.started")]
    assert sorted(starts) == [("ps", 0, 1, 0), ("worker", 0, 1, 0), ("worker", 1, 1, 0), ("worker", 1, 1, 1)]
    assert longboat.output("worker-1.0") == longboat.output("worker-1.1")
    first, second = [e for e in longboat.events("rank.ended") if e["rank"] == 1]
    assert (first["state"], first["signal"]) == ("failed", 9)
    assert second["state"] == "succeeded"


def test_a_lost_parameter_server_restarts_the_whole_gang(longboat: Place) -> None:
    script = (
        WAIT
        + """
generation = os.environ["LONGBOAT_GENERATION"]
leave(f"{me}.{generation}")
if generation == "1":
    if me == "ps-0":
        wait_for("worker-0.1")
        raise SystemExit(4)
    wait_for("never")
if me == "ps-0":
    wait_for("never")
"""
    )
    said = longboat.run("run: python role.py\nshape: ps\nranks: {worker: 1, ps: 1}\n", role=script)
    assert said.code == 0, said.err
    assert [e["gen"] for e in longboat.events("gen.started")] == [1, 2]
    assert longboat.events("gen.ended")[0]["cause"]["role"] == "ps"


def test_average_trains_shards_and_merges_in_every_round(longboat: Place) -> None:
    longboat.file(
        "merge.py",
        WAIT
        + """
parts = [open(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], f"part-{i}")).read()
         for i in range(int(os.environ["LONGBOAT_WORKERS"]))]
assert os.environ["LONGBOAT_ROLE"] == "merge"
leave("merged-" + os.environ["LONGBOAT_ROUND"], "+".join(parts))
print("merged", flush=True)
""",
    )
    script = (
        WAIT
        + """
shard = os.environ["LONGBOAT_RANK"] + "/" + os.environ["LONGBOAT_WORLD_SIZE"]
turn = os.environ["LONGBOAT_ROUND"] + "/" + os.environ["LONGBOAT_ROUNDS"]
leave("part-" + os.environ["LONGBOAT_RANK"], shard + "@" + turn)
print("trained", flush=True)
"""
    )
    said = longboat.run("run: python train.py\nmerge: python merge.py\nrounds: 2\nranks: 2\n", train=script)
    assert said.code == 0, said.err
    assert longboat.output("merged-1") == "0/2@1/2+1/2@1/2"
    assert longboat.output("merged-2") == "0/2@2/2+1/2@2/2"
    assert longboat.log(0) == longboat.log(1) == "trained\n" * 2
    assert longboat.log(0, "merge") == "merged\n" * 2
    generations = [(e["gen"], e["round"]) for e in longboat.events("gen.started")]
    assert generations == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_killed_trainer_of_an_average_stage_restarts_alone(longboat: Place) -> None:
    script = (
        WAIT
        + """
leave(f"{me}.{os.environ['LONGBOAT_RESTART']}")
if me == "worker-0" and os.environ["LONGBOAT_RESTART"] == "0":
    os.kill(os.getpid(), 9)
wait_for("worker-0.1")
"""
    )
    said = longboat.run("run: python train.py\nmerge: 'true'\nranks: 2\nshape: average\n", train=script)
    assert said.code == 0, said.err
    starts = [(e["role"], e["rank"], e["gen"], e["restart"]) for e in longboat.events("rank.started")]
    assert sorted(starts) == [("merge", 0, 2, 0), ("worker", 0, 1, 0), ("worker", 0, 1, 1), ("worker", 1, 1, 0)]


def test_a_merge_that_fails_fails_the_stage_and_is_named(longboat: Place) -> None:
    said = longboat.run("run: 'true'\nmerge: exit 5\nranks: 2\nrestarts: 0\n")
    assert said.code == 1
    assert (longboat.cause["role"], longboat.cause["exit_code"]) == ("merge", 5)
