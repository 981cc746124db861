"""The commands that reports tell a user to type, as they can be typed where pytest was started."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NEWEST = re.compile(r"(HEAD|@)([~^]1?)?")
_MOST_FILES = 3
"""Files that a command names; of more it names their folder."""


@dataclass(frozen=True, slots=True)
class Commands:
    """How one of the tests is run like this run did it."""

    root: Path
    """What node ids are relative to."""
    directory: Path
    """The folder in which pytest was started."""
    gpus: int
    """How many are in use; 0 for gloo."""
    smoke: bool = False
    """Whether perf tests run unjudged."""
    baselines: str = ""
    """The folder that the command line names; empty if it names none."""
    nodes: str = ""
    """What the command line says of other nodes than this machine; empty if it says nothing."""
    bisects: bool = False
    """Whether the commit that made a test slower can be looked for."""
    delays: int | None = None
    """The seed of the delays of ranks; None if they are not delayed."""
    build: str = ""
    """The command that builds what an older commit needs; empty if it needs nothing."""

    def run(self, identity: str, path: Path | None = None) -> str:
        """The command that runs the test alone.

        Args:
            identity: its node id, the same in each launch.
            path: of its file, for a node id that has none, as those outside of the root may.
        """
        gpus = f" --gpus {self.gpus}" if self.gpus else ""
        delays = "" if self.delays is None else f" --delay-ranks={self.delays}"
        smoke = " --smoke" if self.smoke else ""
        return f"pytest {self._quote_selection(identity, path)}{self._nodes}{gpus}{delays}{smoke}"

    def record(self, identity: str, *more: str, mode: str = "") -> str:
        """The command that records a baseline for the test on this machine.

        Args:
            identity: its node id.
            more: options.
            mode: of the update; the default one if not given.
        """
        update = f"--update-baselines={mode}" if mode else "--update-baselines"
        return self._format_record(self._quote_selection(identity), update, *more)

    def record_all(self, identities: Iterable[str]) -> str:
        """The command that records the baselines of several tests on this machine.

        Args:
            identities: their node ids.
        """
        files = sorted({identity.partition("::")[0] for identity in identities})
        if len(files) > _MOST_FILES:
            files = [os.path.commonpath([os.path.dirname(file) for file in files]) or "."]
        return self._format_record(f"{' '.join(map(self._quote_selection, files))} -m perf", "--update-baselines")

    def _format_record(self, selected: str, *options: str) -> str:
        folder = [f"--baselines {_quote(self.baselines)}"] if self.baselines else []
        given = " ".join([*options, *folder])
        return f'pytest {selected}{self._nodes} --gpus {self.gpus} {given} --reason "why"'

    def bisect(self, identity: str, good: str) -> str:
        """Return the command that finds the commit after a good one that made the test slower.

        Empty if none can, or if the good commit is the last but one, which leaves nothing to find.

        Args:
            identity: its node id.
            good: the commit at which it was not slower.
        """
        build = f" --against-build={_quote(self.build)}" if self.build else ""
        finds = self.bisects and not _NEWEST.fullmatch(good)
        return f"{self.run(identity)} --bisect={shlex.quote(good)}{build}" if finds else ""

    @property
    def _nodes(self) -> str:
        return f" {self.nodes}" if self.nodes else ""

    def _quote_selection(self, identity: str, path: Path | None = None) -> str:
        file, separator, name = identity.partition("::")
        if file:
            path = self.root / file
        return _quote(identity if path is None else os.path.relpath(path, self.directory) + separator + name)


def _quote(text: str) -> str:
    # A shell looks for more in double quotes than their end.
    return shlex.quote(text) if any(character in text for character in '"$`\\!') else f'"{text}"'
