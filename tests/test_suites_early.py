"""With several workers the suites' long tests begin the workers' parts, and references share the cores."""

import os
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from suites.shared.dealing import early_first, parts
from tests.whole_run import ROOT, run_pytest

Test = tuple[str, str]  # its file, and its name; long ones begin with an L


def ordered(tests: list[Test], workers: int) -> list[Test]:
    return early_first(tests, workers, is_early=lambda test: test[1].startswith("L"), file_of=lambda test: test[0])


def test_the_long_ones_of_a_file_begin_a_part() -> None:
    tests = [("a", "1"), ("a", "L2"), ("b", "3"), ("b", "L4"), ("b", "5"), ("b", "L6"), ("c", "7"), ("c", "8")]
    names = [name for _, name in ordered(tests, 3)]
    assert parts(8, 3) == [0, 2, 5]
    assert names == ["L2", "1", "L4", "L6", "3", "5", "7", "8"]


def test_files_take_turns() -> None:
    tests = [(file, f"L{file}") for file in "abc"] + [("d", str(number)) for number in range(5)]
    assert [name for _, name in ordered(tests, 2)] == ["La", "Lc", "0", "1", "Lb", "2", "3", "4"]


def test_the_long_ones_of_a_file_are_together_wherever_they_were() -> None:
    tests = [("a", "L1"), ("b", "L2"), ("c", "3"), ("a", "L4"), ("c", "5"), ("c", "6")]
    assert [name for _, name in ordered(tests, 2)] == ["L1", "L4", "3", "L2", "5", "6"]


def test_a_part_that_has_no_room_leaves_the_order_alone() -> None:
    tests = [("a", "1"), ("b", "L2"), ("b", "L3"), ("b", "L4")]
    assert ordered(tests, 2) == tests


@example([("a", "L"), *[("c", "L")] * 3], 2)  # the first part has room for tests that are not there
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["L", "s"])), max_size=40), st.integers(1, 9))
def test_every_test_stays_and_the_short_ones_keep_their_order(kinds: list[tuple[str, str]], workers: int) -> None:
    tests = [(file, f"{kind}{number}") for number, (file, kind) in enumerate(kinds)]
    found = ordered(tests, workers)
    assert sorted(found) == sorted(tests)
    assert [test for test in found if test[1][0] == "s"] == [test for test in tests if test[1][0] == "s"]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_parts_are_those_of_xdist(workers: int) -> None:
    scheduler = pytest.importorskip("xdist.scheduler.worksteal")
    sent: dict[str, list[int]] = {}

    class Gateway:
        def __init__(self, name: str) -> None:
            self.id = name

    class Node:
        """Stands in for a worker; it notes what the scheduler sends."""

        def __init__(self, name: str) -> None:
            self.gateway, self.shutting_down = Gateway(name), False

        def send_runtest_some(self, indices: list[int]) -> None:
            sent.setdefault(self.gateway.id, []).extend(indices)

        def shutdown(self) -> None:
            self.shutting_down = True

    config = type("Config", (), {"getvalue": lambda self, name: ["1*popen"] * workers})()
    dealing = scheduler.WorkStealingScheduling(config)
    nodes = [Node(f"gw{number}") for number in range(workers)]
    for node in nodes:
        dealing.add_node(node)
    for node in nodes:
        dealing.add_node_collection(node, [str(number) for number in range(100)])
    dealing.schedule()
    assert [sent[node.gateway.id][0] for node in nodes] == parts(100, workers)


@pytest.mark.parametrize("gpus", [0, 2])
def test_in_the_order_in_which_a_worker_runs_them_each_part_begins_with_long_or_isolated_ones(gpus: int) -> None:
    """On GPUs the plugin orders tests by their ranks, and the suites order what comes of it."""
    names = ("elastic", "fault_tolerance", "llm_step", "stragglers", "tensor_parallel")
    subjects = [f"suites/{name}" for name in names]
    options = ("-m", "not perf", "--collect-only", "-q", "-s", "-p", "tests.as_a_worker", "-p", "no:xdist")
    run = run_pytest(ROOT, *subjects, *options, f"--gpus={gpus}", env={"GPUS": str(gpus)})
    order = next(line for line in run.result.outlines if line.startswith("order: ")).removeprefix("order: ")
    assert f"threads: {max(1, len(os.sched_getaffinity(0)) // 3)}" in run.result.outlines
    begins = parts(len(order), 3)
    assert set("".join(order[begin] for begin in begins)) <= set("LI"), run.text
    assert all(not order[begin:end].rstrip(".").strip("LI") for begin, end in pairwise([*begins, len(order)])), order
