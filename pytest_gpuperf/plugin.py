"""The entry point: options, markers, fixtures, and hooks that are handed on once something asks for the plugin.

Every pytest run of an environment with this package imports this module. So it imports little: what a run needs is
loaded with ``run.hooks`` when an option or an ini key of the plugin is given, when a test uses ranks, or when a worker
of xdist reports such a test.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.markers import MARKERS, ON_RANKS
from pytest_gpuperf.options import add_options, is_given
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.run.active import SESSION
from pytest_gpuperf.run.garbage import imports_are_spared

if TYPE_CHECKING:
    from pytest_gpuperf.fixtures.perf import Perf
    from pytest_gpuperf.fixtures.ranks import Ranks

_FIXTURES = ("ranks", "perf")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Reads the options and finds the GPUs if the user asks for anything; starts no process."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if is_given(config) or _is_arm(config):
        _begin(config)
    else:
        config.pluginmanager.register(_Reports(config), "gpuperf-reports")


def _is_arm(config: pytest.Config) -> bool:
    """Whether this process measures for a race of another one."""
    child = sys.modules.get("pytest_gpuperf.arms.child")
    return child is not None and child.LINK in config.stash


def _begin(config: pytest.Config) -> ModuleType:
    """Returns the hooks of the run, which begins with the first call."""
    from pytest_gpuperf.run import hooks

    if SESSION not in config.stash:
        hooks.begin(config)
    return hooks


def _hooks(config: pytest.Config) -> ModuleType | None:
    """Returns the hooks of the run; None if nothing has asked for the plugin."""
    return _begin(config) if SESSION in config.stash else None


class _Reports:
    """Begins the run of a process that collects no tests, as of xdist, at the first report of a test on ranks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if SESSION in self._config.stash or RANKS_KEYWORD not in report.keywords:
            return
        plugins = self._config.pluginmanager
        had = plugins.get_plugins()
        _begin(self._config)
        # pluggy calls for this report only those that were there when it came.
        plugins.subset_hook_caller("pytest_runtest_logreport", had)(report=report)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends all ranks, whatever became of the run."""
    if hooks := _hooks(config):
        hooks.unconfigure(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Reports what ranks run on, and the worst that is wrong with a machine with GPUs."""
    return hooks.report_header(config) if (hooks := _hooks(config)) else []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Reports the same behind the header if tests have asked for it, and no option."""
    return hooks.report_collectionfinish(config) if (hooks := _hooks(config)) else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports what is wrong with the machine, if that was not known when the header was printed."""
    if hooks := _hooks(config):
        hooks.terminal_summary(terminalreporter, config)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Adopts classes of other harnesses before pytest makes test objects of them."""
    if isinstance(obj, type) and (SESSION in collector.config.stash or hasattr(obj, ON_RANKS)):
        _begin(collector.config).pycollect_makeitem(collector, name, obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one variant for each world size."""
    if SESSION in metafunc.config.stash or _asks(metafunc.definition, metafunc.fixturenames):
        _begin(metafunc.config).generate_tests(metafunc)


def _asks(item: pytest.Item, fixtures: list[str]) -> bool:
    """Whether a test has a fixture or a marker of the plugin."""
    return any(name in fixtures or item.get_closest_marker(name) is not None for name in _FIXTURES)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Knows tests by their fixtures, before anything is deselected or named otherwise."""
    if SESSION in item.config.stash or _asks(item, getattr(item, "fixturenames", [])):
        _begin(item.config).itemcollected(item)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Has perf tests put last, behind pytest's grouping of tests, which is registered next, so that it runs before."""
    session.config.pluginmanager.register(_PerfLast(), "gpuperf-perf-last")


class _PerfLast:
    """Puts perf tests last, as the run will: ``--stepwise`` takes what is before a failure for passed."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if hooks := _hooks(config):
            hooks.put_perf_last(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares what the tests import the search for garbage."""
    with imports_are_spared():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Skips, orders and repeats tests; after other plugins have deselected."""
    yield
    if hooks := _hooks(config):
        hooks.collection_modifyitems(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses baselines that cannot be read before anything is measured."""
    if hooks := _hooks(session.config):
        hooks.collection_finish(session)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Holds a suspect's report back until more launches have decided."""
    return hooks.runtest_protocol(item, nextitem) if (hooks := _hooks(item.config)) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Decides about the suspects once every test has run, or asks NCCL for a recording what it chose."""
    if (hooks := _hooks(session.config)) is None:
        return (yield)
    return (yield from hooks.runtestloop(session))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Brings up the test's ranks after its fixtures, before its own time begins."""
    if hooks := _hooks(item.config):
        yield from hooks.runtest_setup(item)
    else:
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test of an adopted plain class on its ranks."""
    __tracebackhide__ = True
    return hooks.pyfunc_call(pyfuncitem) if (hooks := _hooks(pyfuncitem.config)) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judges a perf test's figures when its body has come to its end."""
    if hooks := _hooks(item.config):
        yield from hooks.runtest_call(item)
    else:
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Takes the test's ranks back once its fixtures are torn down."""
    if hooks := _hooks(item.config):
        yield from hooks.runtest_teardown(item, nextitem)
    else:
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells the whole story of a run that failed: every rank, and the command that runs the test alone."""
    if (hooks := _hooks(item.config)) is None:
        return (yield)
    report: pytest.TestReport = yield from hooks.runtest_makereport(item, call)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
    """Opens the debugger on the rank with ``--pdb``, before pytest's own opens in this process."""
    if hooks := _hooks(node.config):
        hooks.exception_interact(node, call)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool | None:
    """With pytest-timeout's thread method: the timer tells of the ranks, and fails the test alone."""
    return hooks.timeout_set_timer(item, settings) if (hooks := _hooks(item.config)) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes what was recorded, and the results; only the controller ever records."""
    if hooks := _hooks(session.config):
        hooks.sessionfinish(session)


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks that the test's ``ranks`` marker asks for; ``ranks.run(program)`` runs a program on them."""
    # Session scope, so that hypothesis sees no function-scoped fixture; what is a test's own is kept
    # in the session by hooks.
    given: Ranks = _begin(request.config).ranks_of(request)
    return given


@pytest.fixture
def perf(request: pytest.FixtureRequest, ranks: Ranks) -> Perf:
    """Times programs on the test's ranks: ``measure``, ``compare``, and ``check`` against baselines."""
    given: Perf = _begin(request.config).perf_of(request, ranks)
    return given
