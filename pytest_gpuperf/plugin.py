"""The entry point: options, markers, fixtures, and hooks that are handed on once something asks for the plugin.

Every pytest run of an environment with this package imports this module. So it imports little: what a run needs is
loaded with ``run.hooks`` when an option or an ini key of the plugin is given, when a test uses ranks, or when a worker
of xdist reports such a test.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

import pytest_gpuperf.hooks as hooks  # "from pytest_gpuperf" would ask each feature for the name
from pytest_gpuperf.features import iterate_modules
from pytest_gpuperf.markers import MARKERS
from pytest_gpuperf.option_names import add_late_options, add_options, collect_options, drop_values, is_given
from pytest_gpuperf.parser_internals import list_registered
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.run.active import OTHERS, REPORTS, SESSION, begin, find_hooks
from pytest_gpuperf.run.garbage import imports_are_spared
from pytest_gpuperf.run.interrupting import BriefInterrupt, interrupts_are_repeated

if TYPE_CHECKING:
    from pytest_gpuperf.api.perf import Perf
    from pytest_gpuperf.api.ranks import Ranks

_FIXTURES = ("ranks", "perf")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the hooks by which features take part, and the features of this package."""
    pluginmanager.add_hookspecs(hooks)
    for name, feature in iterate_modules("plugin"):
        pluginmanager.register(feature, f"gpuperf-{name}")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers options and ini keys."""
    add_options(parser, collect_options(pluginmanager))


def pytest_configure(config: pytest.Config) -> None:
    """Reads the options and finds the GPUs if the user asks for anything; starts no process."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    if not config.getoption("fulltrace", False):
        config.pluginmanager.register(BriefInterrupt(), "gpuperf-brief-interrupt")
    if is_given(config, collect_options(config.pluginmanager)) or any(
        config.hook.pytest_gpuperf_is_given(config=config)
    ):
        begin(config, collects=False)
    else:
        config.pluginmanager.register(_Reports(config), REPORTS)


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
        begin(self._config, collects=False)
        # pluggy calls for this report only those that were there when it came.
        plugins.subset_hook_caller("pytest_runtest_logreport", had)(report=report)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends all ranks, whatever became of the run."""
    if run := find_hooks(config):
        run.unconfigure(config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Reports what ranks run on, and the worst that is wrong with a machine with GPUs."""
    return run.report_header(config) if (run := find_hooks(config)) else []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Reports the same behind the header if tests have asked for it, and no option."""
    return run.report_collectionfinish(config) if (run := find_hooks(config)) else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one variant for each world size."""
    if SESSION in metafunc.config.stash or _asks(metafunc.definition, metafunc.fixturenames):
        begin(metafunc.config).generate_tests(metafunc)


def _asks(item: pytest.Item, fixtures: list[str]) -> bool:
    """Whether a test has a fixture or a marker of the plugin."""
    return any(name in fixtures or item.get_closest_marker(name) is not None for name in _FIXTURES)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Knows tests by their fixtures, before anything is deselected or named otherwise."""
    if SESSION in item.config.stash or _asks(item, getattr(item, "fixturenames", [])):
        begin(item.config).itemcollected(item)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Has perf tests put last, behind pytest's grouping of tests, which is registered next, so that it runs before."""
    session.config.pluginmanager.register(_PerfLast(), "gpuperf-perf-last")


class _PerfLast:
    """Puts perf tests last, as the run will: ``--stepwise`` takes what is before a failure for passed."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if run := find_hooks(config):
            run.put_perf_last(items)


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Registers what is left of options once all plugins and ``conftest.py`` files are known, and have theirs."""
    known, plugins = early_config.known_args_namespace, early_config.pluginmanager
    known.file_or_dir = drop_values(known.file_or_dir, args, collect_options(plugins))
    yield
    early_config.stash[OTHERS] = add_late_options(parser, list_registered(parser), collect_options(plugins))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares what the tests import the search for garbage; has Ctrl-C end it in any case."""
    with interrupts_are_repeated(), imports_are_spared():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Skips, orders and repeats tests; after other plugins have deselected."""
    yield
    if run := find_hooks(config):
        run.collection_modifyitems(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses baselines that cannot be read before anything is measured."""
    if run := find_hooks(session.config):
        run.collection_finish(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Brings up the test's ranks after its fixtures, before its own time begins."""
    __tracebackhide__ = True
    if run := find_hooks(item.config):
        yield from run.runtest_setup(item)
    else:
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judges a perf test's metrics when its body has come to its end."""
    if run := find_hooks(item.config):
        yield from run.runtest_call(item)
    else:
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Takes the test's ranks back once its fixtures are torn down."""
    if run := find_hooks(item.config):
        yield from run.runtest_teardown(item, nextitem)
    else:
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells the whole story of a run that failed: every rank, and the command that runs the test alone."""
    if (run := find_hooks(item.config)) is None:
        return (yield)
    report: pytest.TestReport = yield from run.runtest_makereport(item, call)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
    """Opens the debugger on the rank with ``--pdb``, before pytest's own opens in this process."""
    if run := find_hooks(node.config):
        run.exception_interact(node, call)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool | None:
    """Tells of the ranks when pytest-timeout's thread method ends a test, and fails that test alone."""
    return run.timeout_set_timer(item, settings) if (run := find_hooks(item.config)) else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the results; only the controller has them."""
    if run := find_hooks(session.config):
        run.sessionfinish(session)


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks that the test's ``ranks`` marker asks for; ``ranks.run(program)`` runs a program on them."""
    # Session scope, so that hypothesis sees no function-scoped fixture; what is a test's own is kept
    # in the session by hooks.
    given: Ranks = begin(request.config).make_ranks(request)
    return given


@pytest.fixture
def perf(request: pytest.FixtureRequest, ranks: Ranks) -> Perf:
    """Times programs on the test's ranks: ``measure``, ``compare``, and ``check`` against baselines."""
    given: Perf = begin(request.config).make_perf(request, ranks)
    return given
