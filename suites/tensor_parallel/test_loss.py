"""The loss of logits that lie split is that of one device where numbers are extreme, and of 16 bits the nearest."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_close, assert_within
from suites.shared.inputs import integers
from suites.shared.sharding import per_rank
from suites.shared.step import Tensors, second
from suites.tensor_parallel.programs.loss import loss_of_logits, losses_on_two_axes
from suites.tensor_parallel.reference import DTYPE

TOKENS, CLASSES = 12, 11  # no number of ranks divides the classes


def scaled(*, scale: int = 1000, shape: tuple[int, ...] = (TOKENS, CLASSES), **kwargs: Any) -> dict[str, Any]:
    """Whole logits, so large that no exp of one is finite; the targets of some don't count."""
    logits = scale * integers(shape, DTYPE, seed=1, low=-8, high=8)
    target = integers((shape[0], *shape[2:]), torch.int64, seed=2, low=0, high=CLASSES - 1)
    target[1:3] = kwargs.get("ignore_index", -100)
    return {"logits": logits, "target": target, "reduction": "mean", **kwargs}


def with_value(value: float, rows: slice, classes: slice) -> dict[str, Any]:
    """Some logits are infinite, or no numbers; among the first three rows are such that don't count."""
    case = scaled(scale=1, reduction="none")
    case["logits"][rows, classes] = value
    return case


def with_targets(low: int, high: int) -> dict[str, Any]:
    """All targets lie in the shard of one rank."""
    case = scaled(scale=1)
    case["target"] = integers((TOKENS,), torch.int64, seed=3, low=low, high=high)
    return case


def cases() -> dict[str, dict[str, Any]]:
    """What one device is given, by name."""
    return {
        "mean of large": scaled(),
        "sum of large": scaled(reduction="sum"),
        "each of large": scaled(reduction="none"),
        "a sequence of large": scaled(shape=(4, CLASSES, 3)),
        "large of classes with weights": scaled(
            weight=integers((CLASSES,), DTYPE, seed=4, low=1, high=4), ignore_index=CLASSES - 1
        ),
        "a class that does not count": scaled(ignore_index=CLASSES - 1),
        "padded vocabulary": with_value(-math.inf, slice(None), slice(CLASSES - 5, None)),
        "no class possible": with_value(-math.inf, slice(0, 2), slice(None)),
        "infinite": with_value(math.inf, slice(0, 2), slice(CLASSES - 1, None)),
        "no number in the first shard": with_value(math.nan, slice(0, 2), slice(0, 1)),
        "no number in the last shard": with_value(math.nan, slice(0, 2), slice(CLASSES - 1, None)),
        "targets of the first rank": with_targets(0, 1),
        "targets of the last rank": with_targets(CLASSES - 2, CLASSES - 1),
        "no target counts": with_targets(-100, -100),
        "a single token": {
            "logits": integers((CLASSES,), DTYPE, seed=5, low=-8, high=8),
            "target": torch.tensor(7),
            "reduction": "mean",
        },
        "targets in a DTensor": scaled(placed=True),
        "targets and weights in DTensors": scaled(
            weight=integers((CLASSES,), DTYPE, seed=6, low=1, high=4), ignore_index=CLASSES - 1, placed=True
        ),
    }


def losses(ctx: Context, given: dict[str, dict[str, Any]]) -> dict[str, Tensors]:
    """What each case gives on this rank in its second step; in one launch, since they are small."""
    return {name: second(ctx, loss_of_logits, **case) for name, case in given.items()}


def on_one_device(logits: torch.Tensor, target: torch.Tensor, placed: bool = False, **kwargs: Any) -> Tensors:
    leaf = logits.clone().requires_grad_()
    loss = functional.cross_entropy(leaf, target, **kwargs)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return {"loss": loss.detach(), "logits gradient": gradient}


def tolerance(logits: torch.Tensor, weight: torch.Tensor | None) -> float:
    """How far rounding may take loss and gradients.

    Logits are whole, and what exceeds the largest is exact. An exp is off by 4 u of itself, a sum of V of them by V u
    more; N losses, at most twice the largest logit and log V, add N u of their sum; a quotient another. Each, and a
    gradient, is multiplied by a class's weight. Twice, since the reference rounds too.
    """
    finite = logits[logits.isfinite()].abs()
    largest = 2 * float(finite.max()) + math.log(CLASSES)
    roundings = (CLASSES + 8) + (TOKENS + 3) * largest
    return 2 * TOKENS * roundings * (1 if weight is None else float(weight.max())) * 2**-53


def assert_as_on_one_device(got: torch.Tensor, want: torch.Tensor, where: str, atol: float) -> None:
    """Near where there are numbers; where one device has none, or an infinite one, so have the ranks."""
    finite = want.isfinite()
    has, wants = (torch.where(finite, 0.0, tensor).nan_to_num(nan=2, posinf=1, neginf=-1) for tensor in (got, want))
    assert_close(has, wants, f"{where}: what is infinite (1, -1) and what is no number (2)")
    assert_close(torch.where(finite, got, 0), torch.where(finite, want, 0), where, atol=atol)


