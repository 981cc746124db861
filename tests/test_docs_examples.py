"""The pages' examples run: every Python block, and on pages with commands, the output is the one that the page shows.

On a page with commands, a line with a file's name is above the file's text. A block ``console`` contains commands after
``$``, and the lines that each prints; ``…`` means any text, on its own line any lines. The comment
``<!-- step takes 2.8 ms -->`` sets the time that the made-up GPUs measure from there on.

The Python blocks of any other page make one test file, in their order, which passes with ``--smoke``.
"""

from __future__ import annotations

import itertools
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest
import torch  # noqa: F401  # here, so that not each run of pytest in this process imports it anew

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.figures.conditions import FIT, Conditions
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests import fake_gpus
from tests.whole_run import ROOT, run_pytest, write

PAGES = (
    "docs/quickstart.md",
    "docs/guard-a-repository.md",
    "docs/baselines.md",
    "docs/debug-a-hang.md",
)
"""Pages with commands."""
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/dev/adding-a-suite.md": "tests/test_adding_a_suite.py",
    "docs/migrating.md": "tests/run/test_launcher_skips.py",
    "docs/reference/hooks.md": "tests/test_features.py",
}
"""Pages with a test of their own, which runs their Python blocks."""
FAILING = {"docs/is-it-rounding.md": "test_data_parallel[2ranks-1.weight]"}
"""Tests on pages that show a failure; tests/parity/test_messages.py reads that one's report."""
_PYTHON = re.compile(r"^( *)```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PARTS = re.compile(
    r"^<!-- step takes (?P<milliseconds>[\d.]+) ms -->$"
    r"|^`(?P<changed>[\w.]+)`: replace `(?P<old>[^`]+)` by `(?P<new>[^`]+)`$"
    r"|^`(?P<file>[\w.]+)`\n\n```python\n(?P<text>.*?)^```$"
    r"|^```console\n(?P<session>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Clock:
    """What steps take on the made-up GPUs, launch by launch."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self._launches = itertools.count()

    def next_run(self) -> None:
        """Begins a run: its first launch is as fast as any other run's first one."""
        self._launches = itertools.count()

    def samples(self, size: int, *_: object) -> tuple[list[RankSamples], Conditions]:
        """Stands in for a measurement: 40 samples on each rank, and 0.2 % between launches."""
        launch = self.seconds * (1 + 0.002 * (next(self._launches) % 3 - 1))
        times = tuple(launch * (1 + 0.001 * (number % 5 - 2)) for number in range(40))
        return [RankSamples(times, "cuda", False, 1)] * size, FIT


class Page:
    """Follows one page in its own folder."""

    def __init__(self, project: pytest.Pytester, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._project = project
        self._patch = patch
        self._capsys = capsys
        self._clock = Clock()

    def follow(self, text: str) -> int:
        """Does what the page says; the number of commands that were run."""
        commands = 0
        for part in _PARTS.finditer(text):
            if part["milliseconds"]:
                self._clock.seconds = float(part["milliseconds"]) / 1000
            elif part["changed"]:
                path = self._project.path / part["changed"]
                assert part["old"] in path.read_text()
                path.write_text(path.read_text().replace(part["old"], part["new"]))
            elif part["file"]:
                (self._project.path / part["file"]).write_text(part["text"])
            else:
                for command, shown in _COMMAND.findall(part["session"]):
                    compare(self._printed(shlex.split(command)), shown.splitlines(), command)
                    commands += 1
        return commands

    def _printed(self, words: Sequence[str]) -> list[str]:
        if words[0] == "pytest":
            self._clock.next_run()
            with self._patch.context() as patch:
                if "--gpus" in words:
                    fake_gpus.install(patch, visible=2)
                    fake_gpus.without_ranks(patch)
                    patch.setattr(CurrentRanks, "watch_run", lambda runner, *asked: self._clock.samples(*asked))
                return self._project.runpytest_inprocess(*words[1:]).outlines
        assert words[:3] == ["python", "-m", "pytest_gpuperf"], words
        self._capsys.readouterr()
        assert main(words[3:]) == 0
        return self._capsys.readouterr().out.splitlines()


def compare(printed: Sequence[str], shown: Sequence[str], command: str) -> None:
    """Fails unless the shown lines are printed, in their order; ``…`` alone leaves lines out."""
    rest = iter(printed)
    for line in shown:
        if line == "…":
            continue
        pattern = ".*".join(map(re.escape, line.rstrip().split("…")))
        # The width of pytest's rulers depends on the text between.
        pattern = re.sub(r"(?:=){4,}", "=+", pattern)
        assert any(re.fullmatch(pattern, one.rstrip()) for one in rest), (
            f"{command} does not print {line!r}:\n" + "\n".join(printed)
        )


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(
    page: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CI", raising=False)
    assert Page(pytester, monkeypatch, capsys).follow((ROOT / page).read_text(encoding="utf-8"))


def python_blocks(page: str) -> list[str]:
    """Return the Python blocks of a page, without their indentation."""
    return [textwrap.dedent(text) for _, text in _PYTHON.findall((ROOT / page).read_text(encoding="utf-8"))]


def pages_with_python() -> list[str]:
    """Return the pages with Python blocks that no other test runs; those of the suites show excerpts."""
    pages = [str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md") if page.parent.name != "suites"]
    return sorted(page for page in pages if page not in {*PAGES, *ELSEWHERE} and python_blocks(page))


@pytest.mark.long
@pytest.mark.parametrize("page", pages_with_python())
def test_all_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    source = "\n\n".join([*python_blocks(page), "def test_all_blocks_were_run(): pass\n"])
    write(tmp_path, {"test_page.py": source, "pytest.ini": "[pytest]\n"})
    run = run_pytest(tmp_path, "--smoke")
    failed = [name for name, outcome in run.outcomes.items() if outcome not in ("PASSED", "SKIPPED")]
    assert failed == [FAILING[page]] if page in FAILING else not failed, run.text
    assert run.outcomes["test_all_blocks_were_run"] == "PASSED", run.text


@pytest.mark.parametrize("page", sorted(ELSEWHERE))
def test_a_page_is_run_by_its_own_test(page: str) -> None:
    assert python_blocks(page)
    assert PurePath(page).name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")


def test_a_page_that_shows_something_else_fails() -> None:
    with pytest.raises(AssertionError, match=r"^pytest does not print '2 passed in …s'"):
        compare(["collected 1 item", "1 passed in 0.1s"], ["…", "2 passed in …s"], "pytest")


def test_lines_in_another_order_fail() -> None:
    with pytest.raises(AssertionError, match=r"^pytest does not print 'a'"):
        compare(["a", "b"], ["b", "a"], "pytest")
