"""Whatever a machine hides, each check goes on: every fact is taken away once, alone and on every GPU."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_gpuperf.features.doctor.diagnosis import diagnose
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.lines import format_suggestions, report
from pytest_gpuperf.features.doctor.suggest import suggest
from tests.doctor.machines import FOLDER, NAMES, machine


def diagnosed(facts: Facts) -> None:
    assert report(facts, diagnose(facts))
    assert format_suggestions(facts, suggest(facts))


def without(*path: str, first: bool = False) -> Callable[[dict[str, Any]], None]:
    """Takes a fact away: a section, a key of one, or a key of all GPUs or pairs, or of the first."""

    def change(facts: dict[str, Any]) -> None:
        *sections, key = path
        place: Any = facts
        for section in sections:
            place = place[section]
        for one in place[: 1 if first else None] if isinstance(place, list) else [place]:
            one.pop(key, None)
        if path == ("inspection", "gpus"):  # of no GPUs there are no pairs
            facts["inspection"].pop("pairs")

    return change


def hidden(name: str) -> Iterator[Facts]:
    whole = json.loads((FOLDER / f"{name}.json").read_text())["facts"]
    for section, content in whole.items():
        yield machine(name, without(section))
        for key in content if isinstance(content, dict) else ():
            yield machine(name, without(section, key))
    for key in [key for key in whole["inspection"]["gpus"][0] if key != "uuid"]:
        yield machine(name, without("inspection", "gpus", key))
        yield machine(name, without("inspection", "gpus", key, first=True))
    for key in ("distance", "p2p"):
        yield machine(name, without("inspection", "pairs", key))


@pytest.mark.parametrize("name", NAMES)
def test_each_fact_may_be_unknown(name: str) -> None:
    for facts in hidden(name):
        diagnosed(facts)


@pytest.mark.parametrize("name", NAMES)
def test_each_gpu_may_be_lost(name: str) -> None:
    def lose(facts: dict[str, Any]) -> None:
        facts["inspection"]["gpus"][0] = {"uuid": "", "problem": "GPU is lost"}

    lost = machine(name, lose)
    diagnosed(lost)
    assert any(finding.check == "gpu answers" for finding in diagnose(lost))


def test_a_lost_gpu_is_joined_to_none_by_links_of_unknown_end() -> None:
    def lose(facts: dict[str, Any]) -> None:
        one, other, *_ = facts["inspection"]["gpus"]
        one["links"] = other["links"] = [{"number": 0, "active": True}]
        one["pci_bus_id"] = other["pci_bus_id"] = ""

    assert "GPU0  X     SYS" in report(machine("a100-pcie", lose), ())[1].replace("PHB", "SYS")
