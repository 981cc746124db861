"""Launches of perf tests: their order, and their identity."""

from typing import Any, cast

import pytest

from pytest_gpuperf.run.launches import LaunchOf, find_launch, repeat

TESTS = """
import pytest
pytestmark = pytest.mark.perf
@pytest.mark.parametrize("x", [1, 2])
def test_a(x, tmp_path): pass
class TestIt:
    @pytest.mark.timeout_of_another_plugin
    def test_b(self): pass
"""


def collected(pytester: pytest.Pytester) -> list[pytest.Function]:
    pytester.makeini("[pytest]\nmarkers =\n  timeout_of_another_plugin\n  added_by_a_plugin")
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_it=TESTS))
    return cast(list[pytest.Function], items)


def test_one_launch_is_the_tests_themselves(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    assert repeat(items, 1) == items


def test_launches_follow_one_another(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    again = repeat(items, 3)
    identities = [item.nodeid for item in items]
    assert [find_launch(item) for item in again] == [
        LaunchOf(identity, number) for number in (1, 2, 3) for identity in identities
    ]


def test_each_launch_has_a_node_id_of_its_own(pytester: pytest.Pytester) -> None:
    again = repeat(collected(pytester), 3)
    assert len({item.nodeid for item in again}) == len(again) == 9


def test_a_repeated_test_is_the_same_function_with_the_same_parameters_and_marks(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    items[0].add_marker("added_by_a_plugin")
    for first, again in zip(items, repeat(items, 2)[len(items) :], strict=True):
        assert again.function is first.function
        assert again.fixturenames == first.fixturenames
        assert getattr(again, "callspec", None) == getattr(first, "callspec", None)
        assert [mark.name for mark in again.iter_markers()] == [mark.name for mark in first.iter_markers()]


def test_a_test_that_is_named_otherwise_later_keeps_its_identity(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = collected(pytester)
    identities = [item.nodeid for item in items]
    collected_as: Any = pytest.Function.nodeid
    with monkeypatch.context() as patch:  # this test is an item, too
        # As xdist does for tests of a group, where pytest lets it.
        patch.setattr(pytest.Function, "nodeid", property(lambda item: f"{collected_as.fget(item)}@group"))
        assert items[0].nodeid == f"{identities[0]}@group"
        assert [find_launch(item).identity for item in repeat(items, 2)] == identities * 2
