"""A layer split over ranks computes what the whole layer does: output and all gradients, exactly.

Inputs, weights and output gradients are whole numbers in float64. Every sum and product then stays a whole
number far below 2**53, so that no order of the additions, and no split of them over ranks, rounds anything.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.data import integers, once
from suites.strategies import seeds, worlds
from suites.tensor_parallel import programs
from suites.tensor_parallel.programs import Parameters, Step, shard

pytestmark = pytest.mark.ranks(2, 4)

DTYPE = torch.float64

# Nothing is rounded: see above. The largest number is an output of the MLP, of 8 hidden features and 5 inputs
# of at most 15 each: (15 * 15 * 5 + 60) * 15 * 8 + 60 < 2**18.
EXACT = 0.0

# The dimensions by which each style shards a layer's weight and bias, and with them their gradients.
COLUMN = {"weight gradient": 0, "bias gradient": 0}
ROW = {"weight gradient": 1}

Results = list[dict[str, torch.Tensor]]

# DTensor plans each operation anew for each shape it meets, in 20 ms or more: the dimensions that stay whole, which
# the split does not touch, take one value.
BATCH, WIDTH = (2, 3), 5


def features(degree: int, *, divisible: bool) -> int:
    """How many to split; unless ``divisible`` so that some ranks have fewer than others, or none.

    Not fewer than ranks: those DTensor does not shard, it copies them.
    """
    return 2 * degree if divisible else degree + 1


def parameters(*shapes: tuple[str, int, int], degree: int, bias: bool, seed: int) -> Parameters:
    """A weight for each (prefix, outputs, inputs), and a bias if asked for.

    A row-parallel layer adds a share of its bias, bias / R, on each rank: multiples of R have whole shares.
    """
    drawn = {}
    for index, (prefix, outputs, inputs) in enumerate(shapes):
        drawn[f"{prefix}weight"] = integers((outputs, inputs), DTYPE, seed=seed * 16 + 2 * index)
        if bias:
            drawn[f"{prefix}bias"] = degree * integers((outputs,), DTYPE, seed=seed * 16 + 2 * index + 1)
    return drawn


def x_and_grad(batch: tuple[int, ...], inputs: int, outputs: int, seed: int) -> dict[str, torch.Tensor]:
    """The input and the gradient of the output, the same for all ranks."""
    return {
        "x": integers((*batch, inputs), DTYPE, seed=seed * 16 + 14),
        "grad": integers((*batch, outputs), DTYPE, seed=seed * 16 + 15),
    }


def linear(leaves: dict[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    return functional.linear(leaves["input"], leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"))


def two_layers(leaves: dict[str, torch.Tensor]) -> torch.Tensor:
    return linear({**leaves, "input": linear(leaves, "0.").relu()}, "2.")


def reference(
    layer: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    parameters: Parameters,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The whole layer's output and gradients, by another way than the programs': no module, no ``.grad``."""
    leaves = {name: value.clone().requires_grad_() for name, value in {"input": x, **parameters}.items()}
    output = layer(leaves)
    gradients = torch.autograd.grad(output, list(leaves.values()), grad)
    return {"output": output} | {f"{name} gradient": g for name, g in zip(leaves, gradients, strict=True)}


def per_rank(whole: dict[str, torch.Tensor], degree: int, dims: dict[str, int]) -> Results:
    """What each rank should hold: its shard along the dimension given for a name, and all of the others."""
    results: Results = [{} for _ in range(degree)]
    for name, tensor in whole.items():
        parts = shard(tensor, degree, dims[name]) if name in dims else [tensor] * degree
        for result, part in zip(results, parts, strict=True):
            result[name] = part
    return results


def assert_close(got: torch.Tensor, expected: torch.Tensor, atol: float, where: str) -> None:
    # torch.testing takes a millisecond even where all is well: it is asked where there is something to tell.
    if got.shape != expected.shape or not torch.allclose(got, expected, rtol=0, atol=atol):
        torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=lambda text: f"{where}: {text}")


def assert_same(got: Results, expected: Results, atol: float = EXACT) -> None:
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert list(have) == list(want)
        for name, tensor in want.items():
            assert_close(have[name], tensor, atol, f"rank {rank}, {name}")


