"""What is wrong with a subject's folder is said, with the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layout_of_suites import complaints, subjects
from tests.whole_run import write

PROGRAMS = "def program(ctx): ...\n"
FILES = {
    "shared/__init__.py": "",
    "shared/step.py": "Step = object\nLIMIT = 1\n\n\ndef once(): ...\n",
    "ours/__init__.py": "",
    "ours/programs.py": PROGRAMS,
    "ours/test_correctness.py": "def test_it(ranks): ...\n",
    "docs/pages/ours.md": "# [Ours](../../ours/__init__.py), after [a paper](https://arxiv.org/abs/1910.02054)\n",
}


def found(folder: Path, **changes: str | None) -> list[str]:
    """The complaints about a subject that is right but for these files; None takes one away."""
    files = {**FILES, **changes}
    write(folder, {name: text for name, text in files.items() if text is not None})
    return complaints(folder, folder / "docs" / "pages", "ours")


def test_a_right_subject(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    assert subjects(tmp_path) == ["ours"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"docs/pages/ours.md": "[code](../../ours/ring.py)"},
            "pages/ours.md links to ../../ours/ring.py, which is not there",
        ),
        ({"docs/pages/ours.md": None}, "ours has no page: write docs/pages/ours.md"),
        ({"ours/test_correctness.py": None}, "ours has no test_correctness.py: every subject has one"),
        ({"ours/programs.py": None}, "ours has no programs.py: every subject has one, or a package programs/"),
        ({"ours/programs/ring.py": PROGRAMS}, "ours has programs.py and programs/: keep one of them"),
        (
            {"ours/reference.py": "", "ours/reference/a.py": ""},
            "ours has reference.py and reference/: keep one of them",
        ),
        (
            {"ours/helpers.py": ""},
            "ours/helpers.py is none of a subject's files: __init__.py, bounds.py, conftest.py, programs, programs.py, "
            "reference, reference.py, test_correctness.py, test_memory.py, test_performance.py, test_reference.py, "
            "test_synchronization.py, test_traffic.py, test_training.py, test_versions.py",
        ),
        ({"ours/test_ring.py": ""}, "ours/test_ring.py is none of a subject's files: "),
        (
            {"ours/programs.py": "x = 1\n" * 401},
            "ours/programs.py has 401 lines, 400 at most: make programs/ of it, a module for each thing",
        ),
        (
            {"ours/programs.py": "from suites.theirs.programs import ring\n"},
            "ours/programs.py imports suites.theirs: what two subjects need goes to suites/shared",
        ),
        (
            {"ours/programs.py": "import suites.theirs.programs\n"},
            "ours/programs.py imports suites.theirs: what two subjects need goes to suites/shared",
        ),
        (
            {"ours/programs.py": "from suites import theirs\n"},
            "ours/programs.py imports suites.theirs: what two subjects need goes to suites/shared",
        ),
        (
            {"ours/programs.py": "Step = int\n"},
            "ours/programs.py defines Step, and so does shared/step.py: import that one, or rename yours",
        ),
        (
            {"ours/programs.py": "def once(): ...\n"},
            "ours/programs.py defines once, and so does shared/step.py: import that one, or rename yours",
        ),
        (
            {"ours/test_performance.py": "def test_it(perf):\n    perf.configured(budget=1.0).measure(program)\n"},
            "ours/test_performance.py, line 2: nobody looks at what perf.measure times: hand it verify=",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, str | None], message: str) -> None:
    complaint, *others = found(tmp_path, **changes)
    assert complaint.startswith(message)
    assert others == []


def test_a_package_of_programs_may_have_a_test_for_each_module(tmp_path: Path) -> None:
    changes = {"ours/programs.py": None, "ours/programs/__init__.py": "", "ours/programs/ring.py": PROGRAMS}
    assert found(tmp_path, **changes, **{"ours/test_ring.py": ""}) == []


def test_what_is_a_modules_own_may_have_any_name(tmp_path: Path) -> None:
    own = "LIMIT = 2\n_once = 1\nfrom suites.shared.step import Step\n\n\ndef ours():\n    once = 1\n    return once\n"
    assert found(tmp_path, **{"ours/programs.py": own}) == []
