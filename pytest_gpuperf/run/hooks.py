"""The hooks of a run, which ``plugin`` hands on once something has asked for them; each is a delegate."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_gpuperf.api.checks import Checks
from pytest_gpuperf.api.perf import Perf
from pytest_gpuperf.api.ranks import Ranks
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.option_names import add_prefix
from pytest_gpuperf.options import Options, is_worker, runs_tests
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.report.console import DEBUGGER_BANNER, NO_DEBUGGER
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.properties import forget_properties, make_failure_properties
from pytest_gpuperf.run.active import OTHERS, SESSION
from pytest_gpuperf.run.concluding import Ruled
from pytest_gpuperf.run.exit_status import Ending, exit_status
from pytest_gpuperf.run.hypothesis_internals import leave_out_our_lines
from pytest_gpuperf.run.judging import fails_as_a_whole
from pytest_gpuperf.run.launches import find_launch, identify
from pytest_gpuperf.run.nodes import RunNodes
from pytest_gpuperf.run.pytest_timeout_timer import set_timer
from pytest_gpuperf.run.selection import (
    LACKS,
    arrange,
    is_perf,
    keep_bodies,
    lacks_variants,
    mark_items,
    measures,
    need_ranks,
    parametrize,
    sort_perf_last,
    world_size,
)
from pytest_gpuperf.run.session import Session, make_this_machine

CHECKS = pytest.StashKey[Checks]()
FAILURE = pytest.StashKey[BaseException]()
"""On a perf test that is judged or recorded, and has failed; until it has been torn down."""
SHOWN = pytest.StashKey[bool]()
"""On the configuration once the header has said what ranks run on."""


def begin(config: pytest.Config) -> None:
    """Reads the options and finds the GPUs; starts no process."""
    options = Options.from_config(config)
    config.hook.pytest_gpuperf_check_options(config=config)
    nodes: RunNodes | None = None
    try:
        nodes = config.hook.pytest_gpuperf_nodes(config=config, options=options)
        nodes = nodes or make_this_machine(config, options, Machine.of(options.gpus))
        _require(options, nodes.machine)
        config.stash[SESSION] = session = Session.of(config, options, nodes)
    except BaseException as error:
        if nodes is not None:
            nodes.close()
        if isinstance(error, HardwareError):
            raise pytest.UsageError(str(error)) from error
        raise
    session.register(config)
    config.hook.pytest_gpuperf_begin(config=config, run=session)


def _require(options: Options, machine: Machine) -> None:
    if options.require_gpus and not machine.gpus:
        raise pytest.UsageError("--require-gpus: no GPU is visible")


def unconfigure(config: pytest.Config) -> None:
    """Ends all ranks, whatever became of the run."""
    config.stash[SESSION].close()


def report_header(config: pytest.Config) -> list[str]:
    """Reports what ranks run on, and the worst that is wrong with a machine with GPUs."""
    session = config.stash[SESSION]
    config.stash[SHOWN] = True
    ranks, *lines = session.nodes.header()
    judges = session.machine.gpus or session.launch.measured
    lines.insert(0, ranks if judges else f"{ranks}; correctness only")
    if seed := session.nodes.hash_seed:
        lines.append(f"ranks hash strings with PYTHONHASHSEED={seed}")
    if seeds := session.options.hashes_by_rank:
        lines.append(f"ranks that measure nothing hash strings with PYTHONHASHSEED={seeds}")
    if (delays := session.options.delay_seed) is not None:
        lines.append(f"ranks are delayed at random; --delay-ranks={delays} repeats it")
    if others := config.stash.get(OTHERS, []):
        lines += [f"another plugin or conftest.py has {name}, so ours is {add_prefix(name)}" for name in others]
    for of_feature in config.hook.pytest_gpuperf_header(config=config, run=session):
        lines += of_feature
    return [f"gpuperf: {line}" for line in lines if line]


def report_collectionfinish(config: pytest.Config) -> list[str]:
    """Reports what ranks run on if the run began after the header."""
    quiet = config.get_verbosity() < 0 or config.option.no_header
    return [] if SHOWN in config.stash or quiet else report_header(config)


def timeout_set_timer(item: pytest.Item, settings: object) -> bool | None:
    """With pytest-timeout's thread method: the timer tells of the ranks, and fails the test alone."""
    return set_timer(item, settings, item.config.stash[SESSION].ranks.interruptions)


