"""The seed of Python's hashes: the user's own, or one for all processes of a run."""

from pytest_gpuperf.ranks.hash_seed import hash_seed


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
