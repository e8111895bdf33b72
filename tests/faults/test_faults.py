"""Every fault of the table is injected into a real run; `longboat why` must name it."""

from __future__ import annotations

import fnmatch
import json
import shlex

import pytest

from tests.commands import Longboat
from tests.faults.fault import Fault
from tests.faults.gangs import MPIS
from tests.faults.table import FAULTS
from tests.local.place import Place


def lay(longboat: Place, fault: Fault) -> None:
    for name, text in fault.files.items():
        if name.endswith("/"):
            (longboat.code / name).mkdir()
        else:
            path = longboat.file(name, text)
            if not name.endswith(".sh"):
                path.chmod(0o755)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_why_names_the_fault(longboat: Place, fault: Fault) -> None:
    if fault in MPIS[:-1]:
        pytest.importorskip("mpi4py")
    lay(longboat, fault)
    fault.inject(longboat, fault)
    told = longboat("why", "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    text = longboat("why").out
    cause = found["cause"] or longboat.events("gen.ended")[0]["cause"]
    assert found["state"] == fault.state, text
    assert cause["kind"] == fault.kind.value, text
    where = f"{cause.get('stage', '')}" + (f"/{cause['role']}-{cause['rank']}" if "rank" in cause else "")
    assert fnmatch.fnmatch(where, fault.where), text
    for word in fault.says:
        assert word in text, f"{word!r} is missing in\n{text}"
    for word in fault.not_says:
        assert word not in text, f"{word!r} stands in\n{text}"
    assert set(fault.because) <= {told.split()[0] for told in found["consequences"]}, text
    wanted = fault.next.format(id=longboat.id, file=longboat.code / "job.yaml")
    assert wanted in found["next"], text
    assert text.endswith("".join(f"  {command}\n" for command in found["next"])), "the last lines are the next commands"
    here = Longboat(longboat.home)
    for command in found["next"]:
        name, *rest = shlex.split(command)[1:]
        if name in ("logs", "status", "ls"):
            assert here(name, *rest).code == 0, command


def test_the_table_has_40_faults_of_15_kinds() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len({fault.kind for fault in FAULTS}) >= 15
