"""A made-up log, whose times are known, is split into what each mishap cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suites.fault_tolerance.programs.lost_time import lost, measured_goodput
from suites.shared.job_log import Entry, Mishap, surviving, surviving_losses

KILL = Mishap(kind="kill", rank=1, step=5)
HANG = Mishap(kind="hang", rank=0, step=2)
SAVED = Mishap(kind="kill", rank=1, step=6)


def line(
    event: str, rank: int, attempt: int, step: int, since: float, at: float, mishap: Mishap | None = None
) -> Entry:
    return Entry(
        event=event,  # type: ignore[arg-type]
        rank=rank,
        world_size=2,
        attempt=attempt,
        step=step,
        since=since,
        at=at,
        loss=float(step).hex() if event == "stepped" else "",
        mishap=mishap,
    )


def steps(attempt: int, first: int, last: int, begun: float) -> list[Entry]:
    """Steps of a second each, on both ranks; rank 1 is a tenth later."""
    return [
        line("stepped", rank, attempt, step, begun + step - first + rank / 10, begun + step - first + 1 + rank / 10)
        for step in range(first, last + 1)
        for rank in (0, 1)
    ]


def saved(attempt: int, step: int, since: float, at: float) -> list[Entry]:
    return [line("saved", rank, attempt, step, since, at) for rank in (0, 1)]


# The job has a checkpoint before step 1, and one before step 6. The second attempt ends before it has repeated all that
# the first one had done; the last one has nothing to repeat.
LOG = [
    *(line("began", rank, 1, 0, 100 + rank, 110 + rank) for rank in (0, 1)),
    *steps(1, 0, 0, begun=111),
    *saved(1, 1, 112.1, 112.5),
    *steps(1, 1, 4, begun=112.5),
    line("mishap", 1, 1, 5, 116.6, 117, KILL),
    *(line("began", rank, 2, 1, 118.5 + rank, 127 + 2 * rank) for rank in (0, 1)),
    *steps(2, 1, 1, begun=130),
    line("mishap", 0, 2, 2, 131, 132, HANG),
    *(line("began", rank, 3, 1, 140 + rank, 150 + 2 * rank) for rank in (0, 1)),
    *steps(3, 1, 5, begun=153),
    *saved(3, 6, 158.1, 160),
    line("mishap", 1, 3, 6, 160, 161, SAVED),
    *(line("began", rank, 4, 6, 163 + rank, 170 + rank) for rank in (0, 1)),
    *steps(4, 6, 6, begun=171.5),
    *saved(4, 7, 172.6, 175),
]


def test_what_a_mishap_costs() -> None:
    costs = lost(LOG)
    assert [cost.mishap for cost in costs] == [KILL, HANG, SAVED]
    assert [cost.detection for cost in costs] == pytest.approx([118.5 - 117, 140 - 132, 163 - 161])
    assert [cost.restart for cost in costs] == pytest.approx([129 - 118.5, 152 - 140, 171 - 163])
    # Step 1; then steps 1 to 4, of which only the first attempt had done the last three; then none.
    assert [cost.repeated for cost in costs] == pytest.approx([131 - 129, 157 - 152, 0])
    assert [cost.total for cost in costs] == pytest.approx([131 - 117, 157 - 132, 171 - 161])


def test_goodput_counts_each_step_once() -> None:
    """Up to the last step: what a job does after it is no training."""
    assert measured_goodput(LOG) == pytest.approx(7 / (172.6 - 100))


def test_an_attempt_voids_what_was_done_from_its_first_step_on() -> None:
    assert {step: {entry.attempt for entry in done} for step, done in surviving(LOG).items()} == {
        0: {1},
        **{step: {3} for step in range(1, 6)},
        6: {4},
    }


def test_a_step_that_a_rank_did_not_do_is_no_step() -> None:
    with pytest.raises(AssertionError, match="step 6: 1 of 2 ranks did it"):
        surviving_losses(LOG[:-3])


def test_ranks_that_disagree_on_a_loss_are_told() -> None:
    other = replace(line("stepped", 1, 4, 6, 171.6, 172.6), loss="0x0p+0")
    with pytest.raises(AssertionError, match="step 6: the ranks' losses differ"):
        surviving_losses([*LOG[:-3], other])
