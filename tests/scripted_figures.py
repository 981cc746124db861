"""A project of perf tests that measure nothing: files tell what their figures come to, launch after launch."""

import json
from collections.abc import Sequence

import pytest

# Each call of a test takes the next of its figures, the last one for ever.
TESTS = """
import json
from collections.abc import Sequence
from pathlib import Path
import pytest
from pytest_gpuperf import Metric
from pytest_gpuperf.figures.conditions import Gate, Tripped

FOLDER = Path(__file__).parent
pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]

def log(line):
    with (FOLDER / "log").open("a") as file:
        print(line, file=file)

@pytest.fixture(scope="module")
def module_fixture():
    log("module up")
    yield
    log("module down")

@pytest.fixture
def own(request, module_fixture):
    log(f"up {request.node.name}")
    yield
    log(f"down {request.node.name}")

def measured(perf, name):
    path = FOLDER / f"{name}.json"
    figures = json.loads(path.read_text())
    path.write_text(json.dumps(figures[1:] or figures))
    if figures[0] is None:
        raise RuntimeError("this launch came to nothing")
    if figures[0] == "skip":
        pytest.skip("not today")
    if figures[0] == "interrupt":
        raise KeyboardInterrupt
    if figures[0] == "other":
        perf.check(time=Metric(1.0, "s", "lower"))
    elif figures[0] == "hot":
        tripped = (Tripped("GPU-1", Gate.POWER_BRAKE),)
        perf.check(busbw=Metric(100e9, "B/s", "higher", clock="host", invalid=tripped))
    else:
        # The first of several figures is the first launch's, the last one that of all fresh launches.
        capped = (FOLDER / ("at_limit" if len(figures) == 1 else "first_at_limit")).exists()
        perf.check(busbw=Metric(figures[0], "B/s", "higher", limit=450e9, clock="host", power_capped=capped))

def test_a(perf, own):
    measured(perf, "a")

def test_b(perf, own):
    measured(perf, "b")

def test_c(perf):
    measured(perf, "c")
"""

STEADY = [100e9, 100.1e9, 99.9e9, 100.2e9, 99.8e9]


def figures(project: pytest.Pytester, **of_test: Sequence[float | str | None]) -> None:
    """What the tests are going to measure."""
    for name, values in of_test.items():
        (project.path / f"{name}.json").write_text(json.dumps(values))


def judged(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--gpus=2", "-v", *options)