@given(
    data=st.data(),
    layer=st.sampled_from(["column", "row", "mlp"]),
    bias=st.booleans(),
    local=st.booleans(),
    seed=seeds,
)
def test_linear_layers(ranks: Ranks, data: st.DataObject, layer: str, bias: bool, local: bool, seed: int) -> None:
    """``local``: what is split passes between layers as each rank's plain tensor, and not as a whole."""
    world = data.draw(worlds(ranks))
    degree = world.world_size
    # A rank that is given its features alone takes R times as many for the whole: they must divide evenly. Where that
    # is not so they don't; a column-parallel layer, which takes all, has it the other way round.
    split = features(degree, divisible=local == (layer != "column"))
    draw = functools.partial(parameters, degree=degree, bias=bias, seed=seed)
    match layer:
        case "column":
            layers, tensors = draw(("", split, WIDTH)), x_and_grad(BATCH, WIDTH, split, seed)
            dims = {"output": -1, **COLUMN} if local else COLUMN
            got = world.run(
                once, programs.column_parallel_linear, parameters=layers, gather_output=not local, **tensors
            )
        case "row":
            layers, tensors = draw(("", WIDTH, split)), x_and_grad(BATCH, split, WIDTH, seed)
            dims = {"input gradient": -1, **ROW} if local else ROW
            got = world.run(once, programs.row_parallel_linear, parameters=layers, input_is_sharded=local, **tensors)
        case _:
            layers = draw(("0.", split, WIDTH), ("2.", WIDTH, split))
            tensors = x_and_grad(BATCH, WIDTH, WIDTH, seed)
            dims = {f"0.{name}": dim for name, dim in COLUMN.items()} | {f"2.{name}": dim for name, dim in ROW.items()}
            got = world.run(once, programs.mlp, parameters=layers, local_hidden=local, **tensors)
    whole = reference(two_layers if layer == "mlp" else linear, layers, **tensors)
    assert_same(got, per_rank(whole, degree, dims))


