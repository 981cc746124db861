"""When the process that ranks are forked from begins to start: as soon as it is known that a test needs ranks."""

from __future__ import annotations

import pytest

from pytest_gpuperf.ranks.launcher import Launcher
from tests import fake_gpus

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
        (("--gpus=2", "-k", "without or skipped"), 0),
        ((), 0),  # a core is leased no sooner than it is of use
    ],
)
def test_a_run_starts_the_forkserver_only_for_tests_that_need_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], starts: int
) -> None:
    fake_gpus.install(monkeypatch, 2)
    started: list[bool] = []
    monkeypatch.setattr(Launcher, "start", lambda self: started.append(True))
    monkeypatch.setattr("pytest_gpuperf.session.Session.prepare", lambda self, world_size: None)
    pytester.makepyfile(TESTS)
    pytester.inline_run("-p", "no:cacheprovider", *arguments)
    assert len(started) == starts
