"""A made-up log, whose times are known, is split into what each mishap cost."""

from __future__ import annotations

import pytest

from suites.fault_tolerance.programs.lost_time import lost, measured_goodput
from suites.shared.job_log import Entry, Mishap, surviving, surviving_losses

KILL = Mishap(kind="kill", rank=1, step=3)


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


LOG = [
    *(line("began", rank, 1, 0, 100 + rank, 110 + rank) for rank in (0, 1)),
    *steps(1, 0, 2, begun=111),
    line("mishap", 1, 1, 3, 114.1, 114.5, KILL),
    *(line("began", rank, 2, 1, 116 + rank, 125 + 2 * rank) for rank in (0, 1)),
    *steps(2, 1, 4, begun=127),
]


def test_what_a_mishap_costs() -> None:
    (cost,) = lost(LOG)
    assert cost.mishap == KILL
    assert cost.detection == pytest.approx(116 - 114.5)
    assert cost.restart == pytest.approx(127 - 116)
    assert cost.repeated == pytest.approx(2)  # steps 1 and 2
    assert cost.total == pytest.approx(129 - 114.5)


def test_goodput_counts_each_step_once() -> None:
    assert measured_goodput(LOG) == pytest.approx(5 / (131.1 - 100))


def test_an_attempt_voids_what_was_done_from_its_first_step_on() -> None:
    assert {step: {entry.attempt for entry in done} for step, done in surviving(LOG).items()} == {
        0: {1},
        1: {2},
        2: {2},
        3: {2},
        4: {2},
    }


def test_a_step_that_a_rank_did_not_do_is_no_step() -> None:
    with pytest.raises(AssertionError, match="step 4: 1 of 2 ranks did it"):
        surviving_losses(LOG[:-1])


def test_ranks_that_disagree_on_a_loss_are_told() -> None:
    other = line("stepped", 1, 2, 4, 130, 131)
    with pytest.raises(AssertionError, match="step 4: the ranks' losses differ"):
        surviving_losses(
            [*LOG[:-1], Entry(**{name: getattr(other, name) for name in other.__slots__} | {"loss": "0x0p+0"})]
        )
