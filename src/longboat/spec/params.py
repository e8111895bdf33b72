"""Params of a job: their values, and `${NAME}` in the rest of the file.

Precedence: `--set`, LONGBOAT_PARAM_NAME, the preset, the file. Values from the file and from presets may use other
params. Values from the command line and the environment are literal: the shell has already expanded them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from longboat.runtime import plan
from longboat.spec import scalars
from longboat.spec.problems import Problem, Problems, Span, did_you_mean, nearest
from longboat.spec.stage_keys import VARIABLE
from longboat.spec.yaml_nodes import ListNode, MapEntry, MapNode, Node, ScalarNode, place

ENVIRONMENT = "LONGBOAT_PARAM_"
PLACEHOLDERS = ("", "0.0.0.0")
"""Texts that count as no value for a required param."""

_USE = re.compile(r"\$\$\{|\$\{([^}\n]*)(\}?)")


class DeclaredParam(NamedTuple):
    """A param as declared in the file."""

    name: str
    span: Span
    value: ScalarNode | None
    help: str = ""
    required: bool = False


class _Setting(NamedTuple):
    """A value and its source."""

    node: ScalarNode
    set_by: str
    literal: bool = False


class Params:
    """The params of one job file, resolved."""

    def __init__(self, root: MapNode, problems: Problems) -> None:
        self.problems = problems
        self.root = root
        self.declared = {d.name: d for d in _declarations(root)}
        self.presets = _presets(root)
        self.settings: dict[str, _Setting] = {}
        self.resolved: dict[str, ScalarNode] = {}
        self.uses: dict[str, set[tuple[int, int]]] = {name: set() for name in self.declared}

    def entry(self, name: str) -> MapEntry:
        """The entry in the file that declares the param."""
        params = self.root.entries["params"].value
        assert isinstance(params, MapNode)
        return params.entries[name]

    def resolve(self, sets: Mapping[str, str], environ: Mapping[str, str], preset: str | None) -> None:
        self._check_presets()
        chosen = self._preset(preset)
        for name in sets:
            if name not in self.declared:
                self.problems.add_option(f"--set {name}", "unknown param", self._near(name))
        for name, declared in self.declared.items():
            self.settings[name] = self._setting(declared, sets, environ, chosen, preset)
        for name in self.declared:
            self._value(name, ())
        for name, setting in self.settings.items():
            # The file's value counts as a use of other params even if it is overridden.
            declared_value = self.declared[name].value
            if declared_value is not None and setting.node is not declared_value:
                self._count(declared_value)

    def _near(self, name: str) -> str:
        return did_you_mean(name, self.declared, what="its params") or "the job file has no params"

    def _check_presets(self) -> None:
        for preset in self.presets.values():
            for name, entry in preset.entries.items():
                declared = self.declared.get(name)
                if declared is None:
                    self.problems.add(entry.key, f"unknown param `{name}`", self._near(name))
                elif isinstance(entry.value, ScalarNode) and "${" not in entry.value.text:
                    wrong = mismatch(declared, entry.value)
                    if wrong:
                        self.problems.add(entry.value.span, f"`{name}` {wrong}")

    def _preset(self, preset: str | None) -> Mapping[str, MapEntry]:
        if preset is None:
            return {}
        if preset in self.presets:
            return self.presets[preset].entries
        hint = did_you_mean(preset, self.presets, what="its presets") or "the job file has no presets"
        self.problems.add_option(f"--preset {preset}", "unknown preset", hint)
        return {}

    def _setting(
        self,
        declared: DeclaredParam,
        sets: Mapping[str, str],
        environ: Mapping[str, str],
        chosen: Mapping[str, MapEntry],
        preset: str | None,
    ) -> _Setting:
        variable = ENVIRONMENT + declared.name
        for source, option, set_by in (
            (sets.get(declared.name), f"--set {declared.name}", "--set"),
            (environ.get(variable), variable, "environment"),
        ):
            if source is not None:
                node = typed(declared, source)
                wrong = mismatch(declared, node)
                if wrong:
                    self.problems.add_option(option, wrong)
                return _Setting(node, set_by, literal=True)
        if declared.name in chosen:
            value = chosen[declared.name].value
            if isinstance(value, ScalarNode):
                if (
                    isinstance(declared.value, ScalarNode)
                    and isinstance(declared.value.value, str)
                    and not value.filled
                ):
                    value = value._replace(value=None if value.value is None else value.text)
                return _Setting(value, f"preset {preset}")
        return _Setting(declared.value or ScalarNode(declared.span, None, ""), "file")

    def _value(self, name: str, trail: tuple[str, ...]) -> ScalarNode:
        if name in self.resolved:
            return self.resolved[name]
        setting = self.settings[name]
        if name in trail:
            path = " → ".join([*trail[trail.index(name) :], name])
            message = (
                f"the param `{name}` refers to itself" if trail[-1] == name else f"params refer to each other: {path}"
            )
            self.problems.add(setting.node.span, message)
            self.resolved[name] = setting.node._replace(unset=True)
            return self.resolved[name]
        value = setting.node if setting.literal else self.fill(setting.node, (*trail, name))
        if isinstance(value.value, float) and not math.isfinite(value.value):
            self.problems.add(value.span, f"`{name}` must be a finite number")
        missing = self.declared[name].required and _is_missing(value)
        resolved = value._replace(unset=value.unset or missing)
        return self.resolved.setdefault(name, resolved)

    def missing(self) -> tuple[Problem, ...]:
        """A problem for each required param without a value."""
        problems = []
        for name, declared in self.declared.items():
            value = self.resolved[name]
            if declared.required and _is_missing(value):
                state = f"is still the placeholder {value.text}" if value.text else "has no value"
                hint = f"set it in the file, with `--set {name}=…` or with {ENVIRONMENT}{name}"
                if declared.help:
                    hint = f"{declared.help}: {hint}"
                span = declared.span
                message = f"the required param `{name}` {state}"
                problems.append(Problem(self.problems.file, span.line, span.column, span.length, message, hint))
        return tuple(problems)

    def fill(self, node: ScalarNode, trail: tuple[str, ...] = ()) -> ScalarNode:
        """The scalar with `${NAME}` replaced. A scalar that is exactly `${NAME}` takes the param's type."""
        if "${" not in node.text:
            return node
        exact = _USE.fullmatch(node.text)
        if exact and exact[1] is not None and self._known(node, exact, 0):
            value = self._value(exact[1], trail)
            return node._replace(value=value.value, text=value.text, filled=True, unset=value.unset)
        unset = False

        def put(match: re.Match[str]) -> str:
            nonlocal unset
            if match[1] is None:
                return "${"
            if not self._known(node, match, match.start()):
                unset = True
                return match[0]
            value = self._value(match[1], trail)
            unset = unset or value.unset
            return "" if value.value is None else value.text

        text = _USE.sub(put, node.text)
        return node._replace(value=scalars.plain(text) if node.plain else text, text=text, filled=True, unset=unset)

    def _known(self, node: ScalarNode, match: re.Match[str], offset: int) -> bool:
        name = match[1]
        if name in self.declared and match[2]:
            self.uses[name].add((node.start, offset))
            return True
        if not match[2]:
            self.problems.add(self._place(node, "${"), "`${` has no `}`", "write `$${` to pass `${` to the shell")
            return False
        near = nearest(name, self.declared) if re.fullmatch(VARIABLE.pattern, name) else ""
        hint = (f"did you mean `{near}`? " if near else "") + f"write `$${{{name}}}` to pass `${{{name}}}` to the shell"
        self.problems.add(self._place(node, match[0]), f"unknown param `{name}`", hint)

        return False

    def _place(self, node: ScalarNode, use: str) -> Span:
        """Position of `${NAME}` inside the scalar, which may have many lines."""
        text = self.problems.texts[self.problems.file]
        at = text.find(use, node.start, node.end)
        return place(text, at, len(use)) if at >= 0 else node.span

    def _count(self, node: ScalarNode) -> None:
        for match in _USE.finditer(node.text):
            if match[1] in self.declared and match[2]:
                exact = match[0] == node.text
                self.uses[match[1]].add((node.start, 0 if exact else match.start()))

    def fill_all(self, node: Node) -> Node:
        """The tree with `${NAME}` replaced in every value; keys are not changed."""
        if isinstance(node, ScalarNode):
            return self.fill(node)
        if isinstance(node, ListNode):
            return node._replace(items=tuple(self.fill_all(item) for item in node.items))
        return node._replace(entries={k: MapEntry(e.key, self.fill_all(e.value)) for k, e in node.entries.items()})

    def count_presets(self) -> None:
        for preset in self.presets.values():
            for entry in preset.entries.values():
                if isinstance(entry.value, ScalarNode):
                    self._count(entry.value)

    def as_plan(self) -> tuple[plan.Param, ...]:
        return tuple(
            plan.Param(
                name,
                self.resolved[name].value,
                declared.help,
                declared.required,
                self.settings[name].set_by,
                len(self.uses[name]),
            )
            for name, declared in self.declared.items()
        )


