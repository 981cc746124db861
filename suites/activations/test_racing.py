"""Every technique that is raced gives the loss and the gradients of one device, and keeps what its formula says."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.activations.programs import racing
from suites.activations.programs.ahead import AHEAD, Ferry, offload_ahead
from suites.activations.programs.racing import LEND, RACED, Work, crossing_bytes, kept_bytes
from suites.activations.programs.techniques import offload
from suites.shared.comparison import assert_close, assert_in_float32, assert_unlike
from suites.shared.memory import LiveBytes
from suites.shared.step import each_step, gradient_of

TECHNIQUES = [*RACED, LEND]
STEPS = 2
MORE = 4  # steps after the first one, whose live bytes are compared with the first one's
PATIENCE = 2.0  # seconds


def small(**changed: Any) -> Work:
    sizes: dict[str, Any] = {"blocks": 4, "width": 3, "hidden": 5, "rows": 2, "dtype": torch.float64, "seed": 1}
    return Work(**(sizes | changed))


def given(ctx: Context, *, work: Work) -> dict[str, Any]:
    """What training begins with, drawn on the ranks' device."""
    return {
        "weights": [weight.detach().clone() for weight in work.model(ctx.device).parameters()],
        "batches": [work.batch(rank, ctx.device) for rank in range(ctx.world_size)],
        "loss": racing.whole_loss(work, ctx.world_size, ctx.device),
    }


def on_one_device(weights: list[torch.Tensor], batches: Any) -> torch.Tensor:
    """The mean loss, and the norm of the gradients that the even ranks have of their own losses."""
    losses, squares = [], []
    for x, target in batches[::2]:
        leaves = [weight.clone().requires_grad_() for weight in weights]
        for up, down in zip(leaves[::2], leaves[1::2], strict=True):
            x = x + torch.nn.functional.gelu(x @ up.T) @ down.T
        loss = (x - target).square().mean()
        squares += [gradient.square().sum() for gradient in torch.autograd.grad(loss, leaves)]
        losses.append(loss.detach())
    return torch.stack([torch.stack(losses).mean(), torch.stack(squares).sum().sqrt()])


@pytest.mark.ranks(2, 3, 4)
def test_every_technique_trains_as_one_device(ranks: Ranks) -> None:
    """The last of 3 ranks has no peer: it trains with every technique except the one that needs two ranks."""
    work, techniques = small(), RACED if ranks.world_size % 2 else TECHNIQUES

    def program(ctx: Context) -> dict[str, list[torch.Tensor]]:
        return {name: each_step(ctx, racing.train, STEPS, technique=name, work=work) for name in techniques}

    begin = ranks.run(given, work=work)[0]
    expected = on_one_device(begin["weights"], begin["batches"])
    assert_close(begin["loss"], expected[0], "the loss without hooks", rtol=1e-12)
    for rank, each in enumerate(ranks.run(program)):
        for name, steps in each.items():
            for number, got in enumerate(steps):
                assert_close(got, expected, f"rank {rank}, {name}, step {number}", rtol=1e-12)


def test_no_two_blocks_are_alike() -> None:
    """With equal blocks a technique that gives back another one's activations could train right."""
    weights = dict(small().model(torch.device("cpu")).named_parameters())
    for kind in ("up.weight", "down.weight"):
        assert_unlike({name: weight for name, weight in weights.items() if name.endswith(kind)})


def test_each_rank_has_a_batch_of_its_own() -> None:
    """With equal batches a rank that trains on another one's would have the right loss."""
    drawn: dict[str, torch.Tensor] = {}
    for rank in range(8):
        drawn[f"rank {rank}, input"], drawn[f"rank {rank}, target"] = small().batch(rank, torch.device("cpu"))
    assert_unlike(drawn)


def alive_after_steps(ctx: Context, *, technique: str, work: Work) -> list[tuple[int, int]]:
    """Bytes of what steps have made that are alive on the host and on the rank's device: after one step, after many."""
    step = racing.train(ctx, technique=technique, work=work)
    host, device = LiveBytes(torch.device("cpu")), LiveBytes(ctx.device)
    with host, device:
        step()
        first = host.live(), device.live()
        for _ in range(MORE):
            step()
    ends = time.monotonic() + PATIENCE
    while (host.live() > first[0] or device.live() > first[1]) and time.monotonic() < ends:
        time.sleep(0.01)  # gloo's threads hold what they have sent for a moment longer
    return [first, (host.live(), device.live())]


@pytest.mark.ranks(2)
def test_nothing_that_a_step_has_kept_outlives_it(ranks: Ranks) -> None:
    """The first step leaves gradients, and later ones no more than it did: neither on the device nor on the host."""
    for technique in TECHNIQUES:
        for rank, (first, last) in enumerate(ranks.run(alive_after_steps, technique=technique, work=small())):
            for where, once, many in zip(("host", "device"), first, last, strict=True):
                what = f"{technique}, rank {rank}: bytes alive on the {where}"
                assert many <= once, f"{what}: {once} after one step, {many} after {MORE} more"


MOVING = {"offload": offload, "offload ahead": offload_ahead}


def kept(ctx: Context, *, technique: str, work: Work) -> int:
    """Bytes on the rank's device between forward and backward, without its input and its output."""
    live = LiveBytes(ctx.device)
    model = work.model(ctx.device)
    forward = (
        MOVING[technique](ctx, model, moved=live.note_moved) if technique in MOVING else RACED[technique](ctx, model)
    )
    x, _ = work.batch(0, ctx.device)
    with live:
        output = forward(x)
        nbytes = live.live() - output.untyped_storage().nbytes()
        output.sum().backward()
    return nbytes


