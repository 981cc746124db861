"""What tests import is left out of the search for garbage; what somebody else has set stays as it was."""

import contextlib
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.run.garbage import imports_are_spared
from tests.whole_run import WholeRun, run_pytest

pytestmark = pytest.mark.usefixtures("fresh_python")


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with imports_are_spared():
        pass
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_the_collector_is_on_again_after_an_error() -> None:
    with contextlib.suppress(SyntaxError), imports_are_spared():
        assert not gc.isenabled()
        raise SyntaxError
    assert gc.isenabled()


def run_of(folder: Path, imports: str) -> WholeRun:
    folder.joinpath("test_it.py").write_text(f"""
import gc, weakref
{imports}

def test_it():
    print(f"frozen: {{gc.get_freeze_count()}}, on: {{gc.isenabled()}}")

def test_garbage_of_a_test_is_found():
    class Cycle:
        pass
    cycle = Cycle()
    cycle.itself, seen = cycle, weakref.ref(cycle)
    del cycle
    gc.collect()
    assert seen() is None
""")
    return run_pytest(folder, "-s")


def test_torch_is_left_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, "import torch")
    run.result.assert_outcomes(passed=2)
    (frozen,) = [line.split() for line in run.result.outlines if "frozen: " in line]
    alive = subprocess.run(
        [sys.executable, "-c", "import gc, torch; print(len(gc.get_objects()))"], capture_output=True, check=True
    )
    assert int(frozen[-3].rstrip(",")) >= int(alive.stdout)
    assert frozen[-1] == "True"


def test_nothing_is_left_out_without_torch(tmp_path: Path) -> None:
    run = run_of(tmp_path, "")
    run.result.assert_outcomes(passed=2)
    assert "frozen: 0, on: True" in run.text
