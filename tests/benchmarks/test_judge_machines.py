"""The simulation of other machines: its draws, what it counts, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import judge_machines
from benchmarks.judge_machines import AT_LIMIT, SHAPES, Found, Row, Shape, Suite, drawn, judged, main, row, table

ANOTHER, LAST = (Shape((20,), known=known) for known in (False, True))


def suite(seed: int, shape: Shape = ANOTHER) -> Suite:
    return drawn(np.random.default_rng(seed), shape)


def test_machines_differ_and_only_checks_at_the_limit_follow_them() -> None:
    suites = [suite(seed) for seed in range(200)]
    effects = np.array([one.fresh_control.mean() - one.old_control.mean() for one in suites])
    assert effects.std() == pytest.approx(0.02 * np.sqrt(2), rel=0.2)
    shifts = np.array([one.fresh.mean(axis=1) - one.old.mean(axis=1) for one in suites])
    slopes = [np.polyfit(effects, shifts[:, check], 1)[0] for check in range(shifts.shape[1])]
    assert np.mean(slopes[:AT_LIMIT]) == pytest.approx(0.75, abs=0.05)
    assert np.mean(slopes[AT_LIMIT:]) == pytest.approx(0.0, abs=0.02)


def test_launches_of_the_baselines_are_of_their_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_machines, "EFFECT", 1.0)
    two = suite(1, Shape((15, 5), known=True))
    first, last = two.old_control[:15], two.old_control[15:]
    assert abs(first.mean() - last.mean()) > 40 * first.std() > 0
    assert abs(two.fresh_control.mean() - last.mean()) < 4 * last.std()
    other = suite(1, Shape((15, 5), known=False))
    assert abs(other.fresh_control.mean() - other.old_control[15:].mean()) > 40 * last.std()


def still(machine: float, shape: Shape = ANOTHER) -> Suite:
    """A suite without noise, judged on a machine that is slower by so much than the baselines' first."""
    one = suite(1, shape)
    noise = np.where(np.arange(one.old.shape[1]) % 2, 1e-4, -1e-4)
    old, fresh, old_control = one.old * 0 + noise, np.zeros_like(one.fresh), noise.copy()
    fresh[:AT_LIMIT] = machine
    if shape.known and len(shape.launches) > 1:
        old[:AT_LIMIT, -shape.launches[-1] :] += machine
        old_control[-shape.launches[-1] :] += machine
    control = np.full_like(one.fresh_control, machine)
    return replace(one, old=old, fresh=fresh, old_control=old_control, fresh_control=control)


@pytest.mark.parametrize(
    ("machine", "slower", "at_limit", "others"),
    [
        (0.0, 0.0, Found(False), Found(False)),
        (0.0, 0.05, Found(True), Found(True)),
        (0.05, 0.0, Found(True, True), Found(False)),
        (0.05, 0.02, Found(True, True), Found(False)),
        (0.05, 0.05, Found(True), Found(True)),  # 10 % are more than the GPUs'
        (-0.05, 0.05, Found(False), Found(True)),  # hidden
    ],
)
def test_what_the_judge_says(machine: float, slower: float, at_limit: Found, others: Found) -> None:
    found = judged(still(machine), slower)
    assert set(found[:AT_LIMIT]) == {at_limit}
    assert set(found[AT_LIMIT:]) == {others}


@pytest.mark.parametrize(("slower", "found"), [(0.0, Found(False)), (0.05, Found(True))])
def test_a_machine_that_is_in_the_baselines_is_held_against_its_own_launches(slower: float, found: Found) -> None:
    for machine in (0.05, -0.05):
        assert set(judged(still(machine, Shape((15, 5), known=True)), slower)) == {found}


@pytest.mark.parametrize(
    ("machine", "at_limit", "counted"),
    [
        # without the control, with it, found at the limit, of the others, not told
        (0.05, 0.05, (3, 0, 3 * AT_LIMIT, 3 * 75, 0)),
        (0.025, -0.005, (0, 0, 0, 3 * 75, 3 * AT_LIMIT)),  # slower by 4.4 %, of which 5.2 may be the GPUs'
        (0.05, 0.1, (3, 3, 3 * AT_LIMIT, 3 * 75, 0)),
    ],
)
def test_what_is_counted(
    monkeypatch: pytest.MonkeyPatch, machine: float, at_limit: float, counted: tuple[int, ...]
) -> None:
    made = still(machine)
    made.fresh[:AT_LIMIT] = at_limit
    monkeypatch.setattr(judge_machines, "drawn", lambda rng, shape: made)
    assert row(ANOTHER, 3, seed=1) == Row(ANOTHER, 3, *counted)


def test_shapes_say_what_they_are() -> None:
    assert [str(shape) for shape in SHAPES] == ["20", "20", "10 + 10", "4 x 5", "4 x 5", "15 + 5", "15 + 5", "20 x 1"]
    assert [shape.promised for shape in SHAPES] == [True] * 7 + [False]


def test_the_table_and_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alarms = {ANOTHER: 1, LAST: 2, SHAPES[-1]: 9}

    def made(shape: Shape, suites: int, seed: int) -> Row:
        return Row(shape, 100, 10, alarms[shape], found_at_limit=1500, found=7400 - 5, not_told=500)

    monkeypatch.setattr(judge_machines, "row", made)
    assert (
        " ".join(table([made(ANOTHER, 1, 1)])[1].split()) == "20 another 0.0100 0.0018-0.0545 0.100 0.986 0.600 0.200"
    )
    assert "the last" in table([made(LAST, 1, 1)])[1]
    monkeypatch.setattr(judge_machines, "SHAPES", (ANOTHER, SHAPES[-1]))
    file = tmp_path / "machines.json"
    assert main([f"--json={file}", "--check"]) == 0  # 1 of 100, and 9 where nothing is promised
    assert len(json.loads(file.read_text())["rows"]) == 2
    monkeypatch.setattr(judge_machines, "SHAPES", (ANOTHER, LAST))
    assert main([]) == 0
    assert main(["--check"]) == 1
    assert capsys.readouterr().out.count("suite false alarms") == 3
