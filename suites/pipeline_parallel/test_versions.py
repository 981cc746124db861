"""Schedules that a version of torch cannot run on gloo are named with the reason, and no others."""

from __future__ import annotations

import pytest
import torch

from suites.pipeline_parallel.programs.stages import RUNNERS, V_SHAPED, cannot_run


class OfToday:
    """A stage that sends nothing to its own rank before the first step, as torch's do since 2.12."""

    def _warmup_forward_vote(self) -> None: ...


class OfYesterday:
    """A stage that does, as those of torch 2.10 and 2.11."""


@pytest.mark.parametrize("stage", [OfToday, OfYesterday])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("schedule", RUNNERS)
def test_a_schedule_that_sends_to_its_own_rank_cannot_run_on_gloo(schedule: str, backend: str, stage: type) -> None:
    expected = None
    if stage is OfYesterday and backend == "gloo" and schedule in V_SHAPED:
        expected = (
            f"{schedule} of torch {torch.__version__} sends from a rank to itself, which gloo cannot; 2.12 does not"
        )
    assert cannot_run(schedule, backend, stage) == expected


@pytest.mark.parametrize("schedule", RUNNERS)
def test_this_torch_runs_all_schedules_on_nccl_and_since_2_12_on_gloo(schedule: str) -> None:
    assert cannot_run(schedule, "nccl") is None
    if torch.__version__ >= "2.12":  # compared as a version
        assert cannot_run(schedule, "gloo") is None
