"""What is relied on of hypothesis's private names, in the versions of it that there may be."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.internal import scrutineer

import pytest_gpuperf
from pytest_gpuperf.run.hypothesis_internals import is_drawn, leave_out_our_lines

MODULE = "hypothesis.internal.scrutineer"


def test_our_files_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scrutineer = SimpleNamespace(UNHELPFUL_LOCATIONS=("/theirs/*",))
    monkeypatch.setitem(sys.modules, MODULE, scrutineer)
    leave_out_our_lines()
    leave_out_our_lines()  # as another run in this process
    assert scrutineer.UNHELPFUL_LOCATIONS == ("/theirs/*", "/pytest_gpuperf/**")


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


def test_where_files_are_named_by_their_ends_each_of_ours_is_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scrutineer = SimpleNamespace(UNHELPFUL_LOCATIONS=("/theirs.py",))
    monkeypatch.setitem(sys.modules, MODULE, scrutineer)
    leave_out_our_lines()
    leave_out_our_lines()
    ours = [str(path) for path in Path(pytest_gpuperf.__file__).parent.rglob("*.py")]
    assert sorted(scrutineer.UNHELPFUL_LOCATIONS) == sorted(["/theirs.py", *ours])


def test_the_installed_hypothesis_leaves_our_lines_out_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # The plugin of the run that this test is in has put them there already.
    theirs_alone = tuple(file for file in scrutineer.UNHELPFUL_LOCATIONS if "pytest_gpuperf" not in file)
    monkeypatch.setattr(scrutineer, "UNHELPFUL_LOCATIONS", theirs_alone)
    start, theirs = ("/home/me/suite/programs.py", 1), ("/home/me/suite/programs.py", 3)
    ours = (str(Path(pytest_gpuperf.__file__).parent / "ranks" / "pool.py"), 7)
    passed, failed = {(None, start)}, {(None, start), (start, ours), (start, theirs)}

    def explained() -> Any:
        found: Any = scrutineer.get_explaining_locations
        return found({None: {frozenset(passed)}, "origin": {frozenset(failed)}})

    assert explained() == {"origin": {ours, theirs}}
    leave_out_our_lines()
    assert explained() == {"origin": {theirs}}


def test_a_drawn_test_is_known() -> None:
    class Cases:
        @given(st.integers())
        def test_drawn(self, n: int) -> None: ...

        def test_plain(self) -> None: ...

    assert is_drawn(Cases.test_drawn)
    assert is_drawn(Cases().test_drawn)
    assert not is_drawn(Cases().test_plain)
    assert not is_drawn(None)
