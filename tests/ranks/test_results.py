"""Results are read in rank order, or the rank is named whose cannot be."""

import pytest

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.failures import ResultError
from pytest_gpuperf.ranks.results import read_results
from pytest_gpuperf.ranks.spec import PoolSpec


def test_results_come_in_rank_order() -> None:
    assert read_results([payload.dumps("of rank 0"), payload.dumps(1)], PoolSpec(2), "suite:program") == [
        "of rank 0",
        1,
    ]


def test_a_result_that_cannot_be_read_names_its_rank_and_program() -> None:
    message = (
        r"^rank 1 of 2 \(gloo\) in suite:program: what it returned cannot be read in the pytest process "
        r"\(UnpicklingError: .*\): return tensors, numbers, strings or containers of them$"
    )
    with pytest.raises(ResultError, match=message):
        read_results([payload.dumps(0), Parcel(b"nothing")], PoolSpec(2), "suite:program")
