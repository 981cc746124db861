"""Measures what a census and a check cost, on a CPU or a GPU.

python -m benchmarks.parity.cost [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from pytest_gpuperf import census
from pytest_gpuperf.features.parity.rounding import RandomRounding

_ROUNDS = 30


def seconds(call: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """The median time of a call, after two that warm up."""
    times = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def census_cost(megabytes: int, layers: int, device: str) -> float:
    """Seconds of one census of a model of this many MB of parameters in equal layers."""
    width = int((megabytes * 2**20 / 4 / layers) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(device)
    counted = census(model)
    return seconds(lambda: counted.take("now"))


def rounding_cost(width: int, device: str) -> float:
    """How many plain runs a run with random rounding costs, of a training step of a small network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))
    model, x = model.to(device), torch.randn(64, width, device=device)

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()
        if x.is_cuda:
            torch.cuda.synchronize()

    def shaken() -> None:
        with RandomRounding(0):
            step()

    return seconds(shaken) / seconds(step)


def main() -> None:
    """Prints a line for each measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="default cpu, with one thread")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    for layers in (4, 10, 40):
        print(f"census of 10 MB in {layers} parameters: {1e3 * census_cost(10, layers, device):.2f} ms")
    for width in (32, 256, 1024):
        print(f"a run with random rounding, width {width}: {rounding_cost(width, device):.1f} plain runs")


if __name__ == "__main__":
    main()
