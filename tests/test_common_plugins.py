"""Beside plugins that many projects have: asyncio, cov, randomly, rerunfailures, timeout, each alone and all at once.

The tests' own runs have them off (``whole_run.COMMON_PLUGINS``); here they are loaded.
"""

import re
import zlib
from pathlib import Path

import pytest
import torch  # noqa: F401  # here, so that not each run of pytest in this process imports it anew

from tests.fake_gpus import without_ranks
from tests.whole_run import COMMON_PLUGINS, WholeRun, run_pytest, write

TESTS = """
import time
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from pytest_gpuperf import Metric
from pytest_gpuperf.strategies import tensors

@pytest.mark.ranks(2)
def test_ranks(ranks):
    def program(ctx):
        x = torch.ones(1) * (ctx.rank + 1)
        dist.all_reduce(x)
        return x.item(), ctx.seed
    (first, seed), (second, _) = ranks.run(program)
    assert first == second == 3.0
    print("seed:", seed)

@pytest.mark.ranks(2)
@settings(deadline=None, max_examples=5, database=None)
@given(x=tensors())
def test_drawn(ranks, x):
    assert all(got.equal(x) for got in ranks.run(lambda ctx: x))

@pytest.mark.ranks(2)
def test_wrong(ranks):
    def program(ctx):
        print("printed by", ctx.rank)
        assert ctx.rank == 0
    ranks.run(program)

@pytest.mark.ranks(2, 1)
@pytest.mark.parametrize("n", range(2))
def test_speed(perf, n):
    timing = perf.measure(lambda ctx: lambda: None)
    perf.check(time=timing.time)
"""

ASYNC = """
import pytest

@pytest.mark.asyncio
@pytest.mark.ranks(2)
async def test_async(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]
"""

HANGS = """
import time
import pytest

@pytest.mark.timeout(1, func_only=True)  # else it may end while the first ranks start
@pytest.mark.ranks(2)
def test_hangs(ranks):
    ranks.run(lambda ctx: time.sleep(600))

@pytest.mark.ranks(2)
def test_next(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]
"""

# Of the first test: what the ranks' generators are seeded with, whatever pytest-randomly does in pytest's process.
SEED = zlib.crc32(b"test_it.py::test_ranks[2ranks]") >> 1
PASSED = dict.fromkeys(("test_ranks[2ranks]", "test_drawn[2ranks]", "test_speed[1rank-0]", "test_speed[2ranks-0]"))


def assert_as_ever(run: WholeRun) -> None:
    """What a run of TESTS comes to with any plugins, and with none."""
    assert {name: run.outcomes.get(name) for name in PASSED} == dict.fromkeys(PASSED, "PASSED")
    assert run.outcomes["test_wrong[2ranks]"] == "FAILED"
    assert f"seed: {SEED}" in run.result.outlines
    report = run.report("test_wrong[2ranks]")
    assert "raised on rank 1 of 2 (gloo) in test_it:test_wrong.<locals>.program" in report
    assert "printed by 1" in report
    assert "4 perf tests ran and handed over 4 metrics; --smoke judges none" in run.section("gpuperf")


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("pytest_asyncio.plugin", ("--asyncio-mode=auto", "-oasyncio_default_fixture_loop_scope=function")),
        ("pytest_cov.plugin", ("--cov=.",)),
        ("pytest_randomly", ("--randomly-seed=3",)),
        ("pytest_rerunfailures", ("--reruns=1",)),
        ("pytest_timeout", ("--timeout=120",)),
    ],
)
def test_each_alone_changes_nothing(pytester: pytest.Pytester, module: str, options: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS)
    # By its module: the surrounding run has taken the entry points of these plugins away.
    assert_as_ever(WholeRun(pytester.runpytest_inprocess("-p", module, "-v", "-rA", "--smoke", "-Werror", *options)))


def test_asyncio_runs_a_coroutine_that_uses_ranks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASYNC)
    loop = "-oasyncio_default_fixture_loop_scope=function"
    pytester.runpytest_inprocess("-p", "pytest_asyncio.plugin", "-Werror", loop).assert_outcomes(passed=1)


def test_a_test_that_pytest_timeout_ends_leaves_the_next_one_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HANGS)
    run = WholeRun(pytester.runpytest_inprocess("-p", "pytest_timeout", "-v", "-Werror"))
    # Where the pytest process has more threads, pytest-timeout prints their stacks between a test and its outcome.
    run.result.assert_outcomes(failed=1, passed=1)
    assert run.outcomes["test_next[2ranks]"] == "PASSED"
    assert re.search(r"Timeout \(?>1\.0s", run.report("test_hangs[2ranks]"))


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["in one process", "under xdist"])
def test_all_at_once_change_nothing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """As they are when they are installed, each by its entry point."""
    write(tmp_path, {"test_it.py": TESTS, "pytest.ini": "[pytest]\nasyncio_default_fixture_loop_scope = function\n"})
    options = ("--smoke", "-Werror", "--cov=.", "--timeout=120", "--reruns=1", "--randomly-seed=3", *workers)
    run = run_pytest(tmp_path, *options, env={"PYTEST_ADDOPTS": ""})
    assert all(f"{name.partition('-')[2]}-" in run.text for name in COMMON_PLUGINS)
    if workers:
        run.result.assert_outcomes(passed=6, failed=1)
        assert f"seed: {SEED}" in run.result.outlines
        assert "4 perf tests ran and handed over 4 metrics; --smoke judges none" in run.section("gpuperf")
    else:
        assert_as_ever(run)


def test_randomly_shuffles_tests_and_no_launches(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, eight_gpus: None
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=TESTS.replace("range(2)", "range(9)"))

    def collected(*options: str) -> list[str]:
        recording = ("--gpus=2", "--update-baselines", "--reason=first", "--collect-only", "-q")
        lines = pytester.runpytest_inprocess(*recording, *options).outlines
        return [line.partition("::")[2] for line in lines if "::" in line]

    plain, shuffled = collected(), collected("-p", "pytest_randomly", "--randomly-seed=3")
    assert shuffled != plain
    assert sorted(shuffled) == sorted(plain)
    perf = [name for name in shuffled if name.startswith("test_speed")]
    assert shuffled[-len(perf) :] == perf
    places = [re.fullmatch(r"test_speed(?:#(\d))?\[(\d)ranks?-\d\]", name) for name in perf]
    launches = [(int(place[1] or 1), int(place[2])) for place in places if place is not None]
    assert len(launches) == 5 * 2 * 9
    assert launches == sorted(launches)
