"""The ranks of the test that runs: they are prepared, they run programs, and they end with the test."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from pytest_gpuperf.figures.conditions import FIT, Conditions
from pytest_gpuperf.hardware.fitness import AtStart, make_conditions
from pytest_gpuperf.hardware.nccl_log import NcclLog
from pytest_gpuperf.markers import RanksMarker, find_ranks_marker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.failures import LaunchError, RanksSkipped, RankTimeout
from pytest_gpuperf.ranks.nccl_debug import LOGGED
from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.ranks.results import read_results
from pytest_gpuperf.ranks.spec import Opening
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.hypothesis_internals import is_drawn
from pytest_gpuperf.run.interruptions import Interruptions
from pytest_gpuperf.run.nodes import RunNodes
from pytest_gpuperf.run.packing import Packing, name_program
from pytest_gpuperf.run.patches import Patches, patch_warning
from pytest_gpuperf.run.rank_supply import RankSupply


class Around(Protocol):
    """What a feature puts between a test and its ranks."""

    def enter(
        self, entry: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
        """What the ranks call in place of a program."""
        ...

    def leave(self, results: list[Any]) -> list[Any]:
        """The results of the program, of what the ranks returned, in rank order."""
        ...


class CurrentRanks:
    """The ranks of one test after another. Starts them when a test first needs them."""

    def __init__(
        self,
        supply: RankSupply,
        nodes: RunNodes,
        options: Options,
        packing: Packing,
        launch: CurrentLaunch,
    ) -> None:
        self._supply = supply
        self._nodes = nodes
        self.machine = nodes.machine
        self._options = options
        self._packing = packing
        self._launch = launch
        self._patches = Patches(packing.travels)
        self._current: CurrentTest | None = None
        self.reported: CurrentTest | None = None
        """The test that began last; its teardown is reported when it has ended."""
        self.around: Around | None = None
        """What stands around each program of a test that is not timed."""
        self.interruptions = Interruptions()
        """Ends runs from outside: by SIGTERM, or by a timer."""
        self._running = threading.Lock()
        self._tests = 0
        self._renewals = 0
        """How many process groups were asked for beyond those of tests and launches."""
        self._timed: tuple[tuple[int, ...], float] = ((), -math.inf)
        """The processes whose timed run ended last, and when."""

    @property
    def current(self) -> CurrentTest:
        """The test that runs now.

        Raises:
            RuntimeError: no test runs: the caller kept a fixture beyond its test.
        """
        if self._current is None:
            raise RuntimeError("ranks can be used while a test runs, and none does")
        return self._current

    @property
    def has_ranks(self) -> bool:
        """Whether the test that began last uses ranks."""
        return self.reported is not None and self.reported.world_size is not None

    @property
    def backend(self) -> str:
        """The backend of the current test's process group: ``nccl`` on GPUs, else ``gloo``."""
        return "nccl" if self.machine.gpus and self.current.marker.device != "cpu" else "gloo"

    def begin(self, item: pytest.Item, *, world_size: int | None, launch: int | None, identity: str) -> None:
        """A test begins.

        Args:
            item: the test.
            world_size: how many ranks it has; None if it uses none.
            launch: the number of a perf test's launch; None for other tests.
            identity: node id, the same in each launch.
        """
        marker = (None if world_size is None else find_ranks_marker(item, item.nodeid)) or RanksMarker(())
        self._tests += 1
        examples = is_drawn(getattr(item, "obj", None))
        self._supply.host.retire_owned(but=str(item.path))
        if world_size is not None:
            self._patches.begin()
        self._current = self.reported = CurrentTest(
            item=item,
            identity=identity,
            marker=marker,
            timeout=marker.timeout or (self._options.example_timeout if examples else self._options.timeout),
            group=self._name_group(launch),
            launch=launch,
            seed=zlib.crc32(identity.encode(errors="surrogatepass")) >> 1,
            world_size=world_size,
        )

    def prepare(self) -> None:
        """Leases what the test needs and brings up its ranks and their process group, unless that was done.

        That is before its own time begins, and earlier if a fixture runs a program. Perf tests have the machine to
        themselves, and in each launch fresh processes.
        """
        current = self.current
        world_size = current.world_size
        if world_size is None or current.prepared:
            return
        current.prepared = True
        self._nodes.look()
        if current.launch is None:
            self._supply.place(current, world_size)  # a node that comes in place of a lost one is leased, too
        self._supply.lease(current, world_size)
        if current.launch is not None:
            self._prepare_launch(current, world_size, current.launch)
        self._supply.bring_up(current, world_size)

    def enlist(self, marker: RanksMarker, opening: Opening, environ: Mapping[str, str]) -> None:
        """Gives the current test ranks that it did not ask for by a marker, and brings them up.

        Args:
            marker: what they are, with one world size.
            opening: what they have when a program begins.
            environ: what they inherit.

        Raises:
            RuntimeError: no test runs.
        """
        current = self.current
        (world_size,) = marker.world_sizes
        if current.prepared and (current.marker, current.opening) == (marker, opening):
            return
        current.marker, current.opening, current.environ = marker, opening, environ
        current.world_size, current.prepared, current.gpus = world_size, False, ()
        current.timeout = marker.timeout or self._options.timeout
        self.prepare()

    def lease_gpus(self) -> tuple[str, ...]:
        """Prepares the current test's ranks, and returns the UUIDs of their GPUs; empty for gloo."""
        self.prepare()
        return self.current.gpus

    def renew_group(self, world_size: int) -> None:
        """Gives the current test's ranks a process group with new communicators; the launch goes on with it."""
        self._renewals += 1
        self.current.group = self._name_group(self.current.launch)
        self._supply.get(self.current, world_size)

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
        *,
        name: str = "",
        outlives_deaths: bool = False,
    ) -> list[Any]:
        """Calls ``entry(context, *args, **kwargs)`` on every rank; the results in rank order.

        Args:
            world_size: how many ranks.
            entry: what they call.
            args: its arguments after the context.
            kwargs: its keyword arguments.
            program: what the entry runs.
            name: of the program, as reports have it; empty for its own.
            outlives_deaths: whether the other ranks go on after one died.

        Raises:
            RuntimeError: another thread's run has not ended.
        """
        __tracebackhide__ = True
        with self._alone():
            self.prepare()
            return self._execute(world_size, entry, args, kwargs, program, name, outlives_deaths)

    def watch_run(
        self, world_size: int, entry: Callable[..., Any], args: Sequence[Any], program: Callable[..., Any]
    ) -> tuple[list[Any], Conditions]:
        """The results of a run in rank order, and what was observed of its GPUs meanwhile."""
        __tracebackhide__ = True
        with self._alone():
            self.prepare()
            processes = self._supply.get(self.current, world_size).pids
            found = self._watch(world_size, entry, args, program)
            self._timed = processes, time.monotonic()
            return found

    def idle_seconds(self, world_size: int) -> float:
        """How long ago these ranks' last timed run ended, in this test or before it; infinite if they had none."""
        with self._alone():
            self.prepare()
            processes, ended = self._timed
            return (
                time.monotonic() - ended if processes == self._supply.get(self.current, world_size).pids else math.inf
            )

    def probe_nccl(self, item: pytest.Item) -> Sequence[NcclLog]:
        """Runs collectives on all GPUs, in fresh ranks that keep NCCL's log; the logs in rank order; none with gloo.

        Args:
            item: a test that does not run now.
        """
        size = len(self.machine.gpus)
        self.begin(item, world_size=size, launch=None, identity=item.nodeid)
        current = self.current
        current.probes, current.marker = (
            True,
            RanksMarker((size,), isolation="process", env=tuple(sorted(LOGGED.items()))),
        )
        try:
            with self._alone():
                self._supply.lease(current, size)
                current.prepared = True
                if not self._supply.has_nccl(current, size):
                    return []
                self._supply.host.retire_all()
                from pytest_gpuperf.ranks.nccl_probe import probe

                logs: list[NcclLog] = self._execute(size, probe, (), {}, probe)
                return logs
        finally:
            self.end(last=True)

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
                self._supply.settle(current)
            elif current.marker.own_processes:  # of a launch, too, no other test meets them
                self._supply.host.retire_with(current.marker.env, wait=not keep_lease)
        finally:
            if not keep_lease:
                self._supply.let_go(current, last)

    def vacate(self) -> None:
        """Ends all ranks, and lets go of what a perf test has left to the next one, which begins a launch anew."""
        self._supply.vacate()
        self._launch.end()

    def close(self) -> None:
        """The run is over."""
        self._patches.close()

    def replace_ranks(self) -> None:
        """Ends all ranks; the next test of the launch, which goes on, has fresh ones."""
        self._supply.host.retire_all()

    def find_failure(self, error: BaseException | None) -> PostMortem | None:
        """What is known of the run that raised this, if one did."""
        failures = [] if self.reported is None else list(self.reported.failures)
        raised = (error, *error.exceptions) if isinstance(error, BaseExceptionGroup) else (error,)
        return next((failure for failure in reversed(failures) if failure.error in raised), None)

    def find_interrupted(self, error: BaseException) -> tuple[str, PostMortem] | None:
        """The test whose run this ended, and what is known of that run; None if it ended none."""
        failure = self.find_failure(error)
        return None if failure is None or self.reported is None else (self.reported.item.nodeid, failure)

    def _prepare_launch(self, current: CurrentTest, world_size: int, launch: int) -> None:
        if losses := self._nodes.losses:
            raise LaunchError(
                f"perf tests measure the nodes that the run began with, and it has lost some: "
                f"{'; '.join(losses)}: run them again (a recording with --resume)"
            )
        if launch != self._launch.number:
            self._supply.host.retire_all()
            if self._launch.began and self._launch.renews:
                self._supply.host.renew()
            software = self._read_software(world_size)  # if these ranks fail, the next test begins the launch
            self._launch.begin(launch, software)
        # A process with much of a GPU's memory takes half a second to end, in which the next ones start.
        self._supply.host.retire_all(but=self._supply.spec(current, world_size), wait=False)

    def _read_software(self, world_size: int) -> dict[str, str]:
        from pytest_gpuperf.timing.software import software  # loads torch, as every perf test's module has

        versions: list[dict[str, str]] = self._execute(world_size, software, (), {}, software)
        return versions[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("ranks do one run after another, and one of another thread has not ended")
        try:
            yield
        finally:
            self._running.release()

    def _execute(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
        name: str = "",
        outlives_deaths: bool = False,
    ) -> list[Any]:
        """A run on ranks that are prepared, or are just being prepared."""
        __tracebackhide__ = True
        current = self.current
        name = name or name_program(program)
        around = None if current.probes or current.launch is not None else self.around
        if around is not None:
            entry, args, kwargs = around.enter(entry, args, kwargs)
        task = self._packing.pack((entry, tuple(args), kwargs), program)
        self._warn_of_patches(current, lambda: self._packing.list_packages(entry, tuple(args), kwargs))
        pool = self._supply.get(current, world_size)
        start = time.monotonic()
        try:
            with self.interruptions.admit():
                payloads = pool.run(
                    task,
                    program=name,
                    seed=current.seed,
                    timeout=current.timeout,
                    outlives_deaths=outlives_deaths,
                    scene=self._packing.scene(),
                )
        except RanksSkipped as skipped:
            pytest.skip(str(skipped))
        except RankTimeout as error:
            current.note_hang(error)
            raise
        finally:
            self._supply.collect_output()
            if pool.failure is not None:
                current.failures.append(pool.failure)
            if pool.spec.opening is not Opening.GROUP:
                self._renewals += 1  # the next run begins as this one did, without groups and without their keys
                current.group = f"{current.group}, run {self._renewals}"
        current.note_returned(time.monotonic() - start)
        results = read_results(payloads, pool.spec, name)
        return results if around is None else around.leave(results)

    def _warn_of_patches(self, current: CurrentTest, packages: Callable[[], Set[str]]) -> None:
        missing = [name for name in self._patches.missing(current.item) if name not in current.patched]
        # A fixture for all tests may patch what no program uses.
        used = packages() if missing else ()
        if new := [name for name in missing if name.partition(".")[0] in used]:
            current.patched.update(new)
            current.item.warn(patch_warning(current.identity, new))

    def _watch(
        self, world_size: int, entry: Callable[..., Any], args: Sequence[Any], program: Callable[..., Any]
    ) -> tuple[list[Any], Conditions]:
        __tracebackhide__ = True
        gpus = self._supply.place(self.current, world_size).gpus
        if not gpus or not self._launch.measured:
            return self._execute(world_size, entry, args, {}, program), FIT
        processes = self._supply.get(self.current, world_size).pids
        with self._nodes.watch(gpus) as watch:
            results = self._execute(world_size, entry, args, {}, program)
        nvlinks = {gpu.uuid: gpu.nvlinks for gpu in self.machine.gpus}
        return results, make_conditions(watch.seen, AtStart(nvlinks, processes, self._nodes.node_names), watch.xids)

    def _name_group(self, launch: int | None) -> str:
        # Communicators belong to the launch: its perf tests share them, as one program would.
        return f"test {self._tests}" if launch is None else f"launch {launch}, group {self._renewals}"
