"""The story of a run on ranks that Ctrl-C or SIGTERM ended: pytest makes no report of its test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_gpuperf.ranks.postmortem import PostMortem
from pytest_gpuperf.report.console import Console

Find = Callable[[BaseException], tuple[str, PostMortem] | None]
"""The test whose run raised this, and what is known of it; None if none did."""


class Interrupted:
    """Prints the story, before anything else is ended."""

    def __init__(self, console: Console, find: Find) -> None:
        self._console = console
        self._find = find

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Says where each rank was."""
        found = self._find(excinfo.value)
        if found is None:
            return
        test, failure = found
        self._console.print_line(f"{test} was interrupted by {failure.story[0]}")
        for line in failure.story[1:]:
            self._console.say(line)
        for title, text in failure.sections:
            self._console.say(f"--- {title} ---\n{text}")
        del excinfo.value.__notes__  # pytest would print the story once more
