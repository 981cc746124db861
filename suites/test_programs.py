"""Every program of the suites can be sent to ranks, also those that only GPUs run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import FunctionType

import pytest

from pytest_gpuperf.ranks import payload

SUITES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/programs.py"))


@pytest.mark.parametrize("suite", SUITES)
def test_programs_can_be_pickled(suite: str) -> None:
    module = importlib.import_module(f"suites.{suite}.programs")
    functions = [found for found in vars(module).values() if isinstance(found, FunctionType)]
    assert functions
    by_value = [found for name, found in sys.modules.items() if name.startswith("suites.")]
    with payload.SubmoduleCache().used():
        payload.dumps(functions, by_value)
