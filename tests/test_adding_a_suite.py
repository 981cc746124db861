"""The page on adding a suite, followed to the letter: its blocks are written to its files, and its commands are run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole_run import ROOT, environment

PAGE = ROOT / "docs" / "dev" / "adding-a-suite.md"
_BLOCK = re.compile(r"(?:^(Add to )?`([\w/.-]+)`\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a newcomer has: the suites' own files and the faults', without the subjects that are there already."""
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "layout_of_suites.py", "test_subjects.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    (tmp_path / "suites").mkdir()
    for file in [*ROOT.glob("suites/*.py"), ROOT / "suites" / "shared"]:
        copy = shutil.copytree if file.is_dir() else shutil.copy
        copy(file, tmp_path / "suites" / file.name)
    mutants = tmp_path / "benchmarks" / "mutants"
    shutil.copytree(ROOT / "benchmarks" / "mutants", mutants)
    for name in ("__init__.py", "mutations.py", "pytest_command.py"):
        shutil.copy(ROOT / "benchmarks" / name, mutants.parent)
    shutil.rmtree(mutants / "faults")
    (tmp_path / "docs" / "suites").mkdir(parents=True)
    (tmp_path / "docs" / "dev").mkdir()
    shutil.copy(PAGE, tmp_path / "docs" / "dev")
    shutil.copy(ROOT / "docs" / "suites" / "README.md", tmp_path / "docs" / "suites")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(folder: Path, line: str) -> str:
    """Runs a command of the page with this Python, and says what it printed."""
    words = shlex.split(line)
    assert words[0] in ("pytest", "python"), line
    options = ["-o", f"gpuperf_leases={folder / '.leases'}", "-p", "no:cacheprovider", "--hypothesis-profile=quick"]
    command = ["-m", *words, *options] if words[0] == "pytest" else words[1:]
    # The newcomer's checkout comes first: this one has suites as well.
    here = environment(PYTHONPATH=f"{folder}:{ROOT}")
    done = subprocess.run([sys.executable, *command], cwd=folder, env=here, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_newcomer_who_follows_the_page_has_a_suite(checkout: Path) -> None:
    said: list[str] = []
    for added, file, language, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "bash":
            said += [run(checkout, line) for line in text.splitlines()]
        elif file:
            path = checkout / file
            path.parent.mkdir(parents=True, exist_ok=True)
            assert path.exists() == bool(added), f"{file}: is it there before the page writes it?"
            path.write_text((path.read_text() + "\n\n" if added else "") + text)
    passed = [int(number) for number in re.findall(r"(\d+) passed", "\n".join(said))]
    # The scan on 2 and 4 ranks; bodies on 2, 4 and 8 ranks; all tests, with two of the layout.
    assert passed == [2, 3, 2 + 2], said
    assert any(line.startswith("caught ") and "a sum without the rank itself" in line for line in said[1].splitlines())
    row = re.search(r"^\| \[example\].*", (checkout / "docs" / "suites" / "README.md").read_text(), re.MULTILINE)
    assert row is not None
    assert row[0] == "| [example](example.md) | 2 | | 3 | 1 | 26 | |"


def test_what_a_newcomer_writes_is_as_short_as_the_page_promises() -> None:
    blocks = [text for _, file, _, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")) if file.endswith(".py")]
    programs, tests = blocks[1], blocks[2]
    lines = [line for text in (programs, tests) for line in text.splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("import ", "from ", '"""')) and '"""' not in line]
    assert len(code) <= 30
