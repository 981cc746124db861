"""Recorded figures of 2 and 4 x H200, each with the work that its test gives it today."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.figures.bandwidth import bus_bandwidth
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.work import Exchange, Work

FOLDER = Path(__file__).parents[2] / "baselines"
SIZES = {"1KiB": 2**10, "64MiB": 2**26, "1GiB": 2**30}
NV18 = 450e9

H200 = Rates("NVIDIA H200", NV18, 18 * 20.6e9, "nvlink", "links between GPUs (NV18)", memory=6144 / 8 * 2 * 3201e6)

DESCRIBED = re.compile(
    "bus_bandwidth|bytes_over|ring_copy|pair_bandwidth|ways_over_the_link|bfloat16|then_matmul|then_reduce"
    "|exposed_communication"
)
"""Tests whose work is below."""
LAYERS, WIDTH = 8, 8192  # of suites/overlap
FLOP = 2.0 * 2048 * WIDTH**2 * (3 * LAYERS - 1)
M, K, N = 16384, 8192, 28672  # of suites/tensor_parallel
ELEMENTS = 16 * 4096**2  # of suites/compression


def collective(op: str, ranks: int, nbytes: int, value: float) -> Metric:
    """A bus bandwidth as ``Timing.busbw`` makes it."""
    work = Work(ranks, (Exchange(op, nbytes),), amount=bus_bandwidth(op, ranks, nbytes, 1.0))
    return Metric(value, "B/s", "higher", limit=NV18, limit_name="nv18", work=work)


def work_of(test: str, name: str, ranks: int) -> Work | None:
    """The work of a time in the suites."""
    means = Exchange("all_reduce", 2 * WIDTH**2, LAYERS)
    gathered = Exchange("all_gather", 2 * M * K)
    found = {
        "float32": Work(ranks, (Exchange("all_reduce", 4 * 4096**2, 16),), memory_bytes=8 * ELEMENTS),
        "bfloat16": Work(ranks, (Exchange("all_reduce", 2 * 4096**2, 16),), memory_bytes=16 * ELEMENTS),
        "communication": Work(ranks, (means,)),
        "compute": Work(ranks, flop=FLOP),
        "together": Work(ranks, (means,), flop=FLOP),
        "baseline_time": Work(ranks, (gathered,), flop=2 * M * K * N / ranks),
        "optimized_time": Work(ranks, (gathered,), flop=2 * M * K * N / ranks),
    }
    return found.get(name)


def figures(scale: float = 1.0) -> Iterator[tuple[str, Metric]]:
    """The recorded centres of tests whose work is described here, made worse by a factor."""
    for path in sorted(FOLDER.glob("*-nvidia-h200-nv18.json")):
        for test, entry in json.loads(path.read_text())["tests"].items():
            if DESCRIBED.search(test) is None:
                continue
            ranks = int(re.findall(r"\[(\d+)ranks", test)[0])
            for name, one in entry["metrics"].items():
                value = one["center"] * scale if one["better"] == "higher" else one["center"] / scale
                yield f"{path.stem} {test} {name}", metric(test, name, ranks, value, one)


def metric(test: str, name: str, ranks: int, value: float, one: dict[str, str]) -> Metric:
    """The figure as its test would check it."""
    if match := re.search(r"test_bus_bandwidth\[\d+ranks-(\w+)-(\w+)\]", test):
        return collective(match[1], ranks, SIZES[match[2]], value)
    if one["unit"] == "B/s":
        return Metric(value, "B/s", "higher", limit=NV18, limit_name="nv18", plain=True)
    if one["unit"] == "x":
        if one["better"] == "higher":  # a speedup, whose interval is not recorded
            return Metric(value, "x", "higher", interval=(0.98 * value, 1.02 * value), clock=one["clock"])
        return Metric(value, "x", "lower", clock=one["clock"])
    return Metric(value, "s", "lower", work=work_of(test, name, ranks))
