"""What is another now than it was when most launches were recorded."""

from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.baselines.differences import differing, find_usual, sort_by_likelihood

OLD, NEW = {"nccl": "2.28.9", "torch": "2.11.0"}, {"nccl": "2.29.1", "torch": "2.11.0"}
LL = {**OLD, "NCCL_PROTO": "LL"}


def test_what_is_likeliest_to_move_a_figure_comes_first() -> None:
    versions = ["python", "kernel", "triton", "driver", "nccl", "torch", "nvidia-cublas", "new", "pcie", "cpu cores"]
    versions += ["cpu numa nodes", "numa binding", "gpu numa nodes"]
    names = [*versions, "OMP_NUM_THREADS", "NCCL_ALGO", "CUDA_HOME"]
    ordered = [name for name, _ in sort_by_likelihood(dict.fromkeys(names, ("1", "2")))]
    assert ordered == [
        "NCCL_ALGO",
        "CUDA_HOME",
        "OMP_NUM_THREADS",
        "nccl",
        "driver",
        "pcie",
        "gpu numa nodes",
        "numa binding",
        "nvidia-cublas",
        "torch",
        "triton",
        "cpu numa nodes",
        "cpu cores",
        "kernel",
        "python",
        "new",
    ]


@pytest.mark.parametrize(
    ("recorded", "now", "found"),
    [
        ([OLD] * 3, OLD, {}),
        ([OLD] * 3, NEW, {"nccl": ("2.28.9", "2.29.1")}),
        ([OLD, OLD, NEW], NEW, {"nccl": ("2.28.9", "2.29.1")}),
        ([OLD, OLD, NEW], OLD, {}),
        ([OLD, NEW], NEW, {}),  # half of them ran with it
        ([OLD] * 2, LL, {"NCCL_PROTO": ("", "LL")}),
        ([LL, LL, OLD], OLD, {"NCCL_PROTO": ("LL", "")}),
        ([LL, OLD, OLD], OLD, {}),
        ([OLD, LL, LL], {}, {"NCCL_PROTO": ("LL", "")}),  # versions that are not told are unknown
        ([], OLD, {}),
    ],
    ids=["same", "another", "than-most", "as-most", "half", "set", "unset", "unset-in-most", "nothing-now", "none"],
)
def test_what_differs_from_most_launches_is_told(
    recorded: Sequence[Mapping[str, str]], now: Mapping[str, str], found: Mapping[str, tuple[str, str]]
) -> None:
    assert differing(recorded, now) == found


def test_a_version_that_launches_did_not_tell_is_no_other_one() -> None:
    now = {**OLD, "triton": "3.6.0"}
    assert differing([OLD] * 5, now) == {}
    assert differing([OLD] * 5 + [{**OLD, "triton": "3.5.0"}], now) == {"triton": ("3.5.0", "3.6.0")}


def test_names_are_in_order() -> None:
    assert list(differing([OLD], {"torch": "1", "nccl": "2", "B": "3", "A": "4"})) == ["A", "B", "nccl", "torch"]


def test_what_is_usual_is_what_most_launches_had() -> None:
    assert find_usual([OLD, LL, OLD, NEW]) == OLD
    assert find_usual([LL, LL, OLD]) == LL
    assert find_usual([OLD, {**OLD, "triton": "3.5.0"}, OLD]) == {**OLD, "triton": "3.5.0"}
    assert find_usual([]) == {}