def typed(declared: DeclaredParam, text: str) -> ScalarNode:
    """A text from the command line or environment as a value of the param's type."""
    default = declared.value
    keep = default is not None and isinstance(default.value, str) and not _is_use(default)
    value = text if keep else scalars.plain(text)
    if (
        default is not None
        and isinstance(default.value, float)
        and isinstance(value, int)
        and not isinstance(value, bool)
    ):
        value = float(value)
    return ScalarNode(declared.span, value, text)


def _is_use(node: ScalarNode) -> bool:
    match = _USE.fullmatch(node.text)
    return bool(match and match[1] is not None)


def _is_missing(value: ScalarNode) -> bool:
    return value.value is None or (isinstance(value.value, str) and value.value.strip() in PLACEHOLDERS)


def mismatch(declared: DeclaredParam, node: ScalarNode) -> str:
    """What is wrong with the type of a value from outside the file, or ""."""
    if declared.value is None or _is_use(declared.value):
        return ""
    default, value = declared.value.value, node.value
    if isinstance(default, bool):
        right, what = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        right, what = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif isinstance(default, float):
        right, what = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    else:
        return ""
    return "" if right else f"must be {what} (the file has {declared.value.text}), not {scalars.describe(value)}"


def _declarations(root: MapNode) -> list[DeclaredParam]:
    declarations = []
    params = root.entries.get("params")
    if params is None or not isinstance(params.value, MapNode):
        return []
    for name, entry in params.value.entries.items():
        if isinstance(entry.value, ScalarNode):
            declarations.append(DeclaredParam(name, entry.key, entry.value))
        elif isinstance(entry.value, MapNode):
            parts = {key: e.value for key, e in entry.value.entries.items() if isinstance(e.value, ScalarNode)}
            help_ = parts.get("help")
            required = parts.get("required")
            declarations.append(
                DeclaredParam(
                    name,
                    entry.key,
                    parts.get("value"),
                    help_.text if help_ and help_.value is not None else "",
                    required is not None and required.value is True,
                )
            )
        else:
            declarations.append(DeclaredParam(name, entry.key, None))
    return declarations


def _presets(root: MapNode) -> dict[str, MapNode]:
    presets = root.entries.get("presets")
    if presets is None or not isinstance(presets.value, MapNode):
        return {}
    return {name: entry.value for name, entry in presets.value.entries.items() if isinstance(entry.value, MapNode)}
