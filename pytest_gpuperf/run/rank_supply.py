"""The supply of ranks: what a test's are made of, the GPUs that they lease, and when they go."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.leases.lessor import Lessor
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.ranks.spec import Opening, PoolSpec
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.current_test import CurrentTest
from pytest_gpuperf.run.nodes import Placement, RunNodes, Wanted


class LeakWarning(UserWarning):
    """A test left something behind in its ranks; they were replaced, so that no other test meets it."""

    __module__ = "pytest_gpuperf"  # where users import it from, and filter it by


class RankSupply:
    """Brings up the ranks of one test after another, and lets go of them."""

    def __init__(self, nodes: RunNodes, options: Options, host: Pools, leasing: Lessor, launch: CurrentLaunch) -> None:
        """Starts nothing.

        Args:
            nodes: where the ranks are.
            options: what the user said.
            host: starts and holds the ranks.
            leasing: of GPUs and cores.
            launch: of perf tests.
        """
        self.host = host
        self.leasing = leasing
        self._nodes = nodes
        self._has_gpus = bool(nodes.machine.gpus)  # when the run begins: its nodes may be lost later
        self._hashes_by_rank = options.hashes_by_rank
        self._launch = launch
        self._output: dict[str, Excerpt] = {}
        """What ranks printed and nobody has taken, by title."""
        self._spoiled: set[PoolSpec] = set()

    def spec(self, test: CurrentTest, world_size: int) -> PoolSpec:
        """What the test's ranks are made of; ``world_size`` may be smaller than the test's."""
        marker = test.marker
        placed = self.place(test, world_size)
        opening = Opening.LAUNCHER if marker.launcher_env else test.opening
        owner = str(test.item.path) if marker.isolation == "file" else ""
        hashes = "" if test.is_timed else self._hashes_by_rank
        return PoolSpec(
            world_size, placed.gpus, marker.env, placed.cores, test.is_timed, opening, owner, hashes, placed.nodes
        )

    def has_nccl(self, test: CurrentTest, world_size: int) -> bool:
        """Whether the test's ranks communicate by NCCL."""
        return self.spec(test, world_size).backend == "nccl"

    def place(self, test: CurrentTest, world_size: int) -> Placement:
        """The GPUs and cores of the test's ranks."""
        marker = test.marker
        wanted = Wanted(world_size, test.gpus, on_gpus=marker.device != "cpu", timed=test.is_timed)
        if world_size == test.world_size:  # a smaller world that the test draws is packed
            wanted = replace(wanted, nodes=marker.choose_nodes(self._nodes.size), per_node=marker.per_node)
        return self._nodes.place(wanted)

    def lease(self, test: CurrentTest, world_size: int) -> None:
        """Leases the GPUs or cores that the test needs. Perf tests have the machine to themselves."""
        if not self._has_gpus or test.marker.device == "cpu":
            if test.launch is not None and self._launch.measured:
                self.leasing.cores(world_size, test.identity)
        elif test.launch is not None:
            test.gpus = self.leasing.machine(test.identity)
        else:
            test.gpus = self.leasing.gpus(world_size, test.identity, self.host.warm(world_size))

    def bring_up(self, test: CurrentTest, world_size: int) -> None:
        """Starts the test's ranks, unless they are there and may serve it."""
        if test.launch is None and test.gpus and self.leasing.memory_is_scarce(test.gpus):
            self.host.rest(but=self.spec(test, world_size))
        if test.marker.own_processes:
            self.host.retire(self.spec(test, world_size), wait=test.launch is None)
        self.get(test, world_size)

    def get(self, test: CurrentTest, world_size: int) -> Pool:
        """The test's ranks, with its process group. Warns of one that died after another test had ended."""
        ranks = self.host.get(self.spec(test, world_size), test.group, test.timeout, test.environ)
        if (death := self.host.take_death()) is not None:
            notes = "".join(f"\n{note}" for note in getattr(death, "__notes__", ()))
            told = f"before {test.identity} began, after another test had ended: {death}{notes}"
            test.item.warn(LeakWarning(told))
        return ranks

    def spoil(self, test: CurrentTest, world_size: int) -> None:
        """Has these ranks serve no other test."""
        self._spoiled.add(self.spec(test, world_size))

    def settle(self, test: CurrentTest) -> None:
        """Has the ranks close what the test opened.

        Raises:
            LeakWarning: it left something behind in its ranks, and warnings are errors.
        """
        try:
            left = self.host.settle()
        except RankDied:
            test.failures.extend(self.host.failures)
            raise
        finally:
            self.collect_output()
            if test.marker.own_processes:
                self.host.retire_with(test.marker.env)
            while self._spoiled:
                self.host.retire(self._spoiled.pop())
        if left and test.marker.isolation != "process":  # else nobody could have met it
            test.item.warn(LeakWarning(f"{test.identity} left behind, in ranks that were replaced: {'; '.join(left)}"))

    def let_go(self, test: CurrentTest, last: bool) -> None:
        """Lets go of what the test leased; its ranks stay if others may use them.

        Args:
            test: has ended.
            last: whether this process runs no other.
        """
        # After the last test on CPUs, too: pytest-cov gathers what ranks wrote at their end before the run has ended.
        over = last or (bool(test.gpus) and test.launch is not None)  # no other test needs a launch's ranks
        try:
            if over or (self._has_gpus and self.leasing.is_wanted_alone(self.host.gpus)):
                self.host.retire_all()
            elif test.gpus and self.leasing.memory_is_scarce(test.gpus):
                self.host.rest()
        finally:
            self.leasing.release(staying=self.host.gpus, await_memory=bool(test.gpus))
        self.leasing.make_way()

    def vacate(self) -> None:
        """Ends all ranks, and lets go of what a perf test has left to the next one."""
        try:
            self.host.retire_all()
        finally:
            self.leasing.release(staying=self.host.gpus, await_memory=self._has_gpus)

    def collect_output(self) -> None:
        """Keeps what ranks have printed for whoever takes it."""
        for spec, rank, stream, text in self.host.output():
            title = f"{stream} of {spec.title(rank)}"
            self._output[title] = self._output.get(title, Excerpt()) + text

    def take_output(self) -> list[tuple[str, str]]:
        """What ranks printed since the last call: title, text."""
        self.collect_output()
        output, self._output = self._output, {}
        return [(title, str(text)) for title, text in output.items()]

    def close(self) -> None:
        """Ends all ranks, and lets go of what is leased."""
        self.host.close()
        self.leasing.close()
