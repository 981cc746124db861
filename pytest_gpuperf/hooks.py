"""The hooks by which features, those of this package and others, take part in a run.

A feature is a plugin of pytest. It registers its options with ``pytest_addoption``, answers the hooks below, and
registers what has hooks of pytest's own in ``pytest_gpuperf_begin``. The features of this package are the folders of
``features``; another distribution adds one with an entry point of the group ``pytest11``. A plugin that also works
without this package marks its hooks with ``pytest.hookimpl(optionalhook=True)``; pytest refuses them otherwise in a run
with ``-p no:gpuperf``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.api.checks import Checks
    from pytest_gpuperf.baselines.recorded import Launch
    from pytest_gpuperf.hardware.machine import Machine
    from pytest_gpuperf.options import Options
    from pytest_gpuperf.report.annotation import Annotation
    from pytest_gpuperf.report.shown import Shown
    from pytest_gpuperf.report.terminal import Reported
    from pytest_gpuperf.run.judging import Judged
    from pytest_gpuperf.run.nodes import RunNodes
    from pytest_gpuperf.run.session import Session
    from pytest_gpuperf.verdicts.expectations import Expects
    from pytest_gpuperf.verdicts.rule import Policy


@pytest.hookspec
def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns options of the feature by name, with what ``addoption`` takes besides ``dest``.

    Each has two names: one with the prefix ``--gpuperf-``, and its own unless another plugin or a ``conftest.py`` has
    it. ``--some-name`` sets ``config.option.gpuperf_some_name``. A run begins if the user gives one of them. pytest may
    take the value of a name that is registered late for a file, and look for the rootdir beside it: add an option whose
    value is a path with ``pytest_addoption``.
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether the user gave another option or an ini key of the feature, so that a run begins at once.

    Other runs begin when pytest collects the first test on ranks.
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses options of the feature when a run begins, before anything is made.

    Raises:
        pytest.UsageError: a value that cannot be meant, or options that exclude one another.
    """


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_needs_one_machine(config: pytest.Config) -> str | None:
    """Returns why what the user asked of the feature runs on one machine only; None if several nodes are as good.

    It is asked in a run on a cluster.
    """


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_nodes(config: pytest.Config, options: Options) -> RunNodes | None:
    """Returns the nodes that start the ranks of the run; None for this machine.

    Args:
        config: pytest's.
        options: what the user asked for.

    Raises:
        pytest.UsageError: the run cannot have them.
    """


@pytest.hookspec
def pytest_gpuperf_judges(config: pytest.Config, options: Options, machine: Machine) -> Judged | None:
    """Returns who judges the run's metrics, or keeps them; None for the baselines of the machine.

    A run in which two features answer is refused. With ``--smoke`` nobody judges.

    Args:
        config: pytest's.
        options: what the user asked for.
        machine: the GPUs of all nodes, as one machine's.

    Raises:
        pytest.UsageError: they cannot be judged as the user asked for.
    """


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_expects(machine: Machine, policy: Policy) -> Expects | None:
    """Returns what says what is expected of a metric that has no record; None if nothing is.

    If no other plugin answers, references and a model of the hardware do.

    Args:
        machine: of the run.
        policy: what a verdict may get wrong, and which loss it must find.
    """


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_bisects(config: pytest.Config, nodes: RunNodes) -> str | None:
    """Returns the command that builds an older commit, for the command with ``--bisect`` that a slower test prints.

    Returns:
        Empty if an older commit needs no build; None if the feature does not know. Without an answer no command is
        printed.
    """


@pytest.hookspec
def pytest_gpuperf_preload(config: pytest.Config, gpus: int) -> Mapping[str, str]:
    """Returns modules that ranks shall find loaded, by the module whose import by a test asks for them.

    Args:
        config: pytest's.
        gpus: how many the run uses; 0 for gloo on CPUs.
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_needs_results(config: pytest.Config) -> bool:
    """Returns whether the feature reads the run's results, so that they are gathered without ``--gpuperf-json``."""
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_writes(config: pytest.Config) -> Sequence[Path]:
    """Returns files and folders that the feature writes in a run, which are no code of the tests."""
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """A run begins: something has asked for the plugin. No process has been started for it.

    With pytest-xdist, a run begins in each worker and in the controller. Workers run the tests. The controller has
    their reports: what needs those is registered in ``pytest_gpuperf_reports``.

    Args:
        config: pytest's; what has hooks of its own is registered with its plugin manager.
        run: the parts of the run.
    """


