"""Layers split over R ranks by torch.distributed.tensor.parallel, and collectives with matmul in one.

M, K, N: the product's matrices are M x K and K x N. B batch, S tokens, W width, D features of a head, V vocabulary. A
tensor-parallel layer's input and output gradient are the same on all ranks by definition; what differs by rank is the
shard of the weights that each rank holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from pytest_gpuperf import Context

Parameters = dict[str, torch.Tensor]
Step = Callable[[], dict[str, torch.Tensor]]
Module = TypeVar("Module", bound=nn.Module)


def shard(tensor: torch.Tensor, degree: int, dim: int) -> list[torch.Tensor]:
    """The shards of DTensor's ``Shard(dim)``: those of torch.chunk, and empty ones for the ranks after them."""
    chunks = tensor.chunk(degree, dim)
    return [*chunks, *[tensor.narrow(dim, 0, 0)] * (degree - len(chunks))]


def linear(parameters: Parameters) -> nn.Linear:
    """The layer with these parameters: ``weight`` and, where there is one, ``bias``."""
    weight = parameters["weight"]
    module = nn.Linear(weight.shape[1], weight.shape[0], "bias" in parameters, weight.device, weight.dtype)
    module.load_state_dict(parameters)
    return module


def two_layers(parameters: Parameters) -> nn.Sequential:
    """Linear, ReLU, linear; the parameters' names begin with the layer's place, ``0.`` or ``2.``.

    ReLU, since it keeps whole numbers whole: the results are exact.
    """
    first, second = (
        linear({name[2:]: value for name, value in parameters.items() if name.startswith(place)})
        for place in ("0.", "2.")
    )
    return nn.Sequential(first, nn.ReLU(), second)


def training_step(module: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> Step:
    """A step of forward and backward; it returns the output and every gradient, of DTensors this rank's shard.

    Args:
        module: the layer, on one device or split.
        x: what this rank gives to it.
        grad: the gradient of what it returns on this rank.
    """
    x = x.detach().requires_grad_()

    def step() -> dict[str, torch.Tensor]:
        x.grad = None
        module.zero_grad()
        output = module(x)
        output.backward(grad)
        leaves = {"input": x, **dict(module.named_parameters())}
        return {"output": _local(output)} | {f"{name} gradient": _gradient(leaf) for name, leaf in leaves.items()}

    return step


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    """This rank's shard, or all of it, of a leaf's gradient; of a DTensor as much of it as of the leaf.

    Backward may leave a gradient as a sum of the ranks' or, of an embedding, whole on all ranks; an optimizer
    then does what is done here.
    """
    gradient = leaf.grad
    assert gradient is not None  # backward has reached it
    if isinstance(leaf, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=leaf.placements)
    return _local(gradient)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    # Functional collectives give back a tensor before its values have arrived (AsyncCollectiveTensor). Only
    # arithmetic waits for them: neither a view does, nor pickle.
    return local.detach().clone()


def _mesh(ctx: Context) -> DeviceMesh:
    return ctx.mesh((ctx.world_size,))


def _parallelized(ctx: Context, module: Module, plan: ParallelStyle | dict[str, ParallelStyle]) -> Module:
    """The module split by the plan; without messages, since all ranks have all of its parameters."""
    parallelize_module(module, _mesh(ctx), plan, src_data_rank=None)
    return module


def _on_device(ctx: Context, parameters: Parameters) -> Parameters:
    return {name: value.to(ctx.device) for name, value in parameters.items()}


def _mine(ctx: Context, tensor: torch.Tensor, *, sharded: bool) -> torch.Tensor:
    """The whole tensor, or this rank's shard of its last dimension."""
    tensor = tensor.to(ctx.device)
    return shard(tensor, ctx.world_size, -1)[ctx.rank] if sharded else tensor


def column_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, gather_output: bool
) -> Step:
    """Each rank computes some of the output features; the step returns them, or all if ``gather_output``."""
    style = ColwiseParallel(output_layouts=Replicate()) if gather_output else ColwiseParallel()
    layer = _parallelized(ctx, linear(_on_device(ctx, parameters)), style)
    return training_step(layer, x.to(ctx.device), _mine(ctx, grad, sharded=not gather_output))


