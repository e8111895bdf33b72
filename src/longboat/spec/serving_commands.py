"""Commands of `serve` and `bench` stages.

Locally both run as ranks, with logs, restarts and causes. On a cluster a load test is a rank, and servers are a
Deployment whose containers run the same program. The commands are added when all stages are known, because a load
test needs the address of the server before it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from longboat.runtime import plan
from longboat.runtime.kube_client import names
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.rank_env import variable

CLIENT = "client"
RESTARTS = 10
"""Restarts of a server: enough for occasional crashes, not for a crash loop."""


def with_commands(stages: Mapping[str, plan.Stage], job: str, remote: bool) -> dict[str, plan.Stage]:
    """The stages by name, with roles and commands added to `serve` and `bench` stages."""
    complete = dict(stages)
    for name, stage in stages.items():
        if stage.serve is not None:
            served = replace(stage.serve, name=stage.serve.name or job)
            ranks = served.replicas if remote else 1
            command = _serve(served, remote, stage.grace)
            role = replace(stage.roles[0], ranks=ranks, alone=True, command=command, image=served.image)
            role = replace(role, env=_token(served))
            complete[name] = replace(stage, serve=served, shape="single", roles=(role,), restarts=RESTARTS)
    for name, stage in stages.items():
        if stage.bench is not None:
            server = server_before(name, complete)
            if server is not None and server.serve is not None:
                host = "$LONGBOAT_SERVER" if remote else "127.0.0.1"
                command = ("sh", "-c", _bench(stage.bench, server.serve, host))
                role = plan.Role(CLIENT, 1, command=command, env=_token(server.serve))
                complete[name] = replace(stage, shape="single", roles=(role,), restarts=0)
    return complete


def _serve(serve: plan.Serve, remote: bool, grace: float) -> tuple[str, ...]:
    """The server's command: of a rank locally; of the container, or its arguments, on a cluster."""
    if not remote:
        options = ["--name", serve.name, "--port", str(serve.port), "--grpc-port", str(serve.grpc_port)]
        options += ["--workers", str(serve.replicas)] if serve.replicas > 1 else []
        model = f'"$LONGBOAT_INPUT_{variable(serve.model)}"'
        return ("sh", "-c", f"exec python -m longboat serve {model} {shlex.join(options)}")
    model = f"{names.MODELS}/{serve.name}"
    if serve.image:  # options of TF Serving, appended to the image's entry point
        given = (f"--port={serve.grpc_port}", f"--rest_api_port={serve.port}")
        return (*given, f"--model_name={serve.name}", f"--model_base_path={model}")
    ports = ("--host", "::", "--port", str(serve.port), "--grpc-port", str(serve.grpc_port))
    ending = ("--linger", f"{names.LINGER:g}", "--drain", f"{grace:g}")
    return ("longboat", "serve", model, "--name", serve.name, *ports, *ending)


def _token(serve: plan.Serve) -> tuple[plan.Variable, ...]:
    """The variable with the token, for servers and load tests."""
    return (plan.Variable("LONGBOAT_SERVE_TOKEN", secret=serve.token),) if serve.token else ()


def _bench(bench: plan.Bench, serve: plan.Serve, host: str) -> str:
    urls = {
        "grpc": f"grpc://{host}:{serve.grpc_port}/{serve.name}",
        "rest": f"http://{host}:{serve.port}/v1/models/{serve.name}",
        "v2": f"http://{host}:{serve.port}/v2/models/{serve.name}",
    }
    options = (("-b", bench.batch), ("-n", bench.iterations), ("-w", bench.warm_up), ("-c", bench.concurrency))
    arguments = [str(word) for pair in options for word in pair]
    data = re.sub(r'([\\"`])', r"\\\1", bench.data)  # the shell expands $VARIABLE in it
    report = '--html "$LONGBOAT_OUTPUT_DIR/report.html"'
    return f'exec python -m longboat bench {urls[bench.protocol]} {shlex.join(arguments)} -d "{data}" {report}'


def server_before(name: str, stages: Mapping[str, plan.Stage]) -> plan.Stage | None:
    """The nearest `serve` stage before this one."""
    waiting, seen = list(stages[name].after), set()
    while waiting:
        other = waiting.pop(0)
        if stages[other].kind == "serve":
            return stages[other]
        if other not in seen:
            seen.add(other)
            waiting += stages[other].after
    return None
