"""The machines of tests: files of facts, as ``doctor --json`` prints them, with the source of each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_gpuperf.baselines.plain import read
from pytest_gpuperf.features.doctor.facts import Facts

FOLDER = Path(__file__).parent / "machines"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def machine(name: str, change: Callable[[dict[str, Any]], object] = lambda facts: None) -> Facts:
    """The facts of a machine, after a change of them."""
    facts = json.loads((FOLDER / f"{name}.json").read_text())["facts"]
    change(facts)
    return read(Facts, facts, "facts")
