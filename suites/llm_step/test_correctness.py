"""A language model trains on ranks as it does in one process: the loss of each step, and the parameters after."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import attention
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.llm_step import programs
from suites.llm_step.reference import RTOL, SINGLE, alone, assert_trained_alike
from suites.shared.comparison import assert_in_float32, assert_same, assert_within
from suites.shared.llama import ROTARY_BASE, Config, loss_of, rotary
from suites.shared.llm import Workload, sharded, training_step
from suites.shared.step import Step, Tensors
from suites.shared.strategies import seeds
from suites.shared.traffic import Traffic
from suites.shared.ways import NET, P2P, SHM, Way, connected, over

STEPS = 3


def workload(*, layers: int = 2, sequences: int = 1, length: int = 6, seed: int = 1) -> Workload:
    """An odd number of hidden features and words, which no number of ranks divides."""
    config = Config(layers=layers, hidden=11, vocabulary=13)
    double = torch.float64
    return Workload(config=config, sequences=sequences, length=length, seed=seed, compute=double, parameters=double)


def one_process(ranks: Ranks, work: Workload) -> programs.Trained:
    """What a rank computes by itself: on GPUs, the same kernels."""
    return ranks.run(alone, work=work, world_size=ranks.world_size, steps=STEPS)[0]


@pytest.mark.ranks(2, 3)
@pytest.mark.examples(0.4)  # each builds a model
@given(layers=st.integers(1, 2), sequences=st.integers(1, 2), length=st.sampled_from([1, 6]), seed=seeds)
def test_training(ranks: Ranks, layers: int, sequences: int, length: int, seed: int) -> None:
    work = workload(layers=layers, sequences=sequences, length=length, seed=seed)
    assert_trained_alike(ranks.run(programs.train, work=work, steps=STEPS), one_process(ranks, work))


def check(ranks: Ranks, way: Way) -> None:
    """Trains over a way that NCCL's log proves."""
    way.require(ranks.run(connected))
    work = workload()
    assert_trained_alike(ranks.run(programs.train, work=work, steps=STEPS), one_process(ranks, work))


@over(P2P)
def test_over_p2p(ranks: Ranks) -> None:
    check(ranks, P2P)


@over(SHM)
def test_over_shm(ranks: Ranks) -> None:
    check(ranks, SHM)


@over(NET)
def test_over_net(ranks: Ranks) -> None:
    check(ranks, NET)


@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install 'pytest-gpuperf[deepspeed]'"
)
@pytest.mark.ranks(2, isolation="process")
def test_deepspeed(ranks: Ranks) -> None:
    """ZeRO-3 trains like one process too; it has no float64."""
    work = dataclasses.replace(workload(), compute=torch.float32, parameters=torch.float32)
    trained = ranks.run(programs.train, work=work, steps=STEPS, trainer=programs.zero3_engine)
    assert_trained_alike(trained, one_process(ranks, work), SINGLE)


def averaged_by_hand(ctx: Context, work: Workload) -> tuple[nn.Module, Step[torch.Tensor]]:
    """Somebody's own data parallelism: whole copies, and a hook that averages each gradient."""
    model = work.model(ctx.device)

    def average(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= ctx.world_size

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    return model, training_step(ctx, work, model)


@pytest.mark.ranks(2)
def test_your_own_trainer(ranks: Ranks) -> None:
    work = workload()
    trained = ranks.run(programs.train, work=work, steps=STEPS, trainer=averaged_by_hand)
    assert_trained_alike(trained, one_process(ranks, work))


@pytest.mark.ranks(2)
def test_parts_of_a_step(ranks: Ranks) -> None:
    """With and without the others a rank has the same loss; without them its shards are whole."""
    work = workload()
    together, apart = (
        ranks.run(lambda ctx, alone: programs.forward_backward(ctx, work=work, alone=alone)(), alone)
        for alone in (False, True)
    )
    assert [one.item() for one in together] == [one.item() for one in apart]

    def shards(ctx: Context, alone: bool) -> set[int]:
        model = sharded(ctx, work, alone=alone)
        return {value.device_mesh.size() for value in model.parameters() if isinstance(value, DTensor)}

    assert [ranks.run(shards, alone) for alone in (False, True)] == [[{2}] * 2, [{1}] * 2]

    def gradients(ctx: Context, alone: bool) -> Tensors:
        step = programs.forward_backward(ctx, work=work, alone=alone)
        model = inspect.getclosurevars(step).nonlocals["model"]
        for _ in range(1 if alone else 2):  # with an accumulation the gradients would be twice as large
            step()
        return {name: value.grad.full_tensor() for name, value in model.named_parameters()}

    one, other = ranks.run(gradients, True)
    mean = {name: (value + other[name]) / 2 for name, value in one.items()}
    assert_same(ranks.run(gradients, False), [mean] * 2, RTOL)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("compute", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_a_step_sends_what_its_communication_does(ranks: Ranks, compute: torch.dtype) -> None:
    """Parameters in the dtype of computation, gradients in their own: call by call, the same bytes of each collective.

    All sizes are even, so that nothing is padded.
    """
    parameters = torch.promote_types(compute, torch.float32)
    work = dataclasses.replace(workload(), config=Config(), compute=compute, parameters=parameters)

    def sent(ctx: Context) -> list[list[tuple[str, int]]]:
        found = []
        for program in (programs.forward_backward, programs.communication):
            step = program(ctx, work=work)
            step()
            with Traffic() as traffic:
                step()
            found.append(sorted((call.name, call.given) for call in traffic.calls))
        return found

    for rank, (of_step, of_communication) in enumerate(ranks.run(sent)):
        assert of_step == of_communication, f"rank {rank}"
        assert {name for name, _ in of_step} == {"all_gather", "reduce_scatter"}


@pytest.mark.ranks(2)
def test_operations_and_tokens_are_those_of_a_step(ranks: Ranks) -> None:
    """The counter takes causal attention for whole: twice its products."""
    work = workload(sequences=2)

    def counted(ctx: Context) -> tuple[float, int]:
        x, target = work.batch(ctx)
        model = work.model(ctx.device)
        with attention.sdpa_kernel(attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            loss_of(model(x), target).backward()
        products = counter.get_flop_counts()["Global"]
        return products[torch.ops.aten.mm] + products[torch.ops.aten.bmm] / 2, target.numel()

    flop, tokens = (sum(of_ranks) for of_ranks in zip(*ranks.run(counted), strict=True))
    assert (flop, tokens) == (work.flop(ranks.world_size), work.tokens(ranks.world_size))


def test_rotary_angles_are_exact_far_from_the_beginning() -> None:
    """Angles of thousands of radians: 16-bit floats, which hold one in eight of such numbers, give them no meaning."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    places = torch.tensor([0, 1, 1003, 4095])
    angles = places.double()[:, None] * ROTARY_BASE ** (-torch.arange(4, dtype=torch.float64) / 4)
    first, second = x.double().chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    # Cosine and sine are rounded to bfloat16, and so are two products and their sum: 4 roundings of 2**-9.
    bound = 4 * 2.0**-9 * (first.abs() + second.abs()).repeat(1, 2)
    assert_within(rotary(x, places), torch.cat([turned.real, turned.imag], -1), bound, "turned")


def test_a_loss_of_16_bits_is_computed_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(2, 16, 13, generator=generator).bfloat16()
    target = torch.randint(13, (2, 16), generator=generator)
    exact = logits.double().log_softmax(-1).gather(-1, target[..., None]).mean()
    assert_in_float32(loss_of(logits, target), -exact, "loss")
