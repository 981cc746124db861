"""What endings of a run say of the group that it had."""

import pytest

from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, is_undisturbed
from pytest_gpuperf.ranks.messages import Raised


def raised(groups: tuple[int, int] | None, *, usable: bool = True) -> Raised:
    return Raised(1, 1.0, None, "ValueError", "", "", "x.py:1 in f", usable, groups)


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ([raised((1, 1)), raised((1, 1))], True),
        ([raised((3, 2)), raised((3, 2))], True),
        ([raised((1, 1)), raised((2, 2))], False),
        ([raised((2, 1)), raised((2, 2))], False),
        ([raised((1, 1)), raised(None)], False),
        ([raised(None), raised(None)], False),
        ([raised((1, 1)), raised((1, 1), usable=False)], False),
        ([raised((1, 1)), Answered(EMPTY)], False),
        ([raised((1, 1)), Died(1.0, -9)], False),
    ],
)
def test_a_group_is_as_it_was_if_all_ranks_raised_before_they_met(endings: list[Ending], expected: bool) -> None:
    assert is_undisturbed(endings) is expected