@pytest.mark.ranks(2, 3)
def test_extreme_logits(ranks: Ranks) -> None:
    results = ranks.run(losses, cases())
    for name, case in cases().items():
        atol = tolerance(case["logits"], case.get("weight"))
        expected = per_rank(
            on_one_device(**case), ranks.world_size, {"logits gradient": min(case["logits"].dim() - 1, 1)}
        )
        for rank, want in enumerate(expected):
            for what, tensor in want.items():
                assert_as_on_one_device(results[rank][name][what], tensor, f"{name}: rank {rank}, {what}", atol)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("shape", [(TOKENS, CLASSES), (4, CLASSES, 6)], ids=["tokens", "sequences"])
@pytest.mark.parametrize("first", [True, False], ids=["classes on the first axis", "on the second one"])
def test_logits_that_two_axes_split(ranks: Ranks, shape: tuple[int, ...], first: bool) -> None:
    """One axis splits the classes, and the other one the tokens, or where they stand in their sequences."""
    if torch.__version__ < "2.13":  # compared as a version
        pytest.skip(f"a loss on two axes needs torch 2.13, this is {torch.__version__}")
    weight = integers((CLASSES,), DTYPE, seed=4, low=1, high=4)
    case = scaled(scale=3, shape=shape, weight=weight, ignore_index=CLASSES - 1)
    others = Shard(0 if len(shape) == 2 else 2)
    placements = (Shard(1), others) if first else (others, Shard(1))
    given = {name: value for name, value in case.items() if name != "reduction"}
    results = ranks.run(losses_on_two_axes, **given, placements=placements)
    atol = tolerance(case["logits"], weight)
    for reduction in ("sum", "none"):
        whole = on_one_device(**{**case, "reduction": reduction})
        for rank, told in enumerate(results):
            for what, tensor in whole.items():
                assert_close(told[reduction][what], tensor, f"{reduction}: rank {rank}, {what}", atol=atol)


SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SURE = (8.0, 10.0)
"""By how much the target's logit exceeds all others where the loss is small: 16 bits of 1 + exp(-8) are 1."""


def short_case(dtype: torch.dtype, reduction: str) -> dict[str, Any]:
    """Logits of 16 bits: of some tokens the target is sure, of the others none is."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2 * TOKENS, CLASSES, generator=generator)
    target = integers((2 * TOKENS,), torch.int64, seed=2, low=0, high=CLASSES - 1)
    for token in range(TOKENS):
        logits[token] = -SURE[token % len(SURE)]
        logits[token, target[token]] = 0.0
    return {"logits": logits.to(dtype), "target": target, "reduction": reduction}


def assert_nearest(got: Tensors, case: dict[str, Any], classes: slice, where: str) -> None:
    """Loss and gradient of these classes are those of float64, but for the roundings of what is returned.

    With u of the dtype: a loss is the logarithm of a probability, rounded once, by u of itself. What float32 rounds
    adds 2**-20. The mean is rounded at most three times more. A gradient is p less 1 at the target. p is exp of that
    logarithm: u times the logarithm of itself is lost, and u each by exp, the difference and two products.
    """
    dtype, target = case["logits"].dtype, case["target"]
    u, least = torch.finfo(dtype).eps / 2, 2**-20 + torch.finfo(dtype).smallest_normal
    logarithms = case["logits"].double().log_softmax(1)
    losses = -logarithms.gather(1, target[:, None])[:, 0]
    mean = case["reduction"] == "mean"
    expected = losses.mean() if mean else losses
    assert_within(got["loss"], expected, (4 if mean else 1) * u * expected + least * (1 + expected), f"{where}, loss")
    p, one_hot = logarithms.exp(), functional.one_hot(target, CLASSES)
    scale = len(target) if mean else 1
    bound = (u * (p * (logarithms.abs() + 4) + 4 * one_hot) + least) / scale * (1 + 4 * u)
    gradient = (p - one_hot) / scale
    assert_within(got["logits gradient"], gradient[:, classes], bound[:, classes], f"{where}, gradient")


@pytest.mark.ranks(2, 3)
def test_logits_of_16_bits_lose_no_more_than_what_is_returned(ranks: Ranks) -> None:
    given = {f"{name}, {how}": short_case(dtype, how) for name, dtype in SHORT.items() for how in ("none", "mean")}
    results = ranks.run(losses, given)
    places = torch.arange(CLASSES)[None]
    for name, case in given.items():
        for rank, mine in enumerate(per_rank({"places": places}, ranks.world_size, {"places": 1})):
            own = mine["places"][0]
            classes = slice(int(own[0]), int(own[-1]) + 1)
            assert_nearest(results[rank][name], case, classes, f"{name}: rank {rank}")
