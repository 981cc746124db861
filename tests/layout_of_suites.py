"""The rules of a subject's folder, which is alike for all subjects; docs/dev/adding-a-suite.md explains them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

REQUIRED = ("__init__.py", "test_correctness.py")
HELPERS = ("programs", "reference")
"""Each a module or, when it grows beyond ``LONGEST``, a package of modules that are named for one thing."""
OPTIONAL = ("bounds.py", "conftest.py")
ASPECTS = ("correctness", "memory", "performance", "reference", "synchronization", "traffic", "training", "versions")
"""What a file ``test_<aspect>.py`` may be about, besides a module of ``programs/``."""
TIMED = ("measure", "meter", "compare", "overlap", "sweep")
"""Methods of ``perf``; each takes ``verify``."""
LONGEST = 400
"""Lines of a module of programs."""
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def subjects(suites: Path) -> list[str]:
    """The subjects' names: all folders of the suites but ``shared``."""
    return sorted(file.parent.name for file in suites.glob("*/__init__.py") if file.parent.name != "shared")


def complaints(suites: Path, pages: Path, subject: str) -> list[str]:
    """What is wrong with a subject's folder and page; nothing if all is well.

    Args:
        suites: the folder of all subjects.
        pages: the folder of their pages.
        subject: the name of one.
    """
    folder = suites / subject
    found = [*_of_files(folder), *_of_code(suites, folder)]
    page = pages / f"{subject}.md"
    if page.is_file():
        found += _of_links(page)
    else:
        found.append(f"{subject} has no page: write {pages.parent.name}/{pages.name}/{subject}.md")
    return found


def _of_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if not (page.parent / target).exists():
            yield f"{page.parent.name}/{page.name} links to {target}, which is not there"


def _of_files(folder: Path) -> Iterator[str]:
    names = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
    modules = {path.stem for path in folder.glob("programs/*.py")}
    for name in REQUIRED:
        if name not in names:
            yield f"{folder.name} has no {name}: every subject has one"
    if not names & {"programs", "programs.py"}:
        yield f"{folder.name} has no programs.py: every subject has one, or a package programs/"
    for name in HELPERS:
        if {name, f"{name}.py"} <= names:
            yield f"{folder.name} has {name}.py and {name}/: keep one of them"
    allowed = {*REQUIRED, *OPTIONAL, *HELPERS, *(f"{name}.py" for name in HELPERS)}
    allowed |= {f"test_{name}.py" for name in {*ASPECTS, *modules}}
    for name in sorted(names - allowed):
        yield f"{folder.name}/{name} is none of a subject's files: {', '.join(sorted(allowed))}"
    for path in sorted([*folder.glob("programs.py"), *folder.glob("programs/*.py")]):
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST:
            where = path.relative_to(folder.parent)
            yield f"{where} has {lines} lines, {LONGEST} at most: make programs/ of it, a module for each thing"


def _of_code(suites: Path, folder: Path) -> Iterator[str]:
    shared = {name: path.stem for path in sorted(suites.glob("shared/*.py")) for name in _defined(_tree(path))}
    for path in sorted(folder.rglob("*.py")):
        where = path.relative_to(suites)
        tree = _tree(path)
        for other in sorted({name for name in _imported(tree) if name not in (folder.name, "shared")}):
            yield f"{where} imports suites.{other}: what two subjects need goes to suites/shared"
        for name in _defined(tree):
            if name in shared:
                yield f"{where} defines {name}, and so does shared/{shared[name]}.py: import that one, or rename yours"
        for verb, line in _unverified(tree):
            yield f"{where}, line {line}: nobody looks at what perf.{verb} times: hand it verify="


@functools.cache  # a subject's files are looked at once, and those that all share for each subject
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _defined(tree: ast.Module) -> Iterator[str]:
    """Public names of a module's functions, classes and types."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        # Constants are a module's own.
        yield from (name for name in names if not name.startswith("_") and not name.isupper())


def _imported(tree: ast.Module) -> Iterator[str]:
    """Subjects that a module imports from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        yield from (module.split(".")[1] for module in modules if module.startswith("suites."))


def _unverified(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Measurements whose output nobody looks at: a collective that does nothing is fast."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TIMED:
            on = ast.unparse(node.func.value)
            if on.startswith("perf") and "verify" not in {keyword.arg for keyword in node.keywords}:
                yield node.func.attr, node.lineno
