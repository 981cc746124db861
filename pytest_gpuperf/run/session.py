"""What one pytest run is made of, wired together."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest

from pytest_gpuperf.api.checks import Checks
from pytest_gpuperf.api.perf import Perf
from pytest_gpuperf.api.ranks import Ranks
from pytest_gpuperf.baselines.storage import Storage, make_storage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.topology import Topology
from pytest_gpuperf.options import Options, is_worker, runs_tests
from pytest_gpuperf.ranks.forkserver_client import PRELOAD, PRELOAD_IF_USED, ForkserverClient
from pytest_gpuperf.ranks.placement import Capacity
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.console import Console
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.interrupted import Interrupted
from pytest_gpuperf.report.kinds import collect_kinds
from pytest_gpuperf.report.progress import Measuring, Progress
from pytest_gpuperf.report.results_file import ResultsFile
from pytest_gpuperf.report.run_journal import Head, RunJournal
from pytest_gpuperf.report.shown import Shown
from pytest_gpuperf.report.terminal import Reported, Summary
from pytest_gpuperf.run.choosing import Choosing
from pytest_gpuperf.run.concluding import Concluding
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.feature_ends import FeatureEnds
from pytest_gpuperf.run.gone import SeenTests
from pytest_gpuperf.run.judging import Judging, find_judge, make_judge
from pytest_gpuperf.run.launcher_skips import LauncherSkips
from pytest_gpuperf.run.launches import find_launch
from pytest_gpuperf.run.left_groups import LeftGroups
from pytest_gpuperf.run.nodes import RunNodes, ThisMachine
from pytest_gpuperf.run.packing import Packing
from pytest_gpuperf.run.rank_supply import RankSupply
from pytest_gpuperf.run.selection import is_perf, measures
from pytest_gpuperf.run.summary_lines import SummaryLines
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.verdicts.expectations import Expects
from pytest_gpuperf.verdicts.judge import Judge


@dataclass(frozen=True, slots=True)
class Session:
    """The parts of one pytest process. No part starts a process until a test needs ranks."""

    options: Options
    nodes: RunNodes
    """Where the ranks are."""
    machine: Machine
    """The GPUs of all nodes when the run began, as one machine's."""
    console: Console
    commands: Commands
    supply: RankSupply
    """Starts the ranks, and leases what they run on."""
    packing: Packing
    storage: Storage
    ranks: CurrentRanks
    launch: CurrentLaunch
    judge: Judge | None
    """Holds metrics against the baselines; None if nothing does."""
    judging: Judging | None
    """The judge, or what judges or keeps metrics in its place; None if they are only shown."""
    concluding: Concluding
    summary: SummaryLines
    seen: SeenTests
    findings: Findings
    feature_ends: FeatureEnds
    results: ResultsFile | None
    """None unless this process gathers the results, for a file or for a feature."""
    journal: RunJournal | None
    """Goes with the file of results."""
    choosing: Choosing
    launches: int
    """How often each perf test runs."""
    reads_baselines: bool
    """Whether metrics are held against baselines, or become some."""
    reports: bool
    """Whether this process reports; if not, another one does for it."""

    @classmethod
    def of(cls, config: pytest.Config, options: Options, nodes: RunNodes) -> Self:
        """Makes the parts of a run.

        Args:
            config: pytest's.
            options: what the user said.
            nodes: where the ranks are.
        """
        console, root, machine = Console(config), config.rootpath, nodes.machine
        judged = find_judge(config.hook.pytest_gpuperf_judges(config=config, options=options, machine=machine))
        commands = _make_commands(config, options, nodes)
        host = Pools(
            nodes,
            grace=options.grace,
            delays=options.delay_seed,
            listener=console.print_of_rank if console.live else None,
            debug=bool(config.getoption("usepdb", False)),
        )
        leasing = nodes.lessor(options, console.print_line, host.retire_all)
        packing = Packing(root, nodes.lacks)
        storage = make_storage(options.baselines)
        launch = _make_launch(config, options, nodes, on_cpus=judged is not None and judged.on_cpus)
        judge = _make_judge(config, options, launch, machine) if judged is None else None
        judging = judge if judged is None else None if options.smoke else judged.by
        seen = SeenTests(root, partly=bool(config.getoption("lf", False)))
        reports = not is_worker(config) and (judged is None or judged.reports)
        gathers = runs_tests(config) and (
            options.results is not None or any(config.hook.pytest_gpuperf_needs_results(config=config))
        )
        kinds = collect_kinds(config)
        supply = RankSupply(nodes, options, host, leasing, launch)
        ranks = CurrentRanks(supply, nodes, options, packing, launch)
        return cls(
            options=options,
            nodes=nodes,
            machine=machine,
            console=console,
            commands=commands,
            supply=supply,
            packing=packing,
            storage=storage,
            ranks=ranks,
            launch=launch,
            judge=judge,
            judging=judging,
            concluding=Concluding(
                machine.key,
                launch,
                judging,
                commands,
                smoke=options.smoke,
                results=gathers,
            ),
            summary=SummaryLines(
                options,
                commands,
                seen,
                storage.where(machine.key),
                judging,
                nodes.report,
                lambda: [line for lines in config.hook.pytest_gpuperf_closing_lines(config=config) for line in lines],
            ),
            seen=seen,
            findings=Findings(kinds),
            feature_ends=FeatureEnds(),
            results=_make_results(options, machine, kinds) if reports and gathers else None,
            journal=_make_journal(options.results, commands, machine)
            if reports and gathers and options.results is not None
            else None,
            choosing=Choosing(ranks, console.print_line),
            launches=1 if judged is None else judged.launches,
            reads_baselines=judge is not None if judged is None else judged.reads,
            reports=reports,
        )

    def register(self, config: pytest.Config) -> None:
        """Registers the parts that have hooks of their own; reports only in the process that has all of them."""
        plugins = config.pluginmanager
        plugins.register(self.seen, "gpuperf-seen")
        plugins.register(LeftGroups(), "gpuperf-left-groups")
        plugins.register(self.feature_ends, "gpuperf-feature-ends")
        if self.results is not None:
            plugins.register(self.results, "gpuperf-results")
        if self.journal is not None:
            plugins.register(self.journal, "gpuperf-journal")
        if not self.reports:
            return  # the controller, for example of xdist's workers, reports for all of them
        plugins.register(self.findings, "gpuperf-findings")
        plugins.register(
            Summary(self.summary.lines, self.findings, self.commands, smoke=self.options.smoke), "gpuperf-summary"
        )
        plugins.register(Interrupted(self.console, self.ranks.find_interrupted), "gpuperf-interrupted")
        plugins.register(Progress(self.console, self.launches, _list_measuring), "gpuperf-progress")
        plugins.register(LauncherSkips(), "gpuperf-launcher-skips")
        reported = Reported(self.summary.lines, self.findings, self.commands, config.rootpath)
        config.hook.pytest_gpuperf_reports(config=config, reported=reported)

    def load_baselines(self, tests: Sequence[str]) -> None:
        """Reads the baselines, also before a recording: a file that cannot be read stops the run at once.

        Args:
            tests: node ids of the perf tests that are going to run.

        Raises:
            BaselineError: the file is not one of this hardware's baselines, or of other GPUs than these.
        """
        key = self.machine.key
        stored = self.storage.load(key)
        if stored is not None:
            stored.require(self.machine.match, self.storage.where(key))
            self.summary.stored = frozenset(stored.tests)
        if self.judge is not None:
            self.judge.load(stored, tests)

    @property
    def capacity(self) -> Capacity:
        """What ranks may be put on."""
        return self.nodes.capacity

    def perf(self, ranks: Ranks, checks: Checks) -> Perf:
        """The object that a perf test holds, with what the user asked for."""
        return Perf(self.ranks, ranks, checks, Sampling(smoke=self.options.smoke))

    def format_rerun_command(self) -> str:
        """The command that runs the test that began last alone; without GPUs a perf test needs ``--smoke``."""
        reported = self.ranks.reported
        assert reported is not None
        smoke = self.options.smoke or (is_perf(reported.item) and not self.machine.gpus)
        return replace(self.commands, smoke=smoke).run(reported.identity, reported.item.path)

    def close(self) -> None:
        """Ends all ranks, and lets go of what is leased."""
        self.ranks.close()
        self.supply.close()


