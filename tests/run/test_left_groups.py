"""A process group that a test leaves open in the pytest process, in whole runs of pytest."""

import pytest

from tests.whole_run import WholeRun, run_pytest, write

TESTS = """
import unittest
import pytest, torch, torch.distributed as dist

def opened(folder):
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)

def test_leaves(tmp_path):
    opened(tmp_path)

def test_innocent(tmp_path):
    opened(tmp_path)
    dist.destroy_process_group()

def test_fails_and_leaves(tmp_path):
    opened(tmp_path)
    assert False, "of the test"

@pytest.fixture
def leaking(tmp_path):
    opened(tmp_path)

def test_fixture_leaves(leaking):
    dist.barrier()

@pytest.fixture
def closing(tmp_path):
    opened(tmp_path)
    yield
    dist.destroy_process_group()

def test_fixture_closes(closing):
    dist.barrier()

@pytest.fixture
def inner(request):
    return request.getfixturevalue("wide")

class TestWide:
    @pytest.fixture(scope="class")
    def wide(self, tmp_path_factory):
        opened(tmp_path_factory.mktemp("wide"))
        yield dist.group.WORLD

    def test_wide(self, inner):
        assert dist.group.WORLD is inner

    def test_wide_again(self, wide):
        assert dist.group.WORLD is wide
        dist.barrier()

def test_after_wide(tmp_path):
    assert not dist.is_initialized()

class TestCase(unittest.TestCase):
    def test_unittest(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

@pytest.mark.ranks(2)
def test_ranks(ranks):
    assert ranks.run(lambda ctx: dist.get_world_size()) == [2, 2]

@pytest.mark.filterwarnings("error")
def test_warnings_are_errors(tmp_path):
    opened(tmp_path)

def test_last(tmp_path):
    assert not dist.is_initialized()
"""
AT_IMPORT = """
import pytest, torch.distributed as dist

@pytest.mark.ranks(1)
def test_ranks(ranks):
    ranks.run(lambda ctx: None)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def test_one():
    dist.barrier()

def test_two():
    dist.barrier()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = write(tmp_path_factory.mktemp("groups"), {"test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    return run_pytest(folder, "-p", "no:randomly")


def test_a_later_test_is_innocent(run: WholeRun) -> None:
    bad = {name: outcome for name, outcome in run.outcomes.items() if outcome != "PASSED"}
    assert bad == {"test_fails_and_leaves": "FAILED", "test_warnings_are_errors": "ERROR"}, run.text
    assert "of the test" in run.report("test_fails_and_leaves")
    assert "LeakWarning: test_it.py::test_warnings_are_errors left a process group open" in run.text


def test_the_test_that_left_it_is_named(run: WholeRun) -> None:
    said = [line.partition("LeakWarning: ")[2] for line in run.section("warnings summary") if "LeakWarning: " in line]
    assert {line.partition(" left ")[0].removeprefix("test_it.py::") for line in said} == {
        "test_leaves",
        "test_fails_and_leaves",
        "test_fixture_leaves",
        "TestWide::test_wide_again",
        "TestCase::test_unittest",
    }
    assert said[0].endswith(
        " left a process group open in the pytest process; it was destroyed, so that no later test meets it: call "
        "torch.distributed.destroy_process_group() where the test or its fixture ends"
    )


BY_A_HOOK = """
import pytest, torch.distributed as dist

def pytest_runtest_setup(item):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        item.config.opened = getattr(item.config, "opened", 0) + 1
    assert item.config.opened == 1
"""
ASKS = """
import pytest, torch.distributed as dist

@pytest.mark.ranks(1)
def test_ranks(ranks):
    ranks.run(lambda ctx: None)

def test_one():
    dist.barrier()

def test_two():
    dist.barrier()
"""


@pytest.mark.parametrize("sources", [{"test_it.py": AT_IMPORT}, {"conftest.py": BY_A_HOOK, "test_it.py": ASKS}])
def test_a_group_that_a_module_or_a_hook_opens_is_no_tests(
    tmp_path_factory: pytest.TempPathFactory, sources: dict[str, str]
) -> None:
    found = run_pytest(write(tmp_path_factory.mktemp("others"), {**sources, "pytest.ini": "[pytest]\n"}))
    assert set(found.outcomes.values()) == {"PASSED"}, found.text
    assert "LeakWarning" not in found.text
