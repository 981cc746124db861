"""What an update makes of stored baselines: which entries it replaces, which it leaves, and which it refuses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpuperf.baselines.losses import (
    Loss,
    compute_gain,
    describe_mismatch,
    find_changes,
    find_comparable,
    find_losses,
)
from pytest_gpuperf.baselines.match import unite
from pytest_gpuperf.baselines.mode import LEAST_LAUNCHES, Mode
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.schema import (
    Anchor,
    Baselines,
    Change,
    LaunchFigure,
    LaunchInfo,
    MetricBaseline,
    TestBaseline,
    Update,
)

# Two centres are medians of many launches each, and differ by more than this for a reason.
MINIMUM_SLOWDOWN = 0.05

MIN_EFFECT = 0.015  # the smallest change of a centre that means anything
MOVED = MIN_EFFECT / 3  # what is less than this changes no verdict, and would only change lines to review

FEWEST_APPENDED = 3  # launches whose median tells a loss: that of fewer does not outvote a bad one


@dataclass(frozen=True, slots=True)
class Stamp:
    """The author of an update, its time, its commit and its reason."""

    at: str
    commit: str
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """What an update may do."""

    mode: Mode = Mode.MOVED
    accept_regression: bool = False
    minimum_slowdown: float = MINIMUM_SLOWDOWN


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of each test that was measured."""

    baselines: Baselines
    written: tuple[str, ...] = ()
    unmoved: tuple[str, ...] = ()
    """Left as they are: their centres moved by less than MOVED."""
    present: tuple[str, ...] = ()
    """Left as they are: only missing entries were asked for."""
    unfit: Mapping[str, str] | None = None
    """Why nothing could be appended, by test."""
    refused: tuple[Loss, ...] = ()
    """Why tests were left as they are: losses that nobody accepted."""
    accepted: tuple[Loss, ...] = ()
    dropped: tuple[str, ...] = ()
    """Tests of which a known regression, written by hand, was about what was replaced, and no longer holds."""

    @property
    def failed(self) -> bool:
        """Whether something that was asked for was not done."""
        return bool(self.refused or self.unfit)


def merge(stored: Baselines, candidate: Baselines, policy: UpdatePolicy, stamp: Stamp) -> Merged:
    """Updates stored baselines by what was measured.

    An entry is written whole or left as it is; by Mode.NEW it gets the metrics that it lacks. Its anchors stay, but for
    those that are better now by more than the bound, or whose loss is accepted: what somebody decided, with a reason in
    the file, is no drift. A stale entry is no exception: the metrics that it has of the same unit, direction and clock
    are held against what was stored.

    Args:
        stored: What is there; without tests where there is no file.
        candidate: What was measured, as entries of their own.
        policy: What may be replaced.
        stamp: What the file keeps of the update.

    Returns:
        The new baselines, the stored ones where nothing is written; and what became of each test.
    """
    entries: dict[str, TestBaseline] = {}
    unmoved, present, unfit = [], [], {}
    lost: dict[str, list[Loss]] = {}
    dropped = []
    described = {**stored.launches, **candidate.launches}
    for test, measured in sorted(candidate.tests.items()):
        old = stored.tests.get(test)
        if policy.mode is Mode.NEW and old is not None:
            if (longer := _add_new_metrics(old, measured, described)) is None:
                present.append(test)
            else:
                entries[test] = longer
            continue
        new = measured
        if policy.mode is Mode.APPEND:
            if why := _describe_unfit(old, measured):
                unfit[test] = why
                continue
            assert old is not None
            new = _append(old, measured)
        if old is None:
            entries[test] = _set_anchor(new, {}, described)
            continue
        if policy.mode is Mode.MOVED and not _is_stale(old, new) and not _has_moved(old, new):
            unmoved.append(test)
            continue
        found = find_losses(test, old, new, policy.minimum_slowdown)
        moved = {loss.name for loss in found}
        if policy.mode is Mode.APPEND:
            # Launches of a slower program need not move the centre to spoil the spread.
            found += [
                loss
                for loss in find_losses(test, old, measured, policy.minimum_slowdown)
                if loss.name not in moved and len(measured.metrics[loss.name].launches) >= FEWEST_APPENDED
            ]
        if found:
            lost[test] = found
        if not found or policy.accept_regression:
            entries[test] = _settle(old, new, moved, policy.minimum_slowdown, described)
            if old.expected.keys() - entries[test].expected.keys() - moved:
                dropped.append(test)
    accepted = tuple(loss for test, found in lost.items() if test in entries for loss in found)
    refused = tuple(loss for test, found in lost.items() if test not in entries for loss in found)
    outcome = Merged(stored, tuple(entries), tuple(unmoved), tuple(present), unfit, refused, accepted, tuple(dropped))
    if not entries:
        return outcome
    update = Update(
        at=stamp.at,
        commit=stamp.commit,
        author=stamp.author,
        reason=stamp.reason,
        tests=tuple(entries),
        launches=_count_launches(candidate, entries),
        mode=policy.mode.value,
        changed=_collect_changes(stored, entries),
        accepted=tuple(sorted({loss.test for loss in accepted})),
    )
    return replace(outcome, baselines=stored.replace_tests(entries, candidate.launches, update))


def join(candidates: Sequence[Baselines]) -> tuple[Baselines, dict[str, str]]:
    """Puts the launches of several candidates of one hardware together.

    A launch that several of them hold counts once.

    Returns:
        One candidate, and why tests are not in it.
    """
    match = unite(candidate.match for candidate in candidates)
    launches: dict[str, LaunchInfo] = {}
    tests: dict[str, TestBaseline] = {}
    unfit: dict[str, str] = {}
    for candidate in candidates:
        launches |= candidate.launches
        for test, entry in candidate.tests.items():
            known = tests.get(test)
            if known is None:
                tests[test] = entry
            elif why := _explain_staleness(known, entry):
                unfit[test] = f"the results do not belong together: {why}"
            else:
                tests[test] = _append(known, entry)
    kept = {test: entry for test, entry in tests.items() if test not in unfit}
    used = {figure.launch for entry in kept.values() for metric in entry.metrics.values() for figure in metric.launches}
    described = {id_: info for id_, info in launches.items() if id_ in used}
    return Baselines(candidates[0].hardware_key, match, described, kept), unfit


