"""Whether a test left its process by its last statement, so that it skipped nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from types import CodeType


def ends_with(leaving: SystemExit, method: str) -> bool:
    """Whether the last statement of the method's body raised the exit; False if its source is not there.

    A statement within an ``if``, a loop or another block does not count, since what follows depends on the rank.

    Args:
        leaving: the exit.
        method: name of the test's method.
    """
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(leaving.__traceback__)
        if frame.f_code.co_name == method
    ]
    return bool(frames) and _is_last(*frames[-1])


def _is_last(code: CodeType, line: int) -> bool:
    try:
        lines, first = inspect.getsourcelines(code)
        function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, IndexError):
        return False
    if not isinstance(function, ast.FunctionDef):
        return False
    last = function.body[-1]
    at = line - first + 1
    return isinstance(last, ast.Expr | ast.Raise) and last.lineno <= at <= (last.end_lineno or last.lineno)
