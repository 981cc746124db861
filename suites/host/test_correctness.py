"""A chase ends where it must, work stays on its cores and leaves no trace, and figures are what the times say."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, Ranks
from suites.host import reference
from suites.host.programs import cores, memory
from suites.host.programs.chase import LINE, Chase, NoChase, Ring, chase_of, random_order
from suites.host.programs.memory import Copy

CORES = sorted(os.sched_getaffinity(0))
OWN: dict[str, Any] = {"cores": CORES, "host": platform.node()}


@pytest.fixture(scope="module")
def chase() -> Chase:
    try:
        return chase_of()
    except NoChase as reason:
        pytest.skip(str(reason))


def visited(ring: Ring) -> Iterator[int]:
    """The places that the addresses in the memory lead to, from the first one on."""
    at = ring.address(0)
    for _ in ring.order:
        place, rest = divmod(at - ring.memory.ctypes.data, LINE)
        assert not rest, f"{at:#x} is no place"
        yield place
        at = int(ring.memory[place * LINE // 8])
    assert at == ring.address(0), "the last place leads to another one than the first"


@given(places=st.integers(1, 3000), seed=st.integers(0, 9))
def test_a_ring_visits_every_place_once(places: int, seed: int) -> None:
    ring = Ring.of(random_order(places, seed=seed))
    order = list(visited(ring))
    for step, (got, want) in enumerate(zip(order, ring.order.tolist(), strict=True)):
        assert got == want, f"step {step} of {places} is at place {got}, expected place {want}"
    missed = sorted({*range(places)} - {*order})
    assert not missed, f"places {missed[:5]} of {places} are never visited"


def test_no_prefetcher_guesses_the_order() -> None:
    steps = np.diff(random_order(1000).astype(np.int64))
    assert np.unique(steps).size > 500, "most steps are of the same few lengths"


@given(places=st.integers(1, 3000), steps=st.lists(st.integers(1, 20_000), min_size=1, max_size=4))
def test_a_chase_ends_where_its_steps_lead(chase: Chase, places: int, steps: list[int]) -> None:
    ring = Ring.of(random_order(places))
    at = ring.address(0)
    for each, taken in zip(steps, itertools.accumulate(steps), strict=True):
        at = chase(at, each)
        place = (at - ring.memory.ctypes.data) // LINE
        assert place == ring.order[taken % places], f"{taken} steps around {places} places"


def test_a_chase_of_no_steps_is_refused(chase: Chase) -> None:
    with pytest.raises(ValueError, match="a chase of 0 steps, expected 1 or more"):
        chase(Ring.of(random_order(2)).address(0), 0)


def test_an_unknown_processor_is_named() -> None:
    with pytest.raises(NoChase, match="no machine code for riscv64: a chase needs aarch64 or x86_64"):
        chase_of("riscv64")


def test_a_system_without_executable_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mmap.mmap", refused)
    with pytest.raises(NoChase, match=r"the system refuses executable memory: .*Permission denied"):
        chase_of("x86_64")


def places_of(ctx: Context) -> tuple[set[int], int]:
    """Where this thread may run, and how many threads torch uses."""
    return os.sched_getaffinity(0), torch.get_num_threads()


def around(ctx: Context, program: Callable[[], object]) -> None:
    """The program leaves the rank's own thread where it is, also if it raises."""
    before = places_of(ctx)
    program()
    after = places_of(ctx)
    assert after == before, (
        f"rank {ctx.rank}: cores and torch's threads are {after}, expected those of before: {before}"
    )


def failing(core: int) -> cores.Task:
    raise ValueError(f"core {core}")


@pytest.mark.ranks(1, timeout=30)
def test_the_rank_stays_on_its_cores(ranks: Ranks, chase: Chase) -> None:
    first = CORES[0]
    nodes = {"0": CORES, "1": CORES[:1]}

    def raising() -> None:
        with pytest.raises(ValueError, match=f"^core {first}$"):
            cores.at_once(CORES, failing, seconds=0.0)

    def bound(ctx: Context) -> None:
        os.sched_setaffinity(0, {first})
        try:
            around(ctx, lambda: cores.spinning(ctx, seconds=0.0, each=10, **OWN))
            around(ctx, lambda: memory.latencies(chase_of(), nodes, places=8, steps=3, samples=2))
            around(ctx, raising)
        finally:
            os.sched_setaffinity(0, set(CORES))

    ranks.run(bound)


def test_each_core_works_on_a_thread_of_its_own() -> None:
    assert cores.on_cores(CORES, lambda core: (core, os.sched_getaffinity(0))) == [(core, {core}) for core in CORES]


def test_all_cores_work_at_the_same_time() -> None:
    """Each waits for the others: one after the other they would never meet."""
    meeting = threading.Barrier(2)
    core = CORES[0]
    cores.on_cores([core, core], lambda _: meeting.wait(timeout=20.0))


