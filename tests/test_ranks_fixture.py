"""The ranks fixture in whole runs of pytest: many user tests in one run, since each run loads torch."""

import re

import pytest

from tests.fake_gpus import without_ranks
from tests.helper_sources import HELPERS, TESTS
from tests.whole_run import WholeRun, run_pytest, write

DESIGN = '''
"""The examples of the design, as they stand there."""
import pytest, torch, torch.distributed as dist
from hypothesis import given, settings, strategies as st

@pytest.mark.ranks(2, 4)
def test_all_reduce_sums(ranks):
    def program(ctx):
        x = torch.full((4,), float(ctx.rank), device=ctx.device)
        dist.all_reduce(x)
        assert x[0] == sum(range(ctx.world_size))
        return x
    first, *rest = ranks.run(program)
    assert all(torch.equal(first, x) for x in rest)

def tensors(*shape):
    return st.integers(0, 1000).map(lambda seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)))

def column_parallel_linear(ctx, x, weight):
    return x @ weight.chunk(ctx.world_size)[ctx.rank].T

@pytest.mark.ranks(2)
@settings(deadline=None)
@given(x=tensors(3, 5), weight=tensors(4, 5))
def test_column_parallel_linear(ranks, x, weight):
    got = ranks.run(column_parallel_linear, x=x, weight=weight)
    torch.testing.assert_close(torch.cat(got, dim=-1), x @ weight.T)
'''

FIXTURES = """
import os
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.ranks(2)

@pytest.fixture(scope="module")
def offset():
    return {"by": 10}

class TestClass:
    factor = 3

    def test_method(self, ranks):
        assert ranks.run(lambda ctx: ctx.rank * self.factor) == [0, 3]

class TestGiven:
    factor = 3

    def test_method_beside_given(self, ranks):
        assert ranks.run(lambda ctx: ctx.rank * self.factor) == [0, 3]

    @settings(deadline=None, max_examples=5)
    @given(number=st.integers())
    def test_given_in_a_class(self, ranks, number):
        assert ranks.run(lambda ctx, n: n + ctx.rank, number) == [number, number + 1]

@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(ranks, number, offset):
    assert ranks.run(lambda ctx, n, *, by: n + by + ctx.rank, number, **offset) == [number + 10, number + 11]

def test_tmp_path(ranks, tmp_path):
    def program(ctx):
        (tmp_path / str(ctx.rank)).write_text("here")
    ranks.run(program)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

def test_monkeypatched_environment(ranks, monkeypatch):
    monkeypatch.setenv("SET_BY_THE_TEST", "yes")
    assert ranks.run(lambda ctx: os.environ.get("SET_BY_THE_TEST")) == ["yes", "yes"]

def test_order_and_world(ranks):
    assert repr(ranks) == "Ranks(world_size=2)"
    assert (ranks.world_size, ranks.backend) == (2, "gloo")
    assert ranks.run(lambda ctx: (ctx.rank, ctx.world_size)) == [(0, 2), (1, 2)]

def test_resized(ranks):
    assert ranks.resized(1).run(lambda ctx: ctx.world_size) == [1]
    assert ranks.resized(2).run(lambda ctx: ctx.world_size) == [2, 2]
    for wrong in (0, 3, True, 1.0, "1"):
        with pytest.raises(ValueError, match=f"a world of 2 ranks has room for 1 to 2, got {wrong!r}"):
            ranks.resized(wrong)

def test_seeds_differ_by_rank(ranks):
    first, second = ranks.run(lambda ctx: ctx.seed)
    assert second == first + 1
    assert ranks.run(lambda ctx: ctx.seed) == [first, second]

@pytest.mark.parametrize("n", [1, 2])
def test_seed_of_a_test(ranks, n):
    print("seed", ranks.run(lambda ctx: ctx.seed)[0])
"""


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    sources = {"test_design.py": DESIGN, "test_fixtures.py": FIXTURES, "pytest.ini": "[pytest]\n", **HELPERS}
    return run_pytest(write(tmp_path_factory.mktemp("fixtures"), sources), "--import-mode=prepend")


def test_the_examples_of_the_design_pass(fixtures: WholeRun) -> None:
    tests = ["test_all_reduce_sums[2ranks]", "test_all_reduce_sums[4ranks]", "test_column_parallel_linear[2ranks]"]
    assert [fixtures.outcomes[test] for test in tests] == ["PASSED"] * 3


@pytest.mark.parametrize(
    "name",
    [
        "TestClass::test_method[2ranks]",
        "TestGiven::test_method_beside_given[2ranks]",
        "TestGiven::test_given_in_a_class[2ranks]",
        "test_parametrized[2ranks-1]",
        "test_parametrized[2ranks-2]",
        "test_tmp_path[2ranks]",
        "test_monkeypatched_environment[2ranks]",
        "test_order_and_world[2ranks]",
        "test_resized[2ranks]",
        "test_seeds_differ_by_rank[2ranks]",
    ],
)
def test_ranks_go_with_classes_parameters_and_other_fixtures(fixtures: WholeRun, name: str) -> None:
    assert fixtures.outcomes[name] == "PASSED", fixtures.report(name)


def test_each_test_has_its_own_seed(fixtures: WholeRun) -> None:
    assert len(set(re.findall(r"^seed (\d+)$", fixtures.text, re.MULTILINE))) == 2


@pytest.mark.parametrize("name", TESTS)
def test_helpers_beside_the_test_and_in_its_package_are_found(fixtures: WholeRun, name: str) -> None:
    assert fixtures.outcomes[name] == "PASSED", fixtures.report(name)


def test_no_warning_is_raised(fixtures: WholeRun) -> None:
    assert "warnings summary" not in fixtures.text


def test_ranks_kept_beyond_their_test_are_refused(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(
        test_keeps="import pytest\nKEPT = []\n@pytest.mark.ranks(2)\ndef test_keeps(ranks): KEPT.append(ranks)"
    )
    pytester.makeconftest(
        """
        import sys
        import pytest
        def pytest_sessionfinish():
            with pytest.raises(RuntimeError, match="^ranks can be used while a test runs, and none does$"):
                sys.modules["test_keeps"].KEPT[0].run(lambda ctx: None)
            print("refused")
        """
    )
    result = pytester.runpytest_inprocess()
    assert "refused" in result.stdout.str()
