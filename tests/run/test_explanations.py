"""Which lines hypothesis explains failing examples by, in the versions of it that there may be."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.run.explanations import leave_out_our_lines

MODULE = "hypothesis.internal.scrutineer"


def test_our_files_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scrutineer = SimpleNamespace(UNHELPFUL_LOCATIONS=("/theirs",))
    monkeypatch.setitem(sys.modules, MODULE, scrutineer)
    leave_out_our_lines()
    leave_out_our_lines()  # as another run in this process
    assert scrutineer.UNHELPFUL_LOCATIONS == ("/theirs", "/pytest_gpuperf/**")


@pytest.mark.parametrize("kept", [{}, {"UNHELPFUL_LOCATIONS": "/theirs"}])
def test_a_hypothesis_that_keeps_no_such_list_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    scrutineer = SimpleNamespace(**kept)
    monkeypatch.setitem(sys.modules, MODULE, scrutineer)
    leave_out_our_lines()
    assert vars(scrutineer) == kept


def test_it_is_not_loaded_for_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    leave_out_our_lines()
    assert MODULE not in sys.modules
