"""Registers those who report a run: on the terminal, to pytest-benchmark, to GitHub."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from pytest_gpuperf.fixtures.perf import Checks
from pytest_gpuperf.options import is_worker
from pytest_gpuperf.report.benchmark_plugin import BenchmarkPlugin
from pytest_gpuperf.report.console import Console
from pytest_gpuperf.report.findings import Findings
from pytest_gpuperf.report.github import GitHub
from pytest_gpuperf.report.progress import Measuring, Progress
from pytest_gpuperf.report.terminal import Summary
from pytest_gpuperf.run.launches import launch_of
from pytest_gpuperf.run.selection import is_perf, measures
from pytest_gpuperf.run.session import Session
from pytest_gpuperf.verdicts.verdict import Outcome

_BENCHMARK = pytest.StashKey[BenchmarkPlugin]()


def register_reports(
    config: pytest.Config, session: Session, console: Console, failing: Collection[Outcome]
) -> Findings:
    """Registers what reports this run, and returns what they report from; ``failing`` outcomes fail a test."""
    plugins, options = config.pluginmanager, session.options
    # pytest-benchmark asks about the machine while it is configured, which is later.
    if plugins.hasplugin("benchmark"):
        software = session.measurements.software
        config.stash[_BENCHMARK] = BenchmarkPlugin(session.machine, software, is_perf, smoke=options.smoke)
        plugins.register(config.stash[_BENCHMARK], "gpuperf-benchmark")
    findings = Findings(failing)
    if is_worker(config):
        return findings  # none of them: the controller of xdist reports for all workers
    plugins.register(findings, "gpuperf-findings")
    plugins.register(Summary(session, findings), "gpuperf-summary")
    plugins.register(Progress(console, options.launches, _measuring), "gpuperf-progress")
    github = GitHub(session, findings, config.rootpath, failing=failing, record_command=session.commands.record)
    plugins.register(github, "gpuperf-github")
    return findings


def publish(item: pytest.Item, checks: Checks) -> None:
    """Makes a benchmark of what the test has measured in its first launch, where pytest-benchmark is there."""
    plugin = item.config.stash.get(_BENCHMARK, None)
    # One benchmark for each test, under one name in every run; later launches are for the baselines.
    if plugin is not None and launch_of(item).number == 1 and checks.timing is not None and checks.request is not None:
        plugin.publish(checks.request, checks.timing, {**checks.metrics, **checks.shown})


def _measuring(items: Sequence[pytest.Item]) -> Mapping[str, Measuring]:
    launches = {item.nodeid: launch_of(item) for item in items if measures([item])}
    return {nodeid: Measuring(launch.identity, launch.number) for nodeid, launch in launches.items()}
