"""FSDP2 keeps parameters whole after forward and after backward as its settings say, or gives them back."""

from __future__ import annotations

import pytest

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.gathered import SETTINGS, whole

# By default the root stays whole after forward, because backward needs it at once. After backward nothing is whole.
BOTH = "root after forward, layer after forward"
EXPECTED = {
    "default": "root after forward",
    "all resharded": "",
    "none resharded": BOTH,
    "root resharded": "",
    "all resharded, set later": "",
    "none resharded, set later": BOTH,
    "over one rank": BOTH,
    "over both ranks": "",
    "layer resharded": "root after forward",
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_whole(ranks: Ranks, setting: str) -> None:
    got = [", ".join(name for name, is_whole in held.items() if is_whole) for held in ranks.run(whole, setting=setting)]
    assert got == [EXPECTED[setting]] * 2, f"whole: {got}, expected {EXPECTED[setting]!r}"
