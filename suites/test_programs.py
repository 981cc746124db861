"""Every program of the suites can be sent to ranks, also those that only GPUs run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import FunctionType

import pytest

from pytest_gpuperf.ranks import payload

FOLDER = Path(__file__).parent
MODULES = sorted(
    f"{path.parent.name}.{path.stem}" for path in FOLDER.glob("*/[!_]*.py") if not path.name.startswith("test_")
)


@pytest.mark.parametrize("name", MODULES)
def test_programs_can_be_pickled(name: str) -> None:
    module = importlib.import_module(f"suites.{name}")
    functions = [found for found in vars(module).values() if isinstance(found, FunctionType)]
    by_value = [found for key, found in sys.modules.items() if key.startswith("suites.")]
    with payload.SubmoduleCache().used():
        payload.dumps(functions, by_value)
