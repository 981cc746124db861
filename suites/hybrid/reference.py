"""What one device computes in two steps of training, how far off rounding may put it, and how the mesh splits it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from suites.hybrid.programs.mixture import CHOICES, initial_experts
from suites.hybrid.programs.training import BATCH_AXES, LEARNING_RATE, MOMENTUM, Mesh, Trained
from suites.shared.comparison import assert_close
from suites.shared.course import BEYOND, IGNORED
from suites.shared.llama import NORM_EPSILON, ROTARY_BASE, Config, initial_weights
from suites.shared.step import Tensors

DTYPE = torch.float64
MAX_NORMS = (BEYOND, BEYOND, 0.5)
"""The norm to clip to in each step: the last one's gradients are clipped, the others stay as they are."""
STEPS = len(MAX_NORMS)

# A split adds in another order, no more, so that results differ by rounding. What rounding does to this model's
# results is measured, not bounded: the reference is computed in float32 as well (W. Kahan, How Futile are
# Mindless Assessments of Roundoff in Floating-Point Computation, 2006, section 1: in another precision). Float64
# loses 2**-29 of what float32 does. Both the ranks and the reference lose so much, and either may lose some
# times more than one sample shows.
UNIT_RATIO = 2.0**-29
SLACK = 16

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class Case(NamedTuple):
    """A model, batches to train it on, and how they are split."""

    mesh: Mesh
    config: Config
    batches: Batches
    seed: int
    microbatches: int = 2
    schedule: str = "1F1B"

    @property
    def arguments(self) -> dict[str, Any]:
        """For ``programs.train``."""
        return {**self._asdict(), "dtype": DTYPE, "max_norms": MAX_NORMS}


def case(
    mesh: Mesh, *, config: Config, length: int, microbatch: int, microbatches: int, seed: int, schedule: str = "1F1B"
) -> Case:
    """Every sequence is of other tokens: a rank that takes another one's share is found."""
    generator = torch.Generator().manual_seed(seed)
    sequences = math.prod(mesh.get(axis, 1) for axis in BATCH_AXES) * microbatches * microbatch
    tokens = torch.randint(config.vocabulary, (STEPS, sequences, length + 1), generator=generator)
    batches = [(step[:, :-1].contiguous(), step[:, 1:].contiguous()) for step in tokens]
    return Case(mesh, config, batches, seed, microbatches, schedule)


def fixed(mesh: Mesh) -> Case:
    return case(mesh, config=Config(), length=8, microbatch=1, microbatches=2, seed=1)