def generate_tests(metafunc: pytest.Metafunc) -> None:
    """One variant for each world size."""
    session = metafunc.config.stash[SESSION]
    parametrize(metafunc, len(session.machine.gpus), session.capacity.nodes, largest=session.options.largest_worlds)


def itemcollected(item: pytest.Item) -> None:
    """Knows tests by their fixtures, before anything is deselected or named otherwise."""
    identify(item)
    mark_items(item)
    ours = item.config.stash[SESSION]
    if ours.machine.gpus and not ours.capacity.clustered and need_ranks([item]) and runs_tests(item.config):
        # What ranks are forked from imports while this process does, whatever is deselected later. On CPUs ranks and
        # tests share the cores, and there is nothing to gain.
        ours.supply.host.warm_up()


def put_perf_last(items: list[pytest.Item]) -> None:
    """Puts perf tests last before other plugins deselect."""
    sort_perf_last(items)


def collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips, orders and repeats tests, after other plugins have deselected."""
    session = config.stash[SESSION]
    arrange(
        items,
        session.options,
        session.machine,
        shared=is_worker(config),
        capacity=session.capacity,
        on_cpus=session.launch.measured,
        launches=session.launches,
    )


def collection_finish(session: pytest.Session) -> None:
    """Refuses baselines that cannot be read before anything is measured."""
    ours = session.config.stash[SESSION]
    leave_out_our_lines()  # now that tests have imported hypothesis, if any does
    ours.packing.note_collected(session.items, session.config)
    if session.config.option.collectonly:
        return
    if (ours.machine.gpus or ours.capacity.clustered) and need_ranks(session.items) and runs_tests(session.config):
        ours.supply.host.warm_up()  # before any lease: while it loads torch, others need not wait for the GPUs
    if measures(session.items) and ours.launch.measured:
        keep_bodies(session.items)
        if not ours.reads_baselines:
            return
        try:
            ours.load_baselines([find_launch(item).identity for item in session.items if is_perf(item)])
        except BaselineError as error:
            raise pytest.UsageError(make_one_line(str(error))) from error


def runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Brings up the test's ranks after its fixtures, before its own time begins."""
    __tracebackhide__ = True
    session = item.config.stash[SESSION]
    launch = find_launch(item)
    forget_properties(item)
    number = launch.number if is_perf(item) else None
    session.ranks.begin(item, world_size=world_size(item), launch=number, identity=launch.identity)
    if LACKS in item.stash:
        raise Ruled(f"--require-gpus: {item.stash[LACKS]}", pytrace=False)
    if (objection := item.config.hook.pytest_gpuperf_objection(item=item)) is not None:
        raise Ruled(objection, pytrace=False)
    if is_perf(item) and session.ranks.current.marker.launcher_env:
        raise Ruled(
            "a perf test is measured on a process group of the plugin's, and launcher_env=True leaves "
            "that to the program: drop launcher_env, and use the group that is there",
            pytrace=False,
        )
    if lacks_variants(item):
        raise Ruled(
            "a test of a unittest.TestCase cannot run on ranks, since pytest makes no variants of it: "
            "make it a function, or its class one that is no TestCase",
            pytrace=False,
        )
    try:
        yield
        if runs_tests(item.config):
            try:
                session.ranks.prepare()
            except LaunchError as error:  # whose message says all: where this package raised it helps nobody
                raise error.with_traceback(None) from None
    finally:
        _report_output(item, session, "setup")


def runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judges a perf test's metrics when its body has come to its end."""
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
        if is_perf(item) and session.judging is not None:
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
        item.config.hook.pytest_gpuperf_checked(item=item, checks=checks)
        session.concluding.conclude(item, checks)


def runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
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


def runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tells the whole story of a run that failed: every rank, and the command that runs the test alone."""
    session = item.config.stash[SESSION]
    failure = None if call.excinfo is None else session.ranks.find_failure(call.excinfo.value)
    if failure is not None:
        item.user_properties.extend(make_failure_properties(failure))
    report = yield
    if failure is None and call.excinfo is not None:  # pytest takes what unittest caught from the item, just now
        failure = session.ranks.find_failure(call.excinfo.value)
        properties = [] if failure is None else make_failure_properties(failure)
        item.user_properties.extend(properties)
        report.user_properties.extend(properties)
    if call.when == "teardown" and FAILURE in item.stash:
        del item.stash[FAILURE]  # whose frames hold all that the test had at hand
    if report.failed and call.excinfo is not None and isinstance(call.excinfo.value, Ruled):
        report.longrepr = str(call.excinfo.value)
    if failure is not None and report.failed:
        report.sections += [*failure.sections, ("run this alone", session.format_rerun_command())]
    return report


def exception_interact(node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
    """With ``--pdb``: the debugger on the rank, before pytest's own opens in this process."""
    config = node.config
    if not config.getoption("usepdb", False) or call.excinfo is None:
        return
    session = config.stash[SESSION]
    failure = session.ranks.find_failure(call.excinfo.value)
    if failure is not None:
        banner = iter([DEBUGGER_BANNER.format(rank=f"rank {failure.rank}") + "\n"])
        if not session.supply.host.debug(failure, lambda text: session.console.ask(next(banner, "") + text)):
            session.console.say(NO_DEBUGGER)


def sessionfinish(session: pytest.Session) -> None:
    """Writes the results, unless no test was to run: then what an earlier run has written stays."""
    if not runs_tests(session.config):
        return
    ours = session.config.stash[SESSION]
    results_written = ours.results is None or ours.results.write()
    features_written, lines = ours.feature_ends.write(session.config, ours)
    for line in lines:
        ours.console.print_line(f"{line}: the run fails")
    ending = Ending(
        slower=ours.findings.fails_by_environment(fails := ours.options.environment_fails)
        or fails_as_a_whole(ours.judging, fails),
        undecided=ours.options.undecided_fails and ours.findings.undecided,
        unraced=ours.findings.unraced,
        results_problem=not (results_written and features_written),
    )
    if ours.journal is not None:
        ours.journal.finished = results_written
    session.exitstatus = exit_status(session.exitstatus, ending)


def make_ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks that the test's ``ranks`` marker asks for; ``ranks.run(program)`` runs a program on them."""
    if not hasattr(request, "param"):
        pytest.fail(
            "ranks must be among the arguments of the test or of its fixtures: its world sizes become tests when "
            'those are collected, and request.getfixturevalue("ranks") comes later',
            pytrace=False,
        )
    return Ranks(request.config.stash[SESSION].ranks, request.param)


def make_perf(request: pytest.FixtureRequest, ranks: Ranks) -> Perf:
    """Times programs on the test's ranks: ``measure``, ``compare``, and ``check`` against baselines."""
    session = request.config.stash[SESSION]
    if not is_perf(request.node):
        pytest.fail(
            "perf must be among the arguments of the test or of its fixtures, or the test be marked perf: it is known "
            'for a perf test when it is collected, and request.getfixturevalue("perf") comes later',
            pytrace=False,
        )
    checks = request.node.stash[CHECKS] = Checks(request=request)
    request.config.hook.pytest_gpuperf_measures(item=request.node, checks=checks)
    return session.perf(ranks, checks)


def _report_output(item: pytest.Item, session: Session, when: str) -> None:
    session.console.end_lines()
    if not session.ranks.has_ranks:
        return  # what idle ranks print is no test's own, least of all one's that has none
    for title, text in session.supply.take_output():
        item.add_report_section(when, title, text)
