"""What references expect: by scope, by the spread between machines, and carried from other numbers of ranks."""

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.features.day_zero.model.expecting import predict_scaled
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.features.day_zero.references.expecting import Expecting
from pytest_gpuperf.features.day_zero.references.schema import Recorded, References, Source
from pytest_gpuperf.features.day_zero.references.shelf import Shelf
from pytest_gpuperf.figures.metric import Metric, Scope
from pytest_gpuperf.figures.work import Exchange, Work
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.rule import Policy

BODY = "body"
MATCH: dict[str, Scalar] = {
    "gpu_name": "NVIDIA H200",
    "cc": "9.0",
    "mem_gib": 140,
    "power_limit_w": 700.0,
    "topology": "nv18",
}
RATES = Rates("NVIDIA H200", line=450e9, nccl=370e9, links="links between GPUs (NV18)", memory=4.9e12)
GIB = 2**30


def recorded(*machines: tuple[float, ...], **changes: Any) -> Recorded:
    of = {f"machine {number}": figures for number, figures in enumerate(machines)}
    return replace(Recorded(BODY, "B/s", "higher", "cuda_event", of), **changes)


def references(**figures: Recorded) -> References:
    """References of figures by the number of ranks of their test: of1, of2, of4."""
    keys = {"of1": "1x-nvidia-h200", "of2": "2x-nvidia-h200-nv18", "of4": "4x-nvidia-h200-nv18"}
    sources = {
        key: Source(int(key[0]), "nv18" if "nv18" in key else "", 3, 9, "2026-01-01", "2026-02-01", {})
        for key in keys.values()
    }
    told = {
        keys[name]: {f"suites/x.py::test_it[{name[2:]}rank{'' if name == 'of1' else 's'}-a]": {"rate": one}}
        for name, one in figures.items()
    }
    return References(MATCH, sources, {key: told.get(key, {}) for key in keys.values()})


def said(
    of: References, value: float, ranks: int, scope: Scope = "gpus", topology: str = "nv18", **changes: Any
) -> Opinion | None:
    expecting = Expecting(Shelf(of, topology), RATES, Policy())
    metric = Metric(value, "B/s", "higher", clock="cuda_event", scope=scope, **changes)
    test = f"suites/x.py::test_it[{ranks}rank{'' if ranks == 1 else 's'}-a]"
    return expecting.opinion(test, "rate", metric, BODY)


TWO = references(of2=recorded((100.0, 100.1, 99.9), (100.0, 100.1), (99.9, 100.0, 100.1)))


@pytest.mark.parametrize(
    ("scope", "ranks", "judged"),
    [("gpu", 8, True), ("gpu", 2, True), ("pair", 8, True), ("gpus", 2, True), ("gpus", 8, False), ("host", 2, False)],
)
def test_what_a_figure_depends_on_says_which_worlds_count(scope: Scope, ranks: int, judged: bool) -> None:
    assert (said(TWO, 100.0, ranks, scope) is not None) is judged


def test_links_of_another_kind_count_for_what_one_gpu_does_alone() -> None:
    assert said(TWO, 100.0, 2, "gpu", topology="sys") is not None
    assert said(TWO, 100.0, 2, "pair", topology="sys") is None
    assert said(TWO, 100.0, 2, "gpus", topology="sys") is None


@pytest.mark.parametrize("change", [{"body_hash": "another"}, {"unit": "s"}, {"better": "lower"}, {"clock": "host"}])
def test_a_figure_of_another_test_body_or_unit_counts_for_nothing(change: dict[str, Any]) -> None:
    assert said(references(of2=recorded((100.0, 101.0), (99.0, 100.0), **change)), 100.0, 2) is None


@pytest.mark.parametrize(
    ("value", "saying"), [(94.0, Saying.BELOW), (95.5, Saying.PLAUSIBLE), (120.0, Saying.PLAUSIBLE)]
)
def test_a_steady_figure_may_lose_five_percent(value: float, saying: Saying) -> None:
    opinion = said(TWO, value, 2)
    assert opinion is not None
    assert opinion.saying is saying
    assert opinion.usual == pytest.approx(100.0, rel=1e-3)
    assert opinion.low == pytest.approx(100 / 1.05, rel=1e-3)
    assert opinion.source == "8 launches on 3 machines of this kind"
    assert opinion.seen is not None
    assert 0.05 < opinion.seen < 0.08


