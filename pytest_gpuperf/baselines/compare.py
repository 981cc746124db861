"""Two files of metrics of one hardware, side by side: records, or results of runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines import json_files, results
from pytest_gpuperf.baselines.differences import differing, find_usual
from pytest_gpuperf.baselines.losses import compute_change, describe_mismatch
from pytest_gpuperf.baselines.match import FOLDER, describe_difference
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, MetricBaseline, require_figures


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric of one test in two files."""

    test: str
    name: str
    first: MetricBaseline | None
    """None where only the second file has it."""
    second: MetricBaseline | None
    """None where only the first file has it."""

    @property
    def unlike(self) -> str:
        """Why the two cannot be compared; empty where they can, or where there are no two."""
        return (
            "" if self.first is None or self.second is None else describe_mismatch(self.name, self.first, self.second)
        )

    @property
    def change(self) -> float | None:
        """The second centre's change from the first; above 0 is better. None if they cannot be compared."""
        if self.first is None or self.second is None or self.unlike:
            return None
        return compute_change(self.first.better, self.first.center, self.second.center)


@dataclass(frozen=True, slots=True)
class Compared:
    """What two files say of one hardware."""

    hardware_key: str
    pairs: tuple[Pair, ...]
    """The largest loss first, then what cannot be compared, then what is only in one of them."""
    other_bodies: tuple[str, ...]
    """Tests in both whose bodies differ."""
    differing: Mapping[str, tuple[str, str]]
    """Versions and variables with which most launches of each ran, where the two are not the same."""


def compare(first: Path, second: Path) -> Compared:
    """Holds the metrics of the second file against those of the first.

    Args:
        first: A record, or results of ``--gpuperf-json``.
        second: The same, of the same hardware.

    Raises:
        BaselineError: A file cannot be used, or the two have no metrics that can be compared.
    """
    one, other = _load(first), _load(second)
    if one.hardware_key != other.hardware_key:
        problem = f"is of {other.hardware_key!r}, expected {one.hardware_key!r} as in {str(first)!r}"
        raise BaselineError(second, problem, "compare two files of one hardware")
    if why := describe_difference(one.match, other.match):
        raise BaselineError(second, f"{why} as in {str(first)!r}: their metrics cannot be compared", FOLDER)
    pairs = sorted(_make_pairs(one, other), key=_rank_pair)
    if all(pair.first is None or pair.second is None for pair in pairs):
        problem = f"got no metric that {str(first)!r} has too, expected the same tests in both"
        raise BaselineError(second, problem, "compare runs of the same tests")
    both = one.tests.keys() & other.tests.keys()
    return Compared(
        one.hardware_key,
        tuple(pairs),
        tuple(sorted(test for test in both if one.tests[test].body_hash != other.tests[test].body_hash)),
        differing(_list_environments(one), find_usual(_list_environments(other))),
    )


def _load(path: Path) -> Baselines:
    data = json_files.read(path)
    if data is None:
        raise BaselineError(path, "there is no such file", "name a file of baselines, or one of --gpuperf-json")
    if "results" in data:
        found = results.load(path)[0]
    else:
        found = Baselines.from_json(data, path, str(data.get("hardware_key", "")))
    require_figures(found, path)
    return found


def _make_pairs(one: Baselines, other: Baselines) -> list[Pair]:
    pairs = []
    for test in one.tests.keys() | other.tests.keys():
        first, second = (side.tests[test].metrics if test in side.tests else {} for side in (one, other))
        pairs += [Pair(test, name, first.get(name), second.get(name)) for name in first.keys() | second.keys()]
    return pairs


def _rank_pair(pair: Pair) -> tuple[int, float, str, str]:
    if pair.first is None or pair.second is None:
        return 2 if pair.second is None else 3, 0.0, pair.test, pair.name
    return (1, 0.0, pair.test, pair.name) if pair.change is None else (0, pair.change, pair.test, pair.name)


def _list_environments(baselines: Baselines) -> list[Mapping[str, str]]:
    return [info.environment for info in baselines.launches.values()]
