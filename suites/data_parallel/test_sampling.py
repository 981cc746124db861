"""In each epoch the ranks share the samples evenly; what one epoch drops another one has."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_gpuperf import Ranks
from suites.data_parallel.programs.sampling import Epochs, in_order, resumed, shared_out

pytestmark = pytest.mark.ranks(2, 3)

SAMPLES, EPOCHS = 11, 12
"""No number of ranks divides the samples. None is dropped by chance in all of twelve epochs."""
FIRST = 4


def epochs_of(got: list[Epochs]) -> list[Counter[int]]:
    """How often each sample is seen in each epoch, by all ranks, which have as many each, in an order of the epoch."""
    for rank, epochs in enumerate(got):
        assert len({tuple(samples) for samples in epochs}) > 1, f"rank {rank} has {epochs[0]} in each epoch"
    for of_ranks in zip(*got, strict=True):
        assert len({len(samples) for samples in of_ranks}) == 1, f"ranks have unlike shares: {of_ranks}"
    return [Counter(sample for samples in of_ranks for sample in samples) for of_ranks in zip(*got, strict=True)]


def test_what_is_left_over_is_dropped(ranks: Ranks) -> None:
    seen = epochs_of(ranks.run(shared_out, samples=SAMPLES, epochs=EPOCHS, drop_last=True))
    for epoch, counts in enumerate(seen):
        assert set(counts.values()) == {1}, f"epoch {epoch}: a sample is seen twice: {counts}"
        assert len(counts) == SAMPLES // ranks.world_size * ranks.world_size
    assert set().union(*seen) == set(range(SAMPLES)), "a sample that no epoch has"


def test_each_sample_is_seen(ranks: Ranks) -> None:
    """Some twice, where their number is not a multiple of the ranks'."""
    least = -(-SAMPLES // ranks.world_size) * ranks.world_size
    for epoch, counts in enumerate(epochs_of(ranks.run(shared_out, samples=SAMPLES, epochs=EPOCHS, drop_last=False))):
        assert set(counts) == set(range(SAMPLES)), f"epoch {epoch} has {sorted(counts)}"
        assert counts.total() == least


def test_each_seed_has_an_order_of_its_own(ranks: Ranks) -> None:
    one, other = (ranks.run(shared_out, samples=SAMPLES, epochs=1, drop_last=True, seed=seed) for seed in (1, 2))
    assert one != other, f"seeds 1 and 2 share out the samples alike: {one}"


@pytest.mark.parametrize(("samples", "replicas", "first"), [(SAMPLES, 4, 1), (2, 7, 3)], ids=["several each", "one"])
@pytest.mark.parametrize("drop_last", [False, True], ids=["some twice", "some dropped"])
def test_samples_in_their_order(ranks: Ranks, samples: int, replicas: int, first: int, drop_last: bool) -> None:
    """Replicas take turns, and when there are no more they begin with the first samples again, as often as they must.

    There are more replicas than ranks, which are some of them.
    """
    each = samples // replicas if drop_last else -(-samples // replicas)
    got = ranks.run(in_order, samples=samples, epochs=2, drop_last=drop_last, replicas=replicas, first=first)
    for rank, epochs in enumerate(got):
        expected = [(turn * replicas + first + rank) % samples for turn in range(each)]
        assert epochs == [expected] * 2, f"rank {rank} has {epochs}, expected {expected} twice"


def test_epochs_that_go_on_behind_the_first_samples(ranks: Ranks) -> None:
    """As after a restart: what was seen before is not seen again, and all others are."""
    for epoch, counts in enumerate(epochs_of(ranks.run(resumed, samples=SAMPLES, first=FIRST, epochs=EPOCHS))):
        assert set(counts) == set(range(FIRST, SAMPLES)), f"epoch {epoch} has {sorted(counts)}"
        assert counts.total() == -(-(SAMPLES - FIRST) // ranks.world_size) * ranks.world_size
