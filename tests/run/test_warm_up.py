"""When the process that ranks are forked from begins to start: as soon as a test is collected that needs ranks."""

from __future__ import annotations

import pytest

from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from tests import fake_gpus, scripted_figures

TESTS = """
import pytest
from pathlib import Path

@pytest.mark.ranks(1)
def test_of_ranks(ranks):
    pass

@pytest.mark.skip(reason="as it is")
@pytest.mark.ranks(1)
def test_of_ranks_that_is_skipped(ranks):
    pass

def test_without():
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        (("--gpus=2",), 1),
        (("--gpus=2", "--collect-only"), 0),
        (("--gpus=2", "--setup-only"), 0),
        (("--gpus=2", "--setup-plan"), 0),
        (("--gpus=2", "-k", "without or skipped"), 1),  # collected and deselected
        (("--gpus=2", "test_it.py::test_of_ranks_that_is_skipped", "test_it.py::test_without"), 0),
        ((), 0),  # a core is leased no sooner than it is of use
    ],
)
def test_a_run_starts_the_forkserver_only_for_tests_that_need_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], starts: int
) -> None:
    fake_gpus.install(monkeypatch, 2)
    started: list[bool] = []
    monkeypatch.setattr(ForkserverClient, "_spawn", lambda self, *args: started.append(True))
    monkeypatch.setattr("pytest_gpuperf.run.current_ranks.CurrentRanks.prepare", lambda self, world_size: None)
    pytester.makepyfile(test_it=TESTS)
    pytester.inline_run("-p", "no:cacheprovider", *arguments)
    assert len(started) == starts


@pytest.mark.parametrize(("gpus", "begins"), [("--gpus=2", True), ("--gpus=0", False)])
def test_a_run_on_gpus_starts_it_while_tests_are_collected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, gpus: str, begins: bool
) -> None:
    fake_gpus.install(monkeypatch, 2)
    started: list[bool] = []
    monkeypatch.setattr("pytest_gpuperf.ranks.pools.Pools.warm_up", lambda self: started.append(True))
    monkeypatch.setattr("pytest_gpuperf.run.current_ranks.CurrentRanks.prepare", lambda self: None)
    seen: list[int] = []

    class Watching:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self) -> None:
            seen.append(len(started))

    pytester.makepyfile(TESTS)
    pytester.inline_run("-p", "no:cacheprovider", "--collect-only", gpus, plugins=[Watching()])
    assert seen == [0]  # nothing runs
    pytester.inline_run("-p", "no:cacheprovider", gpus, plugins=[Watching()])
    assert bool(seen[-1]) is begins


@pytest.mark.parametrize("gpus", ["--gpus=0", "--gpus=2"])
@pytest.mark.parametrize(("option", "prepared"), [("--setup-plan", 0), ("--setup-only", 0), ("--setup-show", 1)])
def test_no_ranks_are_brought_up_for_tests_that_are_only_set_up(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, gpus: str, option: str, prepared: int
) -> None:
    fake_gpus.install(monkeypatch, 2)
    fake_gpus.without_ranks(monkeypatch)
    calls: list[int] = []
    monkeypatch.setattr("pytest_gpuperf.run.current_ranks.CurrentRanks.prepare", lambda self: calls.append(1))
    pytester.makepyfile(TESTS)
    pytester.inline_run("-p", "no:cacheprovider", "-k", "not skipped", gpus, option)
    assert len(calls) == 2 * prepared  # also for the test without ranks, of which nothing is brought up


def test_tests_that_are_only_set_up_leave_an_interrupted_recording_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install(monkeypatch, 2)
    fake_gpus.without_ranks(monkeypatch)
    pytester.makepyfile(test_it=scripted_figures.TESTS)
    scripted_figures.figures(pytester, a=[100e9], b=["interrupt", 100e9], c=[100e9])
    recording = ("-p", "no:cacheprovider", "--gpus=2", "--update-baselines", "--reason=x")
    pytester.runpytest_inprocess(*recording, no_reraise_ctrlc=True)
    (journal,) = (pytester.path / "baselines").glob(".*.journal")
    measured = journal.read_text()
    assert pytester.runpytest_inprocess(*recording, "--resume", "--setup-plan").ret == 0
    assert journal.read_text() == measured
