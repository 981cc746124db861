"""How long a job under torchrun stands still when a rank is killed, and how often it should save then."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from pytest_gpuperf import Metric, Perf, Ranks
from suites.fault_tolerance.programs.goodput import Costs
from suites.fault_tolerance.programs.job import run_job
from suites.fault_tolerance.programs.lost_time import lost, measured_goodput
from suites.fault_tolerance.programs.training import Training
from suites.shared.job_log import Mishap
from suites.shared.torchrun import visible_gpus

pytestmark = [pytest.mark.perf, pytest.mark.long, pytest.mark.depends("host")]

KILLS, EVERY = 1, 7  # one in so many steps; the launches of a record have as many kills
INTERVAL = 5  # steps between checkpoints: none ends at a multiple of 7 here, so each kill costs steps
# 419 unexpected interruptions in 54 days on 16,384 GPUs: The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.4.
BETWEEN_FAILURES = 54 * 86400 / 419


def check_restarts(perf: Perf, ranks: Ranks, folder: Path) -> None:
    kills, world_size = perf.sized(KILLS, smoke=1), perf.world_size
    training = Training(seed=1, steps=(kills + 1) * EVERY, interval=INTERVAL, patience=60)
    mishaps = [Mishap(kind="kill", rank=world_size - 1, step=step) for step in range(EVERY, training.steps, EVERY)]
    gpus = ranks.run(visible_gpus)[0]
    log, _ = run_job(folder / "job", training, mishaps, ranks=world_size, gpus=gpus, max_restarts=len(mishaps))
    costs = lost(log)
    assert [cost.mishap for cost in costs] == mishaps
    still = [cost.detection + cost.restart for cost in costs]
    saves = [entry.at - entry.since for entry in log if entry.event == "saved"]
    perf.check(standstill=Metric(statistics.median(still), "s", "lower", samples=len(still), clock="host"))
    on_a_fleet = Costs(
        save=statistics.median(saves), restart=statistics.median(still), between_failures=BETWEEN_FAILURES
    )
    interval = on_a_fleet.daly()
    simulated = {
        factor: on_a_fleet.simulated_goodput(factor * interval, segments=perf.sized(10**5, smoke=10**4), seed=1)
        for factor in (1 / 16, 1, 16)
    }
    assert perf.smoke or max(simulated, key=lambda factor: simulated[factor]) == 1, simulated
    perf.show(
        detection=Metric(statistics.median(cost.detection for cost in costs), "s", "lower"),
        restart=Metric(statistics.median(cost.restart for cost in costs), "s", "lower"),
        repeated=Metric(statistics.median(cost.repeated for cost in costs), "s", "lower"),
        checkpoint=Metric(on_a_fleet.save, "s", "lower", samples=len(saves)),
        goodput_of_this_job=Metric(measured_goodput(log), "x", "higher"),
        best_interval=Metric(interval, "s", "lower"),
        goodput_at_it=Metric(on_a_fleet.goodput(interval), "x", "higher"),
        simulated_at_it=Metric(simulated[1], "x", "higher"),
    )


@pytest.mark.ranks(2, nodes=1)
def test_restart(perf: Perf, ranks: Ranks, tmp_path: Path) -> None:
    check_restarts(perf, ranks, tmp_path)


@pytest.mark.ranks(4, 8, nodes=1, device="cuda", largest=True)  # on CPUs so many ranks would only share the cores
def test_restart_of_many(perf: Perf, ranks: Ranks, tmp_path: Path) -> None:
    check_restarts(perf, ranks, tmp_path)
