"""The control workload on real ranks."""

from pytest_gpuperf.timing.control import control
from tests.ranks.conftest import Call


def test_its_parts_are_timed_and_all_ranks_agree(call: Call) -> None:
    first, second = call(control)
    assert first == second
    assert sorted(first) == ["all_reduce", "matmul"]
    assert all(0 < seconds < 1 for seconds in first.values())
