"""What a program may change in its process and forget to change back: taken before a test, compared after it.

Runs in rank processes. Process groups are not among them: the rank's own main closes whatever is open.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType

import torch
import torch.distributed as dist

from pytest_gpuperf.ranks.descent import list_children
from pytest_gpuperf.torch_internals import COMPILER, global_module_hooks, is_of_data_loaders

# What torch and loaders do by themselves in the course of ordinary work is nobody's forgetfulness.
_VARIABLES_OF_TORCH = ("TORCHINDUCTOR_", "TRITON_", "KINETO_", "CUDA_MODULE_LOADING")
_CHILDREN_OF_TORCH = (
    "torch/_inductor/compile_worker",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)
_LIMIT_OF_COMPILER = 2000  # the compiler raises the recursion limit to it, and leaves it there
_FIRST_LIMIT = sys.getrecursionlimit()
_THAT_END = ("threads", "child processes")
_ENDING = 0.5  # seconds
_AGAIN = 0.005  # seconds
_SHOWN = 80  # characters of a child's command
_LIMITS = {name: getattr(resource, name) for name in ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_CPU")}
_AUTOCAST = ("cpu", "cuda")
_SIGNALS = tuple(getattr(signal, f"SIG{name}") for name in ("HUP", "TERM", "INT", "USR1", "USR2", "ALRM", "CHLD"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A process's settings and company, each field by the words that a report uses for it."""

    environment: Mapping[str, str]
    working_directory: str
    default_dtype: str
    default_device: str
    gradient_mode: str
    deterministic_algorithms: str
    matmul_precision: str
    intra_op_threads: str
    current_cuda_device: str
    anomaly_detection: str
    autocast: str
    global_module_hooks: Mapping[str, str]
    functions_of_torch_distributed: Mapping[str, str]
    garbage_collector: str
    recursion_limit: str
    standard_streams: Mapping[str, str]
    resource_limits: Mapping[str, str]
    signal_handlers: Mapping[str, str]
    threads: Mapping[str, str]
    child_processes: Mapping[str, str]

    @classmethod
    def now(cls) -> Surroundings:
        """Return the surroundings of this process."""
        return cls(
            environment={name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES_OF_TORCH)},
            working_directory=_describe_working_directory(),
            default_dtype=str(torch.get_default_dtype()),
            default_device=str(torch.get_default_device()),
            gradient_mode="on" if torch.is_grad_enabled() else "off",
            deterministic_algorithms=str(torch.are_deterministic_algorithms_enabled()),
            matmul_precision=torch.get_float32_matmul_precision(),
            intra_op_threads=str(torch.get_num_threads()),
            current_cuda_device=str(torch.cuda.current_device()) if torch.cuda.is_initialized() else "none",
            anomaly_detection="on" if torch.is_anomaly_enabled() else "off",
            autocast=", ".join(kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)) or "off",
            global_module_hooks={name: str(len(hooks)) for name, hooks in global_module_hooks().items()},
            functions_of_torch_distributed={
                name: f"{value.__module__}.{value.__qualname__} at {id(value):#x}"
                for name, value in vars(dist).items()
                if type(value) is FunctionType  # isinstance() would wake deprecated attributes
            },
            garbage_collector="on" if gc.isenabled() else "off",
            recursion_limit=str(_read_recursion_limit()),
            standard_streams={name: _stream(name) for name in ("stdout", "stderr")},
            resource_limits={name: str(resource.getrlimit(number)) for name, number in _LIMITS.items()},
            signal_handlers={number.name: _describe_handler(number) for number in _SIGNALS},
            threads={
                f"{thread.name} ({thread.ident})": "running"
                for thread in threading.enumerate()
                if thread is not threading.main_thread() and not (_is_torchs(thread) or is_tqdms(thread))
            },
            child_processes=child_processes(),
        )


def list_left_behind(before: Surroundings, after: Surroundings) -> list[str]:
    """What is not as it was, in words; empty if all is."""
    changes: list[str] = []
    for field in fields(Surroundings):
        then, now = getattr(before, field.name), getattr(after, field.name)
        if then != now:
            changes += _list_changes(field.name.replace("_", " "), then, now)
    return changes


def stays_behind(before: Surroundings) -> list[str]:
    """What is not as it was in this process, in words.

    Threads and processes that are ending get a moment: those of a DataLoader's queues end after the loader.
    """
    until = time.monotonic() + _ENDING
    while True:
        left = list_left_behind(before, Surroundings.now())
        if not any(text.startswith(_THAT_END) for text in left) or time.monotonic() > until:
            return left
        time.sleep(_AGAIN)


def _list_changes(what: str, then: object, now: object) -> list[str]:
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return [f"{what}: {then} -> {now}"]
    texts = []
    for name in sorted({*then, *now}):
        old, new = then.get(name), now.get(name)
        if old == new:
            continue
        if what in _THAT_END:
            texts += [f"{what}: {name}"] if old is None else []  # one that ended is no trouble
        else:
            texts.append(f"{what}: {name} {_say(old)} -> {_say(new)}")
    return texts


def _say(value: str | None) -> str:
    return "unset" if value is None else repr(value)


def _describe_handler(number: signal.Signals) -> str:
    # The first DataLoader with workers sets one for good. Without workers it does what the one before it does.
    handler = signal.getsignal(number)
    return str(signal.SIG_DFL if is_of_data_loaders(handler) else handler)


def _stream(name: str) -> str:
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__"):
        return f"a {type(stream).__qualname__}"
    return "closed" if stream is None or stream.closed else "open"


def _is_torchs(thread: threading.Thread) -> bool:
    # A thread of C++ that ran Python once, as autograd's do, has no target either.
    target = getattr(thread, "_target", None)
    module = type(thread).__module__ if target is None else getattr(target, "__module__", "")
    return isinstance(thread, threading._DummyThread) or str(module).partition(".")[0] in ("torch", "triton")


def is_tqdms(thread: threading.Thread) -> bool:
    """Whether a thread is the monitor that tqdm starts with its first progress bar and keeps: no forgetfulness."""
    return thread.daemon and any(kind.__module__.partition(".")[0] == "tqdm" for kind in type(thread).__mro__)


def _read_recursion_limit() -> int:
    limit = sys.getrecursionlimit()
    return _FIRST_LIMIT if limit == _LIMIT_OF_COMPILER and COMPILER in sys.modules else limit


def _describe_working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "removed"


def child_processes() -> dict[str, str]:
    """Return the commands of this process's children that a program has started, with ``running``."""
    found = {}
    for pid in list_children():
        command = _read_command(pid)
        if command and not any(own in command for own in _CHILDREN_OF_TORCH):
            found[f"{command[:_SHOWN]} (pid {pid})"] = "running"
    return found


def _read_command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()  # empty for one that has ended
