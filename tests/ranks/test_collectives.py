"""What a flight recorder tells, and where the ranks' collectives part."""

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_gpuperf.ranks.collectives import Collective, describe_last, find_disagreement, list_issued, say_ranks

# Of torch 2.13 with gloo: a barrier, an all_reduce of float[4], and in a group of its own one of int64[2, 3].
GLOO: dict[str, Any] = {
    "version": "2.10",
    "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
    "comm_lib_version": "",
    "pg_status": {"0": {"last_completed_collective": "2"}},
    "entries": [
        {
            "record_id": 0,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 1,
            "p2p_seq_id": 0,
            "op_id": 1,
            "profiling_name": "gloo:barrier",
            "time_created_ns": 1795239215556623026,
            "input_sizes": [],
            "input_dtypes": [],
            "output_sizes": [],
            "output_dtypes": [],
            "state": "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": True,
            "timeout_ms": 240000,
            "is_p2p": False,
        },
        {
            "record_id": 1,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 2,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": 1795239215587235517,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "state": "scheduled",
            "is_p2p": False,
        },
        {
            "record_id": 3,
            "pg_id": 1,
            "process_group": ("1", "undefined"),
            "collective_seq_id": 1,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": 1795239215603227627,
            "input_sizes": [[2, 3]],
            "input_dtypes": ["Long"],
            "state": "scheduled",
            "is_p2p": False,
        },
    ],
}
AT_THE_ALL_REDUCE = 1795239215587235517


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as NCCL's recorder writes it."""
    return {
        "collective_seq_id": 5,
        "input_dtypes": ["BFloat16", "Float"],
        "input_sizes": [[1024, 8], []],
        "is_p2p": False,
        "process_group": ["2", "mesh_tp"],
        "profiling_name": "nccl:all_reduce",
        "state": "completed",
        "time_created_ns": 20,
        **changes,
    }


def one(**changes: Any) -> Collective:
    (collective,) = list_issued({"entries": [entry(**changes)]}, 0)
    return collective


def test_gloos_recorder_is_understood() -> None:
    assert list_issued(GLOO, 0) == [
        Collective("0", 1, "barrier", "", done=False),
        Collective("0", 2, "all_reduce", "Float[4]", done=False),
        Collective("1", 1, "all_reduce", "Long[2, 3]", done=False),
    ]
    assert [str(collective) for collective in list_issued(GLOO, 0)] == [
        "barrier",
        "all_reduce Float[4]",
        "all_reduce Long[2, 3]",
    ]


def test_nccls_recorder_is_understood_and_tells_what_is_done() -> None:
    assert one() == Collective("2", 5, "all_reduce", "BFloat16[1024, 8] Float[]", done=True)
    assert not one(state="started").done
    assert not one(state="scheduled").done


def test_what_was_issued_before_the_run_is_not_told() -> None:
    assert [str(c) for c in list_issued(GLOO, AT_THE_ALL_REDUCE)] == ["all_reduce Float[4]", "all_reduce Long[2, 3]"]
    assert [str(c) for c in list_issued(GLOO, AT_THE_ALL_REDUCE + 1)] == ["all_reduce Long[2, 3]"]


def test_sends_and_receives_are_no_collectives() -> None:
    assert list_issued({"entries": [entry(is_p2p=True, profiling_name="nccl:send 0->1")]}, 0) == []


@pytest.mark.parametrize("record", [{"version": "2.10"}, {"entries": []}])
def test_an_empty_recorder_tells_nothing(record: dict[str, Any]) -> None:
    assert list_issued(record, 0) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"profiling_name": "all_reduce"}, Collective("2", 5, "all_reduce", "BFloat16[1024, 8] Float[]", done=True)),
        ({"process_group": []}, Collective("", 5, "all_reduce", "BFloat16[1024, 8] Float[]", done=True)),
        ({"process_group": None}, Collective("", 5, "all_reduce", "BFloat16[1024, 8] Float[]", done=True)),
        ({"collective_seq_id": "5"}, Collective("2", 0, "all_reduce", "BFloat16[1024, 8] Float[]", done=True)),
        ({"input_sizes": None, "input_dtypes": None}, Collective("2", 5, "all_reduce", "", done=True)),
        ({"input_dtypes": ["Float"]}, Collective("2", 5, "all_reduce", "Float[1024, 8]", done=True)),
    ],
)
def test_fields_of_another_shape_are_left_out(changes: dict[str, Any], expected: Collective) -> None:
    assert one(**changes) == expected


def issued(*said: str, group: str = "0", start: int = 1) -> list[Collective]:
    split = [words.partition(" ") for words in said]
    return [
        Collective(group, number, operation, tensors, done=False)
        for number, (operation, _, tensors) in enumerate(split, start=start)
    ]


SAME = issued("all_reduce Float[4]", "barrier")


