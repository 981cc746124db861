"""Later launches decide about metrics that came out worse, against the record or in a race of two codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.features.racing import hooks
from pytest_gpuperf.features.racing.options import add_race_options, is_race_option_given, race_options
from pytest_gpuperf.options import is_distributed

if TYPE_CHECKING:
    from pytest_gpuperf.features.racing.arms.child import Link
    from pytest_gpuperf.features.racing.racing import Racing
    from pytest_gpuperf.hardware.machine import Machine
    from pytest_gpuperf.options import Options
    from pytest_gpuperf.run.judging import Judged
    from pytest_gpuperf.run.nodes import RunNodes
    from pytest_gpuperf.run.session import Session

RACING: pytest.StashKey[Racing] = pytest.StashKey()
"""On the configuration of a run in which suspects are launched again."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the hooks of those who take part."""
    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(trylast=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the options, which ``--help`` lists behind those of the core."""
    add_race_options(parser)


def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether the user said something of races, or this process is an arm of one."""
    return is_race_option_given(config) or _link(config) is not None


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses values that cannot be meant, and races of all tests in runs that measure nothing or are divided."""
    if race_options(config).against is None:
        return
    update = config.getoption("gpuperf_update_baselines", None) is not None
    if update or config.getoption("gpuperf_smoke"):
        other = "--update-baselines" if update else "--smoke"
        raise pytest.UsageError(f"--against, --against-python and --bisect race what tests measure: drop {other}")
    if is_distributed(config):
        raise pytest.UsageError("--against, --against-python and --bisect race all tests together: drop -n")


def pytest_gpuperf_needs_one_machine(config: pytest.Config) -> str | None:
    """Returns why another interpreter races on one machine only."""
    if race_options(config).python is None:
        return None
    return "--against-python runs ranks with another interpreter, and Ray starts those of its nodes with its own"


@pytest.hookimpl(trylast=True)
def pytest_gpuperf_nodes(config: pytest.Config, options: Options) -> RunNodes | None:
    """Returns this machine in an arm without ``--cluster``. Its ranks load what redirects imports before all else."""
    if _link(config) is None:
        return None
    from pytest_gpuperf.features.racing.arms.redirected import NAME
    from pytest_gpuperf.hardware.machine import Machine
    from pytest_gpuperf.run.session import make_this_machine

    return make_this_machine(config, options, Machine.of(options.gpus), first=[NAME])


def pytest_gpuperf_judges(config: pytest.Config, options: Options, machine: Machine) -> Judged | None:
    """Returns the judge of a race of all tests; in an arm nobody, as the process that races it judges and reports."""
    from pytest_gpuperf.run.judging import Judged

    against = race_options(config).against
    if _link(config) is not None:
        return Judged(None, on_cpus=against is not None, reports=False)
    if against is None:
        return None
    from pytest_gpuperf.features.racing.contest import Contest

    return Judged(Contest(machine.key, options.policy, against), on_cpus=True)


@pytest.hookimpl(trylast=True)  # another plugin may know how an older commit is built
def pytest_gpuperf_bisects(config: pytest.Config, nodes: RunNodes) -> str | None:
    """Returns what builds an older commit; None if no commit can be looked for.

    Under another interpreter the commits are alike, no commit is checked out on nodes, and a bisection is no cure for
    itself.
    """
    race = race_options(config)
    return None if race.python is not None or nodes.no_race or race.bisect else race.build or ""


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what launches tests again, in a run that judges and in an arm."""
    link = _link(config)
    if link is None and run.judging is None:
        return
    from pytest_gpuperf.features.racing.wiring import register_arm, register_race

    if link is not None:
        register_arm(config, run, link)
    elif (racing := register_race(config, run, race_options(config))) is not None:
        config.stash[RACING] = racing


def pytest_gpuperf_closing_lines(config: pytest.Config) -> Sequence[str]:
    """Returns the commits that made tests slower."""
    racing = config.stash.get(RACING, None)
    return [] if racing is None else racing.culprits


def _link(config: pytest.Config) -> Link | None:
    """What ties an arm to the process that races it; None in a process that is no arm, which loads nothing for it."""
    child = sys.modules.get("pytest_gpuperf.features.racing.arms.child")
    return None if child is None else config.stash.get(child.LINK, None)
