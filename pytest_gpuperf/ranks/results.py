"""What programs returned, read in the pytest process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Parcel
from pytest_gpuperf.ranks.failures import ResultError
from pytest_gpuperf.ranks.spec import PoolSpec


def read_results(payloads: Sequence[Parcel], spec: PoolSpec, program: str) -> list[Any]:
    """The results in rank order.

    Args:
        payloads: of each rank, as ``payload.dumps`` made them.
        spec: of the pool that they come from.
        program: its name.

    Raises:
        ResultError: one of them cannot be read; names the rank.
    """
    __tracebackhide__ = True
    results = []
    for rank, data in enumerate(payloads):
        try:
            results.append(payload.loads(data))
        except Exception as error:  # the result's own code runs here
            raise ResultError(
                f"{spec.name(rank)} in {program}: what it returned cannot be read in "
                f"the pytest process ({type(error).__name__}: {error}): return tensors, numbers, strings or containers "
                "of them"
            ) from error
    return results