@pytest.mark.parametrize(
    ("broken", "wrong", "dims"),
    [
        (programs.row_parallel_linear_without_all_reduce, "output", {"input gradient": -1, **ROW}),
        (programs.row_parallel_linear_with_bias_on_every_rank, "output", {"input gradient": -1, **ROW}),
        (
            programs.column_parallel_linear_without_input_gradient_reduction,
            "input gradient",
            {"output": -1, **COLUMN},
        ),
    ],
    ids=["no all-reduce", "bias on every rank", "no reduction of the input gradient"],
)
def test_a_broken_layer_is_found(ranks: Ranks, broken: Callable[..., Step], wrong: str, dims: dict[str, int]) -> None:
    layer = parameters(("", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    tensors = x_and_grad((3,), 8, 8, 1)
    got = ranks.run(once, broken, parameters=layer, **tensors)
    whole = reference(linear, layer, **tensors)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_same(got, per_rank(whole, ranks.world_size, dims))


class SumOverRanks(torch.autograd.Function):
    """Someone's own: an all-reduce forward, and nothing backward, since every rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class TheirRowParallel(nn.Module):
    """Someone's own row-parallel layer, of plain tensors."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = SumOverRanks.apply(functional.linear(x, self.weight))  # type: ignore[no-untyped-call]
        return total


def their_row_parallel(ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters) -> Step:
    mine = shard(parameters["weight"], ctx.world_size, 1)[ctx.rank].to(ctx.device)
    some_features = shard(x, ctx.world_size, -1)[ctx.rank].to(ctx.device)
    return programs.training_step(TheirRowParallel(mine), some_features, grad.to(ctx.device))


def test_your_own_layer(ranks: Ranks) -> None:
    layer = parameters(("", 5, 8), degree=ranks.world_size, bias=False, seed=1)
    tensors = x_and_grad(BATCH, 8, 5, 1)
    got = ranks.run(once, their_row_parallel, parameters=layer, **tensors)
    whole = reference(linear, layer, **tensors)
    assert_same(got, per_rank(whole, ranks.world_size, {"input gradient": -1, "weight gradient": 1}))


def collectives(ranks: Ranks, *, gather_hidden: bool) -> list[tuple[dict[str, int], dict[str, int]]]:
    layers = parameters(("0.", 8, 8), ("2.", 8, 8), degree=ranks.world_size, bias=True, seed=1)
    return ranks.run(
        programs.mlp_collectives, parameters=layers, gather_hidden=gather_hidden, **x_and_grad((3,), 8, 8, 1)
    )


def test_mlp_issues_one_all_reduce_each_way(ranks: Ranks) -> None:
    for forward, backward in collectives(ranks, gather_hidden=False):
        assert forward == {"all_reduce": 1}
        assert sum(forward.values()) == 1
        assert backward == {"all_reduce": 1}


def test_an_mlp_that_gathers_its_hidden_features_is_found(ranks: Ranks) -> None:
    for forward, _ in collectives(ranks, gather_hidden=True):
        assert forward == {"all_gather_into_tensor": 1, "all_reduce": 1}


BATCHES, TOKENS, MODEL, HEAD = 2, 3, 8, 2  # of attention: batch, sequence, width, features of a head

ATTENTION = {f"{name}.weight gradient": 0 for name in "qkv"} | {"o.weight gradient": 1}


def attention_inputs(*, heads: int, kv_heads: int, causal: bool, seed: int) -> dict[str, Any]:
    """Quarters between -1 and 1; weights so small that no row and no column of them sums up to more than 1."""
    width = heads * HEAD
    sizes = {"q": (width, MODEL), "k": (kv_heads * HEAD, MODEL), "v": (kv_heads * HEAD, MODEL), "o": (MODEL, width)}
    weights = {
        f"{name}.weight": integers(size, DTYPE, seed=seed * 8 + index, low=-4, high=4) / (4 * max(MODEL, width))
        for index, (name, size) in enumerate(sizes.items())
    }
    x, grad = (integers((BATCHES, TOKENS, MODEL), DTYPE, seed=seed * 8 + index, low=-4, high=4) / 4 for index in (4, 5))
    return {"parameters": weights, "head_dim": HEAD, "causal": causal, "x": x, "grad": grad}


def whole_attention(leaves: dict[str, torch.Tensor], *, causal: bool) -> torch.Tensor:
    """From its definition, head by head."""
    query, key, value = (functional.linear(leaves["input"], leaves[f"{name}.weight"]).split(HEAD, -1) for name in "qkv")
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if causal else torch.ones(1, 1, dtype=torch.bool)
    heads = []
    for index, queries in enumerate(query):
        shared = index * len(key) // len(query)
        scores = (queries @ key[shared].mT / math.sqrt(HEAD)).masked_fill(~mask, -math.inf)
        heads.append(scores.softmax(-1) @ value[shared])
    return functional.linear(torch.cat(heads, -1), leaves["o.weight"])


def attention_tolerance(heads: int, kv_heads: int) -> float:
    """How far rounding may take any result of attention.

    Queries, keys, values and the heads' output gradients are exact: quarters, and powers of two smaller. A computed
    sum of n products is off by at most n * u of the sum of their magnitudes, u = 2**-53 (Higham, Accuracy and Stability
    of Numerical Algorithms, section 3.1). To first order, with D features and S tokens:

    - A score is at most sqrt(D), and off by (D + 2) sqrt(D) u; its distance from the largest score by another
      2 sqrt(D) u, exp by 4 u. Normalizer and weighted sum add S terms each, and are divided.
    - Gradients of scores, at most 2 D times a probability, take the errors of probabilities and output, and add D
      products. Those of queries, at most 2 sqrt(D), add S of them; those of keys and values G S, for the G heads that
      share one, and grow as much larger.
    - The input's gradient adds three of these, a weight's those of all B S tokens.

    Twice, since the reference rounds too.
    """
    root, groups, rows = math.sqrt(HEAD), heads // kv_heads, BATCHES * TOKENS
    forward = 2 * ((HEAD + 4) * root + 4 + TOKENS) + 1
    roundings = 2 * forward + HEAD + groups * TOKENS + rows + heads * HEAD
    largest = 3 * rows * groups * TOKENS * 2 * root
    return 2 * roundings * largest * 2**-53


def check_attention(world: Ranks, *, heads: int, kv_heads: int, causal: bool, seed: int, **kwargs: Any) -> None:
    tensors = attention_inputs(heads=heads, kv_heads=kv_heads, causal=causal, seed=seed)
    program = kwargs.pop("program", programs.attention)
    got = world.run(once, program, share_kv_heads=kv_heads < world.world_size, **tensors)
    whole = reference(
        functools.partial(whole_attention, causal=causal), tensors["parameters"], x=tensors["x"], grad=tensors["grad"]
    )
    assert_same(got, per_rank(whole, world.world_size, ATTENTION), attention_tolerance(heads, kv_heads))


@pytest.mark.ranks(2)
@given(heads=st.sampled_from([2, 4]), groups=st.sampled_from([1, 2]), causal=st.booleans(), seed=seeds)
def test_attention(ranks: Ranks, heads: int, groups: int, causal: bool, seed: int) -> None:
    check_attention(ranks, heads=heads, kv_heads=heads // groups, causal=causal, seed=seed)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 4), (4, 2), (8, 1)])
def test_attention_on_four_ranks(ranks: Ranks, heads: int, kv_heads: int) -> None:
    check_attention(ranks, heads=heads, kv_heads=kv_heads, causal=True, seed=1)


@pytest.mark.ranks(2, 4)
def test_a_lost_share_of_a_shared_heads_gradient_is_found(ranks: Ranks) -> None:
    broken = programs.attention_with_a_shared_heads_gradient_of_one_rank
    with pytest.raises(AssertionError, match=r"^rank 0, input gradient: "):
        check_attention(ranks, heads=ranks.world_size, kv_heads=1, causal=True, seed=1, program=broken)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "share", "message"),
    [
        (3, 3, False, "3 query heads"),
        (4, 1, False, "1 key and value heads"),
        (12, 3, True, "3 key and value heads"),
    ],
    ids=["query heads", "fewer key heads than ranks", "key heads that do not divide ranks"],
)
@pytest.mark.ranks(4)
def test_heads_that_do_not_divide_are_refused(
    ranks: Ranks, heads: int, kv_heads: int, share: bool, message: str
) -> None:
    tensors = attention_inputs(heads=heads, kv_heads=kv_heads, causal=True, seed=1)
    with pytest.raises(ValueError, match=f"^{message} cannot be split over 4 ranks: .*share_kv_heads=True"):
        ranks.run(once, programs.attention, share_kv_heads=share, **tensors)


EMBEDDED = 4  # width of the vocabulary's embedding

VOCABULARY = {"embedding.weight gradient": 0, "head.weight gradient": 0}


def vocabulary_inputs(*, vocabulary: int, tokens: int, seed: int) -> dict[str, Any]:
    """Tokens, and targets of which some don't count; weights are quarters between -1 and 1: logits are exact."""
    size = (vocabulary, EMBEDDED)
    target = integers((tokens,), torch.int64, seed=seed * 4, low=-2, high=vocabulary - 1)
    target[0] = target[0].clamp(min=0)  # the mean of none would be 0 / 0
    return {
        "tokens": integers((tokens,), torch.int64, seed=seed * 4 + 1, low=0, high=vocabulary - 1),
        "target": torch.where(target < 0, -100, target),
        "parameters": {
            f"{name}.weight": integers(size, DTYPE, seed=seed * 4 + 2 + index, low=-4, high=4) / 4
            for index, name in enumerate(("embedding", "head"))
        },
    }


def whole_vocabulary(
    *, tokens: torch.Tensor, target: torch.Tensor, parameters: Parameters, reduction: str
) -> dict[str, torch.Tensor]:
    """Embedding, loss and gradients from their definitions; no module, no ``cross_entropy``."""
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    one_hot = functional.one_hot(tokens, len(parameters["embedding.weight"])).to(DTYPE)
    embedded = one_hot @ leaves["embedding.weight"]
    logits = embedded @ leaves["head.weight"].T
    counts = target >= 0
    own = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
    losses = (logits.exp().sum(1).log() - own) * counts
    loss = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counts.sum()}[reduction]
    gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
    names = [f"{name} gradient" for name in leaves]
    return {"embedded": embedded.detach(), "loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


def vocabulary_tolerance(vocabulary: int, tokens: int) -> float:
    """How far rounding may take loss and gradients.

    Logits are exact, and at most W. An exp is off by 4 u of itself, and a sum of V of them by V u more; the logarithm
    makes of this an absolute error, and is itself, like a loss, at most 2 W + log V. N losses add up to N times that. A
    softmax takes the errors of exp and sum, and rows' gradients add V, W or N products of at most 1, for at most N
    tokens. Twice, since the reference rounds too.
    """
    largest = 2 * EMBEDDED + math.log(vocabulary)
    return 2 * tokens * (2 * (vocabulary + 8) + (tokens + 3) * largest + vocabulary + EMBEDDED + tokens) * 2**-53


def assert_same_vocabulary(got: Results, reduction: str, **tensors: Any) -> None:
    """Embeddings are rows of the table, exactly; loss and gradients are near."""
    whole = per_rank(whole_vocabulary(reduction=reduction, **tensors), len(got), VOCABULARY)
    vocabulary, tokens = len(tensors["parameters"]["head.weight"]), len(tensors["tokens"])
    for rank, (have, want) in enumerate(zip(got, whole, strict=True)):
        assert_close(have["embedded"], want["embedded"], EXACT, f"rank {rank}, embedded")
    assert_same(got, whole, vocabulary_tolerance(vocabulary, tokens))


@pytest.mark.ranks(2)
@given(
    vocabulary=st.sampled_from([5, 6]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=seeds,
)
def test_vocabulary(ranks: Ranks, vocabulary: int, reduction: str, seed: int) -> None:
    tensors = vocabulary_inputs(vocabulary=vocabulary, tokens=7, seed=seed)
    got = ranks.run(once, programs.vocabulary_parallel, reduction=reduction, **tensors)
    assert_same_vocabulary(got, reduction, **tensors)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("vocabulary", [11, 12])
def test_vocabulary_on_four_ranks(ranks: Ranks, vocabulary: int) -> None:
    tensors = vocabulary_inputs(vocabulary=vocabulary, tokens=20, seed=1)
    got = ranks.run(once, programs.vocabulary_parallel, reduction="mean", **tensors)
    assert_same_vocabulary(got, "mean", **tensors)


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        (programs.vocabulary_parallel_without_mask, "embedded"),
        (programs.vocabulary_parallel_with_normalizers_of_shards, "loss"),
    ],
    ids=["no mask", "normalizer of a shard"],
)
def test_a_broken_vocabulary_is_found(ranks: Ranks, broken: Callable[..., Step], wrong: str) -> None:
    tensors = vocabulary_inputs(vocabulary=12, tokens=20, seed=1)
    got = ranks.run(once, broken, reduction="mean", **tensors)
    with pytest.raises(AssertionError, match=f"^rank 0, {wrong}: "):
        assert_same_vocabulary(got, "mean", **tensors)


