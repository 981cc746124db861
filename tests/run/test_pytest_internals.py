"""What is relied on of pytest's private names: with another version of pytest, these tests tell whether it holds."""

import sys
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from pytest_gpuperf.run import pytest_internals

TESTS = """
import unittest
import pytest

LOG = []

@pytest.fixture(scope="module")
def wide():
    LOG.append("wide up")
    yield
    LOG.append("wide down")
    raise RuntimeError("wide could not be torn down")

@pytest.fixture
def own(wide):
    LOG.append("own up")
    yield "a"
    LOG.append("own down")

@pytest.mark.parametrize("n", [7])
def test_one(n, own):
    LOG.append(f"one {n} {own}")

class TestOwn:
    @pytest.fixture
    def own(self, own):
        return own + "b"

    def test_two(self, own):
        assert own == "ab"

class TestCase(unittest.TestCase):
    def test_run(self): pass
    @unittest.skip("why")
    def test_by_unittest(self): pass
    @pytest.mark.skipif(True, reason="why")
    def test_by_marker(self): pass

@pytest.mark.skip(reason="why")
def test_skipped(): pass
"""


Items = dict[str, pytest.Function]


@pytest.fixture
def items(pytester: pytest.Pytester) -> Items:
    """The tests, by name."""
    found, _ = pytester.inline_genitems(pytester.makepyfile(test_it=TESTS))
    return _by_name(found)


@pytest.fixture
def during_a_run(pytester: pytest.Pytester) -> Callable[[Callable[[Items], None]], None]:
    """Calls a function with the tests in the place where pytest would run them."""

    def run(body: Callable[[Items], None]) -> None:
        called = []

        class InThePlaceOfTests:
            def pytest_runtestloop(self, session: pytest.Session) -> bool:
                body(_by_name(session.items))
                called.append(body)
                return True

        result = pytester.inline_run(pytester.makepyfile(test_it=TESTS), plugins=[InThePlaceOfTests()])
        assert (result.ret, called) == (pytest.ExitCode.OK, [body])

    return run


def _by_name(items: Sequence[pytest.Item]) -> Items:
    return {item.originalname: item for item in cast(Sequence[pytest.Function], items)}


def log(item: pytest.Function) -> list[str]:
    return cast(list[str], item.function.__globals__["LOG"])


def test_another_follower_may_come_than_an_item_was_told(
    during_a_run: Callable[[Callable[[Items], None]], None],
) -> None:
    def body(items: Items) -> None:
        one, two = items["test_one"], items["test_two"]
        reports = pytest_internals.run_phases(one, two, log=False)
        assert [(report.when, report.outcome) for report in reports] == [
            ("setup", "passed"),
            ("call", "passed"),
            ("teardown", "passed"),
        ]
        assert log(one) == ["wide up", "own up", "one 7 a", "own down"]  # test_two has the module's fixture too
        ((title, text),) = pytest_internals.tear_down_before(one, None)
        assert log(one)[4:] == ["wide down"]
        assert title == "teardown"
        assert "wide could not be torn down" in text
        assert pytest_internals.tear_down_before(one, None) == []  # nothing is left

    during_a_run(body)


def test_a_copy_runs_with_the_parameters_and_fixtures_of_its_item(
    during_a_run: Callable[[Callable[[Items], None]], None],
) -> None:
    def body(items: Items) -> None:
        one, two = items["test_one"], items["test_two"]
        copy = pytest_internals.copy_item(one, "#2", one.obj)
        assert copy.nodeid == "test_it.py::test_one#2[7]"
        assert all(report.passed for report in pytest_internals.run_phases(copy, two, log=False))
        assert log(one) == ["wide up", "own up", "one 7 a", "own down"]
        assert pytest_internals.copy_item(two, "#2", two.obj).nodeid == "test_it.py::TestOwn::test_two#2"
        pytest_internals.tear_down_before(copy, None)

    during_a_run(body)


