"""Whether the checkout has the code of a record: then no race has to tell slower code from a slower machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_gpuperf.features.racing.suspect_judge import SuspectJudge
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.repository import CannotRace, Repository
from pytest_gpuperf.verdicts.verdict import Verdict

LAUNCHES = 4
"""Launches of a suspect whose code did not change: as many as a race has that clears the code at once."""


class SameCode:
    """Asks git once for each commit, and has suspects judged whose code did not change."""

    def __init__(self, judging: SuspectJudge, folder: Path, written: Iterable[Path]) -> None:
        """Nothing is asked yet.

        Args:
            judging: decides about suspects.
            folder: in the repository.
            written: files and folders that are no code, as runs write them: baselines, results, pages.
        """
        self._judging = judging
        self._folder = folder
        self._written = tuple(written)
        self._same: dict[str, bool] = {}

    def of(self, commit: str) -> bool:
        """Whether the checkout has the code of this commit, and nothing besides; False if git cannot tell."""
        if commit not in self._same:
            try:
                self._same[commit] = Repository.of(self._folder).holds(commit, but=self._written)
            except CannotRace:
                self._same[commit] = False
        return self._same[commit]

    def verdict(self, suspect: Verdict, launches: Sequence[Metric], commit: str) -> Verdict:
        """What launches of the code of the record make of a suspect.

        Args:
            suspect: the screening's verdict, whose launch does not count: it was chosen because it is slow.
            launches: what each measured.
            commit: of the record.
        """
        return self._judging.judge_same_code(suspect, launches, commit)
