"""How far rounding may take each number of an attention, and of its gradients, from the exact one.

A computed sum of n products is off by at most n * u of the sum of their magnitudes, u the unit roundoff (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1). To first order, and for each element by itself: its own
terms count, not the largest ones there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from suites.shared.step import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What an implementation computes, and where it rounds to the inputs' dtype."""

    parts: int
    """In which keys and values arrive: the hops of a ring; 1 where all of them are there."""
    kernels: bool
    """Whether kernels may round probabilities, their gradients, and what they keep for backward."""


def by_hand(degree: int) -> Arithmetic:
    """A ring whose operations are known, and which rounds only what it sends and returns."""
    return Arithmetic(parts=degree, kernels=False)


def in_kernels(parts: int) -> Arithmetic:
    """Torch's kernels, whose operations are theirs."""
    return Arithmetic(parts=parts, kernels=True)


def bounds(tensors: Tensors, held: Sequence[torch.Tensor], arithmetic: Arithmetic, causal: bool) -> Tensors:
    """The bound of each element of the output and of the three gradients, of the whole sequence.

    D features, S tokens, G query heads that share a key, and P parts; size = |query| |key| / sqrt(D). In units of u:

    - a score adds D products, each scaled: (D + 4) size;
    - its distance from the largest score is rounded, in one step or in P: in all by as much as the distance itself;
      exp to 2 ulp (CUDA's bound; SLEEF's is 1) and rescaling add 5 in each part, the normalizer one for each token
      that is seen; the CPU's kernels take an exp to 20 ulp in float32, which adds 36;
    - a probability takes this twice, for itself and in its normalizer, of which kernels keep the logarithm;
    - the gradient of a score, probability * (grad . value - grad . output), takes the errors of both, and D + P + 4;
    - each gradient adds up at most S + G + P products.

    u is float32's at least, and float64's is added, since the reference rounds too. What underflows is off by the
    smallest normal number at most.

    Roundings to a dtype below float32 are further ones. By hand: one of the output and of the query's gradient; of
    keys and values each hop rounds its share of the gradient, and the sum with what came from the hops before.
    Kernels round probabilities twice (a quick exp is no better than the dtype it is for), unless there is but one,
    which is 1, and the output; a gradient takes G + 4 such roundings, and two for each part.
    """
    dtype = tensors["query"].dtype
    wide = torch.promote_types(dtype, torch.float32)
    computed = torch.finfo(wide)
    unit = (computed.eps + torch.finfo(torch.float64).eps) / 2
    storage = torch.finfo(dtype).eps / 2 if dtype != wide else 0.0
    query, key, value, grad = (tensors[name].double() for name in ("query", "key", "value", "grad"))
    groups, tokens, features = query.shape[1] // key.shape[1], query.shape[2], query.shape[3]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    root, parts = math.sqrt(features), arithmetic.parts

    scores = query @ key.mT / root
    if causal:
        scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -math.inf)
    hidden = scores.isinf()
    seen = (~hidden).sum(-1, keepdim=True)
    probability = scores.softmax(-1)
    power = (features + 4) * (query.abs() @ key.abs().mT) / root
    power += (scores.amax(-1, keepdim=True) - scores).masked_fill(hidden, 0)
    power += 5 * parts + seen + (36 if arithmetic.kernels and wide == torch.float32 else 0)
    normalizer = (probability * power).sum(-1, keepdim=True) + scores.logsumexp(-1, keepdim=True).abs()
    probability_error = unit * probability * (power + normalizer + 2) + (parts + 1) * computed.tiny

    output, spread = probability @ value, probability @ value.abs()
    output_error = probability_error @ value.abs()
    product = grad.abs() @ value.abs().mT + (grad.abs() * spread).sum(-1, keepdim=True)
    strength = probability * product
    score_gradient = probability * (grad @ value.mT - (grad * output).sum(-1, keepdim=True))
    score_error = probability_error * product + unit * (features + parts + 4) * strength
    score_error += probability * (grad.abs() * output_error).sum(-1, keepdim=True)
    added = unit * (tokens + groups + parts + 3)

    query_gradient = score_gradient @ key / root
    query_error = (score_error + added * strength) @ key.abs() / root
    # Of the keys' and the values' gradients, what the queries of each rank give.
    key_shares, value_shares = (
        [_shared(weights[:, :, rows].mT @ factor[:, :, rows] / scale, groups) for rows in held]
        for weights, factor, scale in ((score_gradient, query, root), (probability, grad, 1.0))
    )
    key_errors, value_errors = (
        [_shared(weights[:, :, rows].mT @ factor[:, :, rows].abs() / scale, groups) for rows in held]
        for weights, factor, scale in (
            (score_error + added * strength, query, root),
            (probability_error + added * probability, grad, 1.0),
        )
    )
    if not arithmetic.kernels:
        return {
            "output": output_error + storage * (output.abs() + output_error),
            "query gradient": query_error + storage * (query_gradient.abs() + query_error),
            "key gradient": _travelled(key_shares, key_errors, held, storage),
            "value gradient": _travelled(value_shares, value_errors, held, storage),
        }
    rounded = storage * (2 * parts + groups + 4)
    return {
        "output": output_error + storage * (2 * (seen > 1) * spread + output.abs()),
        "query gradient": query_error + rounded * strength @ key.abs() / root,
        "key gradient": sum(key_errors, rounded * _shared(strength.mT @ query.abs() / root, groups)),
        "value gradient": sum(value_errors, rounded * _shared(probability.mT @ grad.abs(), groups)),
    }


def _shared(gradient: torch.Tensor, groups: int) -> torch.Tensor:
    """The sum over the query heads that share a key."""
    batch, heads, tokens, features = gradient.shape
    return gradient.view(batch, heads // groups, groups, tokens, features).sum(2)


def _travelled(
    shares: Sequence[torch.Tensor], errors: Sequence[torch.Tensor], held: Sequence[torch.Tensor], storage: float
) -> torch.Tensor:
    """The bound of gradients that come home around the ring, and take the share of each rank that they pass."""
    bound = torch.empty_like(shares[0])
    for rank, columns in enumerate(held):
        # The rank after this one is the first that the keys come to, so that its share comes last but for their own.
        order = [(rank + distance) % len(held) for distance in reversed(range(len(held)))]
        total = total_error = torch.zeros_like(shares[0][:, :, columns])
        for place, giver in enumerate(order):
            share, error = shares[giver][:, :, columns], errors[giver][:, :, columns]
            error = error + storage * (share.abs() + error)
            total, total_error = total + share, total_error + error
            if place:
                total_error = total_error + storage * (total.abs() + total_error)
        bound[:, :, columns] = total_error
    return bound