def column_parallel_linear_without_input_gradient_reduction(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: each rank's input gradient knows only of the rank's own output features."""
    mine = {name: shard(value, ctx.world_size, 0)[ctx.rank] for name, value in parameters.items()}
    return training_step(linear(_on_device(ctx, mine)), x.to(ctx.device), _mine(ctx, grad, sharded=True))


def row_parallel_linear(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, input_is_sharded: bool
) -> Step:
    """Each rank multiplies some of the input features; the products are summed over the ranks.

    Each rank is given only its features if ``input_is_sharded``, and takes them from all of them otherwise.
    """
    style = RowwiseParallel() if input_is_sharded else RowwiseParallel(input_layouts=Replicate())
    layer = _parallelized(ctx, linear(_on_device(ctx, parameters)), style)
    return training_step(layer, _mine(ctx, x, sharded=input_is_sharded), grad.to(ctx.device))


def row_parallel_linear_without_all_reduce(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: each rank keeps its own summand of the output."""
    style = RowwiseParallel(output_layouts=Partial())
    layer = _parallelized(ctx, linear(_on_device(ctx, parameters)), style)
    return training_step(layer, _mine(ctx, x, sharded=True), grad.to(ctx.device))


def row_parallel_linear_with_bias_on_every_rank(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters
) -> Step:
    """Wrong on purpose: the sum over the ranks holds the bias R times."""
    repeated = {**parameters, "bias": parameters["bias"] * ctx.world_size}
    return row_parallel_linear(ctx, x=x, grad=grad, parameters=repeated, input_is_sharded=True)


def _split_mlp(
    ctx: Context, parameters: Parameters, *, gather_hidden: bool = False, local_hidden: bool = True
) -> nn.Module:
    column = ColwiseParallel(use_local_output=local_hidden)
    row = RowwiseParallel()
    if gather_hidden:
        column, row = ColwiseParallel(output_layouts=Replicate()), RowwiseParallel(input_layouts=Replicate())
    return _parallelized(ctx, two_layers(_on_device(ctx, parameters)), {"0": column, "2": row})


def mlp(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, local_hidden: bool = True
) -> Step:
    """A column-parallel layer, ReLU, and a row-parallel layer.

    The hidden features pass between them as each rank's plain tensor if ``local_hidden``, as a DTensor
    otherwise. Only the DTensor knows the features of all ranks where R does not divide them: from a plain
    one the row-parallel layer concludes R times its size, and raises.
    """
    module = _split_mlp(ctx, parameters, local_hidden=local_hidden)
    return training_step(module, x.to(ctx.device), grad.to(ctx.device))


def mlp_collectives(
    ctx: Context, *, x: torch.Tensor, grad: torch.Tensor, parameters: Parameters, gather_hidden: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """How often the MLP's forward and its backward issue each collective.

    With ``gather_hidden`` the layers exchange all hidden features, as column- and row-parallel layers do
    that know nothing of each other.
    """
    module = _split_mlp(ctx, parameters, gather_hidden=gather_hidden)
    x = x.to(ctx.device).requires_grad_()
    with CommDebugMode() as forward:
        output = module(x)
    with CommDebugMode() as backward:
        output.backward(grad.to(ctx.device))
    return _counts(forward), _counts(backward)


def _counts(mode: CommDebugMode) -> dict[str, int]:
    return {str(op).rpartition(".")[2]: count for op, count in mode.get_comm_counts().items()}


class Attention(nn.Module):
    """Self-attention without bias: several query heads may share a key and value head.

    Its projections may be split by heads: it computes with those that they give it.
    """

    def __init__(self, parameters: Parameters, *, head_dim: int, causal: bool):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear({"weight": parameters[f"{name}.weight"]}) for name in "qkvo")
        self.head_dim = head_dim
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From [B, S, W] to the same."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for projection in (self.q, self.k, self.v)
        )
        heads = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        mixed: torch.Tensor = self.o(heads.transpose(1, 2).flatten(2))
        return mixed


