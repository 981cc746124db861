"""What the run as a whole has to say at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from pytest_gpuperf.options import Options
from pytest_gpuperf.report.commands import Commands
from pytest_gpuperf.report.explain_lines import summarize_explanations
from pytest_gpuperf.report.missing_lines import describe_missing
from pytest_gpuperf.report.recording_lines import describe_gone
from pytest_gpuperf.report.run_lines import describe_opinions, describe_shift, run_policy_lines
from pytest_gpuperf.report.undecided_lines import describe_noisy, describe_undecided
from pytest_gpuperf.run.gone import SeenTests
from pytest_gpuperf.run.judging import Judging
from pytest_gpuperf.verdicts.verdict import Verdict


class SummaryLines:
    """The closing lines of one run."""

    def __init__(
        self,
        options: Options,
        commands: Commands,
        seen: SeenTests,
        where: str,
        judging: Judging | None,
        nodes: Callable[[], list[str]],
        of_features: Callable[[], list[str]],
    ) -> None:
        self._options = options
        self._commands = commands
        self._seen = seen
        self._where = where
        self._judging = judging
        self._nodes = nodes
        self._of_features = of_features
        self.stored: Collection[str] = ()
        """Node ids of the tests that the baselines have entries of, once they are read."""

    def lines(self, verdicts: Sequence[Verdict]) -> list[str]:
        """What the summary says of a run as a whole that came to these verdicts."""
        gone = [*self._nodes(), *describe_gone(self._seen.list_gone(self.stored), self._where)]
        shift = None if self._judging is None else self._judging.shift
        found = self._of_features()
        policy = run_policy_lines(self._options.policy, verdicts)
        github = os.environ.get("GITHUB_ACTIONS") == "true"
        missing = describe_missing(verdicts, self._commands.record_all, on_github=github)
        undecided = describe_undecided(verdicts, fails=self._options.undecided_fails)
        of_run = [
            *describe_opinions(verdicts),
            *describe_shift(shift, verdicts),
            *found,
            *undecided,
            *describe_noisy(verdicts),
        ]
        lines = [*gone, *policy, *missing, *of_run]
        return [*lines, *summarize_explanations(verdicts)]