@pytest.hookspec
def pytest_gpuperf_header(config: pytest.Config, run: Session) -> Sequence[str]:
    """Returns lines about the machine for pytest's header."""
    raise NotImplementedError


@pytest.hookspec(firstresult=True)
def pytest_gpuperf_objection(item: pytest.Item) -> str | None:
    """Returns why a test that the feature has to do with cannot run, which fails it; None if it can.

    It is asked in the process that runs the test, before each launch of a test that is launched several times. The
    number of ranks is ``item.callspec.params["ranks"]``.
    """


@pytest.hookspec
def pytest_gpuperf_launch_begins(config: pytest.Config, launch: Launch) -> None:
    """Perf tests measure in fresh processes and communicators from now on, or only try their bodies with ``--smoke``.

    Args:
        config: pytest's.
        launch: when and where it began, and with what.
    """


@pytest.hookspec
def pytest_gpuperf_measures(item: pytest.Item, checks: Checks) -> None:
    """A perf test is about to measure. Its launch may begin later.

    Args:
        item: the test.
        checks: what it will hand over; empty so far.
    """


@pytest.hookspec
def pytest_gpuperf_checked(item: pytest.Item, checks: Checks) -> None:
    """A test's body has ended well, and its metrics are about to be judged, recorded or shown.

    It is called in the process that runs the test, for each launch of a test that is launched several times. Workers of
    xdist and the arms of a race are such processes, too. What a test shall carry to the process that has all reports is
    a kind of ``pytest_gpuperf_shows``.

    Args:
        item: the test.
        checks: what it handed over.
    """


@pytest.hookspec
def pytest_gpuperf_shows() -> Sequence[Shown]:
    """Returns kinds of what tests show besides metrics.

    A feature puts the values of a test into its report, for example when its metrics were checked:
    ``item.user_properties += kind.carry(values)``. Only values that the test gets from its setup on, and has when its
    body ends, also by an exception, count. The summary prints the kind's lines about all tests of a run, and the
    results file contains the values. ``python -m pytest_gpuperf recover`` keeps kinds of installed plugins and of those
    that ``PYTEST_PLUGINS`` names. The page of ``--report`` draws kinds of this package only.
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_reports(config: pytest.Config, reported: Reported) -> None:
    """A process has all reports of a run, or of one that was killed; what tells of it is registered now.

    With pytest-xdist this is the controller, which asks for closing lines and annotations, too.

    Args:
        config: pytest's.
        reported: the findings, and the words for them.
    """


@pytest.hookspec
def pytest_gpuperf_closing_lines(config: pytest.Config) -> Sequence[str]:
    """Returns what the feature found out about the run as a whole, for the summary."""
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_annotations(config: pytest.Config) -> Sequence[Annotation]:
    """Returns remarks about lines of source, the most important first, for a service that shows them with the code.

    It is asked in GitHub Actions.
    """
    raise NotImplementedError


@pytest.hookspec
def pytest_gpuperf_end(config: pytest.Config, run: Session) -> bool:
    """Writes what the feature has of a run that ends, also one that was interrupted, in every process of the run.

    What is registered in ``pytest_gpuperf_reports`` is called in the one process that has all reports. With
    ``--collect-only`` or ``--setup-only`` nothing is called, so that what an earlier run has written stays.

    Args:
        config: pytest's.
        run: the parts of the run.

    Returns:
        Whether all of it was written. If not, the run fails, and the feature gives the reason in
        ``pytest_gpuperf_closing_lines``, which is called later.
    """
    raise NotImplementedError
