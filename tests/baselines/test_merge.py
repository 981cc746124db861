"""Which entries an update replaces, leaves and refuses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date

import pytest

from pytest_gpuperf.baselines.losses import Loss
from pytest_gpuperf.baselines.merge import Merged, Stamp, UpdatePolicy, drop_too_few, join, merge
from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import Anchor, Baselines, LaunchFigure, MetricBaseline, TestBaseline
from tests.baselines.examples import KEY, launch

STAMP = Stamp("2026-12-01T00:00:00Z", "new", "Ada", "a reason")
MEASURED = (launch().commit, launch().at)
OLD = Anchor(100.0, "old", "2026-11-01T00:00:00Z")
TEST = "t.py::test_a"


def metric(
    value: float, *, prefix: str = "new", count: int = 5, better: str = "higher", **more: object
) -> MetricBaseline:
    figures = tuple(LaunchFigure(f"{prefix}-{index}", 50, value) for index in range(count))
    plain = MetricBaseline("B/s", "higher" if better == "higher" else "lower", "cuda_event", figures)
    return replace(plain, **more)  # type: ignore[arg-type]


def file(
    tests: Mapping[str, MetricBaseline], *, body: str = "body", expected: Mapping[str, KnownRegression] | None = None
) -> Baselines:
    """Baselines of one metric for each test."""
    entries = {test: TestBaseline(body, {"busbw": entry}, expected or {}) for test, entry in tests.items()}
    ids = {figure.launch for entry in tests.values() for figure in entry.launches}
    return Baselines(KEY, {}, {id_: launch() for id_ in ids}, entries)


def stored(value: float = 100.0, *, better: str = "higher", anchor: Anchor | None = OLD) -> Baselines:
    return file({TEST: metric(value, prefix="old", better=better, anchor=anchor)})


def center(merged: Merged, test: str = TEST) -> float:
    return merged.baselines.tests[test].metrics["busbw"].center


def anchor(merged: Merged, test: str = TEST) -> Anchor | None:
    return merged.baselines.tests[test].metrics["busbw"].anchor


EMPTY = Baselines(KEY, {})
ACCEPTING = UpdatePolicy(accept_regression=True)


@pytest.mark.parametrize("mode", [Mode.MOVED, Mode.NEW, Mode.ALL])
def test_a_missing_entry_is_written_and_anchored_where_it_is(mode: Mode) -> None:
    merged = merge(EMPTY, file({TEST: metric(100.0)}), UpdatePolicy(mode), STAMP)
    assert merged.written == (TEST,)
    assert anchor(merged) == Anchor(100.0, *MEASURED)
    (update,) = merged.baselines.updates
    assert (update.at, update.commit, update.author, update.reason) == (STAMP.at, "new", "Ada", "a reason")
    assert (update.tests, update.launches, update.mode) == ((TEST,), 5, mode.value)
    assert (update.changed, update.accepted) == ({}, ())


@pytest.mark.parametrize(
    ("value", "written"), [(100.0, False), (100.49, False), (99.51, False), (100.51, True), (99.49, True)]
)
@pytest.mark.parametrize("better", ["higher", "lower"])
def test_an_entry_is_replaced_once_its_centre_has_moved_by_half_a_percent(
    value: float, written: bool, better: str
) -> None:
    before = stored(better=better)
    merged = merge(before, file({TEST: metric(value, better=better)}), UpdatePolicy(), STAMP)
    assert (merged.written, merged.unmoved) == (((TEST,), ()) if written else ((), (TEST,)))
    assert (merged.baselines is before) is not written
    assert not merged.failed


def test_one_moved_metric_replaces_its_entry_whole() -> None:
    before, after = stored().tests[TEST], file({TEST: metric(100.0)}).tests[TEST]
    two = replace(before, metrics={**before.metrics, "time": before.metrics["busbw"]})
    new = replace(after, metrics={**after.metrics, "time": metric(101.0)})
    candidate = replace(file({TEST: metric(100.0)}), tests={TEST: new})
    merged = merge(replace(stored(), tests={TEST: two}), candidate, UpdatePolicy(), STAMP)
    assert {figure.launch[:3] for figure in merged.baselines.tests[TEST].metrics["busbw"].launches} == {"new"}
    assert merged.baselines.updates[-1].changed == {TEST: {"time": (100.0, 101.0)}}


@pytest.mark.parametrize(
    "candidate",
    [
        file({TEST: metric(50.0, unit="s")}),
        file({TEST: metric(50.0, better="lower")}),
        file({TEST: metric(50.0, clock="host")}),
        replace(file({TEST: metric(50.0)}), tests={TEST: TestBaseline("body", {"time": metric(50.0)})}),
    ],
    ids=["unit", "better", "clock", "metrics"],
)
@pytest.mark.parametrize("mode", [Mode.MOVED, Mode.ALL])
def test_a_stale_metric_that_cannot_be_compared_is_replaced_and_anchored_anew(candidate: Baselines, mode: Mode) -> None:
    before = file(
        {TEST: metric(100.0, prefix="old", anchor=OLD)}, expected={"busbw": KnownRegression("x", date(2027, 1, 1))}
    )
    merged = merge(before, candidate, UpdatePolicy(mode), STAMP)
    assert merged.written == (TEST,)
    (name,) = merged.baselines.tests[TEST].metrics
    assert merged.baselines.tests[TEST].metrics[name].anchor == Anchor(50.0, *MEASURED)
    assert merged.baselines.tests[TEST].expected == {}
    assert merged.baselines.updates[-1].changed == {}


KNOWN = {"busbw": KnownRegression("x", date(2027, 1, 1))}


def another(value: float) -> Baselines:
    return file({TEST: metric(value)}, body="another")


def with_latency(value: float) -> Baselines:
    entry = file({TEST: metric(value)}).tests[TEST]
    return replace(
        file({TEST: metric(value)}),
        tests={TEST: replace(entry, metrics={**entry.metrics, "latency": metric(1.0, better="lower")})},
    )


def reviewed() -> Baselines:
    entry = replace(stored().tests[TEST], expected=KNOWN)
    return replace(stored(), tests={TEST: entry})


@pytest.mark.parametrize("measured", [another, with_latency])
@pytest.mark.parametrize("mode", [Mode.MOVED, Mode.ALL])
def test_a_loss_is_one_also_where_its_entry_is_stale(measured: Callable[[float], Baselines], mode: Mode) -> None:
    before = stored()
    merged = merge(before, measured(50.0), UpdatePolicy(mode), STAMP)
    assert [(loss.name, loss.old, loss.new, loss.anchor) for loss in merged.refused] == [("busbw", 100.0, 50.0, None)]
    assert merged.baselines is before
    drifted = merge(stored(97.0), measured(94.0), UpdatePolicy(mode), STAMP)
    assert [(loss.old, loss.new, loss.anchor) for loss in drifted.refused] == [(100.0, 94.0, OLD)]

    merged = merge(before, measured(50.0), UpdatePolicy(mode, accept_regression=True), STAMP)
    (update,) = merged.baselines.updates
    assert (update.accepted, update.changed) == ((TEST,), {TEST: {"busbw": (100.0, 50.0)}})
    assert anchor(merged) == Anchor(50.0, *MEASURED)


def test_what_moved_of_a_stale_entry_is_kept_and_its_anchor_stays() -> None:
    for measured in (another, with_latency):
        merged = merge(stored(), measured(99.0), UpdatePolicy(), STAMP)
        assert merged.written == (TEST,)
        assert merged.baselines.updates[-1].changed == {TEST: {"busbw": (100.0, 99.0)}}
        assert anchor(merged) == OLD
    latency = merged.baselines.tests[TEST].metrics["latency"]
    assert latency.anchor == Anchor(1.0, *MEASURED)


def test_what_a_reviewer_wrote_stays_with_the_body_and_the_metric_that_it_is_about() -> None:
    merged = merge(reviewed(), with_latency(99.0), UpdatePolicy(), STAMP)
    entry = merged.baselines.tests[TEST]
    assert (entry.expected, merged.dropped) == (KNOWN, ())
    accepted = merge(reviewed(), with_latency(90.0), ACCEPTING, STAMP)
    assert (accepted.baselines.tests[TEST].expected, accepted.dropped) == ({}, ())

    without = replace(another(1.0), tests={TEST: TestBaseline("body", {"time": metric(1.0)})})
    for measured in (another(99.0), without):
        merged = merge(reviewed(), measured, UpdatePolicy(), STAMP)
        entry = merged.baselines.tests[TEST]
        assert (entry.expected, merged.dropped) == ({}, (TEST,))


def test_only_missing_ones_are_written_if_only_new_ones_are_asked_for() -> None:
    candidate = file({TEST: metric(120.0), "t.py::test_b": metric(1.0)})
    merged = merge(stored(), candidate, UpdatePolicy(Mode.NEW), STAMP)
    assert (merged.written, merged.present) == (("t.py::test_b",), (TEST,))
    assert center(merged) == 100.0


def test_a_new_metric_is_written_and_what_is_there_stays_if_only_new_ones_are_asked_for() -> None:
    before = reviewed()
    merged = merge(before, with_latency(50.0), UpdatePolicy(Mode.NEW), STAMP)
    assert (merged.written, merged.present, merged.refused) == ((TEST,), (), ())
    old, entry = before.tests[TEST], merged.baselines.tests[TEST]
    assert entry.metrics["busbw"] is old.metrics["busbw"]
    assert entry.metrics["latency"].anchor == Anchor(1.0, *MEASURED)
    assert entry.expected == KNOWN
    assert merged.baselines.updates[-1].changed == {}
    again = merge(merged.baselines, with_latency(50.0), UpdatePolicy(Mode.NEW), STAMP)
    assert (again.written, again.present) == ((), (TEST,))


def test_a_new_metric_of_another_body_is_not_new() -> None:
    candidate = with_latency(100.0)
    other = replace(candidate, tests={TEST: replace(candidate.tests[TEST], body_hash="another")})
    assert merge(stored(), other, UpdatePolicy(Mode.NEW), STAMP).present == (TEST,)


def test_all_replaces_also_what_did_not_move_and_keeps_the_anchor() -> None:
    merged = merge(stored(), file({TEST: metric(100.1)}), UpdatePolicy(Mode.ALL), STAMP)
    assert (merged.written, center(merged), anchor(merged)) == ((TEST,), 100.1, OLD)
    assert merged.baselines.updates[-1].changed == {TEST: {"busbw": (100.0, 100.1)}}


@pytest.mark.parametrize("mode", [Mode.MOVED, Mode.ALL, Mode.APPEND])
@pytest.mark.parametrize(("better", "value"), [("higher", 94.0), ("lower", 106.0)])
def test_a_loss_is_not_written_unless_it_is_accepted(mode: Mode, better: str, value: float) -> None:
    before = stored(better=better)
    # As many launches again as there are, and one, for their median to be the new one's when they are appended.
    candidate = file({TEST: metric(value, better=better, count=6), "t.py::test_b": metric(1.0)})
    merged = merge(before, candidate, UpdatePolicy(mode), STAMP)
    (loss,) = merged.refused
    assert loss == Loss(TEST, "busbw", "B/s", 100.0, value, pytest.approx(-0.06), 0.05)  # type: ignore[arg-type]
    assert merged.failed
    assert merged.baselines.tests[TEST] is before.tests[TEST]
    assert TEST not in merged.written

    merged = merge(before, candidate, UpdatePolicy(mode, accept_regression=True), STAMP)
    assert (merged.refused, merged.accepted) == ((), (loss,))
    assert center(merged) == value
    assert merged.baselines.updates[-1].accepted == (TEST,)
    assert merged.baselines.updates[-1].changed == {TEST: {"busbw": (100.0, value)}}


def scattered(*values: float) -> MetricBaseline:
    figures = tuple(LaunchFigure(f"old-{index}", 50, value) for index, value in enumerate(values))
    return replace(metric(1.0, prefix="old", anchor=OLD), launches=figures)


def test_the_bound_of_a_loss_is_the_minimum_slowdown() -> None:
    candidate = file({TEST: metric(94.0)})
    assert not merge(stored(), candidate, UpdatePolicy(minimum_slowdown=0.07), STAMP).refused
    # Slower by 5 % is 95.2 of 100: what a run has to find, and what an update may not hide, is one bound.
    assert merge(stored(), file({TEST: metric(95.2)}), UpdatePolicy(), STAMP).refused
    assert not merge(stored(), file({TEST: metric(95.3)}), UpdatePolicy(), STAMP).refused
    (loss,) = merge(stored(), file({TEST: metric(97.5)}), UpdatePolicy(minimum_slowdown=0.02), STAMP).refused
    assert loss.bound == 0.02


@pytest.mark.parametrize(
    "launches", [(96.0, 98.0, 100.0, 102.0, 104.0), (99.0, 100.0, 100.0, 101.0, 50.0)], ids=["noisy", "one bad"]
)
def test_no_spread_widens_the_bound_of_a_loss(launches: tuple[float, ...]) -> None:
    before = file({TEST: scattered(*launches)})
    (loss,) = merge(before, file({TEST: metric(94.0)}), UpdatePolicy(), STAMP).refused
    assert (loss.old, loss.new, loss.bound) == (100.0, 94.0, 0.05)


@pytest.mark.parametrize(("count", "refused"), [(5, [True] * 6), (2, [False] * 4 + [True] * 2)])
def test_a_slower_program_is_not_appended_step_by_step(count: int, refused: list[bool]) -> None:
    now, steps = file({TEST: metric(100.0, prefix="old", count=9, anchor=OLD)}), []
    for step in range(6):
        slower = file({TEST: metric(80.0, prefix=f"step{step}", count=count)})
        merged = merge(now, slower, UpdatePolicy(Mode.APPEND), STAMP)
        now = merged.baselines
        steps.append(bool(merged.refused))
    assert steps == refused
    assert center(merged) == 100.0


def test_slower_launches_that_leave_the_centre_are_appended_if_they_are_accepted() -> None:
    before = file({TEST: metric(100.0, prefix="old", count=9, anchor=OLD)})
    merged = merge(before, file({TEST: metric(80.0)}), UpdatePolicy(Mode.APPEND, accept_regression=True), STAMP)
    assert [(loss.old, loss.new) for loss in merged.accepted] == [(100.0, 80.0)]
    assert merged.baselines.updates[-1].accepted == (TEST,)
    assert (center(merged), anchor(merged)) == (100.0, OLD)


def test_small_losses_do_not_add_up_unseen() -> None:
    before = stored(97.0)  # within 5 % of its anchor
    merged = merge(before, file({TEST: metric(94.0)}), UpdatePolicy(), STAMP)  # within 5 % of what is stored
    (loss,) = merged.refused
    assert (loss.old, loss.new, loss.anchor) == (100.0, 94.0, OLD)
    assert loss.change == pytest.approx(-0.06)
    merged = merge(before, file({TEST: metric(94.0)}), ACCEPTING, STAMP)
    assert anchor(merged) == Anchor(94.0, *MEASURED)


def test_an_anchor_stays_under_small_changes_and_follows_a_gain() -> None:
    assert anchor(merge(stored(), file({TEST: metric(98.0)}), UpdatePolicy(), STAMP)) == OLD
    assert anchor(merge(stored(), file({TEST: metric(104.0)}), UpdatePolicy(), STAMP)) == OLD
    assert anchor(merge(stored(), file({TEST: metric(106.0)}), UpdatePolicy(), STAMP)) == Anchor(106.0, *MEASURED)


def test_what_has_no_anchor_is_anchored_at_what_is_stored() -> None:
    merged = merge(stored(anchor=None), file({TEST: metric(98.0)}), UpdatePolicy(), STAMP)
    assert anchor(merged) == Anchor(100.0, *MEASURED)


def test_an_expectation_stays_until_its_loss_is_accepted() -> None:
    known = {"busbw": KnownRegression("a slow driver", date(2027, 1, 1))}
    before = file({TEST: metric(100.0, prefix="old", anchor=OLD)}, expected=known)
    assert merge(before, file({TEST: metric(101.0)}), UpdatePolicy(), STAMP).baselines.tests[TEST].expected == known
    assert merge(before, file({TEST: metric(90.0)}), ACCEPTING, STAMP).baselines.tests[TEST].expected == {}


def test_an_expectation_that_a_gain_leaves_far_behind_goes() -> None:
    known = {"busbw": KnownRegression("a slow driver", date(2027, 1, 1), center=90.0)}
    before = file({TEST: metric(100.0, prefix="old", anchor=OLD)}, expected=known)
    merged = merge(before, file({TEST: metric(800.0)}), UpdatePolicy(), STAMP)
    assert (merged.baselines.tests[TEST].expected, merged.dropped) == (known, ())
    merged = merge(before, file({TEST: metric(1000.0)}), UpdatePolicy(), STAMP)
    assert (merged.baselines.tests[TEST].expected, merged.dropped) == ({}, (TEST,))


def test_launches_are_appended_to_those_that_are_there() -> None:
    merged = merge(stored(), file({TEST: metric(101.0, count=1)}), UpdatePolicy(Mode.APPEND), STAMP)
    figures = merged.baselines.tests[TEST].metrics["busbw"].launches
    assert [figure.median for figure in figures] == [100.0] * 5 + [101.0]
    assert len(merged.baselines.launches) == 6
    assert merged.baselines.updates[-1].launches == 1
    assert anchor(merged) == OLD


def test_a_loss_that_was_appended_is_anchored_where_it_was_measured() -> None:
    candidate = file({TEST: metric(90.0, count=6)})
    later = replace(launch(), commit="later", at="later")
    candidate = replace(candidate, launches=dict.fromkeys(candidate.launches, later))
    merged = merge(stored(), candidate, UpdatePolicy(Mode.APPEND, accept_regression=True), STAMP)
    assert anchor(merged) == Anchor(90.0, "later", "later")


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (file({"t.py::test_b": metric(1.0)}), "it has no entry that launches could be added to"),
        (
            file({TEST: metric(100.0)}, body="another"),
            "its entry is stale: the test's body was 'body' and is 'another'",
        ),
        (file({TEST: metric(100.0, unit="s")}), "its entry is stale: unit of busbw was 'B/s' and is 's'"),
        (
            file({TEST: metric(100.0, clock="host")}),
            "its entry is stale: clock of busbw was 'cuda_event' and is 'host'",
        ),
        (
            replace(file({TEST: metric(1.0)}), tests={TEST: TestBaseline("body", {"time": metric(1.0)})}),
            "its entry is stale: its metrics were ['busbw'] and are ['time']",
        ),
        (file({TEST: metric(100.0, prefix="old")}), "its entry has these launches already"),
    ],
    ids=["missing", "body", "unit", "clock", "metrics", "again"],
)
def test_what_cannot_be_appended_is_told(candidate: Baselines, why: str) -> None:
    before = stored()
    merged = merge(before, candidate, UpdatePolicy(Mode.APPEND), STAMP)
    assert merged.unfit == {next(iter(candidate.tests)): why}
    assert merged.baselines is before
    assert merged.failed


def test_candidates_are_joined_and_a_launch_in_two_of_them_counts_once() -> None:
    one, two = metric(1.0, prefix="a", count=3), metric(2.0, prefix="b", count=2)
    joint, unfit = join([file({TEST: one}), file({TEST: two, "t.py::test_b": two}), file({TEST: one})])
    assert unfit == {}
    ids = [figure.launch for figure in joint.tests[TEST].metrics["busbw"].launches]
    assert ids == ["a-0", "a-1", "a-2", "b-0", "b-1"]
    assert set(joint.launches) == set(ids)
    few, told = drop_too_few(joint)
    assert list(few.tests) == [TEST]
    assert told == {"t.py::test_b": "2 launches, expected at least 5"}


def test_candidates_of_two_bodies_are_not_joined() -> None:
    joint, unfit = join([file({TEST: metric(1.0)}), file({TEST: metric(1.0, prefix="b")}, body="another")])
    assert unfit == {TEST: "the results do not belong together: the test's body was 'body' and is 'another'"}
    assert (joint.tests, joint.launches) == ({}, {})
