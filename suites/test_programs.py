"""Every program of the suites reaches ranks, also those that only GPUs run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from pytest_gpuperf import Context, Ranks

SUITES = Path(__file__).parent
# Programs are one module of a subject, or a package of them; what they share travels as well.
MODULES = sorted(
    ".".join(path.relative_to(SUITES.parent).with_suffix("").parts)
    for pattern in ("*/programs.py", "*/programs/[!_]*.py", "shared/[!_]*.py")
    for path in SUITES.glob(pattern)
)


def names(ctx: Context, functions: list[Callable[..., Any]]) -> list[str]:
    return [function.__qualname__ for function in functions]


@pytest.mark.ranks(1)
def test_programs_reach_ranks(ranks: Ranks) -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    functions = [found for module in modules for found in vars(module).values() if isinstance(found, FunctionType)]
    assert ranks.run(names, functions) == [[function.__qualname__ for function in functions]]
