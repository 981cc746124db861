"""Attention over a split sequence computes what attention over the whole one does: output and all gradients.

Queries, keys, values and output gradients are quarters between -1 and 1, exact in every dtype drawn. Softmax is not
exact; ``tolerances`` bounds what its rounding may do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.context_parallel import programs
from suites.context_parallel.programs import SEQUENCE, Attention, Layout, positions
from suites.data import integers, once
from suites.strategies import seeds, worlds

pytestmark = pytest.mark.ranks(2, 4)

Tensors = dict[str, torch.Tensor]

LAYOUTS: tuple[Layout, ...] = ("contiguous", "head-tail")
layouts: st.SearchStrategy[Layout] = st.sampled_from(LAYOUTS)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def drawn(*, batch: int, heads: int, groups: int, tokens: int, features: int, dtype: torch.dtype, seed: int) -> Tensors:
    """Query, key, value and the gradient of the output; ``groups`` query heads share one of the ``heads`` keys."""
    many, few = (batch, heads * groups, tokens, features), (batch, heads, tokens, features)
    shapes = {"query": many, "key": few, "value": few, "grad": many}
    return {
        name: integers(shape, dtype, seed=seed * 4 + index, low=-4, high=4) / 4
        for index, (name, shape) in enumerate(shapes.items())
    }


def reference(*, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> torch.Tensor:
    """The whole sequence's attention from its definition."""
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    return probabilities(query, key, causal) @ value


def probabilities(query: torch.Tensor, key: torch.Tensor, causal: bool) -> torch.Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        tokens = query.shape[SEQUENCE]
        scores += torch.full((tokens, tokens), -math.inf, dtype=scores.dtype).triu(1)
    return scores.softmax(-1)


def whole(tensors: Tensors, causal: bool) -> Tensors:
    """Output and gradients of the whole sequence, in float64."""
    double = {name: tensor.double() for name, tensor in tensors.items()}
    grad = double.pop("grad")
    leaves = {name: tensor.requires_grad_() for name, tensor in double.items()}
    output = reference(**leaves, causal=causal)
    gradients = torch.autograd.grad(output, list(leaves.values()), grad)
    names = [f"{name} gradient" for name in leaves]
    return {"output": output.detach(), **dict(zip(names, gradients, strict=True))}


def tolerances(tensors: Tensors, degree: int, causal: bool) -> dict[str, float]:
    """How far rounding may take each result from the exact one.

    A computed sum of n products is off by at most n * u of the sum of their magnitudes, u the unit roundoff (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1). All inputs are at most 1, so that scores of D
    features are at most sqrt(D). In units of u, to first order:

    - a score is off by (D + 2) sqrt(D), its distance from the largest one by another 2 sqrt(D), and exp by 4;
    - each hop of the ring scales what came before by exp of a difference of two scores, 2 sqrt(D) + 5;
    - normalizer and weighted sum each add S such terms, and are divided;
    - a gradient takes the probabilities and the output, each with the errors above, multiplies D and S of them,
      G times for the G query heads that share a key, and collects the hops' shares.

    These count twice, since the reference rounds too. Results and what is sent are rounded to the inputs' dtype: once
    or twice a hop, and within CPU's and CUDA's attention kernels probabilities, their gradients and the output.
    """
    dtype = tensors["query"].dtype
    query, key, value, grad = (tensors[name].double().abs() for name in ("query", "key", "value", "grad"))
    features, tokens, groups = query.shape[-1], query.shape[SEQUENCE], query.shape[1] // key.shape[1]
    root = math.sqrt(features)
    forward = 2 * ((features + 2) * root + (degree + 1) * (2 * root + 5) + tokens) + 1
    backward = 2 * forward + features + groups * tokens + 2 * degree + 10
    compute = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    storage = torch.finfo(dtype).eps / 2
    relative = {
        "output": 2 * forward * compute + 3 * storage,
        "gradient": 2 * backward * compute + (2 * degree + groups + 4) * storage,
    }
    # The sums of the magnitudes of what the results are sums of.
    spread = [tensor.repeat_interleave(groups, 1) for tensor in (key, value)]
    signed = [tensors["query"].double(), tensors["key"].double().repeat_interleave(groups, 1)]
    probability = probabilities(signed[0], signed[1], causal)
    output = probability @ spread[1]
    score_gradient = probability * (grad @ spread[1].mT + (grad * output).sum(-1, keepdim=True)) / root
    magnitudes = {
        "query gradient": score_gradient @ spread[0],
        "key gradient": groups * (score_gradient.mT @ query),
        "value gradient": groups * (probability.mT @ grad),
    }
    return {"output": relative["output"] * float(output.max())} | {
        name: relative["gradient"] * float(magnitude.max()) for name, magnitude in magnitudes.items()
    }


