"""What --explain says before it launches anything."""

from pytest_gpuperf.features.explaining.lines import describe_block, describe_start


def test_how_long_it_takes_is_said_beforehand() -> None:
    assert describe_start(["NCCL_ALGO"], 1, 5.0, 10.0, 7, 0) == (
        "explain: 1 metric moved and NCCL_ALGO differs from the baseline: a race with the baseline's value takes about "
        "25 s if launches are steady, at most about 75 s"
    )
    assert describe_start(["NCCL_ALGO", "NCCL_PROTO"], 3, 5.0, 10.0, 7, 2) == (
        "explain: 3 metrics moved and NCCL_ALGO, NCCL_PROTO differ from the baseline: a race with the baseline's "
        "values takes about 25 s if launches are steady, at most about 75 s; "
        "if they explain it, at most 2 races more of that length will find which of them"
    )


def test_a_block_is_said() -> None:
    assert describe_block(["NCCL_ALGO"], 2, 7, ["t.py::a"], 8.2) == (
        "explain: NCCL_ALGO as recorded, block 2 of at most 7 (4 launches, about 8 s): t.py::a"
    )
