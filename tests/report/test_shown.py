"""What tests show besides metrics, from their reports to the summary and the results file."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.features import list_shown
from pytest_gpuperf.features.profiling.lines import PROFILES
from pytest_gpuperf.report.kinds import KINDS
from pytest_gpuperf.report.shown import Collected, Shown
from tests.page.examples import CURVE, MATRIX, SEARCH
from tests.report.examples import report
from tests.whole_run import run_pytest, write

EXAMPLES = dict(zip(KINDS, (CURVE, MATRIX, SEARCH), strict=True))

FEATURE = """
from dataclasses import dataclass

from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.table import Line


@dataclass(frozen=True)
class Note:
    test: str
    text: str


NOTES = Shown("notes", Note, lambda notes: [Line(f"note: {one['text']}") for one in notes])


def pytest_gpuperf_shows():
    return [NOTES]


def pytest_gpuperf_checked(item, checks):
    item.user_properties += NOTES.carry([{"test": item.nodeid, "text": "as it was"}])
"""
SPEED = """
from pytest_gpuperf import Metric
import pytest

@pytest.mark.ranks(1)
def test_speed(perf): perf.check(time=Metric(1.0, "s", "lower"))
"""


@pytest.mark.parametrize(("kind", "value"), EXAMPLES.items(), ids=[kind.name for kind in KINDS])
def test_values_come_back_from_the_report_that_carries_them(kind: Shown, value: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(value))
    carried = report(user_properties=[("gpuperf", "x"), *kind.carry([value, value])])
    assert kind.read(carried) == [plain, plain]
    assert (kind.carry([]), kind.read(report(user_properties=[]))) == ([], [])
    collected = Collected([kind])
    collected.take(carried)
    assert (collected.of(kind), collected.by_name()) == ([plain, plain], {kind.name: (plain, plain)})
    assert collected.lines() == kind.lines([plain, plain])


def test_commands_know_the_kinds_of_features() -> None:
    assert list_shown() == [*KINDS, PROFILES]


def test_a_feature_adds_a_kind(tmp_path: Path) -> None:
    folder = write(tmp_path, {"conftest.py": FEATURE, "test_it.py": SPEED})
    done = run_pytest(folder, "--smoke", "--gpuperf-json=r.json")
    assert "note: as it was" in done.text
    shown = json.loads((folder / "r.json").read_text())["shown"]
    assert shown == {"notes": [{"test": "test_it.py::test_speed[1rank]", "text": "as it was"}]}