def attention(
    ctx: Context,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
    parameters: Parameters,
    head_dim: int,
    causal: bool,
    share_kv_heads: bool = False,
    shared_gradient: Placement | None = None,
) -> Step:
    """Each rank computes some of the heads; the products with the output's projection are summed over the ranks.

    Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3.

    Args:
        ctx: the rank's context.
        x: the input, [B, S, W].
        grad: the gradient of the output.
        parameters: ``q.weight``, ``k.weight``, ``v.weight`` and ``o.weight``.
        head_dim: features of a head; the weights' shapes then tell how many there are.
        causal: whether tokens see only those before them and themselves.
        share_kv_heads: where there are fewer key and value heads than ranks, gather them, and let several ranks use
            the same one. They are refused otherwise.
        shared_gradient: what DTensor takes a rank's gradient of the gathered heads for: by default what it is, a
            summand.
    """
    heads, kv_heads = (parameters[f"{name}.weight"].shape[0] // head_dim for name in "qk")
    shared = share_kv_heads and kv_heads < ctx.world_size
    for name, number in {"query": heads, "key and value": kv_heads}.items():
        whole, parts = (ctx.world_size, number) if shared and name != "query" else (number, ctx.world_size)
        if whole % parts:
            raise ValueError(
                f"{number} {name} heads cannot be split over {ctx.world_size} ranks: one must divide the other, and "
                "fewer key and value heads than ranks need share_kv_heads=True"
            )
    kv_style = ColwiseParallel(output_layouts=Replicate(), use_local_output=False) if shared else ColwiseParallel()
    module = _parallelized(
        ctx,
        Attention(_on_device(ctx, parameters), head_dim=head_dim, causal=causal),
        {"q": ColwiseParallel(), "k": kv_style, "v": kv_style, "o": RowwiseParallel()},
    )
    if shared:
        first = ctx.rank * kv_heads // ctx.world_size * head_dim
        for projection in (module.k, module.v):
            projection.register_forward_hook(
                lambda _module, _inputs, gathered: gathered.to_local(
                    grad_placements=[shared_gradient or Partial()]
                ).narrow(-1, first, head_dim)
            )
    return training_step(module, x.to(ctx.device), grad.to(ctx.device))


def attention_with_a_shared_heads_gradient_of_one_rank(ctx: Context, **kwargs: Any) -> Step:
    """Wrong on purpose: the ranks that share a head take each one's gradient of it for the whole."""
    return attention(ctx, shared_gradient=Replicate(), **kwargs)


class LanguageModel(nn.Module):
    """An embedding, and the logits of the next token."""

    def __init__(self, parameters: Parameters):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(parameters["embedding.weight"], freeze=False)
        self.head = linear({"weight": parameters["head.weight"]})


Loss = Callable[..., torch.Tensor]
"""``loss(logits_NV, target_N, reduction=, ignore_index=)``, of logits that are a DTensor sharded by vocabulary."""


def vocabulary_parallel(
    ctx: Context,
    *,
    tokens: torch.Tensor,
    target: torch.Tensor,
    parameters: Parameters,
    reduction: Literal["mean", "sum", "none"],
    loss: Loss = functional.cross_entropy,
    lookup: Callable[[Context, nn.Module, torch.Tensor], torch.Tensor] | None = None,
) -> Step:
    """Embedding, logits and cross-entropy, each rank with some of the vocabulary; no rank ever has all logits.

    Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053, section 3. The step returns what was looked up, the loss, and
    each rank's shard of the gradients.

    Args:
        ctx: the rank's context.
        tokens: what is looked up, [N].
        target: the next token of each, or -100 for those that don't count.
        parameters: ``embedding.weight`` and ``head.weight``, both [V, W].
        reduction: of the loss.
        loss: computes it within torch's ``loss_parallel``.
        lookup: takes the place of the row-wise parallel embedding.
    """
    model = _parallelized(
        ctx,
        LanguageModel(_on_device(ctx, parameters)),
        {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(use_local_output=False)},
    )
    tokens, target = tokens.to(ctx.device), target.to(ctx.device)

    def step() -> dict[str, torch.Tensor]:
        model.zero_grad()
        embedded = lookup(ctx, model.embedding, tokens) if lookup else model.embedding(tokens)
        with loss_parallel():  # backward too
            losses = loss(model.head(embedded), target, reduction=reduction, ignore_index=-100)
            losses.sum().backward()
        gradients = {f"{name} gradient": _gradient(value) for name, value in model.named_parameters()}
        return {"embedded": _local(embedded), "loss": _local(losses), **gradients}

    return step


def vocabulary_parallel_without_mask(ctx: Context, **kwargs: Any) -> Step:
    """Wrong on purpose: a rank that lacks a token gives some row of its own, instead of zeros, to the sum."""
    return vocabulary_parallel(ctx, lookup=_lookup_without_mask, **kwargs)


def _lookup_without_mask(ctx: Context, embedding: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    assert isinstance(embedding.weight, DTensor)
    rows = embedding.weight.to_local()
    summand = functional.embedding(tokens % len(rows), rows)
    mesh = embedding.weight.device_mesh
    return DTensor.from_local(summand, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()


def vocabulary_parallel_with_normalizers_of_shards(ctx: Context, **kwargs: Any) -> Step:
    """Wrong on purpose: each rank's softmax knows of its own logits alone."""
    return vocabulary_parallel(ctx, loss=_loss_of_shard, **kwargs)


def _loss_of_shard(logits: torch.Tensor, target: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    mine = _shard_of(logits)
    return functional.cross_entropy(mine, torch.where(target < 0, target, target % mine.shape[-1]), **kwargs)


def _shard_of(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def two_dimensional_linear(
    ctx: Context,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    mesh_shape: tuple[int, int],
    x_placements: Sequence[Placement],
    weight_placements: Sequence[Placement],
    stored_placements: Sequence[Placement] | None = None,
) -> Step:
    """A product of DTensors on a mesh of two axes; the step returns the whole output and each rank's gradients.

    Args:
        ctx: the rank's context.
        x: the whole input.
        grad: the gradient of the whole output.
        weight: the whole weight.
        mesh_shape: ranks along each axis.
        x_placements: what each axis does to the input.
        weight_placements: what each axis does to the weight.
        stored_placements: how the weight's shards lie in fact; by default as ``weight_placements`` say.
    """
    if math.prod(mesh_shape) != ctx.world_size:
        raise ValueError(
            f"a mesh of {mesh_shape[0]} x {mesh_shape[1]} ranks has {math.prod(mesh_shape)}, the world {ctx.world_size}"
        )
    mesh = ctx.mesh(mesh_shape)
    stored = distribute_tensor(
        weight.to(ctx.device), mesh, stored_placements or weight_placements, src_data_rank=None
    ).to_local()
    shards = DTensor.from_local(
        stored, mesh, weight_placements, shape=weight.shape, stride=weight.stride(), run_check=False
    )
    leaves: dict[str, Any] = {
        "input": distribute_tensor(x.to(ctx.device), mesh, x_placements, src_data_rank=None).requires_grad_(),
        "weight": shards.detach().requires_grad_(),
    }
    grad = grad.to(ctx.device)

    def step() -> dict[str, torch.Tensor]:
        product = functional.linear(leaves["input"], leaves["weight"])
        assert isinstance(product, DTensor)
        output = product.full_tensor()
        output.backward(grad)
        results = {"output": _local(output)}
        for name, leaf in leaves.items():
            results[f"{name} gradient"] = _gradient(leaf)
            leaf.grad = None
        return results

    return step


def two_dimensional_linear_with_swapped_axes(ctx: Context, *, weight_placements: Any, **kwargs: Any) -> Step:
    """Wrong on purpose: the weight's shards lie as if the mesh's axes had changed places."""
    swapped = tuple(reversed(weight_placements))
    return two_dimensional_linear(ctx, weight_placements=weight_placements, stored_placements=swapped, **kwargs)


def matmul_inputs(ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's M/R rows of A and its own B of N/R columns, normal, scaled so that products are normal too.

    Not whole numbers, whose few set bits would draw less power than training does, and clock higher.
    """
    generator = ctx.generator()
    rows, columns = m // ctx.world_size, n // ctx.world_size
    a = torch.randn(rows, k, dtype=dtype, device=ctx.device, generator=generator)
    b = torch.randn(k, columns, dtype=dtype, device=ctx.device, generator=generator)
    return a, b / math.sqrt(k)


def all_gather_then_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """All of A times the rank's B: gathers first, then multiplies."""
    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    gathered = torch.empty(a.shape[0] * ctx.world_size, k, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.all_gather_into_tensor(gathered, a)
        return torch.matmul(gathered, b)

    return step


def fused_all_gather_matmul(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """The same product, each shard of A multiplied while the next one is copied from its rank's memory."""
    # Registers torch.ops.symm_mem; here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory

    a, b = matmul_inputs(ctx, m=m, k=k, n=n, dtype=dtype)
    group_name = ctx.group.group_name
    # Loads the kernel that multiplies one shard. CUDA loads kernels when they are first launched and waits for the
    # device meanwhile; were that within the fused step, the device could be waiting for a peer whose host is stuck
    # in the same load: a deadlock (seen once in 12 launches on H200, torch 2.11).
    torch.mm(a, b)

    def step() -> torch.Tensor:
        # return_A=False: the gathered A is no output, and the rank's own shard need not be copied into it.
        _, products = torch.ops.symm_mem.fused_all_gather_matmul(
            a, [b], gather_dim=0, group_name=group_name, return_A=False
        )
        product: torch.Tensor = products[0]
        return product

    return step


def products_to_sum(ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's K/R columns of A and K/R rows of B, normal, scaled so that the product is normal too."""
    generator = ctx.generator()
    a = torch.randn(m, k // ctx.world_size, dtype=dtype, device=ctx.device, generator=generator)
    b = torch.randn(k // ctx.world_size, n, dtype=dtype, device=ctx.device, generator=generator)
    return a, b / math.sqrt(k)


def matmul_then_reduce_scatter(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """M/R rows of the sum of all ranks' products: multiplies first, then sums."""
    a, b = products_to_sum(ctx, m=m, k=k, n=n, dtype=dtype)
    rows = torch.empty(m // ctx.world_size, n, dtype=dtype, device=ctx.device)

    def step() -> torch.Tensor:
        dist.reduce_scatter_tensor(rows, torch.matmul(a, b))
        return rows

    return step


def fused_matmul_reduce_scatter(
    ctx: Context, *, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> Callable[[], torch.Tensor]:
    """The same rows, each rank's product sent while the next one is computed."""
    # Registers torch.ops.symm_mem, as in fused_all_gather_matmul.
    import torch.distributed._symmetric_memory

    a, b = products_to_sum(ctx, m=m, k=k, n=n, dtype=dtype)
    group_name = ctx.group.group_name
    # Loads the kernel that multiplies one rank's rows before a rank waits for another: see fused_all_gather_matmul.
    torch.mm(a[: m // ctx.world_size], b)

    def step() -> torch.Tensor:
        rows: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            a, b, "sum", scatter_dim=0, group_name=group_name
        )
        return rows

    return step
