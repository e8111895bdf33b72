"""The page about the library: calls with their docstrings, values with their fields, all read from the code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from longboat.cli.table import markdown

HEAD = """\
# Longboat from Python

Start and read runs from a script or a notebook. `import longboat` is cheap: each name is imported when it is first
used.

```python
import longboat

job = longboat.load("job.yaml", set={"STEPS": 200})
run = job.run()  # in the background; it outlives this process
print(run.wait().state, run.why().headline)

far = longboat.load("job.yaml", on="kubernetes").run(namespace="team")
for line in far.logs():
    print(line.rank, line.text.decode())
```

Every error that a user can fix is a `longboat.LongboatError`, with `message`, `hint` and the exit `code` of the
equivalent command.

"""
INSIDE = """\
## Inside a rank

These calls work in any rank, with nothing installed, and are harmless outside of a run.
[Training scripts](training-scripts.md) and [models](models.md) have examples.

"""


def page() -> str:
    import longboat
    from longboat import api
    from longboat.images.building import BuiltImage
    from longboat.runs.explanation import Explanation
    from longboat.runs.logs import LogLine
    from longboat.runs.run_state import RankState, RunState, StageState, Verdict

    parts = [HEAD, "## A job\n\n", _call("longboat.load", api.load)]
    parts += [_call(f"job.{name}", getattr(api.Job, name)) for name in ("plan", "run", "build")]
    parts += ["## A run\n\n", _call("longboat.Run", api.Run.__init__, str(api.Run.__doc__))]
    asked = ("status", "wait", "logs", "why", "output", "stop", "resume", "rm")
    parts += [_call(f"run.{name}", getattr(api.Run, name)) for name in asked]
    parts.append("## Values\n\nAll values are immutable. Times are seconds since 1970; 0 means not yet.\n\n")
    parts += [_value(each) for each in (RunState, StageState, RankState, Verdict, Explanation, LogLine, BuiltImage)]
    parts += [INSIDE, _call("longboat.report", longboat.report), _call("longboat.stopping", longboat.stopping)]
    parts += [
        _call(f"longboat.checkpoint.{name}", getattr(longboat.checkpoint, name))
        for name in ("save", "load", "shards", "wait")
    ]
    parts.append(_call("longboat.bundle.save", longboat.bundle.save))
    return "".join(parts)


def _call(name: str, function: Callable[..., Any], told: str = "") -> str:
    """A call with its arguments as they stand in the code, and what its docstring says."""
    signature = inspect.signature(inspect.unwrap(function))
    words: list[str] = []
    keyword = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            words.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        words.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    gives = (
        "" if signature.return_annotation in ("None", inspect.Signature.empty) else f" -> {signature.return_annotation}"
    )
    line = f"{name}({', '.join(words)}){gives}"
    if len(line) > 110:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){gives}"
    text = inspect.cleandoc(told or function.__doc__ or "")
    return f"### {name}\n\n```python\n{line}\n```\n\n" + (f"{text}\n\n" if text else "")


def _value(kind: type) -> str:
    return f"### {kind.__name__}\n\n" + markdown(("field", "type", "meaning"), list(_fields(kind))) + "\n\n"


def _fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Fields and properties; a docstring behind a field is its meaning."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    for statement, behind in zip(made.body, [*made.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            told = behind.value.value if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant) else ""
            yield f"`{ast.unparse(statement.target)}`", _type(statement.annotation), " ".join(str(told).split())
        elif isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            told = " ".join((ast.get_docstring(statement) or "").split())
            yield f"`{statement.name}`", _type(statement.returns), told


def _type(annotation: ast.expr | None) -> str:
    return f"`{ast.unparse(annotation)}`" if annotation is not None else ""