def test_a_copy_of_a_method_of_unittest_runs(during_a_run: Callable[[Callable[[Items], None]], None]) -> None:
    def body(items: Items) -> None:
        item = items["test_run"]
        copy = pytest_internals.copy_item(item, "#2", getattr(item.cls("test_run"), "test_run"))  # noqa: B009  # not typed
        assert copy.nodeid == "test_it.py::TestCase::test_run#2"
        assert all(report.passed for report in pytest_internals.run_phases(copy, None, log=False))

    during_a_run(body)


def test_reports_that_an_item_logs_itself_are_kept_back(
    during_a_run: Callable[[Callable[[Items], None]], None],
) -> None:
    def body(items: Items) -> None:
        item = items["test_run"]
        report, *_ = pytest_internals.run_phases(item, None, log=False)
        report.outcome = "failed"  # which would fail the run
        with pytest_internals.reports_kept_back(item.session) as kept:
            item.ihook.pytest_runtest_logreport(report=report)
            assert item.ihook.pytest_runtest_logstart(nodeid="it", location=("it", 1, "it")) is not None
        assert kept == [report]
        assert "gethookproxy" not in vars(item.session)

    during_a_run(body)


def test_reports_are_logged_if_they_are_to_be(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pytest_gpuperf.run.pytest_internals import run_phases

        def pytest_runtest_protocol(item, nextitem):
            run_phases(item, nextitem)
            return True
        """
    )
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_parameter_is_known_by_its_name(items: Items) -> None:
    assert pytest_internals.find_parameter(items["test_one"], "n") == 7
    assert pytest_internals.find_parameter(items["test_one"], "m") is None
    assert pytest_internals.find_parameter(items["test_two"], "n") is None


def test_fixtures_are_told_with_the_one_first_that_the_test_gets(items: Items) -> None:
    def of(name: str, fixture: str) -> list[tuple[str, tuple[str, ...]]]:
        return list(pytest_internals.iterate_definitions(items[name], fixture))

    assert of("test_one", "own") == [("test_it", ("wide",))]
    assert of("test_two", "own") == [("test_it", ("own",)), ("test_it", ("wide",))]
    assert of("test_one", "unknown") == []


def test_items_that_are_no_functions_have_none(items: Items) -> None:
    class Item(pytest.Item):
        def runtest(self) -> None: ...

    item = Item.from_parent(items["test_one"].session, name="of another kind")
    assert list(pytest_internals.iterate_definitions(item, "own")) == []
    assert not pytest_internals.is_of_unittest(item)


def test_methods_of_unittest_are_told_from_others(items: Items) -> None:
    found = {name for name, item in items.items() if pytest_internals.is_of_unittest(item)}
    assert found == {"test_run", "test_by_unittest", "test_by_marker"}


def test_skips_are_known_before_a_test_runs(items: Items) -> None:
    found = {name for name, item in items.items() if pytest_internals.is_skipped(item)}
    assert found == {"test_by_unittest", "test_by_marker", "test_skipped"}


SKIPS = """
from pytest_gpuperf.run.pytest_internals import skip_where_it_is_defined

def fails():
    raise skip_where_it_is_defined("undecided")

def test_it():
    fails()
"""


def test_a_skip_is_reported_at_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SKIPS)
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1[]] test_it.py:6: undecided"])


def test_pytests_finder_is_told_from_pythons() -> None:
    known: Callable[[object], bool] = pytest_internals.rewrites_assertions
    assert [known(finder) for finder in sys.meta_path].count(True) >= 1
    assert not known(next(finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"))


PATCHES = """
import json, pytest
from pytest_gpuperf.run.pytest_internals import list_patched_attributes

def test_it(monkeypatch, request):
    assert list(list_patched_attributes(request.node)) == []
    monkeypatch.setattr(json, "dumps", None)
    monkeypatch.delattr(json, "loads")
    assert list(list_patched_attributes(request.node)) == [(json, "dumps"), (json, "loads")]
    monkeypatch.undo()
    assert list(list_patched_attributes(request.node)) == []
"""


def test_what_monkeypatch_has_patched_is_known(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PATCHES)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