def held(tensor: torch.Tensor, placements: Sequence[Placement], mesh_shape: tuple[int, int], rank: int) -> torch.Tensor:
    """A rank's shard on a mesh: the first axis cuts the tensor, the second one what is left of it."""
    for placement, degree, coordinate in zip(placements, mesh_shape, divmod(rank, mesh_shape[1]), strict=True):
        if isinstance(placement, Shard):
            tensor = shard(tensor, degree, placement.dim)[coordinate]
    return tensor


def check_two_dimensional(
    ranks: Ranks,
    program: Callable[..., Step],
    weight_placements: Sequence[Placement],
    x_placements: Sequence[Placement],
    width: int = 5,  # odd: no shard is as large as the others
) -> None:
    mesh_shape = (2, ranks.world_size // 2)
    layer, tensors = parameters(("", width, width), degree=4, bias=False, seed=1), x_and_grad((7,), width, width, 1)
    got = ranks.run(
        once,
        program,
        weight=layer["weight"],
        mesh_shape=mesh_shape,
        x_placements=x_placements,
        weight_placements=weight_placements,
        **tensors,
    )
    whole = reference(linear, layer, **tensors)
    kept = {
        "output": (Replicate(), Replicate()),
        "input gradient": x_placements,
        "weight gradient": weight_placements,
    }
    expected = [
        {name: held(tensor, kept[name], mesh_shape, rank) for name, tensor in whole.items()}
        for rank in range(ranks.world_size)
    ]
    assert_same(got, expected)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("weight", "x"),
    [
        ("rows, columns", "batch, features"),  # the second axis shares what it adds up, as tensor parallelism does
        ("rows, columns", "batch, whole"),
        ("columns, rows", "batch, whole"),
        ("rows, rows", "batch, whole"),  # fully sharded within tensor parallelism
        ("rows, whole", "batch, batch"),  # fully sharded on one axis, copies on the other: HSDP
        ("whole, columns", "whole, whole"),
    ],
)
def test_two_dimensional_sharding(ranks: Ranks, weight: str, x: str) -> None:
    check_two_dimensional(ranks, programs.two_dimensional_linear, placements(weight), placements(x))