def assert_attends(got: Sequence[Tensors], tensors: Tensors, *, causal: bool, layout: Layout) -> None:
    """Each rank's results are those of its tokens, and of the inputs' dtype."""
    degree = len(got)
    tolerance = tolerances(tensors, degree, causal)
    expected = whole(tensors, causal)
    held = positions(tensors["query"].shape[SEQUENCE], degree, layout)
    for rank, (results, mine) in enumerate(zip(got, held, strict=True)):
        assert list(results) == list(expected)
        for name, tensor in results.items():
            assert tensor.dtype == tensors["query"].dtype
            assert_close(tensor.double(), expected[name][:, :, mine], tolerance[name], f"rank {rank}, {name}")


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    # torch.testing takes a millisecond even where all is well: it is asked where there is something to tell.
    if got.shape != expected.shape or not torch.allclose(got, expected, rtol=0, atol=atol):
        torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")


@given(
    data=st.data(),
    attention=st.sampled_from([programs.ring_attention, programs.ulysses_attention]),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 2),
    parts=st.integers(1, 3),
    features=st.integers(1, 5),
    causal=st.booleans(),
    layout=layouts,
    dtype=dtypes,
    seed=seeds,
)
def test_attention(
    ranks: Ranks,
    data: st.DataObject,
    attention: Attention,
    batch: int,
    heads: int,
    groups: int,
    parts: int,
    features: int,
    causal: bool,
    layout: Layout,
    dtype: torch.dtype,
    seed: int,
) -> None:
    world = data.draw(worlds(ranks))
    degree = world.world_size
    tensors = drawn(
        batch=batch,
        heads=heads * degree if attention is programs.ulysses_attention else heads,
        groups=groups,
        tokens=2 * degree * parts,
        features=features,
        dtype=dtype,
        seed=seed,
    )
    got = world.run(once, programs.attend, attention=attention, causal=causal, layout=layout, **tensors)
    assert_attends(got, tensors, causal=causal, layout=layout)


def gathered_attention(
    ctx: Context,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: Sequence[torch.Tensor],
    causal: bool,
) -> torch.Tensor:
    """Someone's own: all keys and values are gathered first (The Llama 3 Herd of Models, section 3.3.2)."""
    mesh = ctx.mesh((ctx.world_size,))
    key, value = (
        DTensor.from_local(tensor, mesh, [Shard(SEQUENCE)])
        .redistribute(placements=[Replicate()])
        .to_local(grad_placements=[Partial()])  # each rank's queries give a share of the gradient
        for tensor in (key, value)
    )
    mask = positions[ctx.rank][:, None] >= torch.cat(list(positions)) if causal else None
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_your_own_attention(ranks: Ranks, layout: Layout) -> None:
    tensors = fixed(ranks)
    got = ranks.run(once, programs.attend, attention=gathered_attention, causal=True, layout=layout, **tensors)
    assert_attends(got, tensors, causal=True, layout=layout)


def fixed(ranks: Ranks, *, dtype: torch.dtype = torch.float64) -> Tensors:
    """Inputs for tests that draw none."""
    degree = ranks.world_size
    return drawn(batch=1, heads=degree, groups=1, tokens=4 * degree, features=4, dtype=dtype, seed=1)


