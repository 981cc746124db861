"""The examples: what their READMEs run passes, and prints what they show."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.arms.checkouts import git
from tests.test_docs_examples import compare
from tests.whole_run import ROOT, run_pytest

EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/pytest.ini"))
_SESSION = re.compile(r"^```console\n\$ pytest(.*)\n((?:(?!```).*\n)+)```$", re.MULTILINE)
_LONGEST = 60


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_does_what_its_readme_shows(example: Path, tmp_path: Path) -> None:
    folder = tmp_path / example.name
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("__pycache__", ".*cache", ".hypothesis"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "The example")
    sessions = _SESSION.findall((folder / "README.md").read_text(encoding="utf-8"))
    assert sessions
    for options, shown in sessions:
        # No verdict of a race is expected, so it gets less time than the README gives it.
        less = ["--race-budget=5"] if "--race-budget" in options else []
        run = run_pytest(folder, *shlex.split(options), *less)
        compare(run.result.outlines, shown.splitlines(), f"pytest{options}")


def test_every_example_is_short_and_in_the_list() -> None:
    listed = re.findall(r"\]\((\w+)/README\.md\)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [example.name for example in EXAMPLES]
    lines = {path: len(path.read_text().splitlines()) for path in ROOT.glob("examples/*/*.py")}
    assert max(lines.values()) <= _LONGEST, lines
