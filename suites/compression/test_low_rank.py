"""PowerSGD with each of its options: exact if gradients have its rank, and otherwise what it leaves out is fed back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper, fp16_compress_wrapper

from pytest_gpuperf import Ranks
from suites.compression.programs.low_rank import Told, Wrapper, low_rank_steps
from suites.shared.comparison import assert_close
from suites.shared.inputs import full_width, integers

RANK = 2
START = 2
"""Steps that send everything, PyTorch's least number: the second one has a new order of parameters."""
MATRICES = ((5, 7), (7, 5), (7, 5), (7, 5), (6, 4, 2), (5, 7))
"""Three are of one shape and two of another, around one that is flattened to two dimensions, in whatever order."""
VECTORS = ((9,), (4,))
SHAPES = (*MATRICES[:2], VECTORS[0], *MATRICES[2:], VECTORS[1])
"""In the order of the parameters."""
ROUNDING = 1e-4
"""A share of a matrix's norm: the columns that PowerSGD draws may be far from orthogonal."""


def of_low_rank(rank: int, degree: int) -> list[torch.Tensor]:
    """A rank's gradients: matrices whose rows are sums of the same two rows on all ranks, and vectors."""
    gradients = []
    for place, shape in enumerate(SHAPES):
        if len(shape) == 1:
            gradients.append(full_width(shape, torch.float32, seed=64 * place + rank, addends=degree))
            continue
        columns = integers((shape[0], RANK), torch.float32, seed=64 * place + rank, low=1, high=9)
        rows = integers((RANK, *shape[1:]), torch.float32, seed=1000 + place, low=-9, high=9)
        gradients.append(torch.einsum("nr,r...->n...", columns, rows))
    return gradients


def of_full_rank(rank: int, degree: int) -> list[torch.Tensor]:
    """A rank's gradients, of which a part is lost in each step."""
    return [
        integers(shape, torch.float32, seed=64 * place + rank, low=-99, high=99) for place, shape in enumerate(SHAPES)
    ]


