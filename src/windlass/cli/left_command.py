"""Lists what runs have left in a cluster, run by run, and what of it may cost money.

Pods that still run, volumes, load balancers, images that were pushed from here. `windlass rm RUN
--on kubernetes` removes all of a run, `windlass rm --images` the images. With RUN, only what that
run has left.
"""

from __future__ import annotations

import argparse
import json
import time

from windlass.cli import place, summary, table
from windlass.cli.world import World
from windlass.errors import OK
from windlass.runs import words


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run; all runs if not given")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--on", metavar="ENGINE", choices=("kubernetes",), default="kubernetes", help="kubernetes")
    place.add_cluster_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines.kubernetes import config
    from windlass.images import record
    from windlass.kube import names

    cluster = place.cluster_of(args, world)
    now, found = time.time(), []
    for obj in cluster.left(args.run or ""):
        meta = obj["metadata"]
        run = str((meta.get("labels") or {}).get(names.RUN_LABEL, ""))
        age = words.span(now - config.moment(meta.get("creationTimestamp")))
        found.append((run, str(obj["kind"]), str(meta["name"]), age, cost(obj)))
    found.sort()
    images = [] if args.run else record.pushed(world.home)
    for made in images:
        size = f"{made.size / 1e6:.0f} MB in its registry" if made.size else "its registry's room"
        found.append(("", "Image", made.reference, words.span(now - made.when), size))
    if args.json:
        keys = ("run", "kind", "name", "age", "cost")
        world.print(json.dumps([dict(zip(keys, row, strict=True)) for row in found], indent=2))
    elif not found:
        world.say(f"nothing is left in the namespace {cluster.namespace}")
    else:
        world.print(table.render(("RUN", "KIND", "NAME", "AGE", "MAY COST"), found, columns=world.columns))
        runs = list(dict.fromkeys(row[0] for row in found if row[0]))
        space = f" -n {cluster.namespace}"
        commands = [f"windlass rm {run} --on kubernetes{space}" for run in runs[:3]]
        commands += ["windlass rm --images"] if images else []
        world.say("\n".join(summary.next_lines(commands)))
    return OK


def cost(obj: dict[str, object]) -> str:
    """What a thing takes up while it is there; empty for what takes up nothing to speak of."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})  # type: ignore[call-overload]
    if obj["kind"] == "Pod" and status.get("phase") not in ("Succeeded", "Failed"):
        asked: dict[str, str] = spec["containers"][0].get("resources", {}).get("requests") or {}
        return ", ".join(f"{value} {name}" for name, value in asked.items()) or "its node's time"
    if obj["kind"] == "PersistentVolumeClaim":
        return str(spec.get("resources", {}).get("requests", {}).get("storage", "a volume"))
    if obj["kind"] == "Service" and spec.get("type") == "LoadBalancer":
        return "a load balancer"
    return ""