class Reference(NamedTuple):
    """What one device computes, and how far off in proportion rounding may put each result."""

    losses: torch.Tensor
    """The loss of each token, in each step: steps x sequences x places."""
    norms: torch.Tensor
    """The norm of all gradients, in each step, before they are clipped."""
    gradients: Tensors
    parameters: Tensors
    rtol: float


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding by complex numbers: the features i and i + D/2 are the parts of one, turned by its place."""
    half = x.shape[-1] // 2
    rates = ROTARY_BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
    both = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([both.real, both.imag], -1)


def predicted(weights: Tensors, config: Config, tokens: torch.Tensor) -> torch.Tensor:
    """Logarithms of the probabilities of the next token, by the formulas: no module, no fused attention."""

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return weights[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt()

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        projected = x @ weights[f"{name}.weight"].T
        return projected.reshape(*x.shape[:2], -1, config.head_dim).permute(0, 2, 1, 3)

    x = weights["embedding.weight"][tokens]
    future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    for index in range(config.layers):
        names = f"layers.{index}.attention", f"layers.{index}.feed_forward"
        inner = normed(x, f"{names[0]}_norm")
        query, key = (turned(heads(inner, f"{names[0]}.{part}")) for part in ("query", "key"))
        value = heads(inner, f"{names[0]}.value")
        key, value = (part.repeat_interleave(config.heads // config.kv_heads, 1) for part in (key, value))
        scores = (query @ key.mT / math.sqrt(config.head_dim)).masked_fill(future, -math.inf).exp()
        mixed = scores / scores.sum(-1, keepdim=True) @ value
        x = x + mixed.permute(0, 2, 1, 3).reshape(x.shape) @ weights[f"{names[0]}.output.weight"].T
        inner = normed(x, f"{names[1]}_norm")
        if f"{names[1]}.gate" in weights:
            x = x + through_experts(weights, names[1], inner)
            continue
        gate, up = (inner @ weights[f"{names[1]}.{part}.weight"].T for part in ("gate", "up"))
        x = x + gate / (1 + (-gate).exp()) * up @ weights[f"{names[1]}.down.weight"].T
    logits = normed(x, "norm") @ weights["head.weight"].T
    return logits - logits.logsumexp(-1, keepdim=True)


def through_experts(weights: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    """Every token goes through every expert, and counts where it has chosen one.

    Float32 may choose another expert if two scores are nearly equal. The bound is wider then.
    """
    scores = x @ weights[f"{name}.gate"].T
    chosen = functional.one_hot(scores.topk(CHOICES).indices, scores.shape[-1]).sum(-2)
    shares = scores.exp() * chosen
    hidden = torch.einsum("bsd,ehd->bseh", x, weights[f"{name}.experts.first"]).clamp(min=0)
    each = torch.einsum("bseh,edh->bsed", hidden, weights[f"{name}.experts.second"])
    return (shares / shares.sum(-1, keepdim=True))[..., None].mul(each).sum(2)


def weights_of(given_case: Case, dtype: torch.dtype) -> Tensors:
    """What training begins with; on the axis ``ep`` experts in place of each feed-forward."""
    weights = initial_weights(given_case.config, dtype, given_case.seed)
    if "ep" not in given_case.mesh:
        return weights
    dense = {name: value for name, value in weights.items() if ".feed_forward." not in name}
    return dense | initial_experts(given_case.config, dtype, given_case.seed)


def trained_alone(
    given_case: Case, dtype: torch.dtype, max_norms: Sequence[float] = MAX_NORMS
) -> tuple[torch.Tensor, torch.Tensor, Tensors, Tensors]:
    """Losses of all tokens, norms, the first step's gradients, the last one's parameters, of whole batches at once.

    The loss is the mean over the tokens whose target is not ``IGNORED``.

    Raises:
        AssertionError: a step clips nothing that it should, or something that it should not.
    """
    weights = weights_of(given_case, dtype)
    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    first: Tensors = {}
    for (tokens, target), max_norm in zip(given_case.batches, max_norms, strict=True):
        leaves = {name: value.requires_grad_() for name, value in weights.items()}
        valid = target != IGNORED
        chosen = target.clamp(min=0)[..., None]
        of_tokens = -predicted(leaves, given_case.config, tokens).take_along_dim(chosen, -1).squeeze(-1)
        mean = (of_tokens * valid).sum() / valid.sum()
        gradients = dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True))
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        clips = norm > max_norm
        assert clips == (max_norm != BEYOND), f"a norm of {norm} does not test {max_norm}"
        if clips:
            gradients = {name: value * max_norm / norm for name, value in gradients.items()}
        velocity = {name: MOMENTUM * value + gradients[name] for name, value in velocity.items()}
        weights = {name: value.detach() - LEARNING_RATE * velocity[name] for name, value in weights.items()}
        losses.append(of_tokens.detach())
        norms.append(norm)
        first = first or gradients
    return torch.stack(losses), torch.stack(norms), first, weights


def one_device(given_case: Case, max_norms: Sequence[float] = MAX_NORMS) -> Reference:
    losses, norms, gradients, parameters = trained_alone(given_case, DTYPE, max_norms)
    coarse_losses, _, *coarse = trained_alone(given_case, torch.float32, max_norms)
    of_sequences = losses.mean(2)
    lost = [float(((coarse_losses.mean(2) - of_sequences) / of_sequences).abs().max())]
    for rounded, exact in zip(coarse, (gradients, parameters), strict=True):
        lost += [float((rounded[name] - exact[name]).abs().max() / exact[name].abs().max()) for name in exact]
    return Reference(losses, norms, gradients, parameters, SLACK * UNIT_RATIO * max(lost))


def assert_groups(got: list[dict[str, list[int]]], mesh: Mesh) -> None:
    """On each axis a rank is with those that have its place on all other axes; the last axis counts fastest."""
    degrees = list(mesh.values())
    for rank, groups in enumerate(got):
        assert list(groups) == list(mesh)
        for index, (axis, ranks) in enumerate(groups.items()):
            stride = math.prod(degrees[index + 1 :])
            first = rank - rank // stride % degrees[index] * stride
            expected = [first + place * stride for place in range(degrees[index])]
            assert ranks == expected, f"rank {rank} is with {ranks} on the axis {axis}"


# The dimension that ``tp`` splits of each weight; norms are whole on all of its ranks.
TENSOR_DIMENSIONS = {
    **dict.fromkeys(["embedding", "head", "query", "key", "value", "gate", "up"], 0),
    **dict.fromkeys(["output", "down"], 1),
}


def assert_split(got: list[Trained], given_case: Case) -> None:
    """A rank holds 1 / tp of each weight but the norms', and of these rows 1 / shard / cp, however many replicas."""
    whole = initial_weights(given_case.config, DTYPE, given_case.seed)
    tensors, shards, parts = (given_case.mesh.get(axis, 1) for axis in ("tp", "shard", "cp"))
    for rank, trained in enumerate(got):
        assert list(trained.shapes) == list(trained.parameters)
        for name, shape in trained.shapes.items():
            expected = list(whole[name].shape)
            *_, layer, _ = name.split(".")
            if layer in TENSOR_DIMENSIONS:
                expected[TENSOR_DIMENSIONS[layer]] //= tensors
            expected[0] //= shards * parts
            assert list(shape) == expected, f"rank {rank}, {name}: holds {list(shape)}, not {expected}"


