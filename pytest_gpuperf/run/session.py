"""What one pytest run owns: its hardware, its pools, the test that runs, and what was measured."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from pytest_gpuperf.baselines.journal import JournalError
from pytest_gpuperf.hardware.fitness import FIT, Conditions, Expected, conditions
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.watch import Watch
from pytest_gpuperf.leases.leasing import Leasing
from pytest_gpuperf.markers import RanksMarker, ranks_marker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import RankDied, RanksSkipped, RankTimeout
from pytest_gpuperf.ranks.launcher import PRELOAD, PRELOAD_IF_USED, Launcher
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.ranks.results import read_results
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.recording_lines import recording_lines
from pytest_gpuperf.report.verdict_line import run_policy_lines, shift_lines
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.gone import Collected, gone_lines
from pytest_gpuperf.run.hypothesis_internals import is_drawn
from pytest_gpuperf.run.measurements import Measurements, Saved
from pytest_gpuperf.run.packing import Packing, name_of
from pytest_gpuperf.verdicts.controls import Control
from pytest_gpuperf.verdicts.verdict import Verdict

_AFTER_A_HANG = 10  # times the longest run that returned: what a run gets once another of its test has hung
_LEAST_AFTER_A_HANG = 5.0  # seconds


class LeakWarning(UserWarning):
    """A test left something behind in its ranks; they were replaced, so that no other test meets it."""


class Console(Protocol):
    """Where the user watches the run."""

    @property
    def live(self) -> bool:
        """Whether what ranks print is shown as they print it."""
        ...

    def print_of_rank(self, rank: int, world_size: int, stream: str, text: str) -> None:
        """Prints what a rank has printed."""
        ...

    def print_line(self, text: str) -> None:
        """Prints a line of the plugin's own."""
        ...


