"""What NCCL chose is asked once, and what cannot be known fails no run."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from pytest_gpuperf.hardware.nccl_log import NcclLog
from pytest_gpuperf.run.choosing import Choosing
from tests.hardware.test_nccl_choices import FIRST, SECOND, of

ITEM = cast(pytest.Item, None)


class Probed:
    """Ranks whose logs a test makes up."""

    def __init__(self, logs: Sequence[NcclLog] | BaseException) -> None:
        self._logs = logs

    def probe_nccl(self, item: pytest.Item) -> Sequence[NcclLog]:
        if isinstance(self._logs, BaseException):
            raise self._logs
        return self._logs


def asked(logs: Sequence[NcclLog] | BaseException) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    return dict(Choosing(cast(Any, Probed(logs)), said.append).ask(ITEM)), said


def test_choices_are_told() -> None:
    choices, said = asked(of(FIRST, SECOND))
    assert choices["transport"] == "P2P/CUMEM"
    assert said == []


def test_without_nccl_there_are_none() -> None:
    assert asked([]) == ({}, [])


def test_a_version_that_was_never_seen_is_said_and_nothing_claimed() -> None:
    choices, (said,) = asked(of(FIRST.replace("2.28.9", "2.99.1")))
    assert choices == {}
    assert said.startswith("what NCCL chose is not known: the log is of NCCL 2.99.1+cuda13.0, expected 2.28 or 2.30")


@pytest.mark.parametrize("error", [RuntimeError("rank 1 died"), pytest.skip.Exception("no memory")])
def test_ranks_that_fail_do_not_fail_the_run(error: BaseException) -> None:
    choices, (said,) = asked(error)
    assert choices == {}
    assert said.startswith("what NCCL chose is not known: ")
    assert str(error) in said


def test_ctrl_c_ends_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        asked(KeyboardInterrupt())
