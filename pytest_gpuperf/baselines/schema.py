"""Stored measurements of one machine, as values: what a file of baselines says, and how an update changes it.

What a launch was is in launch_info.py, all launches of one metric in metric_baseline.py.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from pytest_gpuperf.baselines import expected, metric_policy
from pytest_gpuperf.baselines.expected import Expected
from pytest_gpuperf.baselines.json_fields import FieldError, Fields, mismatch
from pytest_gpuperf.baselines.launch_info import LaunchInfo, launch_info, launches_joined
from pytest_gpuperf.baselines.match import Scalar, cure_of, difference, scalars
from pytest_gpuperf.baselines.metric_baseline import MetricBaseline
from pytest_gpuperf.baselines.metric_policy import MetricPolicy

T = TypeVar("T")

SCHEMA = 2  # 1 had no anchors, expectations, modes and changes; it is read all the same

LEAST_LAUNCHES = 5  # below five the spread between launches is hardly known
RESTORE = "restore it from version control, or delete it and record it again with --update-baselines"
KEY_LETTERS = "letters, digits, '+', '.', '_' and '-' alone"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")  # names a file: no way into another folder


class BaselineError(Exception):
    """A file of baselines cannot be used; the message names file, what was got and expected, and the cure."""

    def __init__(self, path: object, problem: str, cure: str) -> None:
        super().__init__(path, problem, cure)
        self.path = path
        self.problem = problem
        self.cure = cure

    def __str__(self) -> str:
        return f"baselines {str(self.path)!r}: {self.problem}: {self.cure}"


@dataclass(frozen=True, slots=True)
class TestBaseline:
    """All metrics of one test."""

    __test__: ClassVar[bool] = False  # pytest would collect a class of this name

    body_hash: str
    """Names the test's source: figures of another body are not comparable."""
    metrics: Mapping[str, MetricBaseline]
    expected: Mapping[str, Expected] = field(default_factory=dict)
    """Known regressions by metric; written by hand."""
    policy: Mapping[str, MetricPolicy] = field(default_factory=dict)
    """Bounds by metric that differ from the run's; written by hand."""

    def by_hand(self) -> dict[str, object]:
        """What a reviewer wrote, as plain JSON types."""
        written = {
            "expected": {name: known.to_json() for name, known in self.expected.items()},
            "policy": {name: bounds.to_json() for name, bounds in self.policy.items()},
        }
        return {key: entries for key, entries in written.items() if entries}


@dataclass(frozen=True, slots=True)
class Change:
    """What an update made of one metric's centre."""

    old: float
    new: float


@dataclass(frozen=True, slots=True)
class Update:
    """Who replaced which baselines, when and why."""

    at: str
    commit: str
    author: str
    reason: str
    tests: tuple[str, ...]
    launches: int
    """How many launches the new figures rest on."""
    mode: str | None = None
    """Which entries it was to replace; None in a file of schema 1."""
    changed: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    """Where the centres were and went, by test and metric, of entries that were there before."""
    accepted: tuple[str, ...] = ()
    """Tests among them whose loss was accepted expressly."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        data: dict[str, object] = {
            "at": self.at,
            "commit": self.commit,
            "author": self.author,
            "reason": self.reason,
            "tests": list(self.tests),
            "launches": self.launches,
        }
        if self.mode is not None:
            data["mode"] = self.mode
        if self.changed:
            data["changed"] = {
                test: {name: [change.old, change.new] for name, change in changes.items()}
                for test, changes in self.changed.items()
            }
        if self.accepted:
            data["accepted"] = list(self.accepted)
        return data


@dataclass(frozen=True, slots=True)
class Baselines:
    """All baselines of one hardware key."""

    hardware_key: str
    match: Mapping[str, Scalar]
    """Facts of the machine: figures of GPUs with others are not comparable."""
    launches: Mapping[str, LaunchInfo] = field(default_factory=dict)
    tests: Mapping[str, TestBaseline] = field(default_factory=dict)
    updates: tuple[Update, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a key that is no file's name, and figures of launches that nobody described."""
        if not _KEY.fullmatch(self.hardware_key):
            raise ValueError(f"hardware_key is {self.hardware_key!r}, expected {KEY_LETTERS}")
        if unknown := sorted(_launches_of(self.tests) - set(self.launches)):
            raise ValueError(
                f"launches are {sorted(self.launches)!r}, expected {unknown!r} too, which figures refer to"
            )

    def updated(
        self, tests: Mapping[str, TestBaseline], launches: Mapping[str, LaunchInfo], update: Update
    ) -> "Baselines":
        """Replaces these tests' entries whole, keeps the others, and drops launches that no figure refers to.

        Args:
            tests: The new entries by node id.
            launches: The launches they refer to, by id.
            update: What to add to the history.
        """
        merged = {**self.tests, **tests}
        used = _launches_of(merged)
        return Baselines(
            hardware_key=self.hardware_key,
            match=self.match,
            launches={id_: info for id_, info in launches_joined(self.launches, launches).items() if id_ in used},
            tests=merged,
            updates=(*self.updates, update),
        )

    def require(self, match: Mapping[str, Scalar], path: object) -> None:
        """Refuses GPUs on which these figures could not have been measured.

        Args:
            match: Facts of the GPUs.
            path: The file these are of, for messages.

        Raises:
            BaselineError: They have another power limit, for example.
        """
        if why := difference(self.match, match):
            problem = f"{why}, as when its figures were measured: the two cannot be compared"
            raise BaselineError(path, problem, cure_of(self.match, match))

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "schema": SCHEMA,
            "hardware_key": self.hardware_key,
            "match": dict(self.match),
            "launches": {id_: info.to_json() for id_, info in self.launches.items()},
            "tests": {
                test: {
                    "body_hash": entry.body_hash,
                    "metrics": {name: metric.to_json() for name, metric in entry.metrics.items()},
                    **entry.by_hand(),
                }
                for test, entry in self.tests.items()
            },
            "updates": [update.to_json() for update in self.updates],
        }

    @classmethod
    def from_json(cls, data: object, path: object, hardware_key: str) -> "Baselines":
        """Reads what to_json wrote, for the hardware it was written for.

        Args:
            data: The parsed JSON.
            path: The file it came from, for messages.
            hardware_key: The hardware that wants it.

        Raises:
            BaselineError: For anything else.
        """
        try:
            fields = Fields.of(data, "file")
            schema = fields.integer("schema")
            if schema > SCHEMA:
                problem = f"schema {schema} is newer than this version reads ({SCHEMA})"
                raise BaselineError(path, problem, "upgrade pytest-gpuperf")
            fields.only("schema", "hardware_key", "match", "launches", "tests", "updates")
            stored = _key(fields)
            if stored != hardware_key:
                problem = f"file.hardware_key: got {stored!r}, expected {hardware_key!r}"
                raise BaselineError(path, problem, f"rename the file to {stored}.json, and record this hardware's own")
            return fields.built(
                lambda: cls(
                    hardware_key=stored,
                    match=scalars(fields.child("match")),
                    launches={id_: launch_info(info) for id_, info in fields.children("launches")},
                    tests={test: _test(entry) for test, entry in fields.children("tests")},
                    updates=tuple(_update(item) for item in fields.items("updates")),
                )
            )
        except FieldError as error:
            raise BaselineError(path, str(error), error.cure or RESTORE) from error


