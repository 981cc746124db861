"""The seed of Python's hashes: the user's own, or one for all processes of a run."""

from pytest_gpuperf.ranks.hash_seed import hash_seed, is_seed, make_rank_seeds


def test_the_users_own_seed_is_kept_as_it_is() -> None:
    for own in ("0", "42", "random"):
        assert hash_seed({"PYTHONHASHSEED": own}, None) == own
        assert hash_seed({"PYTHONHASHSEED": own}, "run") == own


def test_each_run_draws_a_seed_that_python_takes() -> None:
    drawn = {hash_seed({"PYTHONHASHSEED": ""}, None) for _ in range(100)}
    assert len(drawn) > 90
    assert all(1 <= int(seed) < 2**32 for seed in drawn)


def test_the_workers_of_a_run_have_one_seed() -> None:
    assert hash_seed({}, "5f2c") == hash_seed({}, "5f2c") != hash_seed({}, "5f2d")


def test_the_seeds_of_ranks_are_numbers_that_python_takes() -> None:
    for seed in ("1", "4294967295", "", "random"):
        by_rank = [make_rank_seeds(seed).replace("{rank}", str(rank)) for rank in (0, 1, 511)]
        assert all(map(is_seed, by_rank))
        assert len(set(by_rank)) == (1 if seed == "random" else 3)  # which each process draws for itself
    assert not any(map(is_seed, ("many", "-1", "1.5", "4294967296", "²")))
