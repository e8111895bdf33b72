"""Writes the reference pages from the tables in the code, so that they cannot drift.

python docs/generate.py            write them
python docs/generate.py --check    change nothing; exit 1 and name the pages that are stale
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from longboat.cli.table import markdown

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))  # the page about Python, and the table of injected faults beside its tests
MADE = "<!-- Made by `make docs`. Edits here are lost: edit {source} instead. -->\n\n"


def job_file() -> str:
    from longboat.spec.key_reference import reference_markdown

    return reference_markdown()


def rank_environment() -> str:
    from longboat.runtime.rank_env import TABLE

    rows = [(", ".join(f"`{name}`" for name in names.split(", ")), when, what) for names, when, what in TABLE]
    return (
        "# The environment of a rank\n\n"
        "Every rank gets the environment of the process that runs Longboat, then the job's own variables, then these.\n"
        "A script that reads its framework's variables needs no change.\n\n"
        + markdown(("variable", "set", "meaning"), rows)
        + "\n"
    )


COMMANDS = """\
# The commands

Results go to stdout, everything else to stderr. [Exit codes](exit-codes.md): 0 done, 1 the job failed, 2 wrong use,
3 the gate was missed, 130 interrupted.
"""


def commands() -> str:
    """Not argparse's own text: that differs between versions of Python."""
    from longboat.cli.main import GROUPS, parser_of

    parts = [COMMANDS]
    for group, names in GROUPS.items():
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        for name in names:
            parser, _ = parser_of(name)
            parts.append(f"### longboat {name}\n\n```text\n{(parser.description or '').strip()}\n```\n")
            if rows := [_argument(action) for action in parser._actions if action.dest != "help"]:
                parts.append(markdown(("argument", "meaning"), rows) + "\n")
    return "\n".join(parts)


def _argument(action: argparse.Action) -> tuple[str, str]:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    words = ", ".join(f"{option} {value}".strip() for option in action.option_strings) or value
    return f"`{words}`", (action.help or "").replace("%%", "%")


FAILURES = """\
# When a run fails

`longboat why RUN` shows what failed first and where, the evidence, the failures that followed from it, earlier
failures, and the next command to type. `--json` prints the same as JSON. Four rules hold:

- The first failure is the cause; later failures of other ranks are its consequences. A lost connection never hides the
  rank whose exit broke it.
- Every cause has evidence, and `why` shows it. Without evidence the cause is unknown: a SIGKILL is called out of memory
  only if the kernel counted such a kill.
- Results of passed stages are kept. `longboat run --resume RUN` continues from the last complete checkpoint with the
  run's plan; `longboat run FILE --resume RUN` uses the changed job file and repeats the stages that the change affects.
- No checkpoint is skipped or deleted in silence. If the last one is damaged, the one before it is used, and the run's
  output, `why` and the journal say so.

The run's journal, `events.jsonl`, has all details, such as the stacks of a rank that hung.

## What you see, what it means, what to do

"""

DEBUG_LOGS = """

## Debug logs, for a bug report

```sh
longboat run job.yaml -v                # or: export LONGBOAT_LOG=debug
longboat cp RUN:driver.log .
longboat cp RUN:agents .
```

The driver logs connections, refused handshakes, orders, journal events, pods and retries to `driver.log`; each agent
logs to `agents/STAGE/ROLE-RANK.log`:

```text
2026-11-16T22:02:55.146Z INFO agent main/worker-1[3] connected to the driver at /tmp/longboat-3f9c3856/driver.sock
2026-11-16T22:02:55.147Z INFO agent main/worker-1[3] received start for [1, 0]: start
2026-11-16T22:02:55.178Z INFO agent main/worker-1[3] started incarnation (1, 0) as process 1704
2026-11-16T22:02:55.195Z INFO agent main/worker-1[3] incarnation (1, 0) ended: code 0, signal 0, no cause
```

In a cluster, agents log to stderr: save `kubectl logs -f POD`, because a pod's log is lost with the pod.
`longboat serve` logs to stderr: loaded and unloaded versions, batches, and refused requests with their `X-Request-Id`.
`LONGBOAT_LOG` can be `debug`, `info`, `warning` or `error`; without it nothing is logged. `driver.log` quotes the last
lines of a failed rank. The job's secrets are hidden there if they have at least 4 characters.
"""

INJECTED = """

## Injected faults

The tests inject each of these faults into a real run and check what `longboat why` reports.

"""


def failures() -> str:
    from longboat.runs.cause_texts import WORDS
    from longboat.runtime.causes import HOPELESS
    from tests.faults.table import FAULTS

    kinds = [
        (f"**{told.phrase}**", f"`{kind.value}`", told.meaning, f"{told.advice[0].upper()}{told.advice[1:]}.")
        for kind, told in WORDS.items()
    ]
    faults = [(fault.name, WORDS[fault.kind].phrase, fault.where or "the run") for fault in FAULTS]
    never = ", ".join(sorted(f"`{kind.value}`" for kind in HOPELESS))
    return (
        FAILURES
        + markdown(("what you see", "kind", "what it means", "what to do"), kinds)
        + f"\n\nLongboat neither restarts nor retries after {never}.\n"
        + DEBUG_LOGS.removeprefix("\n")
        + INJECTED.removeprefix("\n")
        + markdown(("fault", "named as", "blamed"), faults)
        + "\n"
    )


def python() -> str:
    from docs.python_page import page

    return page()


PAGES: dict[str, tuple[Callable[[], str], str]] = {
    "job-file.md": (job_file, "src/longboat/spec/job_keys.py"),
    "rank-environment.md": (rank_environment, "src/longboat/runtime/rank_env.py"),
    "commands.md": (commands, "src/longboat/cli"),
    "python.md": (python, "src/longboat/api.py"),
    "failures.md": (failures, "src/longboat/runs/cause_texts.py"),
}


def stale() -> list[tuple[Path, str]]:
    """The pages that are not what the code says, with what they should be."""
    found = []
    for name, (make, source) in PAGES.items():
        path, text = HERE / name, MADE.format(source=source) + make().rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append((path, text))
    return found


def main() -> int:
    pages = stale()
    if "--check" in sys.argv[1:]:
        for path, _ in pages:
            print(f"docs/{path.name} is stale: make docs", file=sys.stderr)
        return 1 if pages else 0
    for path, text in pages:
        path.write_text(text, encoding="utf-8")
        print(f"wrote docs/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