def placements(axes: str) -> tuple[Placement, ...]:
    names: dict[str, Placement] = {
        "rows": Shard(0),
        "columns": Shard(1),
        "batch": Shard(0),
        "features": Shard(1),
        "whole": Replicate(),
    }
    return tuple(names[axis] for axis in axes.split(", "))


@pytest.mark.ranks(4)
def test_shards_on_the_wrong_axis_are_found(ranks: Ranks) -> None:
    broken = programs.two_dimensional_linear_with_swapped_axes
    with pytest.raises(AssertionError, match=r"^rank 0, output: "):
        check_two_dimensional(ranks, broken, placements("rows, columns"), placements("whole, whole"), width=4)


@pytest.mark.ranks(2)
def test_a_mesh_of_more_ranks_than_the_world_is_refused(ranks: Ranks) -> None:
    layer, tensors = parameters(("", 4, 4), degree=4, bias=False, seed=1), x_and_grad((4,), 4, 4, 1)
    with pytest.raises(ValueError, match=r"^a mesh of 2 x 2 ranks has 4, the world 2"):
        ranks.run(
            once,
            programs.two_dimensional_linear,
            weight=layer["weight"],
            mesh_shape=(2, 2),
            x_placements=placements("batch, whole"),
            weight_placements=placements("rows, columns"),
            **tensors,
        )


