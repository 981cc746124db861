"""The simulation of other machines: its draws, what it counts, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import judge_machines
from benchmarks.judge_machines import AT_LIMIT, Found, Row, Suite, drawn, judged, main, row, table


def suite(seed: int, machines: int = 1) -> Suite:
    return drawn(np.random.default_rng(seed), machines)


def test_machines_differ_and_only_checks_at_the_limit_follow_them() -> None:
    suites = [suite(seed) for seed in range(300)]
    effects = np.array([one.fresh_control.mean() - one.old_control.mean() for one in suites])
    assert effects.std() == pytest.approx(0.02 * np.sqrt(2), rel=0.15)
    shifts = np.array([one.fresh.mean(axis=1) - one.old.mean(axis=1) for one in suites])
    slopes = [np.polyfit(effects, shifts[:, check], 1)[0] for check in range(shifts.shape[1])]
    assert np.mean(slopes[:AT_LIMIT]) == pytest.approx(0.75, abs=0.05)
    assert np.mean(slopes[AT_LIMIT:]) == pytest.approx(0.0, abs=0.02)


def test_launches_of_the_baselines_are_spread_over_the_machines() -> None:
    four = suite(1, machines=4)
    means = [four.old_control[np.arange(20) % 4 == machine].mean() for machine in range(4)]
    assert np.std(means) > 4 * np.std(four.old_control[np.arange(20) % 4 == 0])


def still(machine: float) -> Suite:
    """A suite without noise, judged on a machine that is slower by so much."""
    one = suite(1)
    noise = np.where(np.arange(one.old.shape[1]) % 2, 1e-4, -1e-4)
    fresh = np.zeros_like(one.fresh)
    fresh[:AT_LIMIT] = machine
    control = np.full_like(one.fresh_control, machine)
    return replace(one, old=one.old * 0 + noise, fresh=fresh, old_control=noise, fresh_control=control)


@pytest.mark.parametrize(
    ("machine", "slower", "at_limit", "others"),
    [
        (0.0, 0.0, Found(False), Found(False)),
        (0.0, 0.05, Found(True), Found(True)),
        (0.05, 0.0, Found(True, True), Found(False)),
        (0.05, 0.02, Found(True, True), Found(False)),
        (0.05, 0.05, Found(True), Found(True)),  # 10 % are more than the machine's
        (-0.05, 0.05, Found(False), Found(True)),  # hidden
    ],
)
def test_what_the_rule_says(machine: float, slower: float, at_limit: Found, others: Found) -> None:
    found = judged(still(machine), slower)
    assert set(found[:AT_LIMIT]) == {at_limit}
    assert set(found[AT_LIMIT:]) == {others}


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_machines, "drawn", lambda rng, machines: still(0.05))
    assert row(1, 3, seed=1) == Row(
        1, 3, alarms_without=3, alarms=0, found_at_limit=3 * AT_LIMIT, found=3 * 75, not_told=0
    )


def test_the_table_and_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        machines: Row(
            machines, 100, alarms_without=10, alarms=machines - 1, found_at_limit=1500, found=7400, not_told=500
        )
        for machines in (1, 2, 4)
    }
    assert " ".join(table([rows[2]])[1].split()) == "2 0.0100 0.0018-0.0545 0.100 0.987 0.600 0.200"
    monkeypatch.setattr(judge_machines, "row", lambda machines, suites, seed: rows[machines])
    file = tmp_path / "machines.json"
    assert main([f"--json={file}"]) == 0
    assert main(["--check"]) == 1  # 3 of 100
    assert len(json.loads(file.read_text())["rows"]) == 3
    monkeypatch.setattr(judge_machines, "MACHINES", (1, 2))
    assert main(["--check"]) == 0  # 1 of 100
    assert capsys.readouterr().out.count("suite false alarms") == 3
