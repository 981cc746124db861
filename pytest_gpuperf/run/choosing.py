"""What NCCL chooses in this run: asked in one launch that is not timed, because its log would slow what is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from pytest_gpuperf.hardware.nccl_choices import describe_choices
from pytest_gpuperf.hardware.nccl_log import UnknownLog
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.run.current_ranks import CurrentRanks


class Choosing:
    """Asks NCCL once, after all tests have run."""

    def __init__(self, ranks: CurrentRanks, say: Callable[[str], None]) -> None:
        """Nothing is asked yet.

        Args:
            ranks: of the run.
            say: prints a line while the run goes on.
        """
        self._ranks = ranks
        self._say = say

    def ask(self, item: pytest.Item) -> Mapping[str, str]:
        """Return NCCL's choices by the names of ``hardware.nccl_choices``; none without NCCL.

        No failure of it fails the run: a line tells why the choices are not known.

        Args:
            item: a perf test, for whose launch the ranks stand.
        """
        try:
            logs = self._ranks.probe_nccl(item)
        # A rank may raise anything, also pytest's own exceptions.
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
            self._say(make_one_line(f"what NCCL chose is not known: {type(error).__name__}: {error}"))
            return {}
        if logs and not logs[0].known:
            self._say(f"what NCCL chose is not known: {UnknownLog(logs[0].version)}")
        return describe_choices(logs)