Operands = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def product_of(
    ctx: Context, operands: Operands, program: Callable[..., Callable[[], torch.Tensor]], **sizes: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What this rank multiplied, and what the program's step returned."""
    return *operands(ctx, **sizes), once(ctx, program, **sizes)


def rounding(k: int, a: torch.Tensor, b: torch.Tensor) -> float:
    """How far two computed products of K summands may be from each other.

    A sum of k products is off by at most k * u of the sum of their magnitudes (Higham, Accuracy and Stability, section
    3.1), u = 2**-53; that sum is at most |row of a| * |column of b|; once here and once on the rank.
    """
    return 2 * k * 2**-53 * float(a.norm(dim=1).max() * b.norm(dim=0).max())


def assert_differ(tensors: list[torch.Tensor]) -> None:
    """Equal inputs on all ranks would hide who computed what."""
    assert len({tuple(tensor.flatten().tolist()) for tensor in tensors}) == len(tensors)


def assert_gathered_products(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], rows: int) -> None:
    degree, k = ranks.world_size, 64
    sizes = {"m": rows * degree, "k": k, "n": 16 * degree}
    results = ranks.run(product_of, programs.matmul_inputs, program, dtype=DTYPE, **sizes)
    a = torch.cat([shard_of_a for shard_of_a, _, _ in results])
    for rank, (_, b, product) in enumerate(results):
        assert_close(product, a @ b, rounding(k, a, b), f"rank {rank}")
    assert_differ([b for _, b, _ in results])
    assert len(a.unique(dim=0)) == len(a)


def assert_scattered_products(ranks: Ranks, program: Callable[..., Callable[[], torch.Tensor]], rows: int) -> None:
    degree, k = ranks.world_size, 16 * ranks.world_size
    sizes = {"m": rows * degree, "k": k, "n": 32}
    results = ranks.run(product_of, programs.products_to_sum, program, dtype=DTYPE, **sizes)
    a, b = torch.cat([a for a, _, _ in results], 1), torch.cat([b for _, b, _ in results])
    for rank, part in enumerate((a @ b).chunk(degree)):
        assert_close(results[rank][2], part, rounding(k, a, b), f"rank {rank}")
    assert_differ([b for _, b, _ in results])


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_all_gather_then_matmul(ranks: Ranks, rows: int) -> None:
    assert_gathered_products(ranks, programs.all_gather_then_matmul, rows)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_all_gather_matmul(ranks: Ranks, rows: int) -> None:
    assert_gathered_products(ranks, programs.fused_all_gather_matmul, rows)


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_matmul_then_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_scattered_products(ranks, programs.matmul_then_reduce_scatter, rows)


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("rows", [16, 48])
def test_fused_matmul_reduce_scatter(ranks: Ranks, rows: int) -> None:
    assert_scattered_products(ranks, programs.fused_matmul_reduce_scatter, rows)
