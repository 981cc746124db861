"""How fast a language model trains under FSDP2, how much of that is waiting, and what a slow link costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Ranks, Timing
from suites.llm_step import programs
from suites.shared.comparison import assert_close
from suites.shared.llama import Config, loss_of
from suites.shared.llm import Workload, fsdp2, mean_of_ranks
from suites.shared.ways import NET, P2P, SHM, Way, connected, over

pytestmark = pytest.mark.perf

# Sizes of Llama 3 8B (arXiv 2407.21783, table 3), with fewer words and as many layers as memory and patience have.
LARGE = Config(heads=32, kv_heads=8, head_dim=128, hidden=14336, vocabulary=32000)
MOST_LAYERS = 2  # a step then takes 2 H100 some 40 ms
# Over sockets the 30 million parameters alone take tens of milliseconds.
SMALL = Config(layers=2, heads=8, kv_heads=8, head_dim=128, hidden=2816, vocabulary=2048)
OF_ENGINES = Config(layers=2, heads=16, kv_heads=8, head_dim=128, hidden=5632, vocabulary=8192)
SMOKE = Config(layers=2, heads=4, kv_heads=2, head_dim=2, hidden=16, vocabulary=16)

# A parameter, its gradient and AdamW's two moments in float32.
STATE = 16  # bytes a parameter, over the ranks
ACTIVATIONS = 40  # bytes a token, feature and layer: 34 (arXiv 2205.05198, section 4.1), with SwiGLU's third matrix

# Both round to bfloat16, in another order: twice 2**-8.
RTOL = 2.0**-7

Seen = dict[tuple[int, str], Timing]
"""Steps that this run has timed, by number of ranks and way."""


@pytest.fixture(scope="session")
def seen() -> Seen:
    return {}


def workload(perf: Perf, config: Config, length: int) -> Workload:
    """One sequence a rank, in bfloat16; a trial on CPUs has float32, which is what their kernels are good at."""
    compute = torch.float32 if perf.smoke else torch.bfloat16
    return Workload(config=config, sequences=1, length=length, seed=1, compute=compute)


def memory(ctx: Context) -> int:
    """Bytes of the rank's GPU."""
    return torch.cuda.get_device_properties(ctx.device).total_memory if ctx.device.type == "cuda" else 0


def parameters(config: Config) -> int:
    """Numbers of the whole model."""
    kv_dim = config.kv_heads * config.head_dim
    of_layer = 2 * config.dim**2 + 2 * config.dim * kv_dim + 3 * config.dim * config.hidden + 2 * config.dim
    return config.layers * of_layer + 2 * config.dim * config.vocabulary + config.dim


def fitting(there: int, world_size: int, length: int) -> Config:
    """The largest model of at most so many layers that takes half of the memory.

    Raises:
        Skipped: One layer takes more.
    """
    for layers in range(MOST_LAYERS, 0, -1):
        config = LARGE._replace(layers=layers)
        needs = STATE * parameters(config) / world_size + ACTIVATIONS * length * config.dim * layers
        # Made whole before it is split, in float32.
        needs += 4 * parameters(config)
        if needs <= there / 2:
            return config
    pytest.skip(f"one layer of the model needs {needs / 2**30:.0f} GiB, and half of a GPU has {there / 2**31:.0f}")


def learns(work: Workload) -> Callable[[Context, torch.Tensor, int], None]:
    """Whether the first loss is that of a whole model, and later ones are below that of a guess."""

    def verify(ctx: Context, loss: torch.Tensor, steps: int) -> None:
        if steps == 1:
            expected = mean_of_ranks(ctx, own_loss(ctx, work))
            assert_close(loss, expected, f"rank {ctx.rank}, first loss", rtol=RTOL)
        elif steps > 10:
            guess = math.log(work.config.vocabulary)
            assert loss.item() < guess, (
                f"rank {ctx.rank}: the loss is {loss.item()} after {steps} steps, {guess} a guess"
            )

    return verify


def alike(work: Workload) -> Callable[[Context, torch.Tensor, int], None]:
    """Whether the loss of the rank's own tokens is that of a whole model."""

    def verify(ctx: Context, loss: torch.Tensor, steps: int) -> None:
        assert_close(loss, own_loss(ctx, work), f"rank {ctx.rank}, loss", rtol=RTOL)

    return verify


