"""A tournament of hosts: who meets whom, and what is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import tournament_simulation
from pytest_gpuperf.features.fleet.tournament import Pair, judge, plan_rounds


@given(st.integers(2, 70))
def test_nobody_is_in_two_places_and_no_pair_meets_twice(count: int) -> None:
    hosts = [str(number) for number in range(count)]
    played = plan_rounds(hosts, count=count)
    for pairs in played:
        there = [host for pair in pairs for host in pair]
        assert len(set(there)) == len(there) == count - count % 2
    met = [frozenset(pair) for pairs in played for pair in pairs]
    assert len(set(met)) == len(met) == count * (count - 1) // 2  # with enough rounds, everybody meets everybody


@pytest.mark.parametrize(("hosts", "expected"), [(2, 1), (3, 3), (4, 3), (8, 6), (64, 12), (1000, 20)])
def test_rounds_grow_as_the_logarithm_of_the_hosts(hosts: int, expected: int) -> None:
    assert len(plan_rounds([str(number) for number in range(hosts)])) == expected


@pytest.mark.parametrize(("hosts", "got"), [([], "none"), (["a"], "a"), (["a", "a"], "a, a")])
def test_fewer_than_two_hosts_are_no_tournament(hosts: list[str], got: str) -> None:
    with pytest.raises(ValueError, match=f"^a tournament is of 2 hosts or more with names of their own, got {got}$"):
        plan_rounds(hosts)


def measured(slow: dict[str, float], links: dict[Pair, float] | None = None) -> dict[Pair, float]:
    """Bandwidths of 16 hosts' tournament, with a scatter that is always the same."""
    pairs = [pair for played in plan_rounds([f"h{number:02}" for number in range(16)]) for pair in played]
    found = {}
    for index, pair in enumerate(pairs):
        loss = max(slow.get(host, 0.0) for host in pair) + (links or {}).get(pair, 0.0)
        found[pair] = 100.0 * (1 - loss) * (1 + 0.002 * ((index * 7) % 5 - 2))
    return found


def test_a_slow_host_is_named_and_its_partners_are_not() -> None:
    outcome = judge(measured({"h03": 0.1}))
    assert [standing.host for standing in outcome.hosts] == ["h03"]
    assert outcome.hosts[0].value == pytest.approx(90.0, rel=0.01)
    assert outcome.links == ()


def test_a_slow_link_is_named_and_its_hosts_are_not() -> None:
    pair = plan_rounds([f"h{number:02}" for number in range(16)])[2][3]
    outcome = judge(measured({}, {pair: 0.2}))
    assert outcome.hosts == ()
    ((named, loss),) = outcome.links
    assert named == pair
    assert loss == pytest.approx(0.2, abs=0.01)


def test_hosts_that_are_all_alike_are_not_accused() -> None:
    outcome = judge(measured({}))
    assert (outcome.hosts, outcome.links) == ((), ())


def test_the_simulation_finds_what_it_slowed_down_and_nothing_else() -> None:
    assert tournament_simulation.simulate(3, 64, seed=3, noise=0.01) == tournament_simulation.Tally(3, 3, 3, 0)


@pytest.mark.parametrize(
    ("hosts", "links", "accused", "kept"),
    [(99, 99, 1, True), (98, 100, 0, False), (100, 98, 0, False), (100, 100, 2, False)],
)
def test_the_simulation_keeps_its_promise_or_says_so(hosts: int, links: int, accused: int, kept: bool) -> None:
    assert tournament_simulation.Tally(100, hosts, links, accused).kept is kept


@pytest.mark.parametrize(("right", "accused", "kept"), [(90, 3, True), (89, 0, False), (100, 4, False)])
def test_simulated_acceptances_keep_their_promise_or_say_so(right: int, accused: int, kept: bool) -> None:
    assert tournament_simulation.Acceptances(100, right, accused).kept is kept


def test_the_simulation_can_be_run() -> None:
    assert tournament_simulation.main(["--runs", "1", "--hosts", "16", "--check"]) == 0
