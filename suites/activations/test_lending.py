"""A rank trains on activations that a peer has stored, if it gets back the right ones; ranks lend in pairs."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.activations.programs.lending import lend
from suites.activations.reference import arguments
from suites.shared.step import once


@pytest.mark.ranks(3)
def test_a_rank_without_a_peer_is_refused(ranks: Ranks) -> None:
    given = arguments(blocks=1, rows=1, width=1, hidden=1, dropout=False, seed=1)
    with pytest.raises(ValueError, match="the world must be of even size, got 3"):
        ranks.run(once, lend, **given)