def make_this_machine(
    config: pytest.Config, options: Options, machine: Machine, *, first: Sequence[str] = ()
) -> ThisMachine:
    """Returns this machine as the only node of a run; starts nothing.

    Args:
        config: pytest's.
        options: what the user said.
        machine: with the GPUs of the run.
        first: modules that ranks shall load before all others.
    """
    return ThisMachine(
        machine,
        options,
        ForkserverClient((*first, *PRELOAD), merge_preloads(config, len(machine.gpus)), options.hash_seed),
    )


def merge_preloads(config: pytest.Config, gpus: int) -> dict[str, str]:
    """Modules that ranks shall find loaded, by the module whose import by a test asks for them.

    Args:
        config: pytest's.
        gpus: how many the run uses.
    """
    merged = dict(PRELOAD_IF_USED)
    for of_feature in config.hook.pytest_gpuperf_preload(config=config, gpus=gpus):
        merged.update(of_feature)
    return merged


def _make_commands(config: pytest.Config, options: Options, nodes: RunNodes) -> Commands:
    build: str | None = config.hook.pytest_gpuperf_bisects(config=config, nodes=nodes)
    return Commands(
        config.rootpath,
        config.invocation_params.dir,
        len(nodes.machine.gpus),
        options.smoke,
        config.getoption("gpuperf_baselines") or "",
        nodes.option,
        bisects=build is not None,
        build=build or "",
        delays=options.delay_seed,
    )


