"""The pieces of the resampling: what it reads, draws, counts and prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import judge_resampled
from benchmarks.judge_resampled import Figure, Kind, Row, drawn, figures_of, main, row


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
    (found,) = figures_of(recorded(time=("lower", seconds), rate=("higher", [1 / value for value in seconds])), {})
    assert sorted(found.machines) == ["a", "unknown"]
    assert list(found.machines["a"].values()) == pytest.approx([math.log(1.1), math.log(1.2), math.log(1.0)])
    wider = [1.0, 1.3, 1.05, 1.2, 1.3, 1.0, 1.02]
    assert len(figures_of(recorded(time=("lower", seconds), other=("higher", wider)), {})) == 2


def figures(apart: float, count: int = 12) -> list[Figure]:
    """Three machines, five launches each; the last one is slower."""
    return [
        Figure(
            f"test_{figure}",
            False,
            {
                name: {f"{name}{launch}": offset + 0.001 * ((launch * 7 + figure) % 5) for launch in range(5)}
                for name, offset in (("a", 0.0), ("b", 0.0), ("c", apart))
            },
        )
        for figure in range(count)
    ]


@pytest.mark.parametrize("kind", Kind)
def test_machines_that_agree_raise_no_suspicion_and_slowdowns_are_found(kind: Kind) -> None:
    found = row("2x", figures(0.0), kind, runs=8, seed=1)
    assert (found.figures, found.runs, found.found, found.steady, found.found_steady) == (12, 8, 8, 8, 8)
    assert found.alarms == found.suspect == found.environment == found.undecided == found.red == found.raced == 0
    assert found.seconds == 0


def test_a_new_machine_that_is_slower_is_suspect_and_no_code_is_accused() -> None:
    new = row("2x", figures(0.10), Kind.NEW, runs=6, seed=1)
    assert (new.suspect, new.environment, new.alarms, new.red) == (2, 2, 0, 0)  # the third one, each time
    assert new.raced == 2 * 12
    halved = row("2x", figures(0.80), Kind.NEW, runs=6, seed=1)
    assert (halved.environment, halved.red) == (2, 2)
    known = row("2x", figures(0.10), Kind.KNOWN, runs=6, seed=1)
    assert (known.suspect, known.alarms) == (0, 0)


def test_launches_lie_around_the_median_of_their_machine() -> None:
    (figure,) = figures(0.5, 1)
    launches = drawn(np.random.default_rng(1), figure, "c", 1000)
    assert sorted(set(launches)) == pytest.approx(sorted({0.502 + distance for distance in figure.distances}))
    once = Figure("test", False, {"a": {"a0": 1.0}})
    assert drawn(np.random.default_rng(1), once, "a", 2) == [1.0, 1.0]


@pytest.mark.parametrize("kind", [Kind.NEW, Kind.OF_ONE])
def test_a_file_with_too_few_machines_says_what_it_lacks(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [Figure("test", False, {"a": {"a0": 0.0, "a1": 0.001}})]
    with pytest.raises(LookupError, match=r"^a second machine with most metrics$"):
        row("2x", few, kind, runs=1, seed=1)
    file = tmp_path / "2x-any.json"
    file.write_text(json.dumps({"launches": {}, "tests": {}}))
    assert main([str(file), "--check"]) == 1  # nothing was drawn
    printed = capsys.readouterr().out.splitlines()
    assert "2x-any lacks a second machine with most metrics" in printed
    assert "BROKEN: no file could be drawn from" in printed


def test_the_recorded_launches_keep_the_promises(capsys: pytest.CaptureFixture[str]) -> None:
    """The short form of the table in the docs."""
    assert main(["--runs", "40", "--check"]) == 0, capsys.readouterr().out


def test_the_table_and_the_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "2x-any.json"
    file.write_text(json.dumps(recorded(time=("lower", [1.0, 1.1]))))
    counts = {"red": 2, "seconds": 75.0}

    def made(name: str, figures: object, kind: Kind, runs: int, seed: int) -> Row:
        return Row(f"{name}, {kind.value}", 1, 100, 2, 3, int(counts["red"]), 33, 1, 95, 50, 49, 150, counts["seconds"])

    monkeypatch.setattr(judge_resampled, "row", made)
    monkeypatch.setattr(judge_resampled, "collected", lambda root: {})
    assert main([str(file), "--check"]) == 0
    assert " ".join(capsys.readouterr().out.splitlines()[1].split()) == (
        "2x-any, new 1 0.0200 (0.0055-0.0700) 0.020 0.030 0.010 0.330 0.950 0.980 1.5 75"
    )
    counts["red"] = 5
    assert main([str(file)]) == 0
    assert main([str(file), "--check"]) == 1
    assert "BROKEN: 2x-any, new: 5 of 100 unchanged runs are red" in capsys.readouterr().out
    counts.update(red=0, seconds=76.0)
    assert main([str(file), "--check"]) == 1
    assert "BROKEN: 2x-any, known: half of the unchanged runs take 76 s more" in capsys.readouterr().out
