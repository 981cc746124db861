"""What the plugin prints while tests run: past pytest's capture, and only where a user sits in front of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

DEBUGGER_BANNER = (
    "\n>>>>>> {rank} is held where its program failed: this is pdb in its process, with its own variables; q goes on\n"
)
NO_DEBUGGER = (
    "\ngpuperf: no rank is left to debug, because the failing one ended or a later run took its place. To debug one "
    "rank, let the others return at once: if ctx.rank != 0: return; and raise where you want to look\n"
)

# The cursor is kept where pytest left it and put back there, so that what pytest knows of its line stays true.
_SAVE, _RESTORE_AND_WIPE = "\x1b7", "\x1b8\x1b[K"


class Console:
    """The terminal of the pytest process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._open: dict[tuple[int, str, str], str] = {}
        """What ranks have begun to print: by rank, title and stream."""
        self._shown = False

    @property
    def live(self) -> bool:
        """Whether what ranks print is shown as they print it: with ``-s``."""
        return bool(self._config.getoption("capture", "fd") == "no")

    def print_of_rank(self, rank: int, title: str, stream: str, text: str) -> None:
        """Prints the lines that a rank has completed, each with the rank's title before it."""
        *lines, rest = (self._open.pop((rank, title, stream), "") + text).split("\n")
        for line in lines:
            print(_escape_text(f"[{title}] {line}"), flush=True)
        if rest:
            self._open[rank, title, stream] = rest

    def end_lines(self) -> None:
        """Prints what ranks began to print and did not end with a newline."""
        for (_, title, _), rest in sorted(self._open.items()):
            print(_escape_text(f"[{title}] {rest}"), flush=True)
        self._open.clear()

    def print_line(self, text: str) -> None:
        """Prints a line of the plugin's own, past pytest's capture; xdist's workers have no terminal."""
        with self._uncapture():
            reporter = self._config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.ensure_newline()
                if self._config.get_terminal_writer().width_of_current_line:  # the dots of -q have no file before them
                    reporter.write_line("")
                reporter.write_line(f"gpuperf: {text}")

    def room(self) -> int:
        """Columns behind what pytest has written on its line; 0 where nothing that is shown could be wiped again."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self.live or self._logs_live() or not (reporter.isatty and reporter.hasmarkup):
            return 0
        writer = self._config.get_terminal_writer()
        # A full line would wrap, and what has scrolled cannot be wiped.
        return max(0, writer.fullwidth - writer.width_of_current_line - 1)

    def show(self, text: str) -> None:
        """Shows a text behind what pytest has written, until ``wipe``; it must fit into ``room``."""
        with self._uncapture():
            print(f"{_SAVE}{_escape_text(text)}", end="", flush=True)
            self._shown = True

    def wipe(self) -> None:
        """Wipes what is shown; only where pytest does not capture, as while it logs a report."""
        if self._shown:
            self._shown = False
            print(_RESTORE_AND_WIPE, end="", flush=True)

    def ask(self, text: str) -> str:
        """Prints a text and returns the line that the user types; empty at the end of the input."""
        with self._uncapture():
            try:
                return input(_escape_text(text)) + "\n"
            except EOFError:
                return ""

    def say(self, text: str) -> None:
        """Prints a text past pytest's capture."""
        with self._uncapture():
            print(_escape_text(text), flush=True)

    @contextmanager
    def _uncapture(self) -> Iterator[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            self.wipe()
            yield
            return
        capture.suspend(in_=True)
        try:
            self.wipe()
            yield
        finally:
            capture.resume()

    def _logs_live(self) -> bool:
        config = self._config
        if not config.pluginmanager.hasplugin("logging"):  # with -p no:logging there is no such ini key
            return False
        return bool(config.getini("log_cli")) or config.getoption("log_cli_level", None) is not None


def _escape_text(text: str) -> str:
    """The text with escapes for characters that stdout cannot encode, such as those of a file name that is no UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"  # a stream in stdout's place may have none
    return text.encode(encoding, "backslashreplace").decode(encoding)
