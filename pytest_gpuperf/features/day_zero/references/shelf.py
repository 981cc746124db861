"""Finds what references say of a metric: by what it depends on, worlds of another size count, too.

A metric of one GPU, or of a pair, serves any number of ranks. One of all GPUs serves as many. One of the host serves
nobody: another host has other sockets, memory and disks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_gpuperf.baselines.match import Scalar, describe_difference
from pytest_gpuperf.features.day_zero.references.schema import Recorded, References
from pytest_gpuperf.figures.comparable import find_mismatch
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.shares import compute_loss_log

DATA = Path(__file__).parent / "data"
_RANKS = re.compile(r"\[(\d+)ranks?(?=[-\]])")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one metric."""

    ranks: int
    """The number of ranks of the tests that measured it; 0 if there are several numbers."""
    launches: int
    machines: int
    history: History


@dataclass(frozen=True)
class Shelf:
    """The references of one kind of GPU, seen from GPUs that are linked in one way."""

    references: References
    topology: str

    @classmethod
    def open(cls, match: Mapping[str, Scalar], folder: Path = DATA) -> Shelf | None:
        """Open the references of GPUs with these facts; None if there are none.

        Args:
            match: facts of the GPUs, as ``hardware.key.match_fields`` lists them.
            folder: of the files.

        Raises:
            BaselineError: a file of these GPUs cannot be used.
        """
        name = match.get("gpu_name")
        if not isinstance(name, str):
            return None
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        for path in sorted(folder.glob(f"{slug}-*.json")):
            references = References.load(path)
            if references is not None and describe_difference(references.kind, match) is None:
                return cls(references, str(match.get("topology") or ""))
        return None

    def find_known(self, test: str, name: str, metric: Metric, body_hash: str) -> Known | None:
        """Return the records of a metric that this run can be compared with; None if there are none.

        Args:
            test: node id.
            name: of the metric.
            metric: what was measured; its scope says which worlds count.
            body_hash: names the test's source.
        """
        if metric.scope == "host":
            return None
        by_ranks = self._find(test, name, metric, body_hash)
        if metric.scope == "gpus":
            ranks = parse_rank_count(test)
            return _make_known(ranks, by_ranks.get(ranks, []))
        every = [found for several in by_ranks.values() for found in several]
        return _make_known(next(iter(by_ranks)) if len(by_ranks) == 1 else 0, every)

    def others(self, test: str, name: str, metric: Metric, body_hash: str) -> list[Known]:
        """Return what machines tell of a metric in worlds of several ranks, those nearest to its own first."""
        ranks = parse_rank_count(test)
        by_ranks = self._find(test, name, metric, body_hash)
        nearest = sorted((count for count in by_ranks if count > 1), key=lambda count: (abs(count - ranks), count))
        return [known for count in nearest if (known := _make_known(count, by_ranks[count])) is not None]

    @cached_property
    def histories(self) -> Sequence[History]:
        """All metrics, each in worlds of one size: how far launches and machines usually scatter."""
        return [
            make_history([recorded])
            for tests in self.references.figures.values()
            for metrics in tests.values()
            for recorded in metrics.values()
        ]

    def _find(self, test: str, name: str, metric: Metric, body_hash: str) -> dict[int, list[Recorded]]:
        """Return the comparable records by number of ranks."""
        found: dict[int, list[Recorded]] = defaultdict(list)
        for topology, ranks, recorded in self._index.get((_strip_ranks(test), name), ()):
            # What one GPU does by itself crosses no link.
            linked = topology in ("", self.topology) or metric.scope == "gpu"
            same = recorded.body_hash == body_hash
            if linked and same and find_mismatch(metric, recorded) is None:
                found[ranks].append(recorded)
        return found

    @cached_property
    def _index(self) -> Mapping[tuple[str, str], Sequence[tuple[str, int, Recorded]]]:
        """The links, the number of ranks and the records of each metric, by its test's node id without that number."""
        index: dict[tuple[str, str], list[tuple[str, int, Recorded]]] = defaultdict(list)
        for key, tests in self.references.figures.items():
            topology = self.references.sources[key].topology
            for test, metrics in tests.items():
                for name, recorded in metrics.items():
                    index[_strip_ranks(test), name].append((topology, parse_rank_count(test), recorded))
        return index


def parse_rank_count(test: str) -> int:
    """Return the number of ranks that a node id tells; 0 if it tells none."""
    told = _RANKS.search(test)
    return 0 if told is None else int(told.group(1))


def make_history(found: Sequence[Recorded]) -> History:
    """Sum up launches; the machines of two records are two, also if a GPU is in both."""
    machines = {
        f"{number} {gpus}": [compute_loss_log(figure, recorded.better) for figure in figures]
        for number, recorded in enumerate(found)
        for gpus, figures in recorded.machines.items()
    }
    return History.of(machines, here="")


def _make_known(ranks: int, found: Sequence[Recorded]) -> Known | None:
    if not found:
        return None
    launches = [figures for recorded in found for figures in recorded.machines.values()]
    return Known(ranks, sum(map(len, launches)), len(launches), make_history(found))


def _strip_ranks(test: str) -> str:
    return _RANKS.sub("[", test)