@pytest.mark.parametrize(
    ("broken", "causal", "layout", "wrong"),
    [
        (programs.ring_attention_that_keeps_its_keys, False, "contiguous", "rank 0, output"),
        (programs.ring_attention_without_gradient_rotation, False, "contiguous", "rank 0, key gradient"),
        (programs.ring_attention_that_averages_its_hops, False, "contiguous", "rank 0, output"),
        (programs.ring_attention_with_contiguous_mask, True, "head-tail", "rank 0, output"),
        (programs.ulysses_attention_in_order_of_ranks, True, "head-tail", "rank 0, output"),
    ],
    ids=["no rotation", "no rotation of gradients", "no rescaling", "shifted mask", "shifted tokens"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_broken_attention_is_found(
    ranks: Ranks, broken: Attention, causal: bool, layout: Layout, wrong: str, dtype: torch.dtype
) -> None:
    tensors = fixed(ranks, dtype=dtype)
    got = ranks.run(once, programs.attend, attention=broken, causal=causal, layout=layout, **tensors)
    with pytest.raises(AssertionError, match=f"^{wrong}: "):
        assert_attends(got, tensors, causal=causal, layout=layout)


def work(held: torch.Tensor) -> int:
    """How many keys a rank's causal queries see."""
    return int((held + 1).sum())


def test_head_tail_gives_all_ranks_the_same_work(ranks: Ranks) -> None:
    degree = ranks.world_size
    tokens = 8 * degree
    shares = [work(held) for held in positions(tokens, degree, "head-tail")]
    assert shares == [tokens * (tokens + 1) // 2 // degree] * degree
    contiguous = [work(held) for held in positions(tokens, degree, "contiguous")]
    assert contiguous[-1] == contiguous[0] + 64 * (degree - 1)  # 8 queries with 8 (R - 1) keys more


@pytest.mark.parametrize(("layout", "parts"), [("contiguous", 1), ("head-tail", 2)])
def test_a_sequence_that_does_not_divide_is_refused(ranks: Ranks, layout: Layout, parts: int) -> None:
    tokens = 3 * parts * ranks.world_size - 1
    tensors = drawn(batch=1, heads=1, groups=1, tokens=tokens, features=2, dtype=torch.float64, seed=1)
    message = f"a sequence of {tokens} tokens cannot be split over {ranks.world_size} ranks in the {layout} layout"
    with pytest.raises(ValueError, match=f"^{message}.*multiple of {parts * ranks.world_size}\\b"):
        ranks.run(once, programs.attend, attention=programs.ring_attention, causal=True, layout=layout, **tensors)


@pytest.mark.parametrize(("heads", "groups", "which"), [(1, 1, "query"), (1, 4, "key and value")])
def test_heads_that_do_not_divide_are_refused(ranks: Ranks, heads: int, groups: int, which: str) -> None:
    tensors = drawn(
        batch=1, heads=heads, groups=groups, tokens=2 * ranks.world_size, features=2, dtype=torch.float64, seed=1
    )
    with pytest.raises(ValueError, match=f"^1 {which} heads cannot be split over {ranks.world_size} ranks: "):
        ranks.run(
            once, programs.attend, attention=programs.ulysses_attention, causal=True, layout="contiguous", **tensors
        )


@pytest.mark.ranks(2, 4, device="cuda")
@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize(
    ("causal", "layout"), [(False, "contiguous"), (True, "contiguous"), (True, "head-tail")], ids=str
)
@pytest.mark.parametrize(("kernel", "dtype"), [("efficient", torch.float32), ("flash", torch.bfloat16)], ids=str)
def test_torch_ring_attention(
    ranks: Ranks, rotation: str, causal: bool, layout: Layout, kernel: str, dtype: torch.dtype
) -> None:
    # The efficient kernel pads its normalizers to multiples of 32 tokens, the head-tail layout halves a rank's.
    tensors = drawn(batch=2, heads=4, groups=1, tokens=64 * ranks.world_size, features=16, dtype=dtype, seed=1)
    program = programs.torch_ring_attention
    got = ranks.run(once, program, rotation=rotation, kernel=kernel, causal=causal, layout=layout, **tensors)
    assert_attends(got, tensors, causal=causal, layout=layout)