class Session:
    """State of one pytest process. Starts ranks when a test first needs them."""

    def __init__(self, config: pytest.Config, options: Options, machine: Machine, console: Console) -> None:
        self.options = options
        self.machine = machine
        self.commands = Commands(
            config.rootpath,
            config.invocation_params.dir,
            len(machine.gpus),
            options.smoke,
            config.getoption("baselines") or "",
        )
        self.pools = Pools(
            Launcher(PRELOAD, PRELOAD_IF_USED),
            grace=options.grace,
            listener=console.print_of_rank if console.live else None,
            debug=bool(config.getoption("usepdb", False)),
        )
        self.leasing = Leasing(options, machine, console.print_line, self.pools.retire_all)
        self.packing = Packing(config.rootpath)
        self.measurements = Measurements(options, machine, config.rootpath)
        self.collection = Collected(config.rootpath, partly=bool(config.getoption("lf", False)))
        self.saved: Saved | None = None
        """Where a recording went, once the run has ended."""
        self._current: CurrentTest | None = None
        self._reported: CurrentTest | None = None
        """The test that began last; its teardown is reported when it has ended."""
        self._running = threading.RLock()  # prepare() has runs of its own
        self._output: dict[str, Excerpt] = {}
        """What ranks printed and no report has taken, by title."""
        self._tests = 0
        self._launch: int | None = None
        self._controlled: set[int] = set()
        """World sizes whose control workload the current launch has measured."""
        self._renewals = 0
        """How many process groups perf tests have asked for beyond their launches' own."""

    @property
    def current(self) -> CurrentTest:
        """The test that runs now.

        Raises:
            RuntimeError: none does: the caller kept a fixture beyond its test.
        """
        if self._current is None:
            raise RuntimeError("ranks can be used while a test runs, and none does")
        return self._current

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that the current test has leased, or leases now; empty for gloo."""
        self.prepare()
        return self.current.gpus

    def begin(self, item: pytest.Item, *, world_size: int | None, perf: bool, launch: int, identity: str) -> None:
        """A test begins."""
        marker = (None if world_size is None else ranks_marker(item, item.nodeid)) or RanksMarker(())
        self._tests += 1
        examples = is_drawn(getattr(item, "obj", None))
        self._current = self._reported = CurrentTest(
            item=item,
            identity=identity,
            marker=marker,
            timeout=marker.timeout or (self.options.example_timeout if examples else self.options.timeout),
            group=self._group_of(launch if perf else None),
            launch=launch if perf else None,
            seed=zlib.crc32(identity.encode(errors="surrogatepass")) >> 1,
            world_size=world_size,
        )

    def prepare(self) -> None:
        """Leases what the test needs and brings up its ranks and their process group, unless that was done.

        That is before its own time begins, and earlier where a fixture runs a program. Perf tests have the machine to
        themselves, and in each launch fresh processes.
        """
        current = self.current
        world_size = current.world_size
        if world_size is None or current.prepared:
            return
        current.prepared = True
        self._lease(current, world_size)
        if current.launch is not None:
            if current.launch != self._launch:
                self.pools.retire_all()
                try:
                    self.measurements.begin_launch(current.launch, self._software(world_size))
                except JournalError as error:
                    pytest.exit(one_line(str(error)), pytest.ExitCode.USAGE_ERROR)
                self._launch = current.launch  # now: where its first ranks fail, the next test begins it
                self._controlled.clear()
            self.pools.retire_others(self._spec(world_size))
            # In other surroundings the control workload would be another one.
            if current.gpus and not current.marker.env and self.measurements.wants_control:
                self.measurements.runs_on(current.identity, world_size)
                if world_size not in self._controlled:
                    self._controlled.add(world_size)
                    self.measurements.control(world_size, self._control(world_size))
        elif current.gpus and self.leasing.memory_is_scarce(current.gpus):
            self.pools.rest_others(self._spec(world_size))
        if current.marker.own_processes:
            self.pools.retire(self._spec(world_size))
        self._pool(world_size)

    def renew_group(self, world_size: int) -> None:
        """Gives the current test's ranks a process group with new communicators; the launch goes on with it."""
        self._renewals += 1
        self.current.group = self._group_of(self.current.launch)
        self._pool(world_size)

    def _group_of(self, launch: int | None) -> str:
        # Communicators belong to the launch: its perf tests share them, as one program would.
        return f"test {self._tests}" if launch is None else f"launch {launch}, group {self._renewals}"

    def end(self, *, keep_lease: bool = False, last: bool = False) -> None:
        """The test is over: closes what it opened, and lets go of what it leased. Ranks stay where they are, idle.

        Args:
            keep_lease: whether the next test goes on where this one ends: a perf test of the same launch.
            last: whether this process runs no other test.

        Raises:
            LeakWarning: it left something behind in its ranks, and warnings are errors.
        """
        current, self._current = self._current, None
        if current is None:
            return
        try:
            if current.launch is None:
                try:
                    left = self.pools.settle()
                except RankDied:
                    current.failures.extend(self.pools.failures)
                    raise
                finally:
                    self._collect_output()
                    if current.marker.own_processes:
                        self.pools.retire_with(current.marker.env)
                if left:
                    current.item.warn(
                        LeakWarning(f"{current.identity} left behind, in ranks that were replaced: {'; '.join(left)}")
                    )
        finally:
            if not keep_lease:
                self._let_go(current, last)

    def _let_go(self, current: CurrentTest, last: bool) -> None:
        gpus = bool(self.machine.gpus)
        # After the last test on CPUs, too: pytest-cov gathers what ranks wrote at their end before the run has ended.
        over = last or (bool(current.gpus) and current.launch is not None)  # no other test needs a launch's ranks
        try:
            if over or (gpus and self.leasing.wanted_alone(self.pools.gpus)):
                self.pools.retire_all()
            elif current.gpus and self.leasing.memory_is_scarce(current.gpus):
                self.pools.rest()
        finally:
            self.leasing.release(staying=self.pools.gpus, await_memory=bool(current.gpus))
        self.leasing.make_way()

    def failure_of(self, error: BaseException | None) -> PostMortem | None:
        """What is known of the run that raised this, if one did."""
        failures = [] if self._reported is None else list(self._reported.failures)
        raised = (error, *error.exceptions) if isinstance(error, BaseExceptionGroup) else (error,)
        return next((failure for failure in reversed(failures) if failure.error in raised), None)

    def debug(self, failure: PostMortem, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on the rank that failed, if it is still there."""
        return self.pools.debug(failure, terminal)

    def rerun_command(self) -> str:
        """The command that runs the test that began last alone."""
        assert self._reported is not None
        return self.commands.run(self._reported.identity, self._reported.item.path)

    def take_output(self) -> list[tuple[str, str]]:
        """What ranks printed since the last call: title, text."""
        self._collect_output()
        output, self._output = self._output, {}
        return [(title, str(text)) for title, text in output.items()]

    def closing_lines(self, verdicts: Sequence[Verdict]) -> list[str]:
        """What the run's summary says of a recording, or of a run as a whole that came to these verdicts."""
        gone = gone_lines(self.collection.gone(self.measurements.stored), self.measurements.path)
        if self.options.update_baselines:
            return [*gone, *recording_lines(self.options, self.measurements, self.saved, self.commands)]
        moved = shift_lines(self.measurements.shift, self.measurements.moved)
        return [*gone, *run_policy_lines(self.options.policy, verdicts), *moved]

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
    ) -> list[Any]:
        """Calls ``entry(context, *args, **kwargs)`` on every rank; the results in rank order.

        Raises:
            RuntimeError: another thread's run has not ended.
        """
        __tracebackhide__ = True
        if not self._running.acquire(blocking=False):
            raise RuntimeError("ranks do one run after another, and one of another thread has not ended")
        try:
            self.prepare()
            current = self.current
            task = self.packing.packed((entry, tuple(args), kwargs), program)
            pool = self._pool(world_size)
            start = time.monotonic()
            try:
                payloads = pool.run(task, program=name_of(program), seed=current.seed, timeout=current.timeout)
            except RanksSkipped as skipped:
                pytest.skip(str(skipped))
            except RankTimeout:
                # Others of its runs will hang too, when hypothesis looks for a smaller one: they need not take as long.
                after = max(_LEAST_AFTER_A_HANG, _AFTER_A_HANG * current.longest)
                current.timeout = min(current.timeout, after)
                raise
            finally:
                self._collect_output()
                if pool.failure is not None:
                    current.failures.append(pool.failure)
            current.longest = max(current.longest, time.monotonic() - start)
            return read_results(payloads, pool.spec, name_of(program))
        finally:
            self._running.release()

    def watched_run(
        self, world_size: int, entry: Callable[..., Any], args: Sequence[Any], program: Callable[..., Any]
    ) -> tuple[list[Any], Conditions]:
        """The results of a run in rank order, and what was observed of its GPUs meanwhile."""
        __tracebackhide__ = True
        gpus = self.gpus[:world_size]
        if not gpus or self.options.smoke:
            return self.run(world_size, entry, args, {}, program), FIT
        processes = self._pool(world_size).pids
        with Watch(gpus) as watch:
            results = self.run(world_size, entry, args, {}, program)
        nvlinks = {gpu.uuid: gpu.nvlinks for gpu in self.machine.gpus}
        return results, conditions(watch.seen, Expected(nvlinks, processes), watch.xids)

    def _software(self, world_size: int) -> dict[str, str]:
        from pytest_gpuperf.timing.software import software  # loads torch, as every perf test's module has

        versions: list[dict[str, str]] = self.run(world_size, software, (), {}, software)
        return versions[0]

    def _control(self, world_size: int) -> dict[str, Control]:
        """The control workload by name; what the machine was not fit for is missing."""
        from pytest_gpuperf.timing.control import workload

        of = f"{world_size} rank{'s' if world_size > 1 else ''}"
        controls = {}
        # A test may ask for less time than this takes, which is none of its own.
        asked, self.current.timeout = self.current.timeout, max(self.current.timeout, self.options.timeout)
        for name, part in workload(world_size).items():
            ranks, found = self.watched_run(world_size, part, (), part)
            if not found.tripped:
                controls[f"{name} on {of}"] = Control(ranks[0], found.power_capped)
        self.current.timeout, self.current.longest = asked, 0.0
        return controls

    def close(self) -> None:
        """Ends all ranks, and lets go of what is leased."""
        self.pools.close()
        self.leasing.close()

    def _lease(self, current: CurrentTest, world_size: int) -> None:
        if not self.machine.gpus or current.marker.device == "cpu":
            self.leasing.cores(world_size, current.identity)
        elif current.launch is not None:
            current.gpus = self.leasing.machine(current.identity)
        else:
            current.gpus = self.leasing.gpus(world_size, current.identity, self.pools.warm(world_size))

    def _spec(self, world_size: int) -> PoolSpec:
        current = self.current
        return PoolSpec(world_size, current.gpus[:world_size], current.marker.env, timed=current.launch is not None)

    def _pool(self, world_size: int) -> Pool:
        current = self.current
        try:
            pool = self.pools.get(self._spec(world_size), current.group, current.timeout)
        finally:
            self._collect_output()
        if (death := self.pools.take_death()) is not None:
            current.item.warn(LeakWarning(f"before {current.identity} began, after another test had ended: {death}"))
        return pool

    def _collect_output(self) -> None:
        for spec, rank, stream, text in self.pools.output():
            title = f"{stream} of rank {rank} of {spec.world_size}"
            self._output[title] = self._output.get(title, Excerpt()) + text
