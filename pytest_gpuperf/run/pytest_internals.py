"""Private names of pytest's runner, each in a function with a test that shows what is relied on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.runner import runtestprotocol
from _pytest.skipping import evaluate_skip_marks
from _pytest.unittest import TestCaseFunction

_ENDS_THE_RUN = (pytest.exit.Exception, KeyboardInterrupt)


def run_phases(item: pytest.Item, nextitem: pytest.Item | None, *, log: bool = True) -> list[pytest.TestReport]:
    """Sets the item up, calls it and tears it down; the reports of these phases.

    pytest's public hook ``pytest_runtest_protocol`` does it too, and other plugins put reruns in its place.

    Args:
        item: the test.
        nextitem: what runs after it: fixtures that both use stay.
        log: whether ``pytest_runtest_logreport`` is called for each report.
    """
    return runtestprotocol(item, log=log, nextitem=nextitem)


@contextmanager
def reports_kept_back(session: pytest.Session) -> Iterator[list[pytest.TestReport]]:
    """The reports that items log themselves within, such as those of their subtests: no plugin gets them.

    Publicly, every plugin does, and a failed one fails the run.
    """
    real: Any = session.gethookproxy
    kept: list[pytest.TestReport] = []
    vars(session)["gethookproxy"] = lambda path: _Hooks(real(path), kept)
    try:
        yield kept
    finally:
        del vars(session)["gethookproxy"]


class _Hooks:
    """Calls all hooks of an item but the one that logs a report, which is kept."""

    def __init__(self, hooks: Any, kept: list[pytest.TestReport]) -> None:
        self._hooks = hooks
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return self._keep if name == "pytest_runtest_logreport" else getattr(self._hooks, name)

    def _keep(self, report: pytest.TestReport) -> None:
        self._kept.append(report)


def tear_down_before(item: pytest.Item, follower: pytest.Item | None) -> list[tuple[str, str]]:
    """Tears down what pytest has kept of an item for another follower than it now has; sections for what failed.

    Publicly, only ``pytest_runtest_teardown`` does, which would call all plugins' teardown of the item again.
    """
    setups = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: setups.teardown_exact(follower), "teardown", _ENDS_THE_RUN)
    return [] if call.excinfo is None else [("teardown", str(item.repr_failure(call.excinfo)))]


def copy_item(item: pytest.Function, suffix: str, body: Any) -> pytest.Function:
    """The item once more under another name, with the same parameters and fixtures.

    Publicly, ``from_parent`` takes a name and a function alone, and collects parameters from nowhere.

    Args:
        item: a test, with parameters or without.
        suffix: of the name, before the parameters: ``test_it#2[2ranks]``.
        body: what the copy calls.
    """
    callspec = getattr(item, "callspec", None)
    name = f"{item.originalname}{suffix}"
    copy: pytest.Function = type(item).from_parent(
        item.parent,
        name=name if callspec is None else f"{name}[{callspec.id}]",
        originalname=name,  # pytest makes the node id of it
        callobj=body,
        callspec=callspec,
        # The parametrization lives in here; to compute it anew would lose it.
        fixtureinfo=item._fixtureinfo,
    )
    copy.originalname = item.originalname
    if is_of_unittest(item):
        copy.name = item.name  # by which unittest finds the method
    return copy


def find_parameter(item: pytest.Item, name: str) -> Any:
    """The item's value of a parameter, or of an indirect one's fixture; None without.

    Publicly, only a fixture's ``request.param`` has it, once the test is set up.
    """
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get(name)


def iterate_definitions(node: pytest.Item, fixture: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each definition of the fixture that the node sees: its module and its arguments, the one that it gets first.

    Publicly, a test's fixtures have names alone, which do not tell whose they are.
    """
    info = getattr(node, "_fixtureinfo", None)  # an item that is no function has none
    for definition in reversed(() if info is None else info.name2fixturedefs.get(fixture, ())):
        yield definition.func.__module__, definition.argnames


def list_arguments(item: pytest.Function) -> tuple[str, ...]:
    """The names of the arguments with which pytest calls the test; publicly, only all its fixtures are known."""
    return tuple(item._fixtureinfo.argnames)


def is_of_unittest(item: pytest.Item) -> bool:
    """Whether the item is a method of a ``unittest.TestCase``; publicly, pytest has no name for such items."""
    return isinstance(item, TestCaseFunction)


def is_skipped(item: pytest.Item) -> bool:
    """Whether a ``skip`` or ``skipif`` marker skips the item, or unittest does; publicly, it is run to find out."""
    of_unittest = (getattr(item, "cls", None), getattr(item, "obj", None))
    return any(getattr(one, "__unittest_skip__", False) for one in of_unittest) or evaluate_skip_marks(item) is not None


def skip_where_it_is_defined(reason: str) -> BaseException:
    """An exception that skips the test and whose report names the test's line, and not the line that raises it.

    Publicly, only a marker does that, which is too late once the test has run.
    """
    return pytest.skip.Exception(reason, _use_item_location=True)


def rewrites_assertions(finder: object) -> bool:
    """Whether an entry of ``sys.meta_path`` is pytest's own; publicly, it has no name."""
    return isinstance(finder, AssertionRewritingHook)


def list_patched_attributes(item: pytest.Item) -> Iterator[tuple[Any, str]]:
    """What fixtures of the item have set or deleted by ``setattr`` and ``delattr`` of a MonkeyPatch: owner and name.

    Publicly, a MonkeyPatch can only be undone.
    """
    for value in (getattr(item, "funcargs", None) or {}).values():
        if isinstance(value, pytest.MonkeyPatch):
            yield from ((owner, name) for owner, name, _ in value._setattr)
