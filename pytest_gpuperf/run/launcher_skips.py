"""Tests that were skipped because a launcher's variables are unset: whole modules of them pass unseen otherwise."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

import pytest

from pytest_gpuperf.ranks.spec import LAUNCHER_VARIABLES

_RANK = "RANK"
_LAUNCHERS = frozenset({"torchrun", "torchelastic", "is_torchelastic_launched", "torch.distributed.run"})
_WORDS = re.compile(rf"\b({'|'.join(map(re.escape, sorted(LAUNCHER_VARIABLES | _LAUNCHERS)))})\b")
_CONDITIONAL = frozenset({"skipif", "skipIf", "skipUnless"})
_SHOWN = 3  # files that the line names


class LauncherSkips:
    """Names the files of such tests and modules at the end of the run, and counts them."""

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Reports what was skipped so."""
        # A launcher has started this process, and this is a skip of another kind.
        skipped = [] if _RANK in os.environ else terminalreporter.stats.get("skipped", [])
        if (line := describe_skips(skipped)) is not None:
            terminalreporter.write_line(f"gpuperf: {line}")


def describe_skips(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> str | None:
    """Return the line of the summary; None if nothing was skipped so.

    Args:
        reports: of what was skipped.
    """
    found = list(_iterate_launcher_skips(reports))
    if not found:
        return None
    counts = Counter("module" if isinstance(report, pytest.CollectReport) else "test" for _, report in found)
    parts = [f"{counts[what]} {what}{'s' if counts[what] > 1 else ''}" for what in ("test", "module") if counts[what]]
    files = list(dict.fromkeys(file for file, _ in found))
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    shown = ", ".join(os.path.relpath(file) for file in files[:_SHOWN])
    return (
        f"{' and '.join(parts)} skipped because no launcher has set {_RANK} ({shown}{more}): run them with torchrun, "
        "or on ranks with pytest.main() in a program under launcher_env=True"
    )


def _iterate_launcher_skips(
    reports: Iterable[pytest.TestReport | pytest.CollectReport],
) -> Iterator[tuple[str, pytest.TestReport | pytest.CollectReport]]:
    reasons: dict[str, frozenset[str]] = {}
    for report in reports:
        if not isinstance(report.longrepr, tuple):
            continue
        file, reason = str(report.longrepr[0]), str(report.longrepr[2]).removeprefix("Skipped: ")
        if file not in reasons:
            reasons[file] = _read_reasons(file)
        if _WORDS.search(reason) or reason in reasons[file]:
            yield file, report


def _read_reasons(file: str) -> frozenset[str]:
    """The reasons of skips in a file whose condition names what a launcher sets."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    known = LAUNCHER_VARIABLES | _LAUNCHERS
    for node in tree.body:  # LAUNCHED = "RANK" in os.environ
        if isinstance(node, ast.Assign) and _collect_names(node.value) & known:
            known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(_read_conditions(tree, known))


def _read_conditions(tree: ast.AST, known: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and _name_call(node) in _CONDITIONAL
            and node.args
            and _collect_names(node.args[0]) & known
        ):
            yield from _iterate_texts(node)
        elif isinstance(node, ast.If) and _collect_names(node.test) & known:
            inner = (one for statement in node.body for one in ast.walk(statement) if isinstance(one, ast.Call))
            yield from (text for call in inner if _name_call(call) == "skip" for text in _iterate_texts(call))


def _collect_names(node: ast.AST) -> frozenset[str]:
    """Names and texts in an expression."""
    parts = list(ast.walk(node))
    texts = {one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    names = {one.id for one in parts if isinstance(one, ast.Name)}
    return frozenset(texts | names | {one.attr for one in parts if isinstance(one, ast.Attribute)})


def _name_call(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _iterate_texts(call: ast.Call) -> Iterator[str]:
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))