def test_a_figure_that_differs_between_machines_may_lose_more() -> None:
    wild = references(of2=recorded((100.0, 101.0), (80.0, 81.0), (120.0, 118.0), (95.0, 96.0)))
    opinion = said(wild, 80.0, 2)
    assert opinion is not None
    assert opinion.saying is Saying.PLAUSIBLE
    gross = said(wild, 30.0, 2)
    assert gross is not None
    assert gross.saying is Saying.BELOW


def test_a_time_is_bounded_from_above() -> None:
    times = references(of2=recorded((1.0, 1.001), (1.0, 1.0), (0.999, 1.0), unit="s", better="lower"))
    expecting = Expecting(Shelf(times, "nv18"), RATES, Policy())
    metric = Metric(1.1, "s", "lower", clock="cuda_event")
    opinion = expecting.opinion("suites/x.py::test_it[2ranks-a]", "rate", metric, BODY)
    assert opinion is not None
    assert (opinion.saying, opinion.low) == (Saying.BELOW, None)
    assert opinion.high == pytest.approx(1.05, rel=1e-3)


def test_a_collective_is_carried_by_the_model_and_its_error_is_told() -> None:
    work = Work(8, (Exchange("all_reduce", GIB),))
    metric = Metric(1.0, "B/s", "higher").for_work(work)
    model = {ranks: predict_scaled(metric, ranks, RATES) for ranks in (2, 4, 8)}
    assert all(model.values())
    two = 330e9
    four = two * (model[4] or 0) / (model[2] or 1) * 1.07  # the model is 7 % off between 2 and 4
    both = references(of2=recorded((two, two * 1.001), (two, two)), of4=recorded((four, four * 1.001), (four, four)))
    usual = four * (model[8] or 0) / (model[4] or 1)
    opinion = said(both, usual, 8, work=work)
    assert opinion is not None
    assert opinion.usual == pytest.approx(usual, rel=1e-3)
    assert opinion.source == (
        "4 launches on 2 machines of this kind, carried from 4 ranks to 8 by the model (7% off between recorded ones)"
    )
    assert opinion.low is not None
    assert opinion.low < usual / 1.07 / 1.05
    below = said(both, opinion.low * 0.99, 8, work=work)
    assert below is not None
    assert below.saying is Saying.BELOW


def test_nothing_is_carried_that_was_not_checked_between_two_numbers_of_ranks() -> None:
    work = Work(8, (Exchange("all_reduce", GIB),))
    assert said(TWO, 100.0, 8, work=work) is None
    four = references(of2=recorded((1.0, 1.0)), of4=recorded((1.0, 1.0)))
    assert said(four, 1.0, 8) is None, "its work is not known"
    assert said(four, 1.0, 8, work=Work(8, (Exchange("all_reduce", GIB),), flop=1.0)) is None


def test_gpus_of_another_kind_have_no_references() -> None:
    assert Shelf.open({**MATCH}) is not None
    assert Shelf.open({**MATCH, "power_limit_w": 500.0}) is None
    assert Shelf.open({**MATCH, "gpu_name": "NVIDIA GB300"}) is None
    assert Shelf.open({**MATCH, "gpu_name": "NVIDIA H100+NVIDIA H200"}) is None
    assert Shelf.open({}) is None


def test_scaling_needs_one_collective_of_a_known_kind() -> None:
    rate = Metric(1.0, "B/s", "higher")
    assert predict_scaled(rate, 2, RATES) is None
    assert predict_scaled(rate.for_work(Work(2, (Exchange("unheard", GIB),))), 2, RATES) is None
    time = predict_scaled(Metric(1.0, "s", "lower").for_work(Work(2, (Exchange("all_gather", GIB),))), 2, RATES)
    assert time is not None
    assert math.isclose(time, 0.004, rel_tol=1.0)
