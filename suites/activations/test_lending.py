"""A rank trains on activations that a peer has stored, if it gets back the right ones; ranks lend in pairs."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.activations.programs.lending import lend
from suites.activations.reference import Arguments, arguments
from suites.shared.step import once


@pytest.mark.ranks(3)
def test_a_rank_without_a_peer_is_refused(ranks: Ranks) -> None:
    given = arguments(blocks=1, rows=1, width=1, hidden=1, dropout=False, seed=1)
    with pytest.raises(ValueError, match="the world must be of even size, got 3"):
        ranks.run(once, lend, **given)


def stored_in_turn(ctx: Context, given: Arguments) -> list[torch.Tensor]:
    """All that a first step returned: as it was, after a second step with other masks, and what that one returned."""
    step = lend(ctx, **given)
    torch.manual_seed(1)
    first = step()
    before = torch.cat([tensor.flatten() for tensor in first.values()])
    torch.manual_seed(2)
    second = step()
    after, other = (torch.cat([tensor.flatten() for tensor in each.values()]) for each in (first, second))
    return [before, after, other]


@pytest.mark.ranks(2, 4)
def test_what_a_peer_has_stored_stays_as_it_was(ranks: Ranks) -> None:
    given = arguments(blocks=2, rows=4, width=4, hidden=8, dropout=True, seed=1)
    for rank, (before, after, other) in enumerate(ranks.run(stored_in_turn, given)):
        if rank % 2:
            assert torch.equal(before, after), f"rank {rank}: the second step has overwritten what the first one stored"
            assert not torch.equal(before, other), f"rank {rank}: both steps store the same, and could not tell"