def means(of_ranks: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The mean of each gradient over the ranks."""
    return [torch.stack(each).double().mean(0) for each in zip(*of_ranks, strict=True)]


OPTIONS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "in batches": {"batch_tensors_with_same_shape": True},
    "drawn again": {"warm_start": False, "batch_tensors_with_same_shape": True},
    "with an epsilon": {"orthogonalization_epsilon": 1e-8},
    "whatever grows": {"min_compression_rate": 0.5},
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_means_of_its_rank_are_exact(ranks: Ranks, options: dict[str, Any]) -> None:
    """Matrices within rounding, vectors exactly; a matrix without gradients needs an epsilon, and stays zero."""
    drawn = [of_low_rank(rank, ranks.world_size) for rank in range(ranks.world_size)]
    if "orthogonalization_epsilon" in options:
        for gradients in drawn:
            gradients[0].zero_()
    number = START + 2
    got = run(ranks, drawn, number, **options)
    expected = means(drawn)
    # A matrix of n rows and m columns becomes RANK columns and rows, or as many as it has.
    flat = [(shape[0], torch.Size(shape[1:]).numel()) for shape in SHAPES]
    before = sum(n * m for n, m in flat)
    least = options.get("min_compression_rate", 1.0)
    sizes = [(n * m, min(n, m, RANK) * (n + m)) for n, m in flat]
    after = sum(less if least * less < whole else whole for whole, less in sizes)
    for rank, told in enumerate(got):
        steps = number - START
        assert told.stats == (before / after, before * steps, after * steps), f"rank {rank}: statistics {told.stats}"
        for step, (place, mean) in itertools.product(range(START, number), enumerate(expected)):
            where = f"rank {rank}, step {step + 1}, gradient {place}"
            atol = 0.0 if mean.dim() == 1 and least == 1 else ROUNDING * float(mean.norm())
            assert_close(told.steps[step][place].double(), mean, where, atol=atol)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("options", [{}, {"batch_tensors_with_same_shape": True}], ids=["one by one", "in batches"])
def test_what_is_left_out_is_fed_back(ranks: Ranks, options: dict[str, Any]) -> None:
    """What all steps gave, and the mean of what the ranks still hold back, is what there was to average."""
    drawn = [of_full_rank(rank, ranks.world_size) for rank in range(ranks.world_size)]
    number = START + 4
    got = run(ranks, drawn, number, **options)
    held: dict[torch.Size, torch.Tensor] = {}
    for shape in got[0].errors:
        held[shape] = torch.stack([torch.stack(told.errors[shape]).sum(0) for told in got]).double().mean(0)
    for rank, told in enumerate(got):
        for shape, error in held.items():
            places = [place for place, each in enumerate(SHAPES) if torch.Size(each) == shape]
            given = torch.stack([told.steps[step][place] for step in range(number) for place in places]).double().sum(0)
            there = number * torch.stack([means(drawn)[place] for place in places]).sum(0)
            assert_close(given + error, there, f"rank {rank}, gradients of {tuple(shape)}", atol=1e-2)
            if len(shape) > 1:
                assert float(error.abs().max()) > 1, f"nothing of {tuple(shape)} is held back"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("warm", [True, False], ids=["goes on", "drawn again"])
def test_a_state_that_is_restored_goes_on_as_the_stored_one(ranks: Ranks, warm: bool) -> None:
    """With the same errors, matrices and random numbers: to the last bit."""
    drawn = [of_full_rank(rank, ranks.world_size) for rank in range(ranks.world_size)]
    number = START + 4
    at_once, restored = (run(ranks, drawn, number, warm_start=warm, restored=at) for at in (None, START + 2))
    for rank, (one, other) in enumerate(zip(at_once, restored, strict=True)):
        assert other.stats == one.stats, f"rank {rank}: statistics {other.stats}, not {one.stats}"
        for step, place in itertools.product(range(number), range(len(SHAPES))):
            where = f"rank {rank}, step {step + 1}, gradient {place}"
            assert_close(other.steps[step][place], one.steps[step][place], where)
            last = place + 1 == len(SHAPES)
            if step > START and not last and len(SHAPES[place]) > 1:
                assert not torch.equal(one.steps[step][place], one.steps[step - 1][place]), f"{where}: as before it"


@pytest.mark.ranks(4)
def test_pairs_of_ranks(ranks: Ranks) -> None:
    """From the first step on, each rank has the mean of its own and its neighbour's gradients."""
    drawn = [of_low_rank(rank, 2) for rank in range(4)]
    for rank, told in enumerate(run(ranks, drawn, START + 2, pairs=True)):
        first = rank // 2 * 2
        for step, (place, mean) in itertools.product(range(START + 2), enumerate(means(drawn[first : first + 2]))):
            where = f"rank {rank}, step {step + 1}, gradient {place}"
            atol = 0.0 if mean.dim() == 1 or step < START else ROUNDING * float(mean.norm())
            assert_close(told.steps[step][place].double(), mean, where, atol=atol)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("start", "options"),
    [(4, {}), (0, {"use_error_feedback": False, "warm_start": False})],
    ids=["late", "at once"],
)
def test_when_it_begins(ranks: Ranks, start: int, options: dict[str, Any]) -> None:
    """Matrices lose something from that step on, and not before; vectors lose nothing."""
    drawn = [of_full_rank(rank, 2) for rank in range(2)]
    for rank, told in enumerate(run(ranks, drawn, start + 2, start_powerSGD_iter=start, random_seed=5, **options)):
        for step, (place, mean) in itertools.product(range(start + 2), enumerate(means(drawn))):
            lost = float((told.steps[step][place].double() - mean).abs().max())
            loses = step >= start and mean.dim() > 1
            assert lost > 1 if loses else lost == 0, f"rank {rank}, step {step + 1}, gradient {place} is off by {lost}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrapper", [fp16_compress_wrapper, bf16_compress_wrapper], ids=["float16", "bfloat16"])
def test_in_sixteen_bits(ranks: Ranks, wrapper: Wrapper) -> None:
    """Means of small whole numbers; matrices are multiplied in 16 bits, and what is lost in a step is fed back."""
    drawn = [
        [gradient if gradient.dim() > 1 else gradient.sign() for gradient in of_low_rank(rank, 2)] for rank in range(2)
    ]
    number = START + 2
    for rank, told in enumerate(run(ranks, drawn, number, wrapper=wrapper)):
        for step, (place, mean) in itertools.product(range(number), enumerate(means(drawn))):
            where = f"rank {rank}, step {step + 1}, gradient {place}"
            share = 0.05 if wrapper is fp16_compress_wrapper else 0.2
            assert told.steps[step][place].dtype == torch.float32, where
            atol = 0.0 if mean.dim() == 1 else share * float(mean.norm())
            assert_close(told.steps[step][place].double(), mean, where, atol=atol)


def run(ranks: Ranks, gradients: list[list[torch.Tensor]], number: int, **options: Any) -> list[Told]:
    """Steps that compress matrices, of any size, from the third one on if the options do not say otherwise."""
    settings = {"matrix_approximation_rank": RANK, "start_powerSGD_iter": START, "min_compression_rate": 1.0}
    return ranks.run(low_rank_steps, gradients=gradients, number=number, **settings | options)
