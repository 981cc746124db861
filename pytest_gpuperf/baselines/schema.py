"""Stored measurements of one machine, as values: what a file of baselines says.

What a reviewer writes into it by hand is in reviewed.py, and how an update changes it in merge.py.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeAlias

from pytest_gpuperf.baselines.match import Scalar, describe_cure, describe_difference
from pytest_gpuperf.baselines.plain import (
    OMITTED,
    OPTIONAL,
    Checked,
    FieldError,
    Made,
    Told,
    at,
    cut,
    make_mismatch,
    make_plain,
    require_member,
)
from pytest_gpuperf.baselines.plain import read as read_plain
from pytest_gpuperf.baselines.reviewed import CURE, FACTOR, KnownRegression
from pytest_gpuperf.figures.metric import Better, convert_to_finite

SCHEMA = 2  # 1 had no anchors, expectations, modes and changes; it is read all the same

RESTORE = "restore it from version control, or delete it and record it again with --update-baselines"
KEY_LETTERS = "letters, digits, '+', '.', '_' and '-' alone"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")  # names a file: no way into another folder

Count: TypeAlias = Annotated[int, Checked(lambda count: count >= 1, "an integer of at least 1")]
_Derived: TypeAlias = Annotated[float, Made(None)]
"""There for who reads a file, and computed anew from what else it says: it is never trusted."""


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
class LaunchInfo:
    """When, on which commit and host, and with which software a launch ran.

    A launch is the unit of the statistics: fresh processes and communicators, shared by all tests of a run.
    """

    at: str
    """ISO 8601, UTC."""
    commit: str
    host: str
    environment: Mapping[str, str]
    """Versions: driver, cuda, nccl, torch, python and whatever else tells two launches apart."""
    gpus: str = field(default="", metadata=OMITTED)
    """Tells the GPUs from others of their kind; empty if it is not known which they were."""
    dirty: bool = field(default=False, metadata=OMITTED)
    """Whether the checkout had changes that were not committed: the commit is not what was measured."""
    nccl: Mapping[str, str] = field(default_factory=dict, metadata=OMITTED)
    """What NCCL chose, by the names of ``hardware.nccl_choices``; empty if nobody asked, or its log was not known."""
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, metadata=OMITTED)
    """The facts of each node of a cluster by its name; empty for a machine."""
    hash_seed: str = field(default="", metadata=OMITTED)
    """PYTHONHASHSEED of the ranks, to repeat the launch; empty if it is unknown.

    It is not part of the environment: each run draws another one, so it would differ in each verdict, and explain none.
    """


@dataclass(frozen=True, slots=True)
class LaunchFigure:
    """One launch's value of one metric."""

    launch: str
    """Id of the launch, a key of Baselines.launches."""
    n: Count
    """Samples."""
    median: float
    q1: float | None = None
    q3: float | None = None
    sm_clock: float | None = field(default=None, metadata=OMITTED)
    """The SM clock of the busy GPUs during the launch, Hz."""
    watts: float | None = field(default=None, metadata=OMITTED)
    """Power of one of the busy GPUs meanwhile."""
    kelvin: float | None = field(default=None, metadata=OMITTED)
    """Temperature of the busy GPUs meanwhile."""

    def __post_init__(self) -> None:
        """Refuses metrics that have no logarithm."""
        for name in ("median", "q1", "q3"):
            figure = getattr(self, name)
            number = convert_to_finite(figure)
            if (figure is not None or name == "median") and (number is None or number <= 0):
                whose = f"{name} of launch {cut(self.launch)!r}"
                raise ValueError(f"{whose} is {figure!r}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The centre that later ones are held against, so that many small losses do not add up unseen."""

    center: float
    commit: str
    at: str

    def __post_init__(self) -> None:
        """Refuses a centre that has no logarithm."""
        number = convert_to_finite(self.center)
        if number is None or number <= 0:
            raise ValueError(f"center is {self.center!r}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class MetricBaseline:
    """All launches of one metric of one test."""

    unit: str
    better: Better
    clock: str
    launches: tuple[LaunchFigure, ...]
    anchor: Anchor | None = field(default=None, metadata=OMITTED)
    reduce: Literal["max_over_ranks"] = "max_over_ranks"
    stat: Literal["median"] = "median"
    center: _Derived = field(default=0.0, metadata=OPTIONAL)
    """Median of the launches' medians, whatever is passed here."""
    sigma_b: _Derived = field(default=0.0, metadata=OPTIONAL)
    """Spread between launches: sample standard deviation of ln(median), 0.0 below 2 launches; as center."""

    def __post_init__(self) -> None:
        """Refuses a baseline without a centre."""
        ids = [figure.launch for figure in self.launches]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError(f"launches are {_list(ids)}, expected at least one, each once")
        medians = [figure.median for figure in self.launches]
        center = statistics.median(medians)
        if not math.isfinite(center):
            raise ValueError(f"launches have the centre {center!r}, expected a finite number")
        object.__setattr__(self, "center", center)
        spread = statistics.stdev(map(math.log, medians)) if len(medians) > 1 else 0.0
        object.__setattr__(self, "sigma_b", spread)


@dataclass(frozen=True, slots=True)
class TestBaseline:
    """All metrics of one test."""

    __test__: ClassVar[bool] = False  # pytest would collect a class of this name

    body_hash: str
    """Names the test's source: metrics of another body are not comparable."""
    metrics: Mapping[str, MetricBaseline]
    expected: Mapping[str, KnownRegression] = field(default_factory=dict, metadata=OMITTED)
    """Known regressions by metric; written by hand."""


Change: TypeAlias = Annotated[tuple[float, float], Told("a list of two finite numbers")]
"""The centre of one metric before an update, and after it."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update: who replaced which baselines, when and why."""

    at: str
    commit: str
    author: str
    reason: str
    tests: tuple[str, ...]
    launches: Count
    """How many launches the new metrics rest on."""
    mode: str | None = field(default=None, metadata=OMITTED)
    """Which entries it was to replace; None in a file of schema 1."""
    changed: Mapping[str, Mapping[str, Change]] = field(default_factory=dict, metadata=OMITTED)
    """The centres before and after, by test and metric, of entries that were there before."""
    accepted: tuple[str, ...] = field(default=(), metadata=OMITTED)
    """Tests among them whose loss was accepted expressly."""


@dataclass(frozen=True, slots=True)
class Baselines:
    """All baselines of one hardware key."""

    hardware_key: str
    match: Mapping[str, Scalar]
    """Facts of the machine: metrics of GPUs with others are not comparable."""
    launches: Mapping[str, LaunchInfo] = field(default_factory=dict)
    tests: Mapping[str, TestBaseline] = field(default_factory=dict)
    updates: tuple[Update, ...] = ()

    def __post_init__(self) -> None:
        """Refuses a key that is no file's name, and metrics of launches that nobody described."""
        if not _KEY.fullmatch(self.hardware_key):
            raise ValueError(f"hardware_key is {cut(self.hardware_key)!r}, expected {KEY_LETTERS}")
        if unknown := sorted(_list_launches(self.tests) - set(self.launches)):
            known = _list(sorted(self.launches))
            raise ValueError(f"launches are {known}, expected {_list(unknown)} too, which metrics refer to")

    def replace_tests(
        self, tests: Mapping[str, TestBaseline], launches: Mapping[str, LaunchInfo], update: Update
    ) -> "Baselines":
        """Replaces these tests' entries whole, keeps the others, and drops launches that no metric refers to.

        Args:
            tests: The new entries by node id.
            launches: The launches they refer to, by id.
            update: What to add to the history.
        """
        merged = {**self.tests, **tests}
        used = _list_launches(merged)
        return Baselines(
            hardware_key=self.hardware_key,
            match=self.match,
            launches={id_: info for id_, info in {**self.launches, **launches}.items() if id_ in used},
            tests=merged,
            updates=(*self.updates, update),
        )

    def require(self, match: Mapping[str, Scalar], path: object) -> None:
        """Refuses GPUs on which these metrics could not have been measured.

        Args:
            match: Facts of the GPUs.
            path: The file these are of, for messages.

        Raises:
            BaselineError: They have another power limit, for example.
        """
        if why := describe_difference(self.match, match):
            problem = f"{why}, as when its metrics were measured: the two cannot be compared"
            raise BaselineError(path, problem, describe_cure(self.match, match))

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {"schema": SCHEMA, **make_plain(self)}

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
            require_version(data, "schema", SCHEMA, path)
            stored = require_member(data, "hardware_key", "file")
            if not isinstance(stored, str):
                raise make_mismatch("file.hardware_key", stored, "a string")
            if not _KEY.fullmatch(stored):  # before anything makes a file's name of it
                raise make_mismatch("file.hardware_key", stored, KEY_LETTERS)
            if stored != hardware_key:
                problem = f"file.hardware_key: got {cut(stored)!r}, expected {hardware_key!r}"
                cure = f"rename the file to {cut(stored)}.json, and record this hardware's own"
                raise BaselineError(path, problem, cure)
            baselines = read_plain(cls, _drop_key(data, "schema"), "file")
            _check_by_hand(baselines)
        except FieldError as error:
            # What a reviewer wrote is not in version control yet.
            cure = CURE if error.path[2:3] == ("expected",) else RESTORE
            raise BaselineError(path, str(error), error.cure or cure) from error
        return baselines


def require_figures(baselines: Baselines, path: object) -> None:
    """Refuses a file that a command compares with others, and that holds nothing to compare.

    Raises:
        BaselineError: No test of the file has a metric.
    """
    if not any(entry.metrics for entry in baselines.tests.values()):
        cure = "name a file of a run that measured on GPUs; --smoke and runs on CPUs keep none"
        raise BaselineError(path, "got no launch with metrics, expected one or more", cure)


def require_version(data: object, key: str, newest: int, path: object, of: str = "") -> None:
    """Refuses a file that a later version of ours wrote, before what is new in it is taken for a mistake.

    Args:
        data: The file.
        key: What of it is the version.
        newest: The version that is written here; earlier ones are read too.
        path: The file, for messages.
        of: What the version is of, for messages.

    Raises:
        FieldError: It has no version.
        BaselineError: It is a later one.
    """
    version = require_member(data, key, "file")
    if type(version) is not int or version < 1:
        raise make_mismatch(f"file.{key}", version, "an integer of at least 1")
    if version > newest:
        problem = f"{of}schema {version} is newer than this version reads ({newest})"
        raise BaselineError(path, problem, "upgrade pytest-gpuperf")


def _drop_key(data: object, key: str) -> dict[str, object]:
    assert isinstance(data, dict)
    return {name: value for name, value in data.items() if name != key}


def _check_by_hand(baselines: Baselines) -> None:
    for test, entry in baselines.tests.items():
        for name, known in entry.expected.items():
            if name not in entry.metrics:
                got = make_mismatch(at("file", "tests", test, "expected"), name, _format_choices(entry.metrics))
                raise FieldError(got.where, got.problem, path=("tests", test, "expected"))
            metric, unit = entry.metrics[name], cut(entry.metrics[name].unit)
            if not known.fits(metric.center):
                where = at("file", "tests", test, "expected", name, "center")
                what = f"within a factor of {FACTOR:g} of the baseline's centre, {metric.center:.5g} {unit}"
                cure = f"write it in {unit} without a prefix, or delete it"
                raise FieldError(where, f"got {known.center!r}, expected a metric {what}", cure)


def _format_choices(metrics: Iterable[str]) -> str:
    return f"a metric of the test, one of {cut(', '.join(map(repr, metrics)))}"


def _list(ids: Iterable[str]) -> str:
    return cut(repr(list(ids)))


def _list_launches(tests: Mapping[str, TestBaseline]) -> set[str]:
    return {figure.launch for test in tests.values() for metric in test.metrics.values() for figure in metric.launches}
