"""Tests of schedules that this torch cannot run on the backend are skipped."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.pipeline_parallel.programs.stages import cannot_run


@pytest.fixture(autouse=True)
def skip_schedules_that_cannot_run(request: pytest.FixtureRequest) -> None:
    """By the parameter ``schedule`` of tests on ranks."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or "ranks" not in request.fixturenames:
        return
    ranks: Ranks = request.getfixturevalue("ranks")
    if reason := cannot_run(callspec.params.get("schedule", ""), ranks.backend):
        pytest.skip(reason)
