"""Tests that wait for a launcher: a run counts what it skipped, and the recipe of the docs runs them on ranks."""

import re
from pathlib import Path

import pytest

from tests.whole_run import ROOT, WholeRun, run_pytest, write

EXCHANGE = """
import os
import pytest, torch, torch.distributed as dist

pytestmark = pytest.mark.skipif("RANK" not in os.environ, reason="another time")

@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

@pytest.fixture
def shared(tmp_path_factory):
    box = [str(tmp_path_factory.mktemp("shared")) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    return box[0]

def test_shared(shared):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, shared)
    assert len(found) == 2 and len(set(found)) == 1

@pytest.mark.parametrize("number", [1, 2])
def test_sum(number):
    x = torch.full((number,), float(dist.get_rank()))
    dist.all_reduce(x)
    assert x[0] == 1
"""
OTHERS = """
import os, unittest
import pytest

LAUNCHED = int(os.environ.get("WORLD_SIZE", "1")) > 1
needs_two = pytest.mark.skipif(not LAUNCHED, reason="needs two")

@needs_two
def test_by_a_name():
    pass

@pytest.mark.skipif("'RANK' not in os.environ")
def test_by_text():
    pass

def test_in_the_body():
    if "LOCAL_RANK" not in os.environ:
        pytest.skip("in the body")

@pytest.mark.skip(reason="run me with torchrun")
def test_by_its_reason():
    pass

class TestCase(unittest.TestCase):
    @unittest.skipUnless("RANK" in os.environ, "of unittest")
    def test_unittest(self):
        pass

@pytest.mark.skipif(os.environ.get("HOME_OF_NOBODY") is None, reason="of another kind")
def test_of_another_kind():
    pass

@pytest.mark.xfail(reason="needs RANK")
def test_xfail():
    assert False
"""
MODULE = """
import os
import pytest

if "RANK" not in os.environ:
    pytest.skip("not now", allow_module_level=True)

import torch.distributed as dist

@pytest.fixture(scope="session", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()

def test_fails():
    dist.barrier()  # gloo: a rank that leaves before the other has connected breaks its init_process_group
    assert dist.get_rank() == 0
"""
FIXTURE = """
import pytest, torch.distributed as dist

{fixture}

@pytest.mark.ranks(2)
def test_has_it(checkpoint):
    assert checkpoint == {{"step": 3}}
"""
CURE = "run them with torchrun, or on ranks with pytest.main() in a program under launcher_env=True"


def recipes() -> list[str]:
    page = (ROOT / "docs" / "migrating.md").read_text().partition("### Functions and modules for torchrun")[2]
    return re.findall(r"```python\n(.*?)```", page, re.S)[:2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, fixture = recipes()
    sources = {
        "launched/test_exchange.py": EXCHANGE,
        "launched/test_module.py": MODULE,
        "test_others.py": OTHERS,
        "test_recipe.py": module,
        "test_failing.py": module.replace("test_exchange", "test_module"),
        "test_fixture.py": FIXTURE.format(fixture=fixture),
        "pytest.ini": "[pytest]\ngpuperf_grace = 4\n",  # rank 1 still reports, while rank 0 waits for it
    }
    return write(tmp_path_factory.mktemp("launched"), sources)


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    return run_pytest(folder)


def test_the_last_lines_count_what_waits_for_a_launcher(run: WholeRun) -> None:
    (line,) = [line for line in run.result.outlines if "no launcher" in line]
    # Three of the exchange, five others, and a module whose number of tests nobody knows.
    assert line == (
        "gpuperf: 8 tests and 1 module skipped because no launcher has set RANK (launched/test_module.py, "
        f"launched/test_exchange.py, test_others.py): {CURE}"
    )


def test_a_run_without_such_skips_says_nothing(folder: Path) -> None:
    assert "no launcher" not in run_pytest(folder, "test_others.py", "-k", "another_kind or xfail").text


def test_a_run_under_a_launcher_says_nothing(folder: Path) -> None:
    found = run_pytest(folder, "test_others.py", env={"RANK": "0"})
    assert found.outcomes["test_by_its_reason"] == "SKIPPED"
    assert "no launcher" not in found.text


def test_workers_of_xdist_leave_the_line_to_their_controller(folder: Path) -> None:
    found = run_pytest(folder, "test_others.py", "-n", "1")
    assert [line for line in found.result.outlines if "no launcher" in line] == [
        f"gpuperf: 5 tests skipped because no launcher has set RANK (test_others.py): {CURE}"
    ]


def test_the_recipe_runs_functions_and_fixtures_of_a_module_for_torchrun(run: WholeRun) -> None:
    name = "test_module_for_torchrun[2ranks-launched/test_exchange.py]"
    assert run.outcomes[name] == "PASSED", run.text
    assert run.text.count("= 3 passed") == 2  # each rank's own report


def test_a_module_for_torchrun_that_fails_on_one_rank_fails(run: WholeRun) -> None:
    name = "test_module_for_torchrun[2ranks-launched/test_module.py]"
    assert run.outcomes[name] == "FAILED"
    assert "raised on rank 1 of 2" in run.text, run.text
    assert run.text.count("FAILED launched/test_module.py::test_fails - assert 1 == 0") == 1, run.text


def test_the_recipes_fixture_broadcasts_an_object(run: WholeRun) -> None:
    assert run.outcomes["test_has_it[2ranks]"] == "PASSED", run.text