def _make_launch(config: pytest.Config, options: Options, nodes: RunNodes, *, on_cpus: bool) -> CurrentLaunch:
    return CurrentLaunch(
        nodes.machine,
        nodes.site,
        config.rootpath,
        lambda began: config.hook.pytest_gpuperf_launch_begins(config=config, launch=began),
        measured=not options.smoke and (bool(nodes.machine.gpus) or on_cpus),
        hash_seed=nodes.hash_seed,
    )


def _make_judge(config: pytest.Config, options: Options, launch: CurrentLaunch, machine: Machine) -> Judge | None:
    """What judges the metrics by baselines; None if nothing is measured."""
    if not launch.measured:
        return None
    expects: Expects | None = config.hook.pytest_gpuperf_expects(machine=machine, policy=options.policy)
    return make_judge(machine, options.policy, lambda: launch.software, expects, strict=options.strict_baselines)


def _make_results(options: Options, machine: Machine, kinds: Sequence[Shown]) -> ResultsFile:
    topology = functools.partial(_read_topology, machine)
    return ResultsFile(options.results, machine.key, machine.match, topology, kinds=kinds, smoke=options.smoke)


def _make_journal(path: Path, commands: Commands, machine: Machine) -> RunJournal:
    head = Head(
        machine.key,
        machine.match,
        commands.gpus,
        str(commands.root),
        smoke=commands.smoke,
        baselines=commands.baselines,
        nodes=commands.nodes,
        delays=commands.delays,
    )
    return RunJournal(path, head)


def _read_topology(machine: Machine) -> Topology | None:
    """How all GPUs of the machine reach one another; None if there are none."""
    seen = machine.devices.inspect() if machine.gpus else None
    return Topology.of(seen) if seen is not None and seen.gpus else None


def _list_measuring(items: Sequence[pytest.Item]) -> Mapping[str, Measuring]:
    launches = {item.nodeid: find_launch(item) for item in items if measures([item])}
    return {nodeid: Measuring(launch.identity, launch.number) for nodeid, launch in launches.items()}
