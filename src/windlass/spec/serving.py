"""The commands of stages that serve a model or load-test one: they are ranks as any other.

So they have logs, restarts and causes like the rest. Filled in when all stages are known, because a
load test asks the server that it comes after.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace

from windlass import plan
from windlass.rankenv import variable

CLIENT = "client"
RESTARTS = 10
"""Of a server: it may fall now and then, and must not loop for ever."""


def with_commands(stages: Mapping[str, plan.Stage], job: str, engine: str) -> dict[str, plan.Stage]:
    """The stages by name, those that serve or test with the ranks that do it."""
    found = dict(stages)
    for name, stage in stages.items():
        if stage.serve is not None:
            served = replace(stage.serve, name=stage.serve.name or job)
            ranks = served.replicas if engine != "local" else 1
            role = replace(stage.roles[0], ranks=ranks, alone=True, command=("sh", "-c", _serve(served, engine)))
            found[name] = replace(stage, serve=served, shape="single", roles=(role,), restarts=RESTARTS)
    for name, stage in stages.items():
        if stage.bench is not None:
            server = _server_before(name, found)
            if server is not None and server.serve is not None:
                role = plan.Role(CLIENT, 1, command=("sh", "-c", _bench(stage.bench, server.serve)))
                found[name] = replace(stage, shape="single", roles=(role,), restarts=0)
    return found


def _serve(serve: plan.Serve, engine: str) -> str:
    words = ["--name", serve.name, "--port", str(serve.port), "--grpc-port", str(serve.grpc_port)]
    if engine == "local":
        words += ["--workers", str(serve.replicas)] if serve.replicas > 1 else []
    else:
        words += ["--host", "0.0.0.0"]
    return f'exec python -m windlass serve "$WINDLASS_INPUT_{variable(serve.model)}" {shlex.join(words)}'


def _bench(bench: plan.Bench, serve: plan.Serve) -> str:
    urls = {
        "grpc": f"grpc://127.0.0.1:{serve.grpc_port}/{serve.name}",
        "rest": f"http://127.0.0.1:{serve.port}/v1/models/{serve.name}",
        "v2": f"http://127.0.0.1:{serve.port}/v2/models/{serve.name}",
    }
    options = (("-b", bench.batch), ("-n", bench.iterations), ("-w", bench.warm_up), ("-c", bench.concurrency))
    words = [urls[bench.protocol], *(str(word) for pair in options for word in pair)]
    data = re.sub(r'([\\"`])', r"\\\1", bench.data)  # a $VARIABLE in it is meant
    place = '--html "$WINDLASS_OUTPUT_DIR/report.html"'
    return f'exec python -m windlass bench {shlex.join(words)} -d "{data}" {place}'


def _server_before(name: str, stages: Mapping[str, plan.Stage]) -> plan.Stage | None:
    """The nearest stage that serves among those that this one comes after."""
    waiting, seen = list(stages[name].after), set()
    while waiting:
        other = waiting.pop(0)
        if stages[other].kind == "serve":
            return stages[other]
        if other not in seen:
            seen.add(other)
            waiting += stages[other].after
    return None
