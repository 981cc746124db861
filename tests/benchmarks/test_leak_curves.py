"""When a curve counts as flat."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json

import pytest

from benchmarks.leak_curves import (
    MIB,
    Curve,
    Mapping,
    curves,
    grown_ranks,
    growth,
    number_of_tests,
    table,
    where_it_grew,
)


def curve(quantity: str, *values: int) -> Curve:
    return Curve("rank 0", quantity, tuple(50 * (index + 1) for index in range(len(values))), values)


@pytest.mark.parametrize("quantity", ["fds", "threads", "groups", "keys"])
@pytest.mark.parametrize("end", [6, 8])
def test_a_count_must_not_change(quantity: str, end: int) -> None:
    assert curve(quantity, 1, 7, 9, 7).flat
    assert not curve(quantity, 1, 7, 7, end).flat


@pytest.mark.parametrize("quantity", ["rss", "pss", "malloc", "rest"])
def test_memory_may_shrink_and_grow_by_5_mib(quantity: str) -> None:
    assert curve(quantity, 0, 100 * MIB, 105 * MIB).flat
    assert curve(quantity, 0, 100 * MIB, 50 * MIB).flat
    assert not curve(quantity, 0, 100 * MIB, 105 * MIB + 1).flat


def test_a_gpus_memory_may_differ_by_2_mib() -> None:
    assert curve("gpu", 0, 100 * MIB, 102 * MIB).flat
    assert curve("gpu", 0, 100 * MIB, 98 * MIB).flat
    assert not curve("gpu", 0, 100 * MIB, 98 * MIB - 1).flat


def test_what_came_before_100_tests_is_no_growth() -> None:
    assert curve("fds", 3, 7, 7).change == 0


def test_samples_become_a_row_for_each_process_and_quantity() -> None:
    lines = [
        json.dumps({"tests": tests, "held": {"forkserver": {"fds": 7}, "rank 0": {"rss": rss * MIB}}})
        for tests, rss in ((50, 1), (100, 2), (150, 9))
    ]
    found = curves(lines)
    assert [(c.process, c.quantity, c.flat) for c in found] == [("forkserver", "fds", True), ("rank 0", "rss", False)]
    assert "rank 0 rss MiB" in table(found)
    assert "+7.0  NOT FLAT" in table(found)


def test_resident_memory_of_a_rank_with_a_gpu_is_shown_and_not_judged() -> None:
    lines = []
    for tests, held in ((100, MIB), (150, 9 * MIB)):
        rank = {"rss": held, "pss": held, "malloc": held, "rest": MIB, "gpu": MIB}
        lines.append(json.dumps({"tests": tests, "held": {"forkserver": {"rss": held}, "rank 0": rank}}))
    found = curves(lines)
    assert {(c.process, c.quantity) for c in found if not c.judged} == {("rank 0", "rss"), ("rank 0", "pss")}
    assert [(c.process, c.quantity) for c in found if not c.flat] == [("forkserver", "rss"), ("rank 0", "malloc")]
    assert "+8.0  not judged" in table(found)
    assert grown_ranks(found) == ["rank 0"]


def test_resident_memory_is_judged_where_malloc_does_not_tell() -> None:
    lines = [
        json.dumps({"tests": tests, "held": {"rank 0": {"rss": held, "rest": MIB, "gpu": MIB}}})
        for tests, held in ((100, MIB), (150, 9 * MIB))
    ]
    assert [(c.quantity, c.flat) for c in curves(lines)] == [("rss", False), ("rest", True), ("gpu", True)]


def test_a_rank_has_grown_once_however_it_shows() -> None:
    assert grown_ranks([curve(quantity, 0, 0, 9 * MIB) for quantity in ("rss", "pss", "malloc", "rest")]) == ["rank 0"]
    for quantity in ("rss", "malloc", "rest"):
        assert grown_ranks([curve(quantity, 0, 0, 9 * MIB)]) == ["rank 0"]
    assert not grown_ranks([curve("pss", 0, 0, 9 * MIB), curve("fds", 0, 1, 2)])


@pytest.fixture
def _of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TESTS", "RANKS", "EVERY"):
        monkeypatch.setenv(f"LEAK_{name}", "1")


@pytest.mark.usefixtures("_of_a_run")
def test_malloc_tells_what_it_has_given_out() -> None:
    from benchmarks.leak_module import allocated

    gc.collect()
    before = allocated()["malloc"]

    def given_out() -> int:
        """MiB since then, rounded: this process's other objects come and go meanwhile."""
        return round((allocated()["malloc"] - before) / MIB)

    block = ctypes.create_string_buffer(8 * MIB)
    assert given_out() == 8
    del block
    assert given_out() == 0
    blocks = [ctypes.create_string_buffer(MIB // 16) for _ in range(129)]
    assert given_out() == 8
    del blocks[:-1]  # what is below the last one stays the process's
    assert given_out() == 0


@pytest.mark.usefixtures("_of_a_run")
def test_the_rest_of_a_ranks_memory_is_outside_the_heap() -> None:
    from benchmarks.leak_module import outside_heap

    assert outside_heap([(1, 2, "[heap]", 8), (2, 3, "", 4), (3, 4, "/lib/x.so", 2), (4, 5, "[stack]", 1)]) == 7


def test_what_grew_is_found_though_a_mapping_was_extended_on_either_side() -> None:
    before = [Mapping(0x3000, 0x5000, "", 2 * MIB), Mapping(0x5000, 0x6000, "", MIB), Mapping(0x9000, 0xA000, "/so", 0)]
    after = [
        Mapping(0x2000, 0x6000, "", 10 * MIB),
        Mapping(0x9000, 0xB000, "/so", MIB // 4),
        Mapping(0xC000, 0xD000, "", MIB // 4 - 1),
    ]
    assert growth(before, after) == [(7 * MIB, after[0]), (MIB // 4, after[1])]


def test_growth_is_told_since_the_settled_sample() -> None:
    lines = [
        json.dumps({"tests": tests, "mappings": {"rank 0": [[0x1000, 0x1000 + 64 * MIB, "", resident * MIB]]}})
        for tests, resident in ((50, 1), (100, 4), (150, 36), (200, 35))
    ]
    assert where_it_grew(lines, "rank 0") == "rank 0: 31.0 MiB more in 1000-4001000 (anonymous, 64.0 MiB)"


@pytest.mark.parametrize("text", ["100", "175", "0"])
def test_a_run_must_end_with_a_sample_after_it_has_settled(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"a multiple of 50 above 100, got {text}"):
        number_of_tests(text)
