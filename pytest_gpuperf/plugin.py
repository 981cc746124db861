"""Hooks and fixtures, each a delegate. Loads torch only once a test needs ranks."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.arms.arm import CannotRace
from pytest_gpuperf.baselines.journal import JournalError
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.fixtures.perf import Checks, Perf
from pytest_gpuperf.fixtures.ranks import Ranks
from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.markers import MARKERS
from pytest_gpuperf.options import Options, add_options, is_worker
from pytest_gpuperf.report.console import DEBUGGER_BANNER, NO_DEBUGGER
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.properties import failure_properties, forget_properties
from pytest_gpuperf.run.clustering import joined
from pytest_gpuperf.run.concluding import Ruled
from pytest_gpuperf.run.exit_status import Ending, exit_status, is_interrupted
from pytest_gpuperf.run.garbage import imports_are_spared
from pytest_gpuperf.run.hypothesis_internals import leave_out_our_lines
from pytest_gpuperf.run.launches import identify, launch_of
from pytest_gpuperf.run.selection import (
    LACKS,
    PerfLast,
    arrange,
    drop_measured,
    is_perf,
    keep_bodies,
    lacks_variants,
    mark_items,
    measures,
    need_ranks,
    parametrize,
    planned,
    world_size,
)
from pytest_gpuperf.run.session import Session

if TYPE_CHECKING:
    from pytest_gpuperf.doctor.glance import Glance

pytest_plugins = ("pytest_gpuperf.parity.plugin",)
"""Features in folders of their own, each of which can be deleted with its line here."""

SESSION = pytest.StashKey[Session]()
CHECKS = pytest.StashKey[Checks]()
GLANCE: pytest.StashKey[Glance] = pytest.StashKey()
"""The doctor's look at a machine with GPUs, from the header on."""
FAILURE = pytest.StashKey[BaseException]()
"""On a perf test that is judged or recorded, and has failed; until it has been torn down."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Reads the options and finds the GPUs; starts no process."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    options = Options.from_config(config)
    cluster = joined(options)
    try:
        machine = Machine.of(options.gpus) if cluster is None else cluster.machine
        _require(options, machine)
        config.stash[SESSION] = session = Session.of(config, options, machine, cluster)
    except BaseException as error:
        if cluster is not None:
            cluster.close()
        if isinstance(error, HardwareError):
            raise pytest.UsageError(str(error)) from error
        raise
    session.register(config)
    if session.profiling is not None and _runs_tests(config):
        session.profiling.require()


def _require(options: Options, machine: Machine) -> None:
    if options.update_baselines and not machine.gpus:
        raise pytest.UsageError("--update-baselines records what GPUs do, and none are visible")
    if options.require_gpus and not machine.gpus:
        raise pytest.UsageError("--require-gpus: no GPU is visible")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends all ranks, whatever became of the run."""
    if SESSION in config.stash:
        config.stash[SESSION].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Reports what ranks run on, and the worst that is wrong with a machine with GPUs."""
    session = config.stash[SESSION]
    machine = session.machine
    lines = [machine.describe() if session.cluster is None else session.cluster.describe()]
    if seed := session.options.hash_seed:
        lines.append(f"ranks hash strings with PYTHONHASHSEED={seed}")
    if machine.gpus and session.cluster is None:
        # Imported here: without GPUs no run waits for modules that it does not need.
        from pytest_gpuperf.doctor.gather import gather
        from pytest_gpuperf.doctor.glance import Glance

        config.stash[GLANCE] = glance = Glance(lambda: gather(machine.devices))
        lines.append(glance.header())
    return [f"gpuperf: {line}" for line in lines if line]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports what is wrong with the machine, if that was not known when the header was printed."""
    if GLANCE in config.stash and (line := config.stash[GLANCE].late()):
        terminalreporter.write_line(f"gpuperf: {line}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One variant for each world size."""
    session = metafunc.config.stash[SESSION]
    parametrize(metafunc, len(session.machine.gpus), session.capacity.nodes, largest=session.options.largest_worlds)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Adopts classes of other harnesses before pytest makes test objects of them."""
    if isinstance(obj, type):
        collector.config.stash[SESSION].adopting.look_at(collector, name, obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test of an adopted plain class on its ranks."""
    __tracebackhide__ = True
    return pyfuncitem.config.stash[SESSION].adopting.run_plain(pyfuncitem) or None


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Knows tests by their fixtures, before anything is deselected or named otherwise."""
    identify(item)
    mark_items(item)
    ours = item.config.stash[SESSION]
    if ours.machine.gpus and not ours.cluster and need_ranks([item]) and _runs_tests(item.config):
        # What ranks are forked from imports while this process does, whatever is deselected later. On CPUs ranks and
        # tests share the cores, and there is nothing to gain.
        ours.host.warm_up()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Has perf tests put last, behind pytest's grouping of tests, which is registered next, so that it runs before."""
    session.config.pluginmanager.register(PerfLast(), "gpuperf-perf-last")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares what the tests import the search for garbage."""
    with imports_are_spared():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Skips, order and launches; after other plugins have deselected."""
    yield
    session = config.stash[SESSION]
    arrange(items, session.options, session.machine, shared=is_worker(config), capacity=session.capacity)
    if session.recording is not None and _runs_tests(config):
        try:
            measured = drop_measured(items, session.recording.plan(planned(items)))
        except JournalError as error:
            raise pytest.UsageError(one_line(str(error))) from error
        config.hook.pytest_deselected(items=measured)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses baselines that cannot be read before anything is measured."""
    ours = session.config.stash[SESSION]
    leave_out_our_lines()  # now that tests have imported hypothesis, if any does
    ours.packing.collected(session.items, session.config)
    if session.config.option.collectonly:
        return
    if ours.explaining is not None:
        ours.explaining.collected()
    if (ours.machine.gpus or ours.cluster) and need_ranks(session.items) and _runs_tests(session.config):
        ours.host.warm_up()  # before any lease: while it loads torch, others need not wait for the GPUs
    if measures(session.items) and ours.launch.measured:
        keep_bodies(session.items)
        if ours.racing is not None:
            try:
                ours.racing.require()
            except CannotRace as error:
                raise pytest.UsageError(one_line(str(error))) from error
        if not ours.reads_baselines:
            return
        try:
            ours.load_baselines([launch_of(item).identity for item in session.items if is_perf(item)])
        except BaselineError as error:
            raise pytest.UsageError(one_line(str(error))) from error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Holds a suspect's report back until more launches have decided."""
    racing = item.config.stash[SESSION].racing
    if racing is None or not (is_perf(item) and isinstance(item, pytest.Function)):
        return None
    # A worker must report a test before it takes the next one.
    at_once = is_worker(item.config)
    racing.protocol(item, nextitem, at_once=at_once)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Once every test has run: decides about the suspects, or asks NCCL for a recording what it chose."""
    ours = session.config.stash[SESSION]
    racing = ours.racing
    if racing is None:
        result = yield
        if _runs_tests(session.config):
            ours.record_choices(session.items)
        return result
    try:
        result = yield
        racing.decide(whole_run=not is_worker(session.config))
    finally:
        racing.release()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Brings up the test's ranks after its fixtures, before its own time begins."""
    session = item.config.stash[SESSION]
    launch = launch_of(item)
    forget_properties(item)
    number = launch.number if is_perf(item) else None
    session.ranks.begin(item, world_size=world_size(item), launch=number, identity=launch.identity)
    if LACKS in item.stash:
        pytest.fail(f"--require-gpus: {item.stash[LACKS]}", pytrace=False)
    if (objection := session.adopting.objection(item)) is not None:
        pytest.fail(objection, pytrace=False)
    if is_perf(item) and session.ranks.current.marker.launcher_env:
        pytest.fail(
            "a perf test is measured on a process group of the plugin's, and launcher_env=True leaves "
            "that to the program: drop launcher_env, and use the group that is there",
            pytrace=False,
        )
    if lacks_variants(item):
        pytest.fail(
            "a test of a unittest.TestCase cannot run on ranks, since pytest makes no variants of it: "
            "make it a function, or its class one that is no TestCase",
            pytrace=False,
        )
    try:
        yield
        if _runs_tests(item.config):
            session.ranks.prepare()
    finally:
        _report_output(item, session, "setup")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judges a perf test's figures when its body has come to its end."""
    session = item.config.stash[SESSION]
    if (failure := item.stash.get(FAILURE, None)) is not None:
        raise failure  # pytest-retry calls a failed test again within its report: to run until it passes is no verdict
    try:
        yield
        _judge(item, session)
    except (Exception, pytest.fail.Exception) as error:
        checks = item.stash.get(CHECKS, None)
        if checks is not None and not checks.closed and isinstance(item, pytest.Function):
            session.concluding.show(item, checks)  # what the body has shown may say why it failed
        if is_perf(item) and (session.judging or session.recording):
            item.stash[FAILURE] = error
        raise
    finally:
        if (checks := item.stash.get(CHECKS, None)) is not None:
            checks.measured = None  # which holds what the programs get
        _report_output(item, session, "call")


def _judge(item: pytest.Item, session: Session) -> None:
    __tracebackhide__ = True
    checks = item.stash.get(CHECKS, None)
    if isinstance(item, pytest.Function) and (checks is not None or is_perf(item)):
        checks = checks or Checks()
        checks.closed = True
        session.publish(item, checks)
        session.profile(item, checks, world_size(item) or 0)
        session.concluding.conclude(item, checks)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """The test's ranks are its own until its fixtures are torn down."""
    session = item.config.stash[SESSION]
    try:
        yield
    finally:
        keep_lease = is_perf(item) and nextitem is not None and is_perf(nextitem)
        try:
            session.ranks.end(keep_lease=keep_lease, last=nextitem is None)
        finally:
            _report_output(item, session, "teardown")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells the whole story of a run that failed: every rank, and the command that runs the test alone."""
    session = item.config.stash[SESSION]
    failure = None if call.excinfo is None else session.ranks.failure_of(call.excinfo.value)
    if failure is not None:
        item.user_properties.extend(failure_properties(failure))
    report = yield
    if failure is None and call.excinfo is not None:  # pytest takes what unittest caught from the item, just now
        failure = session.ranks.failure_of(call.excinfo.value)
        properties = [] if failure is None else failure_properties(failure)
        item.user_properties.extend(properties)
        report.user_properties.extend(properties)
    if call.when == "teardown" and FAILURE in item.stash:
        del item.stash[FAILURE]  # whose frames hold all that the test had at hand
    if report.failed and call.excinfo is not None and isinstance(call.excinfo.value, Ruled):
        report.longrepr = str(call.excinfo.value)
    if failure is not None and report.failed:
        report.sections += [*failure.sections, ("run this alone", session.rerun_command())]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
    """With ``--pdb``: the debugger on the rank, before pytest's own opens in this process."""
    config = node.config
    if not config.getoption("usepdb", False) or call.excinfo is None:
        return
    session = config.stash[SESSION]
    failure = session.ranks.failure_of(call.excinfo.value)
    if failure is not None:
        banner = iter([DEBUGGER_BANNER.format(rank=f"rank {failure.rank}") + "\n"])
        if not session.host.debug(failure, lambda text: session.console.ask(next(banner, "") + text)):
            session.console.say(NO_DEBUGGER)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes what was recorded, and the results; only the controller ever records."""
    ours = session.config.stash[SESSION]
    recording = ours.recording
    saved = None if recording is None else recording.save(interrupted=is_interrupted(session))
    # Both are written, whatever becomes of the other.
    written = [file.write() for file in (ours.results, ours.page) if file is not None]
    ending = Ending(
        saved=None if saved is None else not saved.failed,
        left_out=recording is not None and not recording.resumable and bool(recording.left_out()),
        slower=ours.findings.environment_lost(fails := ours.options.environment_fails) or ours.slower_as_a_whole(fails),
        undecided=ours.options.undecided_fails and ours.findings.undecided,
        unraced=ours.findings.unraced,
        results_problem=not all(written),
    )
    if ours.journal is not None:
        ours.journal.finished = not ending.results_problem
    session.exitstatus = exit_status(session.exitstatus, ending)


def _runs_tests(config: pytest.Config) -> bool:
    """Whether tests are run, not only listed (``--collect-only``) or set up (``--setup-only``, ``--setup-plan``)."""
    return not (config.option.collectonly or config.getoption("setuponly", False))


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks that the test's ``ranks`` marker asks for; ``ranks.run(program)`` runs a program on them."""
    # Session scope, so that hypothesis sees no function-scoped fixture; what is a test's own is kept
    # in the session by hooks.
    if not hasattr(request, "param"):
        pytest.fail(
            "ranks must be among the arguments of the test or of its fixtures: its world sizes become tests when "
            'those are collected, and request.getfixturevalue("ranks") comes later',
            pytrace=False,
        )
    return Ranks(request.config.stash[SESSION].ranks, request.param)


@pytest.fixture
def perf(request: pytest.FixtureRequest, ranks: Ranks) -> Perf:
    """Times programs on the test's ranks: ``measure``, ``compare``, and ``check`` against baselines."""
    session = request.config.stash[SESSION]
    if not is_perf(request.node):
        pytest.fail(
            "perf must be among the arguments of the test or of its fixtures, or the test be marked perf: it is known "
            'for a perf test when it is collected, and request.getfixturevalue("perf") comes later',
            pytrace=False,
        )
    profiled = session.profiling is not None and launch_of(request.node).number == 1
    checks = request.node.stash[CHECKS] = Checks(request=request, measured=[] if profiled else None)
    return session.perf(ranks, checks)


def _report_output(item: pytest.Item, session: Session, when: str) -> None:
    session.console.end_of_test()
    if not session.ranks.has_ranks:
        return  # what idle ranks print is no test's own, least of all one's that has none
    for title, text in session.ranks.take_output():
        item.add_report_section(when, title, text)
