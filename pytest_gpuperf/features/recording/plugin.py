"""``--update-baselines``: perf tests run once in each of several launches, and their metrics become baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.features.recording.options import (
    RESUME,
    add_recording_options,
    check_recording_options,
    is_recording_option_given,
    read_recording_options,
)

if TYPE_CHECKING:
    from pytest_gpuperf.baselines.recorded import Launch
    from pytest_gpuperf.features.recording.lines import ClosingLines
    from pytest_gpuperf.features.recording.recording import Recording
    from pytest_gpuperf.hardware.machine import Machine
    from pytest_gpuperf.options import Options
    from pytest_gpuperf.run.judging import Judged
    from pytest_gpuperf.run.session import Session

RECORDING: pytest.StashKey[Recording] = pytest.StashKey()
"""On the configuration of a run that records."""
LINES: pytest.StashKey[ClosingLines] = pytest.StashKey()
"""There, too."""


def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns the option that has two names."""
    return RESUME


@pytest.hookimpl(trylast=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the others, which ``--help`` lists behind those of the core."""
    add_recording_options(parser)


def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether the user said something of a recording."""
    return is_recording_option_given(config)


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses what cannot be recorded."""
    check_recording_options(config)


def pytest_gpuperf_judges(config: pytest.Config, options: Options, machine: Machine) -> Judged | None:
    """Returns what records metrics in the place of a judge; None if nothing is to be recorded."""
    recorded = read_recording_options(config)
    if recorded is None:
        return None
    if not machine.gpus:
        raise pytest.UsageError("--update-baselines records on GPUs only, and no GPU is visible")
    from pytest_gpuperf.features.recording.recording import Recording
    from pytest_gpuperf.run.judging import Judged

    config.stash[RECORDING] = recording = Recording(machine, options, recorded, config.rootpath)
    return Judged(recording, reads=True, launches=recorded.launches)


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what orders the launches, follows the reports and writes the baselines."""
    recorded = read_recording_options(config)
    if recorded is None:
        return
    from pytest_gpuperf.features.recording.lines import ClosingLines
    from pytest_gpuperf.features.recording.recorded_run import RecordedRun

    recording = config.stash[RECORDING]
    config.stash[LINES] = ClosingLines(recording, recorded, run.commands)
    config.pluginmanager.register(RecordedRun(recording, run.choosing.ask), "gpuperf-recorded-run")


def pytest_gpuperf_launch_begins(config: pytest.Config, launch: Launch) -> None:
    """What is recorded from now on belongs to this launch; ends the run if it cannot be recorded."""
    if RECORDING not in config.stash:
        return
    from pytest_gpuperf.features.recording.journal import JournalError
    from pytest_gpuperf.report.one_line import make_one_line

    try:
        config.stash[RECORDING].begin_launch(launch)
    except JournalError as error:
        pytest.exit(make_one_line(str(error)), pytest.ExitCode.USAGE_ERROR)


def pytest_gpuperf_closing_lines(config: pytest.Config) -> Sequence[str]:
    """Returns what became of the recording."""
    return config.stash[LINES].lines() if LINES in config.stash else []
