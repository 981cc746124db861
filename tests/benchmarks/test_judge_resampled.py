"""The pieces of the resampling: what it reads, draws, counts and prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import judge_resampled
from benchmarks.judge_resampled import FILES, Machines, Row, figures_of, main, row


def recorded(**metrics: tuple[str, list[float]]) -> dict[str, Any]:
    """A file of baselines of one test, whose launches alternate between two machines."""
    count = max(len(values) for _, values in metrics.values())
    return {
        "launches": {str(n): {"gpus": "a"} if n % 2 else {} for n in range(count)},
        "tests": {
            "test": {
                "metrics": {
                    name: {
                        "better": better,
                        "launches": [{"launch": str(n), "median": v} for n, v in enumerate(values)],
                    }
                    for name, (better, values) in metrics.items()
                }
            }
        },
    }


def test_a_figure_is_read_once_and_by_machine() -> None:
    seconds = [1.0, 1.1, 1.05, 1.2, 1.3, 1.0, 1.02]
    (found,) = figures_of(recorded(time=("lower", seconds), rate=("higher", [1 / value for value in seconds])))
    assert sorted(found) == ["a", "unknown"]
    assert list(found["a"].values()) == pytest.approx([math.log(1.1), math.log(1.2), math.log(1.0)])
    wider = [1.0, 1.3, 1.05, 1.2, 1.3, 1.0, 1.02]
    assert len(figures_of(recorded(time=("lower", seconds), other=("higher", wider)))) == 2


def figures(apart: float, count: int = 12) -> list[Machines]:
    """Two machines, five launches each."""
    return [
        {
            name: {f"{name}{launch}": offset + 0.001 * ((launch * 7 + figure) % 5) for launch in range(5)}
            for name, offset in (("a", 0.0), ("b", apart))
        }
        for figure in range(count)
    ]


def test_machines_that_agree_raise_no_suspicion_and_slowdowns_are_found() -> None:
    for known in (False, True):
        found = row("2x", figures(0.0), known, runs=8, seed=1)
        assert (found.figures, found.runs, found.found) == (12, 8, 8)
        assert (found.before_found, found.before_alarms, found.before_launches) == (8, 0, 0)
        assert found.alarms == found.suspect == found.environment == found.undecided == found.launches == 0


def test_a_new_machine_that_is_slower_is_suspect_and_no_code_is_accused() -> None:
    new = row("2x", figures(0.06), False, runs=8, seed=1)
    assert (new.suspect, new.alarms, new.launches) == (4, 0, 4 * 4)  # the second one, each time
    known = row("2x", figures(0.06), True, runs=8, seed=1)
    assert (known.suspect, known.alarms) == (0, 0)


@pytest.mark.parametrize(
    ("known", "lacks"), [(False, "a second machine"), (True, "a machine with 5 launches of every figure")]
)
def test_a_file_with_too_few_machines_says_what_it_lacks(
    known: bool, lacks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [{"a": {"a0": 0.0, "a1": 0.001}}]
    with pytest.raises(LookupError, match=f"^{lacks}$"):
        row("2x", few, known, runs=1, seed=1)
    file = tmp_path / "2x-any.json"
    alone = recorded(time=("lower", [1.0, 1.1])) | {"launches": {"0": {"gpus": "a"}, "1": {"gpus": "a"}}}
    file.write_text(json.dumps(alone))
    assert main([str(file), "--check"]) == 1  # nothing was drawn
    assert f"2x-any lacks {lacks}" in capsys.readouterr().out.splitlines()


def test_figures_of_a_launch_are_drawn_together() -> None:
    record = figures(0.0, 2)
    _, today = judge_resampled._run(np.random.default_rng(1), record, "a", known=True)
    ids = [[list(one["a"].values()).index(y) for y in ys] for one, ys in zip(record, today, strict=True)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) > 1


def test_the_recorded_files_have_figures() -> None:
    for file in FILES:
        assert len(figures_of(json.loads(file.read_text()))) > 20


def test_the_table_and_the_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "2x-any.json"
    file.write_text(json.dumps(recorded(time=("lower", [1.0, 1.1]))))
    counts = {"alarms": 1, "suspect": 33}

    def made(name: str, figures: object, known: bool, runs: int, seed: int) -> Row:
        kind = "known" if known else "new"
        return Row(f"{name}, {kind}", 1, 100, counts["alarms"], 2, counts["suspect"], 3, 95, 150, 20, 90, 500)

    monkeypatch.setattr(judge_resampled, "row", made)
    assert main([str(file), "--check"]) == 0
    assert " ".join(capsys.readouterr().out.splitlines()[1].split()) == (
        "2x, new 1 0.0100 (0.0018-0.0545) 0.020 0.330 0.030 0.950 1.50 0.200 0.900 5.00"
    )
    counts["suspect"] = 34
    assert main([str(file), "--check"]) == 1
    assert "BROKEN: 2x, known: 34 of 100 unchanged runs have a suspect" in capsys.readouterr().out
    counts.update(suspect=0, alarms=2)
    assert main([str(file)]) == 0
    assert main([str(file), "--check"]) == 1
    assert "BROKEN: 2x, new: 2 of 100 unchanged runs accuse the code" in capsys.readouterr().out