def _key(fields: Fields) -> str:
    key = fields.text("hardware_key")
    if not _KEY.fullmatch(key):  # before anything makes a file's name of it
        raise mismatch(f"{fields.where}.hardware_key", key, KEY_LETTERS)
    return key


def _launches_of(tests: Mapping[str, TestBaseline]) -> set[str]:
    return {figure.launch for test in tests.values() for metric in test.metrics.values() for figure in metric.launches}


def _test(fields: Fields) -> TestBaseline:
    fields.only("body_hash", "metrics", "expected", "policy")
    metrics = {name: MetricBaseline.from_json(child.values, child.where) for name, child in fields.children("metrics")}
    return TestBaseline(
        body_hash=fields.text("body_hash"),
        metrics=metrics,
        expected=_expected(fields, metrics),
        policy=_by_hand(fields, "policy", metrics, MetricPolicy.from_json, metric_policy.CURE),
    )


def _expected(fields: Fields, metrics: Mapping[str, MetricBaseline]) -> dict[str, Expected]:
    found = _by_hand(fields, "expected", metrics, Expected.from_json, expected.CURE)
    for name, known in found.items():
        metric = metrics[name]
        if not known.fits(metric.center):
            where = f"{fields.child('expected').child(name).where}.center"
            what = f"within a factor of {expected.FACTOR:g} of the baseline's centre, {metric.center:.5g} {metric.unit}"
            cure = f"write it in {metric.unit} without a prefix, or delete it"
            raise FieldError(where, f"got {known.center!r}, expected a figure {what}", cure)
    return found


def _by_hand(
    fields: Fields, key: str, metrics: Mapping[str, MetricBaseline], read: Callable[[Fields], T], cure: str
) -> dict[str, T]:
    # The cure is another than for what a program wrote.
    if key not in fields.values:
        return {}
    try:
        for name in (place := fields.child(key)).values:
            if name not in metrics:
                raise mismatch(place.where, name, f"a metric of the test, one of {', '.join(map(repr, metrics))}")
        return {name: read(child) for name, child in fields.children(key)}
    except FieldError as error:
        raise FieldError(error.where, error.problem, cure) from error


def _update(fields: Fields) -> Update:
    fields.only(*Update.__dataclass_fields__)
    optional = fields.values
    return Update(
        at=fields.text("at"),
        commit=fields.text("commit"),
        author=fields.text("author"),
        reason=fields.text("reason"),
        tests=fields.texts("tests"),
        launches=fields.integer("launches"),
        mode=fields.text("mode") if "mode" in optional else None,
        changed=_changed(fields) if "changed" in optional else {},
        accepted=fields.texts("accepted") if "accepted" in optional else (),
    )


def _changed(fields: Fields) -> dict[str, dict[str, Change]]:
    return {
        test: {name: Change(*changes.pair(name)) for name in changes.values}
        for test, changes in fields.children("changed")
    }
