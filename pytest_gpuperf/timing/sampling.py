"""How a step is sampled: what the author asks for, and the plan that all ranks follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Of a step that is so long that these take its budget. The launch is the unit: the medians of 120 metrics of 2 x H200
# differ between launches 1.00 times as much with four samples as with six, and 1.08 times with three (geometric means).
MIN_SAMPLES = 4
BATCH = 6  # between two looks at the precision, which cost a collective; fewer have no 95 % interval of their median
MIN_SAMPLE_SECONDS = 1e-3  # shorter samples are made of several steps: an event resolves 0.5 us or so
MAX_STEPS_PER_SAMPLE = 150  # enqueued at once; a device's queue holds 1024 launches or so
MAX_STEPS_PER_SWEPT = 50  # of one size among many: the host takes ten times as long to launch a small step as it lasts
MAX_STEPS_PER_GRAPH = 50  # captured at once; the more collectives a graph has, the longer NCCL makes each of them
MAX_WARMUP_STEPS = 200
# On a warm device, if a sample has several steps and is no graph: DDP waits for the step before in its first ten.
FIRST_STEPS = 10
WARMUP_SECONDS = 0.05  # of work; clocks of an idle GPU take tens of milliseconds to rise
WARMUP_BATCH = 3  # samples whose medians are compared to tell whether a step is warm
SETTLING_SECONDS = 0.25  # of work, beyond the plan's steps; some steps never settle, under a power cap for example
LONGEST_WARMUP_SECONDS = 0.25  # by the host's clock: a step that waits for the device takes much longer than its work
MAX_WARMUP_BATCHES = 10
STEADY = 0.02  # medians of two batches in a row are no further apart than this: then the step is warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What the author of a perf test may choose: its fields, but ``smoke``, are the settings of ``perf.configured``."""

    samples: int = 200
    """At most so many samples."""
    budget: float = 0.15
    """Seconds of a step's sampling, by the host's clock, after which ``MIN_SAMPLES`` samples are enough. The sizes of a
    sweep share it, the arms of a comparison or an overlap, and the first three groups of a comparison that asks for a
    speedup."""
    precision: float = 0.005
    """Half the width of the median's 95 % interval, relative to it, at which sampling ends."""
    cold: bool = False
    """Overwrite the GPU's L2 cache before each sample, which is then of one step."""
    cuda_graph: bool = False
    """Capture the step in a CUDA graph and time replays: for programs that are run as graphs, and for steps whose
    launches are too many for the gate. Collectives take longer in a graph, unless
    ``NCCL_GRAPH_MIXING_SUPPORT=0``."""
    window: float = 2.0
    """Seconds of steps between two looks at the counters; NVML brings them up to date about ten times a second."""
    smoke: bool = False
    """Two samples without warm-up: whether the step runs, not how fast."""

    def __post_init__(self) -> None:
        if self.samples < BATCH:
            raise ValueError(f"samples must be {BATCH} or more, got {self.samples!r}")
        if not self.budget > 0:
            raise ValueError(f"budget must be a positive number of seconds, got {self.budget!r}")
        if not self.window > 0:
            raise ValueError(f"window must be a positive number of seconds, got {self.window!r}")
        if not 0 <= self.precision < 1:
            raise ValueError(f"precision must be a fraction from 0 (never precise enough) to 1, got {self.precision!r}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers that every rank derives from the same estimate, so that all issue the same steps."""

    warmup_steps: int
    """Besides those by which the plan was made. On a warm device nobody times them."""
    settling_batches: int
    """At most so many batches of samples follow, until the step is steady; fewer than two tell nothing, so none."""
    samples: int
    steps_per_sample: int


def plan(
    sampling: Sampling,
    step_seconds: float,
    *,
    repeatable: bool = True,
    warm: bool = False,
    most_steps: int = MAX_STEPS_PER_SAMPLE,
) -> Plan:
    """The plan for a step that takes about so long on the slowest rank.

    Args:
        sampling: what the author chose.
        step_seconds: seconds.
        repeatable: whether a sample may be of several steps, one after the other.
        warm: whether the device is warm already, and only the step itself is new.
        most_steps: of a sample.
    """
    if sampling.smoke:
        return Plan(warmup_steps=0, settling_batches=0, samples=2, steps_per_sample=1)
    step_seconds = max(step_seconds, 1e-7)
    most = min(most_steps, MAX_STEPS_PER_GRAPH) if sampling.cuda_graph else most_steps
    several = min(most, max(1, math.ceil(MIN_SAMPLE_SECONDS / step_seconds)))
    steps = several if repeatable and not sampling.cold else 1
    affordable = int(sampling.budget / (steps * step_seconds))
    batches = 0 if warm else min(MAX_WARMUP_BATCHES, int(SETTLING_SECONDS / (WARMUP_BATCH * steps * step_seconds)))
    first = FIRST_STEPS if steps > 1 and not sampling.cuda_graph else 0
    return Plan(
        warmup_steps=first if warm else min(MAX_WARMUP_STEPS, math.ceil(WARMUP_SECONDS / step_seconds)),
        settling_batches=batches if batches > 1 else 0,
        samples=max(MIN_SAMPLES, min(sampling.samples, affordable)),
        steps_per_sample=steps,
    )
