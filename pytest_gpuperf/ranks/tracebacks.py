"""An exception of a program in words: its type, its text, the place where the program raised it.

Runs in rank processes.
"""

from __future__ import annotations

from types import TracebackType

from pytest_gpuperf.ranks import stacks


def cut_harness(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's own frames on: the author of the program is shown what the program did."""
    while trace is not None and trace.tb_next is not None and _is_harness(trace):
        trace = trace.tb_next
    one = trace
    while one is not None and one.tb_next is not None:
        if _notes_calls(one.tb_next):
            one.tb_next = one.tb_next.tb_next
        else:
            one = one.tb_next
    return trace


def place(trace: TracebackType | None) -> str:
    """``file:line in function`` of the innermost frame that is the program's own; empty without a traceback."""
    frames: list[stacks.Frame] = []
    while trace is not None:
        if _notes_calls(trace):
            pass
        elif _is_harness(trace):  # what it called of libraries is not the program's
            frames.clear()
        else:
            code = trace.tb_frame.f_code
            frames.append(stacks.Frame(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    own = [frame for frame in frames if not stacks.is_library(frame.file)]
    return str((own or frames)[-1]) if frames else ""


def extract_text(error: BaseException) -> str:
    """The exception's own text."""
    try:
        return str(error)
    except Exception as odd:  # the exception's own code runs here
        return f"(its text cannot be had: {type(odd).__qualname__})"


def kind(error: BaseException) -> str:
    """Qualified name of the exception's type."""
    own = type(error)
    return own.__qualname__ if own.__module__ == "builtins" else f"{own.__module__}.{own.__qualname__}"


def format_headline(kind: str, message: str) -> str:
    """An exception in a line: ``ValueError: bad sample``.

    Args:
        kind: qualified name of its type.
        message: its text, which may have more lines.
    """
    first = message.strip().partition("\n")[0]
    return f"{kind}: {first}" if first else kind


def _notes_calls(trace: TracebackType) -> bool:
    # It stands between torch and its backend.
    return trace.tb_frame.f_globals.get("__name__") == "pytest_gpuperf.ranks.calls"


def _is_harness(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "pytest_gpuperf"
