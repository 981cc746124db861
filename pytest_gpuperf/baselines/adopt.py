"""Results of earlier runs, of a CI job perhaps, become baselines by the rules of an update."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.baselines import results
from pytest_gpuperf.baselines.match import describe_difference
from pytest_gpuperf.baselines.merge import Merged, Stamp, UpdatePolicy, drop_too_few, join, merge
from pytest_gpuperf.baselines.mode import Mode
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.baselines.results import ResultsError
from pytest_gpuperf.baselines.schema import Baselines, TestBaseline
from pytest_gpuperf.baselines.storage import Storage


@dataclass(frozen=True, slots=True)
class AdoptedResults:
    """The place of adopted results, and what became of each test."""

    where: str
    merged: Merged
    unfit: dict[str, str]
    """Tests of which nothing could be adopted, and why."""

    @property
    def failed(self) -> bool:
        """Whether something of the results was not adopted for a reason that wants a decision."""
        return bool(self.unfit) or self.merged.failed


def adopt(files: Sequence[Path], storage: Storage, policy: UpdatePolicy, stamp: Stamp) -> AdoptedResults:
    """Merges files of results of one hardware into its baselines.

    Args:
        files: At least one; launches that several hold count once.
        storage: Of the baselines.
        policy: What may be replaced.
        stamp: What the file keeps of the update.

    Raises:
        ResultsError: A file of results cannot be used, or they are of several hardwares.
        BaselineError: The stored file cannot be used, is of other GPUs, or cannot be written; it is left as it is.
    """
    candidates = [results.load(file)[0] for file in files]
    key = candidates[0].hardware_key
    for number, (file, candidate) in enumerate(zip(files, candidates, strict=True)):
        if candidate.hardware_key != key:
            problem = f"is of {candidate.hardware_key!r}, expected {key!r} as in {str(files[0])!r}"
            raise ResultsError(file, problem, "adopt the results of each hardware on their own")
        for earlier in range(number):  # the first may not tell what differs between two others
            if why := describe_difference(candidates[earlier].match, candidate.match):
                problem = f"{why} as in {str(files[earlier])!r}: their metrics cannot be compared"
                raise ResultsError(file, problem, "adopt them on their own, into another folder (--baselines DIR)")
        if not candidate.tests:
            problem = "holds no metrics of perf tests"
            raise ResultsError(file, problem, "adopt what a run with --gpus N and without --smoke has written")
    candidate, unfit = join(candidates)
    if policy.mode is not Mode.APPEND:
        candidate, few = drop_too_few(candidate)
        unfit |= few
    merged: list[Merged] = []
    where = storage.where(key)

    def change(stored: Baselines | None) -> Baselines | None:
        if stored is not None:
            stored.require(candidate.match, where)
        known = stored or Baselines(key, candidate.match)
        current, old = _drop_outdated(known, candidate)
        unfit.update(old)
        outcome = merge(known, current, policy, stamp)
        merged.append(outcome)
        return outcome.baselines if outcome.written else None

    storage.update(key, change)
    return AdoptedResults(where, merged[0], unfit)


def _drop_outdated(stored: Baselines, candidate: Baselines) -> tuple[Baselines, dict[str, str]]:
    """Leaves out tests whose entry is of another body that was measured later, and says so of each."""
    unfit = {}
    for test, measured in candidate.tests.items():
        entry = stored.tests.get(test)
        if entry is None or entry.body_hash == measured.body_hash:
            continue
        before, after = _find_last_time(candidate, measured), _find_last_time(stored, entry)
        if before < after:
            unfit[test] = (
                f"the results are of another body than its entry, and older: got launches until {cut(before)}, "
                f"expected some after {cut(after)}: measure the test as it is now"
            )
    return replace(candidate, tests={t: entry for t, entry in candidate.tests.items() if t not in unfit}), unfit


def _find_last_time(baselines: Baselines, entry: TestBaseline) -> str:
    # ISO 8601 in UTC, all of one form: as text they are in the order of time.
    return max(
        (baselines.launches[figure.launch].at for metric in entry.metrics.values() for figure in metric.launches),
        default="",
    )
