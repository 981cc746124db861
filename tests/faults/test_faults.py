"""The table of faults, all in one inner run: verdict, report, time to the verdict, and the health of the next test.

``pytest tests/faults`` runs it on gloo, ``pytest tests/faults --gpus 4`` with NCCL.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.ranks.collectives import say_ranks
from tests.faults import programs
from tests.faults.table import FAULTS, GRACE, TIMEOUT, Fault
from tests.ranks.processes import survivors
from tests.whole_run import run_pytest, write

SLACK = 3.0  # seconds for a verdict on a machine that has other things to do
GRACE_BY_DEFAULT = 5.0  # seconds beyond the moment of a fault within which its verdict must have fallen

# One test after another: a fault, then a healthy program.
TESTS = """
from pathlib import Path
import pytest
import faults_programs as programs

FOLDER = Path(__file__).parent / "moments"

def pairs(names):
    return pytest.mark.parametrize(("name", "step"), [(name, step) for name in names for step in ("fault", "after")])

@pytest.mark.ranks({world_size})
@pairs({names})
def test_pair(ranks, name, step):
    check(ranks, name, step)

@pytest.mark.ranks({world_size}, timeout=120)
@pairs({slow})
def test_slow_pair(ranks, name, step):
    check(ranks, name, step)

def check(ranks, name, step):
    if step == "after":
        total = sum(range(1, ranks.world_size + 1))
        found = (total, "torch.float32", "cpu", False, ["MainThread"], {groups})
        assert ranks.run(programs.healthy) == [found] * ranks.world_size
        if name == "leaves_a_mesh_behind":
            ranks.run(programs.backward_on_a_mesh, groups_before=0)
        return
    results = ranks.run(programs.run, FOLDER, getattr(programs, name))
    if name == "returns_2_gib":
        assert [tensor.numel() for tensor in results] == [1, 2**31] + [1] * (ranks.world_size - 2)
        assert results[1][-1] == 7
    if name == "leaves_children":
        (FOLDER / "children").write_text(str(results[1]))
"""

CONFTEST = """
import json, time
from pathlib import Path

LOG = Path(__file__).parent / "log.jsonl"

def log(**entry):
    with LOG.open("a") as file:
        file.write(json.dumps(entry) + "\\n")

def pytest_runtest_logreport(report):
    log(
        test=report.nodeid, when=report.when, outcome=report.outcome, at=time.time(), text=report.longreprtext,
        sections=report.sections, properties=dict(report.user_properties), duration=report.duration,
    )

def pytest_warning_recorded(warning_message, nodeid):
    log(test=nodeid, when="warning", text=str(warning_message.message))
"""


@dataclass
class Told:
    """What the inner run told of one test."""

    outcome: str = "nothing"
    at: float = 0.0
    text: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """The inner run."""

    world_size: int
    backend: str
    tests: dict[str, Told]
    moments: Path


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    gpus = request.config.getoption("--gpuperf-gpus")
    backend = "gloo" if gpus == "0" else "nccl"
    # Three on gloo: the fewest of which one can be the odd one out.
    world_size = 3 if backend == "gloo" else int(gpus)
    faults = [fault for fault in FAULTS if backend in fault.backends]
    folder = write(
        tmp_path_factory.mktemp("faults"),
        {
            "conftest.py": CONFTEST,
            "moments/.keep": "",
            "test_faults.py": TESTS.format(
                world_size=world_size,
                names=[fault.name for fault in faults if not fault.slow],
                slow=[fault.name for fault in faults if fault.slow],
                groups=1 if backend == "gloo" else 2,
            ),
            "pytest.ini": f"[pytest]\ngpuperf_timeout = {TIMEOUT}\ngpuperf_grace = {GRACE}\n",
        },
    )
    shutil.copy(programs.__file__, folder / "faults_programs.py")
    run_pytest(folder, "--gpus", gpus, timeout=560)
    yield Run(world_size, backend, _read(folder / "log.jsonl"), folder / "moments")
    for child in (folder / "moments").glob("children"):
        assert survivors([int(child.read_text())]) == []


def _read(log: Path) -> dict[str, Told]:
    tests: dict[str, Told] = {}
    for line in log.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        told = tests.setdefault(entry["test"].partition("[")[2].rstrip("]").partition("-")[2], Told())
        if entry["when"] == "warning":
            told.warnings.append(entry["text"])
        elif entry["when"] == "call" or entry["outcome"] == "failed":
            told.outcome, told.at = entry["outcome"], entry["at"]
            told.text = "\n".join([entry["text"], *(f"{title}\n{text}" for title, text in entry["sections"])])
            told.properties = entry["properties"]
    return tests


def _of(request: pytest.FixtureRequest, fault: Fault) -> Run:
    # Known before the run: what this backend cannot do is no reason to wait for it.
    backend = "gloo" if request.config.getoption("--gpuperf-gpus") == "0" else "nccl"
    if backend not in fault.backends:
        pytest.skip(f"a fault of {' and '.join(fault.backends)}, and this run is on {backend}")
    run: Run = request.getfixturevalue("run")
    return run


def _name(fault: Fault) -> str:
    return fault.name if fault.backends == ("gloo", "nccl") else f"{fault.name}-{'-'.join(fault.backends)}"


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=_name)


@each_fault
def test_the_verdict_is_right_and_the_report_names_rank_cause_and_place(
    request: pytest.FixtureRequest, fault: Fault
) -> None:
    run = _of(request, fault)
    told = run.tests[f"{fault.name}-fault"]
    assert told.outcome == fault.verdict, told.text
    others = say_ranks([rank for rank in range(run.world_size) if rank != 1])
    for pattern in fault.says + (fault.says_of_three if run.world_size > 2 else ()):
        assert re.search(pattern.replace("{others}", others), told.text), told.text
    assert told.properties.get("gpuperf_rank") == fault.rank or (fault.rank is None and fault.cause is not None)
    if fault.cause is not None:
        assert re.search(fault.cause, told.properties["gpuperf_cause"])
    if fault.verdict == "failed":
        assert (
            f'run this alone\npytest "test_faults.py::test_pair[{run.world_size}ranks-{fault.name}-fault]"' in told.text
        )
        assert "programs.py" in told.properties.get("gpuperf_place", "programs.py")


@each_fault
def test_the_verdict_falls_soon(request: pytest.FixtureRequest, fault: Fault) -> None:
    run = _of(request, fault)
    moments = [float(file.read_text()) for file in run.moments.glob(f"{fault.name}.*")]
    took = run.tests[f"{fault.name}-fault"].at - min(moments)
    print(f"{fault.name}: verdict {took:.2f} s after the fault on {run.backend}")
    bound = fault.slow or (TIMEOUT + SLACK if fault.waits else GRACE_BY_DEFAULT)
    assert 0 <= took <= bound


@each_fault
def test_what_is_left_behind_is_told(request: pytest.FixtureRequest, fault: Fault) -> None:
    warnings = _of(request, fault).tests[f"{fault.name}-fault"].warnings
    if fault.leaves is None:
        assert warnings == []
    else:
        assert len(warnings) == 1
        assert fault.leaves in warnings[0]


@each_fault
def test_the_next_test_is_on_healthy_ranks(request: pytest.FixtureRequest, fault: Fault) -> None:
    told = _of(request, fault).tests[f"{fault.name}-after"]
    assert told.outcome == "passed", told.text
    assert told.warnings == []  # of a rank that died in between, for example
