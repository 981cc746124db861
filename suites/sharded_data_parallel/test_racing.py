"""All ways that are raced train one model as one device does, and cost what ZeRO's formulas say, to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.sharded_data_parallel.programs import racing
from suites.sharded_data_parallel.programs.racing import WAYS, Cost
from suites.sharded_data_parallel.programs.stages import local_shard
from suites.sharded_data_parallel.reference import bytes_sent, numel, state_bytes
from suites.shared.comparison import assert_close, assert_in_float32, assert_unlike
from suites.shared.course import BEYOND
from suites.shared.llama import Config, Llama, loss_of
from suites.shared.llm import Workload
from suites.shared.step import Tensors, each_step, gradient_of
from suites.shared.traffic import Traffic

pytestmark = pytest.mark.ranks(2)

STEPS = 3
CONFIG = Config(layers=3, heads=4, kv_heads=2, head_dim=4, hidden=16, vocabulary=16)
# What clipping and the loss add: two numbers, all-reduced.
NUMBERS = 2


def workload(compute: torch.dtype, parameters: torch.dtype) -> Workload:
    return Workload(config=CONFIG, sequences=1, length=6, seed=1, compute=compute, parameters=parameters)


EXACT = workload(torch.float64, torch.float64)
MIXED = workload(torch.bfloat16, torch.float32)


def given(ctx: Context) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    """The weights of all, and this rank's tokens: other devices draw other numbers."""
    weights = {name: value.clone() for name, value in EXACT.model(ctx.device).state_dict().items()}
    return weights, *EXACT.batch(ctx)


def on_one_device(
    weights: Tensors, x: torch.Tensor, target: torch.Tensor, max_norm: float = racing.MAX_NORM
) -> list[torch.Tensor]:
    """Loss and norm of each step with the tokens of all ranks."""
    model = Llama(CONFIG, 0, 1).double()
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=racing.LEARNING_RATE, foreach=False)
    results = []
    for _ in range(STEPS):
        loss = loss_of(model(x), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).square().sum().sqrt()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient * min(1.0, max_norm / float(norm))
        optimizer.step()
        results.append(torch.stack([loss.detach(), norm]))
    return results


@pytest.mark.ranks(2, 3)
def test_every_way_trains_as_one_device(ranks: Ranks) -> None:
    def program(ctx: Context) -> tuple[dict[str, list[torch.Tensor]], list[torch.Tensor]]:
        clipped = {name: each_step(ctx, racing.train, STEPS, way=way, work=EXACT) for name, way in WAYS.items()}
        step = racing.step_of(ctx, racing.prepared(ctx, WAYS["DDP"], EXACT), EXACT, max_norm=BEYOND)
        return clipped, [step() for _ in range(STEPS)]

    of_ranks = ranks.run(given)
    # With equal ones a rank that trains on another one's tokens would have the right loss.
    assert_unlike({f"rank {rank}": tokens for rank, (_, tokens, _) in enumerate(of_ranks)})
    for _, tokens, following in of_ranks:
        assert torch.equal(following[:, :-1], tokens[:, 1:]), "each token's target is the one after it"
    x = torch.cat([tokens for _, tokens, _ in of_ranks])
    target = torch.cat([tokens for _, _, tokens in of_ranks])
    expected = on_one_device(of_ranks[0][0], x, target)
    assert expected[0][1] > racing.MAX_NORM, "gradients are clipped"
    unclipped = on_one_device(of_ranks[0][0], x, target, BEYOND)
    for rank, (each, as_they_are) in enumerate(ranks.run(program)):
        for name, steps in each.items():
            for number, (got, should) in enumerate(zip(steps, expected, strict=True)):
                assert_close(got, should, f"rank {rank}, {name}, step {number}", rtol=1e-9)
        for number, (got, should) in enumerate(zip(as_they_are, unclipped, strict=True)):
            assert_close(got, should, f"rank {rank}, unclipped, step {number}", rtol=1e-9)


def costs(ranks: Ranks) -> dict[str, list[Cost]]:
    """What each way costs each rank. Blocks of the allocator are larger than these tensors, so it is not asked."""

    def program(ctx: Context) -> dict[str, Cost]:
        return {name: racing.cost(ctx, way, MIXED, before=None) for name, way in WAYS.items()}

    of_ranks = ranks.run(program)
    return {name: [of_rank[name] for of_rank in of_ranks] for name in WAYS}