def own_loss(ctx: Context, work: Workload) -> torch.Tensor:
    """What a model that is not split has for the rank's tokens."""
    x, target = work.batch(ctx)
    with torch.no_grad():
        return loss_of(work.model(ctx.device).to(work.compute)(x), target)


def show_waiting(perf: Perf, work: Workload) -> None:
    """How much of the communication forward and backward wait for: differences of times, so none is judged."""
    found = perf.configured(budget=0.15).overlap(
        together=programs.forward_backward,
        compute=programs.within_rank,
        communication=programs.communication,
        verify=alike(work),
        work=work,
    )
    perf.show(
        exposed=found.exposed,
        ideal=found.ideal,
        compute=found.compute.time,
        communication=found.communication.time,
    )


def show_energy(perf: Perf, work: Workload, timing: Timing) -> None:
    """Energy of a token on all GPUs together, and the most memory that a rank took."""
    readings = perf.configured(window=0.5).meter(fsdp2, verify=learns(work), work=work)
    tokens = work.tokens(timing.world_size)
    if readings.energy is not None:
        perf.show(energy=Metric(readings.energy.value / tokens, "J/token", "lower", clock=readings.energy.clock))
    if readings.peak_memory is not None:
        perf.check(peak_memory=readings.peak_memory)


def speed(perf: Perf, work: Workload, timing: Timing) -> Metric:
    """Tokens of all ranks per second; its share of the limit is the MFU."""
    tokens, flop, peak = work.tokens(perf.world_size), work.flop(perf.world_size), perf.peak(work.compute)
    limit = None if peak is None else tokens * perf.world_size * peak / flop
    return timing.rate(tokens, "token/s", limit=limit, limit_name="" if peak is None else "peak FLOP/s")


@pytest.mark.ranks(2, 4, 8, largest=True)
def test_step(perf: Perf, ranks: Ranks) -> None:
    """Over the links that there are: tokens per second, MFU, what is waited for, memory, and energy of a token."""
    length = perf.sized(4096, smoke=16)
    config = SMOKE if perf.smoke else fitting(min(ranks.run(memory)), perf.world_size, length)
    work = workload(perf, config, length)
    timing = perf.measure(fsdp2, verify=learns(work), work=work)
    perf.check(tokens=speed(perf, work, timing))
    show_waiting(perf, work)
    show_energy(perf, work, timing)


def judge(perf: Perf, ranks: Ranks, seen: Seen, way: Way) -> None:
    """Trains over a way that NCCL's log proves, and shows how many times longer a step takes than over the links."""
    way.require(ranks.run(connected))
    work = workload(perf, SMOKE if perf.smoke else SMALL, perf.sized(1024, smoke=16))
    timing = seen[perf.world_size, way.name] = perf.measure(fsdp2, verify=learns(work), work=work)
    perf.check(tokens=speed(perf, work, timing))
    show_waiting(perf, work)
    links = seen.get((perf.world_size, P2P.name))
    if links is not None and way is not P2P:
        # Two tests' figures: a ratio to look at, and none to judge.
        perf.show(slower_than_links=Metric(timing.median / links.median, "x", "lower"))


@over(P2P)
def test_over_p2p(perf: Perf, ranks: Ranks, seen: Seen) -> None:
    judge(perf, ranks, seen, P2P)


@over(SHM)
@pytest.mark.depends("host")
def test_over_shm(perf: Perf, ranks: Ranks, seen: Seen) -> None:
    judge(perf, ranks, seen, SHM)


@over(NET)
@pytest.mark.depends("host")
def test_over_net(perf: Perf, ranks: Ranks, seen: Seen) -> None:
    """Each GPU is a node of its own, as in a pod of one GPU."""
    judge(perf, ranks, seen, NET)


@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install 'pytest-gpuperf[deepspeed]'"
)
@pytest.mark.ranks(2, 4, 8, largest=True, isolation="process")
def test_deepspeed(perf: Perf) -> None:
    """FSDP2 against ZeRO-3: both split parameters, gradients and moments, and send the same."""
    work = workload(perf, SMOKE if perf.smoke else OF_ENGINES, perf.sized(4096, smoke=16))
    pair = perf.configured(rtol=RTOL, atol=0.0).compare(
        baseline=programs.zero3, optimized=fsdp2, verify=learns(work), work=work
    )
    perf.check(speedup=pair.speedup, tokens=speed(perf, work, pair.optimized))
    perf.show(deepspeed=speed(perf, work, pair.baseline))
