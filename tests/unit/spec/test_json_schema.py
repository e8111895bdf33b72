"""The JSON Schema and the reference page say what the reader does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from longboat.spec import job_keys
from longboat.spec.json_schema import document
from longboat.spec.key_reference import reference_markdown
from longboat.spec.stage_keys import STAGE
from tests.unit.spec.jobs import SHORT, WIDE_DEEP, planned, problems


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = document()
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(found)))


GOOD = [
    WIDE_DEEP,
    SHORT,
    SHORT + "ranks: {worker: 2, ps: {count: 1, env: {A: 1}}}\n",
    SHORT + "ranks: ${N}\nparams: {N: 2}\n",
    SHORT + "timeout: 1h30m\ngrace: 5\nx-mine: [1, 2]\n",
    SHORT + "shape: average\nmerge: [python, merge.py]\nrounds: 2\n",
    SHORT + "env: {A: }\nstorage: {a: s3://b/c, b: {emptyDir: }}\nenv_files: []\nimage:\n",
]

BAD = [
    "",
    "name: job\n",
    SHORT + "colour: red\n",
    "name: Big\nrun: x\n",
    "run: x\n",
    SHORT + "ranks: 0\n",
    SHORT + "ranks: 1000000000\n",
    SHORT + "ranks: many\n",
    SHORT + "shape: ring\n",
    SHORT + "timeout: soon\n",
    SHORT + "resources: {memory: lots}\n",
    SHORT + "storage: {a: {path: x, pvc: y}}\n",
    SHORT + "secrets: {A: hunter2}\n",
    SHORT + "env: [A]\n",
    SHORT + "env: {A-B: 1}\n",
    SHORT + "params: {A: {vale: 1}}\n",
    SHORT + "requirements: numpy\n",
    "name: job\nstages: {}\n",
    "name: job\nstages: {a: {}}\n",
    "name: job\nranks: 2\nstages: {a: {run: x}}\n",
    "name: job\nstages: {a: {run: x}, b: {gate: {of: a}}}\n",
    "name: job\nstages: {a: {run: x}, b: {gate: {of: a, metric: m}, ranks: 2}}\n",
    "name: job\nstages: {a: {run: x, gate: {of: a, metric: m}}}\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_reader_takes_the_schema_takes(tmp_path: Path, schema: Any, text: str) -> None:
    planned(tmp_path, text)
    assert [error.message for error in schema.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("text", BAD)
def test_what_the_schema_refuses_the_reader_refuses(tmp_path: Path, schema: Any, text: str) -> None:
    assert problems(tmp_path, text)
    assert not schema.is_valid(yaml.safe_load(text))


def test_every_key_of_the_table_is_in_the_schema_with_its_help() -> None:
    definitions = document()["$defs"]
    for record in (job_keys.JOB, STAGE, job_keys.MOUNT, job_keys.SECRET, job_keys.SECURITY, job_keys.PARAM):
        properties = definitions[record.name]["properties"]
        assert {field.name: field.help for field in record.fields} == {
            name: found["description"] for name, found in properties.items()
        }


def test_the_reference_has_a_section_for_each_record_and_a_row_for_each_key() -> None:
    page = reference_markdown()
    titles = re.findall(r"^## `?([\w ]+)`?$", page, re.MULTILINE)
    assert titles[0] == "Top level"
    assert {"param", "stage", "role", "resources", "limits", "gate", "serve", "bench", "mount", "nfs", "secret"} < set(
        titles
    )
    for field in (*job_keys.JOB.fields, *STAGE.fields):
        assert f"\n| `{field.name}` | " in page
    for link in re.findall(r"\]\(#([^)]*)\)", page):
        assert link in titles
    assert all(line.count(" | ") == 3 for line in page.splitlines() if line.startswith("| `"))
