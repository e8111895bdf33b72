"""Print the JSON Schema of the job file.

Use it to get completion and checks in your editor. For VS Code's YAML extension, and others that use the YAML language
server, write the schema to a file and name it in the first line of the job file:

  longboat schema > longboat.schema.json
  # yaml-language-server: $schema=longboat.schema.json
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.runtime.errors import OK


def arguments(parser: argparse.ArgumentParser) -> None:
    pass


def main(_args: argparse.Namespace, console: Console) -> int:

    from longboat.spec.json_schema import document

    console.print_json(document())
    return OK