def share_of(rank: int, mesh: Mesh, losses: torch.Tensor) -> torch.Tensor:
    """The rank's losses: axes of the batch cut the sequences one after the other, ``cp`` takes two pieces of each."""
    degrees = list(mesh.values())
    for index, (axis, degree) in enumerate(mesh.items()):
        place = rank // math.prod(degrees[index + 1 :]) % degree
        if axis in BATCH_AXES:
            losses = losses.chunk(degree, 1)[place]
        elif axis == "cp":
            pieces = losses.chunk(2 * degree, 2)
            losses = torch.cat([pieces[place], pieces[-1 - place]], 2)
    return losses


def assert_near(got: torch.Tensor, expected: torch.Tensor, rtol: float, where: str) -> None:
    """Off by no more than the proportion of the largest element: small ones may be differences of large ones."""
    atol = rtol * float(expected.abs().max())
    assert_close(got, expected, where, atol=atol)


def assert_as_one_device(got: list[Trained], given_case: Case, expected: Reference) -> None:
    """In the order of the training, so that the first message is about what went wrong first."""
    assert_groups([rank.groups for rank in got], given_case.mesh)
    with_loss = {rank: trained.losses for rank, trained in enumerate(got) if trained.losses}
    assert len(with_loss) == len(got) // given_case.mesh.get("pp", 1)
    # A rank's loss is the mean over its own share of the batch.
    losses = torch.tensor(list(with_loss.values()), dtype=DTYPE)
    exact = torch.stack([share_of(rank, given_case.mesh, expected.losses).mean((1, 2)) for rank in with_loss])
    assert_near(losses[:, 0], exact[:, 0], expected.rtol, "first loss of each rank")
    for rank, trained in enumerate(got):
        for name, tensor in trained.gradients.items():
            assert_near(tensor, expected.gradients[name], expected.rtol, f"rank {rank}, {name} gradient")
    assert_near(losses, exact, expected.rtol, "losses of each rank and step")
    for rank, trained in enumerate(got):
        assert_near(torch.tensor(trained.norms, dtype=DTYPE), expected.norms, expected.rtol, f"rank {rank}, norms")
    for rank, trained in enumerate(got):
        assert list(trained.gradients) == list(trained.parameters)
        for name, tensor in trained.parameters.items():
            assert_near(tensor, expected.parameters[name], expected.rtol, f"rank {rank}, {name} after training")
    assert {name for rank in got for name in rank.parameters} == set(expected.parameters)