@pytest.mark.ranks(1)
@pytest.mark.parametrize("technique", RACED)
def test_a_technique_keeps_what_its_formula_says(ranks: Ranks, technique: str) -> None:
    """One half of an odd number of blocks has more blocks than the other half."""
    for work in (small(), small(blocks=5)):
        (nbytes,) = ranks.run(kept, technique=technique, work=work)
        assert nbytes == kept_bytes(technique, work) - work.input_bytes, f"{work.blocks} blocks"


def crossed(ctx: Context, *, technique: str, work: Work) -> int:
    """Bytes that a forward takes to the host."""
    copies: list[int] = []
    forward = MOVING[technique](ctx, work.model(ctx.device), moved=lambda tensor, copy: copies.append(copy.nbytes))
    forward(work.batch(0, ctx.device)[0])
    return sum(copies)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("technique", MOVING)
def test_an_offload_moves_what_its_formula_says(ranks: Ranks, technique: str) -> None:
    work = small()
    assert ranks.run(crossed, technique=technique, work=work) == [crossing_bytes(technique, work)]


def counted(ctx: Context, *, work: Work) -> int:
    """Operations of a rank's step, as torch counts them."""
    step = racing.train(ctx, technique="keep", work=work)
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


@pytest.mark.ranks(2, 3)
def test_operations_and_bytes_are_those_of_a_step(ranks: Ranks) -> None:
    work = small()
    assert sum(ranks.run(counted, work=work)) == work.flop(racing.trainers(ranks.world_size))
    model = work.model(torch.device("cpu"))
    assert sum(weight.nbytes for weight in model.parameters()) == work.weight_bytes


@pytest.mark.ranks(1)
def test_tensors_come_back_whichever_backward_asks_for(ranks: Ranks) -> None:
    """Those saved before the one that is asked for come along; none is mixed up, fetched twice, or kept when used."""

    def program(ctx: Context, order: list[int]) -> list[float]:
        ferry = Ferry(ctx, nn.Sequential(), lambda tensor, copy: None)
        saved = [ferry.pack(torch.full((2,), float(number), device=ctx.device)) for number in range(8)]
        assert saved == list(range(8))
        values = []
        for number in order:
            tensor = ferry.unpack(number)
            values.append(float(tensor.sum()) / 2)
            used = weakref.ref(tensor)
            del tensor
            assert used() is None, f"tensor {number} is kept after its use"
        return values

    assert AHEAD < 5
    for order in ([7, 6, 5, 4, 3, 2, 1, 0], [0, 7, 3, 5, 5, 1]):
        assert ranks.run(program, order) == [[float(number) for number in order]]


@pytest.mark.ranks(1)
def test_the_tensors_before_the_one_that_is_asked_for_are_on_their_way(ranks: Ranks) -> None:
    """As many as there may be, and none twice: backward would wait for each, or have all of them at once."""

    def program(ctx: Context) -> list[list[int]]:
        class Noted(Ferry):
            def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event | None:
                begun.append(int(source[0]))
                return super()._copy(to, source)

        begun: list[int] = []
        ferry = Noted(ctx, nn.Sequential(), lambda tensor, copy: None)
        for number in range(6):
            ferry.pack(torch.full((2,), float(number), device=ctx.device))
        of_each = []
        for number in reversed(range(6)):
            begun.clear()
            ferry.unpack(number)
            of_each.append(list(begun))
        return of_each

    assert AHEAD == 3
    assert ranks.run(program) == [[[5, 4, 3, 2], [1], [0], [], [], []]]


@pytest.mark.ranks(1)
def test_all_tensors_have_left_when_backward_begins(ranks: Ranks) -> None:
    """The last ones are kept while they are copied; backward needs the memory for those that come back."""

    def program(ctx: Context) -> int:
        ferry = Ferry(ctx, nn.Sequential(), lambda tensor, copy: None)
        left = []
        for _ in range(5):
            tensor = torch.zeros(2, device=ctx.device)
            left.append(weakref.ref(tensor))
            ferry.pack(tensor)
            del tensor
        ferry.unpack(4)
        return sum(each() is not None for each in left)

    assert ranks.run(program) == [0]


@pytest.mark.ranks(3)
def test_a_rank_without_a_peer_cannot_lend(ranks: Ranks) -> None:
    with pytest.raises(Infeasible, match="ranks lend in pairs, and 3 ranks leave one without a peer"):
        ranks.run(racing.train, technique=LEND, work=small())


def test_a_loss_of_16_bits_is_computed_in_float32() -> None:
    output, target = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_in_float32(racing.squared_error(output, target), (output.double() - target.double()).square().mean(), "loss")


@pytest.mark.ranks(1)
def test_the_norm_of_16_bit_gradients_is_computed_in_float32(ranks: Ranks) -> None:
    """One rank takes the steps of one device: its gradients are the same to the last bit."""
    work = small(dtype=torch.bfloat16)

    def program(ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        model = work.model(ctx.device)
        x, target = work.batch(0, ctx.device)
        racing.squared_error(model(x), target).backward()
        exact = torch.cat([gradient_of(weight).double().flatten() for weight in model.parameters()]).square().sum()
        return racing.train(ctx, technique="keep", work=work)()[1], exact.sqrt()

    ((got, exact),) = ranks.run(program)
    assert_in_float32(got, exact, "norm")