def test_a_core_that_fails_is_named_and_not_those_that_wait_for_it() -> None:
    first, asked = CORES[0], itertools.count()

    def second_fails(core: int) -> cores.Task:
        if next(asked):
            raise ValueError("the second one")
        return Copy.of(core, 64)

    with pytest.raises(ValueError, match="the second one"):
        cores.at_once([first, first], second_fails, seconds=0.0)


@pytest.mark.ranks(2)
def test_only_rank_0_keeps_the_cores_busy(ranks: Ranks, chase: Chase) -> None:
    times, other = ranks.run(cores.spinning, seconds=0.0, each=100, **OWN)
    assert times is not None, "rank 0 has no times"
    assert len(times) == len(CORES), f"rank 0 has times of {len(times)} cores, expected {len(CORES)}"
    assert other is None, f"rank 1 has times, expected none: {other}"


def test_the_cores_of_another_host_are_not_taken_for_ours() -> None:
    assert cores.allowed([5, 3], platform.node()) == (3, 5)
    assert cores.allowed([5, 3], "another host") == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_chase_that_skips_a_step_or_takes_one_more_is_found(chase: Chase, wrong: int) -> None:
    spin = cores.Spin(lambda at, steps: chase(at, steps + wrong), Ring.of(random_order(cores.PLACES)), 10)
    spin.step()
    with pytest.raises(AssertionError, match="1 steps of 10 loads end at"):
        spin.verify(1)
    right = cores.Spin(chase, Ring.of(random_order(cores.PLACES)), 10)
    right.step()
    right.step()
    right.verify(2)


def test_a_ring_of_a_core_fits_its_first_cache() -> None:
    assert cores.PLACES * LINE <= 16 * 1024


def test_a_copy_that_leaves_out_a_word_is_found() -> None:
    for place in range(8):
        copy = Copy.of(3, 64)
        with pytest.raises(AssertionError, match="a copy differs from its source"):
            copy.verify(1)
        copy.step()
        copy.verify(1)
        copy.destination[place] += np.uint64(1)
        with pytest.raises(AssertionError, match="a copy differs from its source"):
            copy.verify(1)


def test_a_step_that_has_begun_is_finished() -> None:
    clock = iter([10.0, 10.4, 10.9, 11.2, 99.0])
    taken: list[int] = []
    assert cores.repeated_for(lambda: taken.append(1), 1.0, [], 1, lambda: next(clock)) == [10.0, 10.4, 10.9, 11.2]
    assert len(taken) == 3


def test_a_core_goes_on_until_the_last_one_has_had_its_time() -> None:
    clock, begun = iter([10.0, 11.5, 12.0, 12.4, 13.2, 99.0]), [9.0]

    def step() -> None:
        if len(begun) == 2:
            begun.append(12.1)  # the host held the third core up

    times = cores.repeated_for(step, 1.0, begun, 3, lambda: next(clock))
    assert times == [10.0, 11.5, 12.0, 12.4, 13.2]


def test_of_timed_chases_the_first_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 102.0, 106.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert memory.timed_chases(lambda at, steps: at + steps, 7, steps=2, samples=2) == ([1.0, 2.0], 13)


def described(folder: Path, **nodes: str) -> Path:
    """A kernel's folder of nodes with these lists of cores."""
    for name, text in nodes.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(f"{text}\n")
    return folder


def test_nodes_have_their_allowed_cores(tmp_path: Path) -> None:
    (tmp_path / "possible").write_text("0-10\n")
    root = described(tmp_path, node0="0-2,8", node1="3-5,9", node2="", node10="10", node3="6-7")
    assert memory.nodes_of(range(3, 11), root) == {"0": (8,), "1": (3, 4, 5, 9), "3": (6, 7), "10": (10,)}
    assert memory.nodes_of([7, 2], root) == {"0": (2,), "3": (7,)}
    assert memory.nodes_of([2, 1], tmp_path / "none") == {"0": (1, 2)}


