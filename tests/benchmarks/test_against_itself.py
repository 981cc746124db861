"""The races of a commit against itself are made, counted and kept."""

import json
from pathlib import Path

import pytest

from benchmarks import against_itself, parents_simulation
from benchmarks.against_itself import Run


def run(outcome: str, change: float) -> Run:
    return Run(10.0, {"sets": outcome, "strings": "same"}, {"sets": change, "strings": 0.0}, {"sets": 4, "strings": 2})


def test_a_table_counts_figures_and_runs() -> None:
    runs = [run("regressed", -0.06), run("same", 0.02), run("undecided", 0.01), run("improved", 0.07)]
    _, sets, strings, whole = against_itself.table(runs)
    assert sets.split() == ["sets", "4", "1", "1", "1", "1", "+1.00%", "±", "2.68%", "5.35%", "4.0"]
    assert strings.split()[:6] == ["strings", "4", "0", "0", "4", "0"]
    assert whole == "any of them      4        1    (median of 10.0 s a run)"


@pytest.mark.parametrize(("runs", "most"), [(5, 0), (20, 1), (60, 2), (100, 3)])
def test_the_promise_is_refuted_by_more_accusations_than_chance_brings(runs: int, most: int) -> None:
    assert against_itself.allowed(runs) == most


def test_runs_are_added_to_those_of_a_file_and_checked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against_itself, "run_once", lambda folder, gpus: run("regressed", -0.06))
    arguments = ["--json", str(tmp_path / "runs.json"), "--check", "--runs"]
    assert against_itself.main([*arguments, "2"]) == 1
    assert against_itself.main([*arguments, "1"]) == 1
    assert len(json.loads((tmp_path / "runs.json").read_text())) == 3
    assert "any of them      3        3" in capsys.readouterr().out


def test_the_repository_is_made_and_its_test_races(tmp_path: Path) -> None:
    """What a race to its end says is read in ``tests/run/test_hash_seed.py``."""
    against_itself.make(tmp_path, ["strings"])
    found = against_itself.run_once(tmp_path, gpus=0, more=["--race-budget=1"])
    assert found.outcomes in ({"strings": "undecided"}, {"strings": "same"})  # a fast machine decides in a second


def test_a_parent_for_each_launch_raises_fewer_false_alarms_than_one_for_each_arm() -> None:
    alarms = {choice: parents_simulation.cell(6, 0.005, 0.02, choice, 20) for choice in parents_simulation.CHOICES}
    shares = [float(cell.split()[0]) for cell in alarms.values()]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.3
    assert shares[-1] <= 0.1
