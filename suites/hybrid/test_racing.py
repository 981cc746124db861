"""Every mesh that is raced trains one model as one device does: loss and norm of each step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.hybrid.programs import clipping, racing
from suites.hybrid.reference import predicted
from suites.shared.comparison import assert_close, assert_in_float32, assert_squares_in_float32, assert_unlike
from suites.shared.course import BEYOND
from suites.shared.llama import Config, Llama, draw_on_device, flop_of_step, initial_weights, loss_of
from suites.shared.step import Tensors, each_step, gradient_of
from suites.shared.traffic import Traffic

STEPS = 3
SEQUENCES, LENGTH, SEED = 4, 8, 1
CONFIG = Config(layers=2, heads=4, kv_heads=2, head_dim=4, hidden=12, vocabulary=16)
ROUNDED = 1e-9  # of float64 numbers, over some steps


def weights(ctx: Context) -> Tensors:
    """What training begins with: other devices draw other numbers."""
    with ctx.device:
        model = Llama(CONFIG, 0, 1).double()
    draw_on_device(model, CONFIG, SEED)
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def on_one_device(begin: Tensors, max_norm: float = racing.MAX_NORM) -> list[torch.Tensor]:
    """Loss and norm of each step with all sequences; all or none of them are clipped."""
    model = Llama(CONFIG, 0, 1).double()
    model.load_state_dict(begin)
    optimizer = torch.optim.AdamW(model.parameters(), lr=racing.LEARNING_RATE, foreach=False)
    tokens = torch.randint(CONFIG.vocabulary, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(SEED))
    results = []
    for _ in range(STEPS):
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).square().sum().sqrt()
        assert (norm > max_norm) == (max_norm != BEYOND), f"a norm of {norm} does not test {max_norm}"
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient * (max_norm / norm).clamp(max=1.0)
        optimizer.step()
        results.append(torch.stack([loss.detach(), norm]))
    return results


GIVEN: dict[str, Any] = {
    "config": CONFIG,
    "arithmetic": torch.float64,
    "sequences": SEQUENCES,
    "length": LENGTH,
    "seed": SEED,
}
ON_FOUR = ("pp2 shard2", "shard2 cp2", "cp2 tp2")
"""Each axis beside another one."""


@pytest.mark.ranks(2, 4)
def test_every_mesh_trains_as_one_device(ranks: Ranks) -> None:
    """Runs all meshes of one axis on 2 ranks, and some of two axes on 4."""
    found = racing.meshes(ranks.world_size)
    meshes = {name: found[name] for name in (found if ranks.world_size == 2 else ON_FOUR)}

    def program(ctx: Context) -> dict[str, list[torch.Tensor]]:
        return {name: each_step(ctx, racing.train, STEPS, mesh=mesh, **GIVEN) for name, mesh in meshes.items()}

    expected = on_one_device(ranks.run(weights)[0])
    for rank, each in enumerate(ranks.run(program)):
        for name, steps in each.items():
            for number, (got, should) in enumerate(zip(steps, expected, strict=True)):
                assert_close(got, should, f"rank {rank}, {name}, step {number}", rtol=ROUNDED)


@pytest.mark.ranks(2)
def test_gradients_below_the_norm_are_not_scaled_up(ranks: Ranks) -> None:
    """Beside the norms of the steps AdamW sees its epsilon and little else of it: hence the narrow bound."""

    def program(ctx: Context) -> list[torch.Tensor]:
        return each_step(ctx, racing.train, STEPS, mesh={"shard": 2}, max_norm=BEYOND, **GIVEN)

    expected = on_one_device(ranks.run(weights)[0], BEYOND)
    for rank, steps in enumerate(ranks.run(program)):
        for number, (got, should) in enumerate(zip(steps, expected, strict=True)):
            assert_close(got, should, f"rank {rank}, step {number}", rtol=ROUNDED)


def test_a_norm_of_16_bit_gradients_is_computed_in_float32() -> None:
    for of_stage in (1, 4):

        def squared(gradients: list[torch.Tensor], of_stage: int = of_stage) -> torch.Tensor:
            return clipping.squared(gradients, clipping.parts_of(gradients), of_stage)

        assert_squares_in_float32(squared, 1 / of_stage)


@pytest.mark.ranks(1)
def test_loss_and_norm_of_a_16_bit_model_are_float32(ranks: Ranks) -> None:
    """One rank takes the steps of one device: its gradients are the same to the last bit."""
    given = GIVEN | {"arithmetic": torch.bfloat16}

    def program(ctx: Context) -> list[torch.Tensor]:
        with ctx.device:
            model = Llama(CONFIG, 0, 1).to(torch.bfloat16)
        draw_on_device(model, CONFIG, SEED)
        generator = torch.Generator().manual_seed(SEED)
        tokens = torch.randint(CONFIG.vocabulary, (SEQUENCES, LENGTH + 1), generator=generator).to(ctx.device)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        exact = torch.cat([gradient_of(weight).double().flatten() for weight in model.parameters()]).square().sum()
        return [racing.train(ctx, mesh={"shard": 1}, **given)(), torch.stack([loss.detach().double(), exact.sqrt()])]

    ((got, exact),) = ranks.run(program)
    assert_in_float32(got, exact, "loss and norm")


@pytest.mark.parametrize(("world_size", "number"), [(2, 4), (4, 10), (6, 16), (8, 20)])
def test_every_mesh_is_there_once(world_size: int, number: int) -> None:
    """As many as there are ways to write the ranks as a product of four degrees, in their order."""
    meshes = racing.meshes(world_size)
    degrees = {tuple(mesh.get(axis, 1) for axis in ("pp", "shard", "cp", "tp")) for mesh in meshes.values()}
    assert len(meshes) == len(degrees) == number
    assert {pp * shard * cp * tp for pp, shard, cp, tp in degrees} == {world_size}
    assert all(name.split() == [f"{axis}{degree}" for axis, degree in mesh.items()] for name, mesh in meshes.items())


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("axis", "changed", "why"),
    [
        ("shard", {"sequences": 3}, "3 sequences make no 2 equal shares"),
        ("tp", {"config": CONFIG._replace(hidden=13)}, "tp 2 divides not all of Config"),
        ("pp", {"config": CONFIG._replace(layers=1)}, "1 layers make no 2 stages"),
        ("cp", {"length": 6}, "6 tokens make no 4 equal pieces for cp 2"),
    ],
)
def test_what_the_mesh_does_not_divide_cannot_run(ranks: Ranks, axis: str, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(Infeasible, match=why):
        ranks.run(racing.train, mesh={axis: 2}, **(GIVEN | changed))


@pytest.mark.ranks(2)
def test_a_pipeline_takes_one_sequence_at_a_time(ranks: Ranks) -> None:
    """Its loss is the same with fewer and larger microbatches, and its bubble is not."""

    def sent(ctx: Context) -> list[int]:
        step = racing.train(ctx, mesh={"pp": 2}, **GIVEN)
        step()  # the first one exchanges shapes
        with Traffic() as traffic:
            step()
        return [call.given for call in traffic.calls if call.name == "send"]

    of_sequence = LENGTH * CONFIG.dim * torch.float64.itemsize
    assert ranks.run(sent) == [[of_sequence] * SEQUENCES] * 2


def test_operations_are_those_of_torchs_counter() -> None:
    """Torch counts the model's formulas, where each token sees all others: twice the attention that a mask leaves."""
    config = CONFIG._replace(vocabulary=24, layers=3)  # no two sizes are the same
    leaves = {name: value.requires_grad_() for name, value in initial_weights(config, torch.float64, SEED).items()}
    tokens = torch.randint(config.vocabulary, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(SEED))
    with FlopCounterMode(display=False) as counter:
        predicted(leaves, config, tokens).sum().backward()
    masked = 3 * SEQUENCES * config.layers * 2 * LENGTH**2 * config.dim
    assert counter.get_total_flops() - masked == flop_of_step(config, SEQUENCES, LENGTH)


def test_no_two_matrices_are_alike() -> None:
    """With equal ones a stage that holds another one's layers would train right."""
    model = Llama(CONFIG, 0, 1)
    draw_on_device(model, CONFIG, SEED)
    shapes: dict[torch.Size, dict[str, torch.Tensor]] = {}
    for name, value in model.state_dict().items():
        if value.dim() > 1:
            shapes.setdefault(value.shape, {})[name] = value
    for of_shape in shapes.values():
        assert_unlike(of_shape)
    assert sum(map(len, shapes.values())) == 7 * CONFIG.layers + 2
