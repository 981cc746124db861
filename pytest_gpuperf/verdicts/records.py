"""The records that the metrics of a run are held against, as seen from the GPUs of this run."""

from collections.abc import Iterable, Mapping

from pytest_gpuperf.baselines.schema import Baselines, LaunchInfo, MetricBaseline, TestBaseline
from pytest_gpuperf.verdicts.history import FEWEST_KNOWN, History, drop_duplicates
from pytest_gpuperf.verdicts.shares import compute_loss_log
from pytest_gpuperf.verdicts.verdict import Verdict


class Records:
    """The records of one file of baselines."""

    def __init__(self, baselines: Baselines | None, gpus: str) -> None:
        """Reads each metric's history.

        Args:
            baselines: those of this hardware; None without any.
            gpus: identifies this machine's GPUs, as ``LaunchInfo.gpus`` does.
        """
        self._launches: Mapping[str, LaunchInfo] = {} if baselines is None else baselines.launches
        self._tests: Mapping[str, TestBaseline] = {} if baselines is None else baselines.tests
        self._gpus = gpus
        self._histories = {
            (test, name): self._make_history(metric)
            for test, entry in self._tests.items()
            for name, metric in entry.metrics.items()
        }

    def entry(self, test: str) -> TestBaseline | None:
        """Return what the file has of a test; None if it has nothing."""
        return self._tests.get(test)

    def count(self, tests: Iterable[str]) -> int:
        """Return how many metrics of these tests have a record."""
        return sum(len(self._tests[test].metrics) for test in tests if test in self._tests)

    def list_distinct(self) -> list[History]:
        """Return the histories, of those that differ only in their unit the first."""
        return [
            history
            for test, entry in self._tests.items()
            for history in drop_duplicates([self._histories[test, name] for name in entry.metrics])
        ]

    def history(self, verdict: Verdict) -> History:
        """Return the history of the metric that a verdict is about, which has a record."""
        return self._histories[verdict.test, verdict.metric_name]

    def find_history(self, test: str, name: str) -> History | None:
        """Return the history of a metric; None if it has no record."""
        return self._histories.get((test, name))

    @property
    def known(self) -> bool:
        """Whether the record of a metric knows these GPUs."""
        return any(history.known for history in self._histories.values())

    def list_launch_infos(self, stored: MetricBaseline) -> list[LaunchInfo]:
        """Return the launches that count: those on these GPUs if the record has enough of them, else all."""
        infos = [self._launches[figure.launch] for figure in stored.launches]
        own = [info for info in infos if self._gpus and info.gpus == self._gpus]
        return own if len(own) >= FEWEST_KNOWN else infos

    def is_elsewhere(self, stored: MetricBaseline) -> bool:
        """Whether all launches of a record were on other GPUs than these."""
        gpus = {self._launches[figure.launch].gpus for figure in stored.launches}
        return bool(self._gpus) and not gpus & {self._gpus, ""}

    def _make_history(self, stored: MetricBaseline) -> History:
        machines: dict[str, list[float]] = {}
        for figure in stored.launches:
            log = compute_loss_log(figure.median, stored.better)
            machines.setdefault(self._launches[figure.launch].gpus, []).append(log)
        return History.of(machines, self._gpus)