def test_every_way_costs_what_the_formulas_say(ranks: Ranks) -> None:
    """And no unit is gathered before it runs, but those that are prefetched."""
    numbers = NUMBERS * torch.float32.itemsize
    for name, each in costs(ranks).items():
        way = WAYS[name]
        assert sum(cost.held for cost in each) == ranks.world_size * state_bytes(way, MIXED, ranks.world_size), name
        for rank, cost in enumerate(each):
            sent = cost.sent(ranks.world_size) - numbers * 2 * (ranks.world_size - 1) / ranks.world_size
            assert sent == bytes_sent(way, MIXED, ranks.world_size), f"rank {rank}, {name} sent {cost.traffic}"
            ahead = way.prefetch + 1 if way.sharded == "all" else 0
            assert cost.gathered == ahead, f"rank {rank}, {name}: {cost.gathered} units are gathered at a time"
            # FSDP2 by itself is one unit ahead in backward, and none in forward.
            back = max(way.prefetch, 1) + 1 if way.sharded == "all" and way.reshard else 0
            assert cost.gathered_back == back, (
                f"rank {rank}, {name}: {cost.gathered_back} units in backward, not {back}"
            )


def gathers(ctx: Context, work: Workload) -> tuple[list[int], list[int]]:
    """Bytes of each all-gather of a step that prefetches, in their order, and those of each unit's parameters."""
    training = racing.prepared(ctx, WAYS["FSDP2 prefetch 2"], work)
    step, traffic = racing.step_of(ctx, training, work), Traffic()
    with traffic:
        step()
    of_units = [sum(value.numel() * value.element_size() for value in unit.parameters()) for unit in training.units]
    return [call.size for call in traffic.calls if call.collective == "all_gather"], of_units


def test_backward_prefetches_the_unit_first_that_it_needs_first(ranks: Ranks) -> None:
    for gathered, (embedding, layer, head) in ranks.run(gathers, replace(EXACT, config=CONFIG._replace(layers=1))):
        *_, first, second, third, norm = gathered
        assert (first, second, third) == (head, layer, embedding)
        assert norm < layer != embedding  # or their order could not be told


def test_formulas_of_four_ranks() -> None:
    """Written out, in units of all parameters: of two ranks 1 / R and (R - 1) / R are one number."""
    n = numel(CONFIG)
    assert Cost(0, None, {"all_reduce": 800, "all_gather": 400}, 0, 0).sent(4) == (2 * 800 + 400) * 3 / 4
    sent = {"DDP": 2, "ZeRO-1": 3, "FSDP2": 3, "FSDP2 gathered once": 2, "FSDP2 prefetch 2": 3}
    state = {"DDP": 4, "ZeRO-1": 2 + 2 / 4, "FSDP2": 1, "FSDP2 gathered once": 1, "FSDP2 prefetch 2": 1}
    for name in sent:
        assert bytes_sent(WAYS[name], EXACT, 4) == sent[name] * n * 8 * 3 / 4, name
        assert state_bytes(WAYS[name], EXACT, 4) == state[name] * n * 8, name
    # Gradients and state are float32 then, and parameters travel twice in bfloat16.
    assert bytes_sent(WAYS["FSDP2 mixed"], MIXED, 4) == (4 + 2 * 2) * n * 3 / 4
    assert state_bytes(WAYS["FSDP2 mixed"], MIXED, 4) == n * 4


def test_mixed_precision_starts_with_the_same_numbers(ranks: Ranks) -> None:
    """All weights are what bfloat16 has rounded, in either way; those of mixed precision then move in float32."""

    def program(ctx: Context) -> list[Any]:
        results: list[Any] = []
        for name in ("FSDP2", "FSDP2 mixed"):
            training = racing.prepared(ctx, WAYS[name], MIXED)
            weights = torch.cat([local_shard(weight).flatten() for weight in training.model.parameters()])
            results.append((weights.clone(), racing.step_of(ctx, training, MIXED)()[0]))
        return results

    for rank, ((weights, loss), (of_mixed, loss_of_mixed)) in enumerate(ranks.run(program)):
        assert_close(of_mixed, weights.float(), f"rank {rank}, weights")
        assert_close(loss_of_mixed, loss, f"rank {rank}, loss")


@pytest.mark.ranks(1)
def test_loss_and_norm_of_a_16_bit_model_are_float32(ranks: Ranks) -> None:
    """One rank takes the steps of one device: its gradients are the same to the last bit."""

    def program(ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        model, (x, target) = MIXED.model(ctx.device).to(MIXED.compute), MIXED.batch(ctx)
        loss = loss_of(model(x), target)
        loss.backward()
        exact = torch.cat([gradient_of(weight).double().flatten() for weight in model.parameters()]).square().sum()
        return racing.train(ctx, way=WAYS["DDP"], work=MIXED)(), torch.stack([loss.detach().double(), exact.sqrt()])

    ((got, exact),) = ranks.run(program)
    assert_in_float32(got, exact, "loss and norm")


def test_the_formula_counts_all_parameters() -> None:
    """The formula is right for models in which no two sizes are the same, too."""
    for config in (CONFIG, CONFIG._replace(hidden=12, vocabulary=24)):
        assert numel(config) == sum(value.numel() for value in Llama(config, 0, 1).parameters())