@pytest.mark.ranks(1)
def test_memory_of_this_host(ranks: Ranks, chase: Chase) -> None:
    """The program checks its own copies and chases; here are as many figures as there are nodes and samples."""
    (found,) = ranks.run(memory.memory, nbytes=8192, steps=5, samples=3, least=1024, seconds=0.0, **OWN)
    nodes = memory.nodes_of(CORES)
    assert found.nodes == tuple(nodes), f"nodes {found.nodes}, expected {tuple(nodes)}"
    for here, row in zip(nodes, found.latencies, strict=True):
        for there, samples in zip(nodes, row, strict=True):
            assert len(samples) == 3, f"from node {here} to {there}: {len(samples)} samples of latency, expected 3"
    for (node, own), times in zip(nodes.items(), found.copies, strict=True):
        assert len(times) == len(own), f"node {node}: copies of {len(times)} cores, expected {len(own)}"
    assert found.part == [max(1024, 8192 // len(own)) // LINE * LINE for own in nodes.values()]


def test_rows_are_the_nodes_that_load_and_columns_those_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def note(wanted: list[int], work: Callable[[int], object]) -> list[object]:
        (core,) = wanted
        found = work(core)
        if isinstance(found, tuple):  # of seconds, and where the chase has ended
            return [([10.0 * core + written[-1]], found[1])]
        written.append(core)
        return [found]

    monkeypatch.setattr(memory, "on_cores", note)
    nodes = {"0": [0], "1": [1, 2, 3], "2": [4]}
    rows = memory.latencies(following, nodes, places=64, steps=3, samples=2)
    assert rows == [[[10.0 * reader + home] for home in (0, 2, 4)] for reader in (0, 2, 4)]


def following(at: int, steps: int) -> int:
    """Where the addresses lead."""
    for _ in range(steps):
        at = ctypes.c_uint64.from_address(at).value
    return at


def course(seconds: float, *, each: float, start: float = 0.0) -> list[float]:
    """The times of a core whose steps all take as long."""
    return [start + each * step for step in range(round(seconds / each) + 2)]


@given(speeds=st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_the_share_of_steady_cores(speeds: list[int]) -> None:
    times = [course(1.0, each=1 / (100 * speed), start=0.01 * core) for core, speed in enumerate(speeds)]
    by_core = reference.speeds(times)
    assert [len(windows) for windows in by_core] == [reference.WINDOWS] * len(speeds)
    for windows, speed in zip(by_core, speeds, strict=True):
        assert windows == pytest.approx([100 * speed] * reference.WINDOWS)
    expected = sum(speeds) / len(speeds) / max(speeds)
    assert reference.shares(by_core) == pytest.approx([expected] * reference.WINDOWS)
    assert reference.whole_cores(times) == pytest.approx([sum(speeds) / max(speeds)] * reference.WINDOWS)
    assert reference.rates(times, 1000) == pytest.approx([2 * 1000 * 100 * sum(speeds)] * reference.WINDOWS)


def test_half_of_the_cores_are_taken_by_others() -> None:
    """Each of these shares its core with a process: it gets half of it."""
    times = [course(1.0, each=0.002 if core % 2 else 0.001) for core in range(8)]
    assert reference.shares(reference.speeds(times)) == pytest.approx([0.75] * 10)


def test_one_slow_core_among_many_costs_its_own_part() -> None:
    times = [course(1.0, each=0.004 if core == 5 else 0.001) for core in range(8)]
    assert reference.shares(reference.speeds(times)) == pytest.approx([7.25 / 8] * 10)
    assert reference.whole_cores(times) == pytest.approx([7.25] * 10)


def test_a_core_that_is_held_up_for_a_while_is_slow_in_that_window() -> None:
    steady, held_up = course(1.0, each=0.001), course(1.0, each=0.001)
    held_up = [time for time in held_up if not 0.3 < time < 0.4]
    held_up += [held_up[-1] + 0.001 * step for step in range(1, 100)]
    shares = reference.shares(reference.speeds([steady, held_up[: len(steady)]]))
    assert min(shares) == shares[3] < 0.6
    assert [share for window, share in enumerate(shares) if window != 3] == pytest.approx([1.0] * 9, abs=0.02)


def test_a_clock_that_falls_for_all_cores_is_no_lost_share() -> None:
    times = [[*course(0.5, each=0.001), *course(0.6, each=0.002, start=0.503)]] * 4
    assert reference.shares(reference.speeds(times)) == pytest.approx([1.0] * 10)


def test_a_quota_holds_up_all_cores_at_the_same_time() -> None:
    """The share does not show it; the number of whole cores does."""
    worked = [0.1 * period + 0.001 * step for period in range(10) for step in range(25)]
    times = [[*worked, 1.0]] * 4
    assert reference.shares(reference.speeds(times)) == pytest.approx([1.0] * 10)
    assert reference.whole_cores(times) == pytest.approx([1.0] * 10)


def test_only_what_all_cores_have_worked_counts() -> None:
    """One began later and one ended earlier."""
    times = [course(2.0, each=0.001), course(1.0, each=0.001, start=0.5), course(1.2, each=0.001)]
    assert reference.shares(reference.speeds(times)) == pytest.approx([1.0] * 10)


def test_the_slowest_node_is_compared_with_the_fastest() -> None:
    assert reference.evenness([[4.0, 4.0, 4.0], [8.0, 8.0, 5.0], [2.0, 9.0, 2.0]]) == [0.25, 9 / 8, 0.4]
    assert reference.evenness([[3.0], [3.0]]) == [1.0]
