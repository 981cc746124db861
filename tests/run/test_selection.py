"""In which order tests run."""

from __future__ import annotations

import pytest

from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.placement import Capacity
from pytest_gpuperf.run.selection import arrange, find_device_reason, sort_perf_last
from tests.fake_gpus import machine_of

TESTS = """
import pytest

@pytest.mark.ranks(4)
def test_wide(ranks):
    pass

@pytest.mark.ranks(4)
def test_speed(perf):
    pass

@pytest.mark.ranks(2)
def test_narrow(ranks):
    pass

def test_without():
    pass
"""


@pytest.mark.parametrize(
    ("gpus", "shared", "names"),
    [
        (4, True, ["test_without", "test_narrow[2ranks]", "test_wide[4ranks]", "test_speed[4ranks]"]),
        (4, False, ["test_wide[4ranks]", "test_narrow[2ranks]", "test_without", "test_speed[4ranks]"]),
        (0, True, ["test_wide[4ranks]", "test_narrow[2ranks]", "test_without", "test_speed[4ranks]"]),
    ],
    ids=["workers share GPUs", "one process", "workers on CPUs"],
)
def test_workers_that_share_gpus_run_small_tests_first(
    pytester: pytest.Pytester, gpus: int, shared: bool, names: list[str]
) -> None:
    items, _record = pytester.inline_genitems(pytester.makepyfile(TESTS), "-p", "no:cacheprovider")
    by_source = {"test_wide": 0, "test_speed": 1, "test_narrow": 2, "test_without": 3}
    items.sort(key=lambda item: by_source[item.name.partition("[")[0]])
    options = Options.from_config(pytester.parseconfig())
    arrange(items, options, machine_of(gpus), shared=shared)
    assert [item.name for item in items] == names


def test_all_nodes_are_those_of_a_cluster() -> None:
    marker = RanksMarker((), nodes="all")
    alone = find_device_reason(marker, 8, Capacity((8,), gpus=True, clustered=False))
    assert alone == "needs the nodes of a cluster, and the run has this machine alone: pass --cluster"
    assert find_device_reason(marker, 16, Capacity((8, 8), gpus=True)) is None
    uneven = find_device_reason(marker, 12, Capacity((8, 4), gpus=True))
    assert uneven == "needs 2 nodes of 6 GPUs, the run's nodes have 8 and 4 (--gpus)"


WORLDS = """
import pytest

@pytest.mark.ranks(4, 2)
def test_speed(perf):
    pass

def test_without():
    pass
"""


def test_who_deselects_by_the_order_sees_that_of_the_run(pytester: pytest.Pytester) -> None:
    items, _record = pytester.inline_genitems(pytester.makepyfile(WORLDS), "-p", "no:cacheprovider")
    sort_perf_last(items)
    seen = [item.name for item in items]
    arrange(items, Options.from_config(pytester.parseconfig()), machine_of(4))
    assert [item.name for item in items] == seen == ["test_without", "test_speed[2ranks]", "test_speed[4ranks]"]


STEPS = """
import pytest
from pathlib import Path

@pytest.mark.ranks(1, 2)
def test_speed(perf):
    pass

@pytest.mark.ranks(1, 2)
def test_fails_once(ranks):
    attempts = Path(__file__).with_name("attempts")
    first = not attempts.exists()
    if ranks.world_size == 2:
        attempts.touch()
        assert not first

def test_without():
    pass
"""


def test_stepwise_goes_on_in_the_order_in_which_tests_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STEPS)
    pytester.runpytest_inprocess("--stepwise").assert_outcomes(passed=1, failed=1)
    # Perf tests come last, in each world, and so none has run yet.
    pytester.runpytest_inprocess("--stepwise").assert_outcomes(passed=2, skipped=2, deselected=1)


ENVIRONMENTS = """
import pytest

ways = {name: pytest.mark.ranks(1, 2, env={"WAY": name}) for name in "ab"}

@ways["a"]
def test_first(perf):
    pass

@ways["b"]
def test_second(perf):
    pass

@pytest.mark.ranks(2)
def test_plain(perf):
    pass

@ways["a"]
def test_third(perf):
    pass
"""


def test_perf_tests_of_the_same_processes_follow_one_another(pytester: pytest.Pytester) -> None:
    items, _record = pytester.inline_genitems(pytester.makepyfile(ENVIRONMENTS), "-p", "no:cacheprovider")
    arrange(items, Options.from_config(pytester.parseconfig()), machine_of(4))
    ones = ["test_first[1rank]", "test_third[1rank]", "test_second[1rank]"]
    twos = ["test_plain[2ranks]", "test_first[2ranks]", "test_third[2ranks]", "test_second[2ranks]"]
    assert [item.name for item in items] == ones + twos
