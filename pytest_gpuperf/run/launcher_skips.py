"""Tests that were skipped because a launcher's variables are unset: whole modules of them pass unseen otherwise."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from pytest_gpuperf.ranks.spec import LAUNCHER_VARIABLES

_RANK = "RANK"
_LAUNCHERS = frozenset({"torchrun", "torchelastic", "is_torchelastic_launched", "torch.distributed.run"})
_WORDS = re.compile(rf"\b({'|'.join(map(re.escape, sorted(LAUNCHER_VARIABLES | _LAUNCHERS)))})\b")
_CONDITIONAL = frozenset({"skipif", "skipIf", "skipUnless"})
_SHOWN = 3  # files that the line names


class LauncherSkips:
    """Counts the tests and modules that were skipped so, and names their files at the end of the run."""

    def __init__(self) -> None:
        self._skipped: list[tuple[str, str, bool]] = []
        """File, reason, and whether it was a whole module."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test that was skipped."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report, module=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a module that was skipped."""
        if report.skipped:
            self._note(report, module=True)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Reports what was skipped so."""
        if (line := self.line()) is not None:
            terminalreporter.write_line(line)

    def line(self) -> str | None:
        """Return the line of the summary; None if nothing was skipped so."""
        if _RANK in os.environ:
            return None  # a launcher has started this process
        reasons = {file: _reasons(file) for file, _, _ in self._skipped}
        found = [one for one in self._skipped if _WORDS.search(one[1]) or one[1] in reasons[one[0]]]
        if not found:
            return None
        tests, modules = [module for *_, module in found].count(False), [module for *_, module in found].count(True)
        counts = ((tests, "test"), (modules, "module"))
        parts = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
        files = list(dict.fromkeys(file for file, _, _ in found))
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        shown = ", ".join(os.path.relpath(file) for file in files[:_SHOWN])
        return (
            f"gpuperf: {' and '.join(parts)} skipped because no launcher has set {_RANK} ({shown}{more}): run them "
            "with torchrun, or on ranks with pytest.main() in a program under launcher_env=True"
        )

    def _note(self, report: pytest.TestReport | pytest.CollectReport, *, module: bool) -> None:
        if isinstance(report.longrepr, tuple):
            file, _, reason = report.longrepr
            self._skipped.append((str(file), str(reason).removeprefix("Skipped: "), module))


def _reasons(file: str) -> frozenset[str]:
    """The reasons of skips in a file whose condition names what a launcher sets."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    known = LAUNCHER_VARIABLES | _LAUNCHERS
    for node in tree.body:  # LAUNCHED = "RANK" in os.environ
        if isinstance(node, ast.Assign) and _names(node.value) & known:
            known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(_conditioned(tree, known))


def _conditioned(tree: ast.AST, known: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in _CONDITIONAL and node.args and _names(node.args[0]) & known:
            yield from _texts(node)
        elif isinstance(node, ast.If) and _names(node.test) & known:
            inner = (one for statement in node.body for one in ast.walk(statement) if isinstance(one, ast.Call))
            yield from (text for call in inner if _called(call) == "skip" for text in _texts(call))


def _names(node: ast.AST) -> frozenset[str]:
    """Names and texts in an expression."""
    parts = list(ast.walk(node))
    texts = {one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    names = {one.id for one in parts if isinstance(one, ast.Name)}
    return frozenset(texts | names | {one.attr for one in parts if isinstance(one, ast.Attribute)})


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _texts(call: ast.Call) -> Iterator[str]:
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))
