"""Writes objects as one YAML file for review and `kubectl apply`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longboat.runtime.kube_client.api import Manifest


def yaml_of(objects: Sequence[Manifest], head: str = "") -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    documents = [yaml.dump(obj, Dumper=Dumper, sort_keys=False, width=1 << 20, allow_unicode=True) for obj in objects]
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines())
    return comment + "---\n" + "---\n".join(documents)