def test_ranks_that_issued_the_same_agree() -> None:
    assert find_disagreement({0: SAME, 1: SAME}, {}) is None
    assert find_disagreement({0: [], 1: []}, {}) is None
    assert find_disagreement({}, {}) is None
    assert find_disagreement({1: SAME}, {}) is None  # nobody to compare it with


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            issued("all_reduce Float[4]"),
            "ranks 1, 2 never issued barrier (collective 2 of the program), which rank 0 did",
        ),
        ([], "ranks 1, 2 never issued all_reduce Float[4] (collective 1 of the program), which rank 0 did"),
        (
            issued("all_reduce Float[4]", "broadcast Float[4]"),
            "the ranks part at collective 2 of the program: rank 0 issued barrier; ranks 1, 2 issued broadcast "
            "Float[4]",
        ),
        (
            issued("all_reduce Float[5]", "barrier"),
            "the ranks part at collective 1 of the program: rank 0 issued all_reduce Float[4]; ranks 1, 2 issued "
            "all_reduce Float[5]",
        ),
        (
            issued("all_reduce Double[4]", "barrier"),
            "the ranks part at collective 1 of the program: rank 0 issued all_reduce Float[4]; ranks 1, 2 issued "
            "all_reduce Double[4]",
        ),
    ],
    ids=["one more", "none", "another", "another shape", "another type"],
)
def test_a_disagreement_is_told_at_its_first_collective(others: Sequence[Collective], sentence: str) -> None:
    assert find_disagreement({0: SAME, 1: others, 2: others}, {}) == sentence


def test_ranks_that_part_in_three_ways_are_all_named() -> None:
    lists = {0: issued("barrier"), 1: issued("broadcast Float[4]"), 2: []}
    assert find_disagreement(lists, {}) == (
        "the ranks part at collective 1 of the program: rank 0 issued barrier; rank 1 issued broadcast Float[4]; "
        "rank 2 issued none"
    )


@pytest.mark.parametrize("operation", ["all_to_all", "gather", "scatter", "allgather", "barrier"])
def test_operations_whose_tensors_may_differ_by_rank_are_compared_by_name(operation: str) -> None:
    assert find_disagreement({0: issued(f"{operation} Float[4]"), 1: issued(f"{operation} Float[9]")}, {}) is None


@pytest.mark.parametrize("operation", ["all_reduce", "allreduce", "_all_gather_base", "_reduce_scatter_base"])
def test_operations_whose_tensors_must_not_differ_are_compared_by_them(operation: str) -> None:
    assert find_disagreement({0: issued(f"{operation} Float[4]"), 1: issued(f"{operation} Float[9]")}, {}) is not None


def test_collectives_are_compared_by_their_numbers_and_counted_from_the_programs_first() -> None:
    late = issued("barrier", "barrier", start=7)
    assert find_disagreement({0: late, 1: late[:1]}, {}) == (
        "rank 1 never issued barrier (collective 2 of the program), which rank 0 did"
    )


def test_a_recorder_that_lost_its_oldest_entries_says_nothing_of_them() -> None:
    whole = issued("barrier", "all_reduce Float[4]", "barrier", "barrier")
    assert find_disagreement({0: whole, 1: whole[2:]}, {}) is None
    assert find_disagreement({0: whole, 1: whole[2:3]}, {}) == (
        "rank 1 never issued barrier (collective 4 of the program), which rank 0 did"
    )


def test_a_group_whose_ranks_could_not_be_asked_is_left_out() -> None:
    assert find_disagreement({0: issued("barrier", group="3"), 1: []}, {"3": (1, 2)}) is None


def test_each_group_is_compared_among_its_own_ranks() -> None:
    pairs = {"3": (0, 1), "4": (2, 3)}
    first, second = issued("barrier", group="3"), issued("barrier", "barrier", group="4")
    assert find_disagreement({0: first, 1: first, 2: second, 3: second}, pairs) is None
    assert find_disagreement({0: first, 1: first, 2: second, 3: second[:1]}, pairs) == (
        "rank 3 never issued barrier (collective 2 of the program), which rank 2 did (group of ranks 2, 3)"
    )


def test_a_group_is_compared_among_those_of_its_ranks_that_could_be_asked() -> None:
    assert find_disagreement({0: issued("barrier", group="3"), 2: []}, {"3": (0, 1)}) is None


def test_the_last_collective_of_each_rank_is_told_ranks_of_the_same_together() -> None:
    assert describe_last({2: SAME, 0: SAME, 1: SAME[:1], 3: []}) == [
        "last collective of ranks 0, 2: barrier, its collective 2",
        "last collective of rank 1: all_reduce Float[4], its collective 1",
        "last collective of rank 3: none",
    ]
    assert describe_last({}) == []


def test_ranks_are_listed() -> None:
    assert (say_ranks([1]), say_ranks([0, 2, 3])) == ("rank 1", "ranks 0, 2, 3")