def drop_too_few(candidate: Baselines) -> tuple[Baselines, dict[str, str]]:
    """Leaves out the tests of too few launches to be a baseline, and says so of each."""
    counts = {
        test: min(len(metric.launches) for metric in entry.metrics.values())
        for test, entry in candidate.tests.items()
        if entry.metrics
    }
    few = {
        test: f"{count} launches, expected at least {LEAST_LAUNCHES}"
        for test, count in counts.items()
        if count < LEAST_LAUNCHES
    }
    return replace(candidate, tests={t: entry for t, entry in candidate.tests.items() if t in counts.keys() - few}), few


def _describe_unfit(old: TestBaseline | None, measured: TestBaseline) -> str:
    if old is None:
        return "it has no entry that launches could be added to"
    if why := _explain_staleness(old, measured):
        return f"its entry is stale: {why}"
    known = [{figure.launch for figure in metric.launches} for metric in old.metrics.values()]
    if all(
        figure.launch in ids
        for ids, metric in zip(known, (measured.metrics[name] for name in old.metrics), strict=True)
        for figure in metric.launches
    ):
        return "its entry has these launches already"
    return ""


def _is_stale(old: TestBaseline, new: TestBaseline) -> bool:
    return bool(_explain_staleness(old, new))


def _explain_staleness(one: TestBaseline, other: TestBaseline) -> str:
    """Why metrics of the two cannot be compared; empty where they can."""
    if one.body_hash != other.body_hash:
        return f"the test's body was {cut(one.body_hash)!r} and is {cut(other.body_hash)!r}"
    if set(one.metrics) != set(other.metrics):
        return f"its metrics were {cut(str(sorted(one.metrics)))} and are {cut(str(sorted(other.metrics)))}"
    whys = (describe_mismatch(name, metric, other.metrics[name]) for name, metric in one.metrics.items())
    return next((why for why in whys if why), "")


def _append(old: TestBaseline, measured: TestBaseline) -> TestBaseline:
    return replace(
        old,
        metrics={
            name: replace(metric, launches=_unite(metric.launches, measured.metrics[name].launches))
            for name, metric in old.metrics.items()
        },
    )


def _add_new_metrics(
    old: TestBaseline, measured: TestBaseline, described: Mapping[str, LaunchInfo]
) -> TestBaseline | None:
    """The entry with the metrics that it lacks; None if it lacks none, or is of another body."""
    missing = {name: metric for name, metric in measured.metrics.items() if name not in old.metrics}
    if not missing or old.body_hash != measured.body_hash:
        return None
    anchored = _set_anchor(replace(measured, metrics=missing), {}, described)
    return replace(old, metrics={**old.metrics, **anchored.metrics})


def _unite(one: tuple[LaunchFigure, ...], other: tuple[LaunchFigure, ...]) -> tuple[LaunchFigure, ...]:
    ids = {figure.launch for figure in one}
    return (*one, *(figure for figure in other if figure.launch not in ids))


def _has_moved(old: TestBaseline, new: TestBaseline) -> bool:
    return any(abs(new.metrics[name].center / metric.center - 1) > MOVED for name, metric in old.metrics.items())


def _settle(
    old: TestBaseline, new: TestBaseline, lost: set[str], minimum_slowdown: float, described: Mapping[str, LaunchInfo]
) -> TestBaseline:
    anchors = {}
    stays = find_comparable(old, new)
    for name, metric in stays.items():
        # A file of schema 1 has no anchors: what it says now is the oldest that is known.
        anchor = metric.anchor or _anchor(metric, described)
        bound = math.log1p(minimum_slowdown)
        if name not in lost and compute_gain(metric.better, anchor.center, new.metrics[name].center) <= bound:
            anchors[name] = anchor
    # What a reviewer wrote is about the body that was there.
    by_hand = stays.keys() if old.body_hash == new.body_hash else set()
    return replace(
        _set_anchor(new, anchors, described),
        expected={
            name: known
            for name, known in old.expected.items()
            if name in by_hand and name not in lost and known.fits(new.metrics[name].center)
        },
    )


def _set_anchor(
    entry: TestBaseline, anchors: Mapping[str, Anchor], described: Mapping[str, LaunchInfo]
) -> TestBaseline:
    return replace(
        entry,
        metrics={
            name: replace(metric, anchor=anchors.get(name) or _anchor(metric, described))
            for name, metric in entry.metrics.items()
        },
    )


def _anchor(metric: MetricBaseline, described: Mapping[str, LaunchInfo]) -> Anchor:
    # Of the commit that was measured: results may be adopted on another one.
    info = described[metric.launches[-1].launch]
    return Anchor(metric.center, info.commit, info.at)


def _count_launches(candidate: Baselines, entries: Mapping[str, TestBaseline]) -> int:
    counts = (len(metric.launches) for test in entries for metric in candidate.tests[test].metrics.values())
    return max(counts, default=1)


def _collect_changes(stored: Baselines, entries: Mapping[str, TestBaseline]) -> dict[str, dict[str, Change]]:
    found: dict[str, dict[str, Change]] = {}
    for test, entry in entries.items():
        old = stored.tests.get(test)
        if old is not None and (moved := find_changes(old, entry)):
            found[test] = moved
    return found
