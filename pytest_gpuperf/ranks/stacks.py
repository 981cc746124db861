"""Stacks as faulthandler prints them: read, cut to what is the program's, told in a few words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks.collectives import say_ranks

NO_STACK = "somewhere (no stack could be had)"
_NO_STACK_IN = {  # states of a process, proc(5), in which it answers no signal
    "T": "stopped by a signal, as by SIGSTOP (no stack could be had)",
    "t": "stopped by a debugger (no stack could be had)",
    "D": "in the kernel, where no signal reaches it (no stack could be had)",
}
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_MAIN = "pytest_gpuperf/ranks/rank.py"  # a program may call the context, which lies beside it
_OF_OUR_THREADS = ("pytest_gpuperf/ranks/informant.py", "pytest_gpuperf/ranks/closing.py")
_NO_FRAME = "<no Python frame>"  # of a thread that was started, under its starter's id until it runs
_NOTING = ("pytest_gpuperf/ranks/calls.py", "pytest_gpuperf/torch_internals.py")  # between torch and its backend
_LIBRARY = re.compile(r"(?:/lib/python3\.\d+)?/(?:site|dist)-packages/|/lib/python3\.\d+/")


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shorten_path(self.file)}:{self.line} in {self.function}"


def cut(dump: str, main_thread: int) -> str:
    """The main thread's stack and those of threads that the program started, without the harness's frames."""
    blocks: list[tuple[int, list[str]]] = []
    for line in dump.splitlines():
        thread = _THREAD.match(line)
        if thread is not None:
            blocks.append((int(thread[1], 16), []))
        elif blocks and line.strip() not in ("", _NO_FRAME) and not any(file in line for file in _NOTING):
            blocks[-1][1].append(line)
    main = [_cut_harness(lines) for thread, lines in blocks if thread == main_thread]
    others = [lines for thread, lines in blocks if lines and thread != main_thread and not _is_ours(lines)]
    texts = ["\n".join(lines) for lines in main if lines]
    texts += ["another thread:\n" + "\n".join(lines) for lines in others]
    return "\n".join(texts) or NO_STACK


def describe_absent(state: str) -> str:
    """Stands for the stack of a process that did not write one, being in this state of proc(5)."""
    return _NO_STACK_IN.get(state, NO_STACK)


def list_frames(stack: str) -> list[Frame]:
    """The main thread's frames, innermost first."""
    found = []
    for line in stack.splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            break
        found.append(Frame(frame["file"], int(frame["line"]), frame["function"]))
    return found


def place(stack: str) -> str:
    """The place of a rank: in the innermost call, and the line of the program that led to it."""
    found = list_frames(stack)
    if not found:
        return stack if stack in _NO_STACK_IN.values() else NO_STACK
    own = next((frame for frame in found if not is_library(frame.file)), None)
    if own is None or own is found[0]:
        return f"in {found[0]}"
    inner = found[0]
    return f"in {inner.function} ({shorten_path(inner.file)}:{inner.line}), called at {own}"


def find_own_place(stack: str) -> str:
    """The innermost line of the program; empty where there is none."""
    return next((str(frame) for frame in list_frames(stack) if not is_library(frame.file)), "")


def roll_call(stacks: Mapping[int, str]) -> list[str]:
    """The places of stuck ranks, those at the same place together, the fewest first."""
    places: dict[str, list[int]] = {}
    for rank in sorted(stacks):
        places.setdefault(place(stacks[rank]), []).append(rank)
    groups = sorted(places.items(), key=lambda group: len(group[1]))
    odd = len(groups) > 1 and len(groups[0][1]) < len(groups[1][1])
    return [
        f"{say_ranks(ranks)} {'alone ' if odd and index == 0 and len(ranks) == 1 else ''}"
        f"{'is' if len(ranks) == 1 else 'are'} {where}"
        for index, (where, ranks) in enumerate(groups)
    ]


def is_library(file: str) -> bool:
    """Whether a file is Python's or an installed package's."""
    return _LIBRARY.search(file) is not None or file.startswith("<frozen ")


def shorten_path(file: str) -> str:
    """A file's path, from the package's name on where it is installed."""
    return _LIBRARY.split(file)[-1] if is_library(file) else file


def _cut_harness(lines: Sequence[str]) -> list[str]:
    # Below the rank's own main there is nothing of the author's.
    cut_at = next((index for index, line in enumerate(lines) if _MAIN in line), len(lines))
    return list(lines[:cut_at] if cut_at > 0 else lines)


def _is_ours(lines: Sequence[str]) -> bool:
    return any(file in line for line in lines for file in _OF_OUR_THREADS)
