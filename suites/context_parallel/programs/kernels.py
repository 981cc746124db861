"""torch's context parallelism on CPUs: attention from its definition takes the place of the kernels that GPUs have."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional

from pytest_gpuperf import Context
from suites.context_parallel.programs.attention import Layout, Positions, attend, torch_ring_attention
from suites.shared.step import Step, Tensors

Kernel = Literal["flash", "efficient"]


def _shared(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values in float64, repeated for all the query heads that share them."""
    return tensor.double().repeat_interleave(query.shape[1] // tensor.shape[1], 1)


def _scores(query: torch.Tensor, key: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    scores = query.double() @ _shared(key, query).mT * scale
    return scores + torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype).triu(1) if causal else scores


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the logarithm of each row's normalizer."""
    scores = _scores(query, key, causal, scale or query.shape[-1] ** -0.5)
    output = scores.softmax(-1) @ _shared(value, query)
    return output.to(query.dtype), scores.logsumexp(-1).to(torch.promote_types(query.dtype, torch.float32))


def _backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    normalizer: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of some keys' part in an output that all keys have made."""
    scale = scale or query.shape[-1] ** -0.5
    probability = (_scores(query, key, causal, scale) - normalizer.double()[..., None]).exp()
    of_output = (grad.double() * output.double()).sum(-1, keepdim=True)
    of_scores = probability * (grad.double() @ _shared(value, query).mT - of_output) * scale

    def few(tensor: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = tensor.unflatten(1, (key.shape[1], -1)).sum(2)
        return summed.to(key.dtype)

    of_query = (of_scores @ _shared(key, query)).to(query.dtype)
    return of_query, few(of_scores.mT @ query.double()), few(probability.mT @ grad.double())


def _efficient(
    query: Any, key: Any, value: Any, bias: Any, normalizer: bool, dropout: float = 0.0, causal: bool = False, **kw: Any
) -> tuple[Any, ...]:
    none = torch.zeros((), dtype=torch.int64)
    return *_forward(query, key, value, causal, kw.get("scale")), none, none.clone()


def _efficient_backward(grad: Any, query: Any, key: Any, value: Any, bias: Any, *rest: Any, **kw: Any) -> Any:
    output, normalizer, _, _, _, _, causal = [*rest, False][:7]
    return *_backward(grad, query, key, value, output, normalizer, causal, kw.get("scale")), None


def _flash(
    query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, debug: bool = False, **kw: Any
) -> tuple[Any, ...]:
    none = torch.zeros((), dtype=torch.int64)
    made = _forward(query, key, value, causal, kw.get("scale"))
    return *made, None, None, query.shape[2], key.shape[2], none, none.clone(), query.new_empty(0)


def _flash_backward(grad: Any, query: Any, key: Any, value: Any, output: Any, *rest: Any, **kw: Any) -> Any:
    normalizer, _, _, _, _, _, causal, *_ = rest
    return _backward(grad, query, key, value, output, normalizer, causal, kw.get("scale"))


KERNELS = {"flash": (_flash, _flash_backward), "efficient": (_efficient, _efficient_backward)}


@contextlib.contextmanager
def from_definition(kernel: Kernel, scale: float | None) -> Iterator[None]:
    """CPUs have a kernel that torch's ring knows, and ``scaled_dot_product_attention`` calls it with a scale."""
    library = torch.library.Library("aten", "IMPL")
    name = f"_scaled_dot_product_{kernel}_attention"
    for made, suffix in zip(KERNELS[kernel], ("", "_backward"), strict=True):
        library.impl(f"{name}{suffix}", made, "CPU")
    operation = getattr(torch.ops.aten, name)

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, *, is_causal: bool = False, enable_gqa: bool = False
    ) -> Any:
        more = (None, True) if kernel == "efficient" else ()
        return operation(query, key, value, *more, 0.0, is_causal, scale=scale)[0]

    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = scaled_dot_product_attention  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before
        library._destroy()


class Ringed(nn.Module):
    """A module that torch can turn into a ring."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool) -> torch.Tensor:
        """The output of the queries."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def ring_on_cpus(
    ctx: Context,
    *,
    rotation: Literal["allgather", "alltoall"],
    kernel: Kernel,
    causal: bool,
    layout: Layout,
    scale: float | None,
    as_module: bool,
    **tensors: Any,
) -> Step[Tensors]:
    """Torch's ring within ``context_parallel``, or of a module that it wraps.

    Args:
        ctx: the rank's context.
        rotation: how keys and values go round.
        kernel: which of the GPU's kernels is replaced.
        causal: whether tokens see only those before them and themselves.
        layout: which tokens the ranks hold.
        scale: of the scores; None for torch's own.
        as_module: whether a module is wrapped; else a function is replaced.
        tensors: of the whole sequence, as ``attend`` takes them.
    """
    given = {"causal": causal, "layout": layout, **tensors}
    way = _by_module(ctx, rotation, given) if as_module else None

    def step() -> Tensors:
        with from_definition(kernel, scale):
            if way is not None:
                return way()
            return torch_ring_attention(ctx, rotation=rotation, kernel=kernel, **given)()

    return step


def _by_module(ctx: Context, rotation: str, given: dict[str, Any]) -> Step[Tensors]:
    # Here, since this module travels to the ranks by value, and torch's options with it.
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.distributed.tensor.experimental._context_parallel import _attention as torchs

    style = torchs._ContextParallel(seq_dim=2, attention_type=torchs._ContextParallel.AttentionType.SDPA)
    module = parallelize_module(Ringed(), ctx.mesh((ctx.world_size,)), style)

    def attention(ctx: Context, query: Any, key: Any, value: Any, positions: Positions, causal: bool) -> torch.Tensor:
        output: torch.Tensor = module(query, key=key, value=value, causal=causal)
        return output

    step = attend(ctx, attention=attention, **given)

    def within() -> Tensors:
        before = torchs._dispatch_mode, torchs._cp_options.enable_load_balance
        set_rotate_method(rotation)
        torchs._dispatch_mode = torchs._DispatchMode.MODULE_WRAPPER
        torchs._cp_options.enable_load_balance = given["layout"] == "head-tail"
        torchs._enable_context_parallel_dispatcher()
        try:
            return step()
        finally:
            torchs._disable_context_parallel_dispatcher()
            torchs._dispatch_mode, torchs._cp_options.enable_load_balance = before

    return within


def ring_of_groups(
    ctx: Context,
    *,
    rotation: Literal["allgather", "alltoall"],
    kernel: Kernel,
    causal: bool,
    layout: Layout,
    replicas: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
) -> list[Tensors]:
    """Two steps of torch's ring in groups of ranks that have sequences of their own; it cuts and joins all tensors.

    Args:
        ctx: the rank's context.
        rotation: how keys and values go round.
        kernel: which of the GPU's kernels is replaced.
        causal: whether tokens see only those before them and themselves.
        layout: which tokens the ranks hold.
        replicas: how many groups there are.
        query: of all sequences, as are the following; the second step has half of it.
        key: see above.
        value: see above.
        grad: the gradient of the output.

    Returns:
        Output and gradients of the group's sequences, of both steps.
    """
    # Here, since this module travels to the ranks by value, and torch's options with it.
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        _cp_options,
        context_parallel_unshard,
        set_rotate_method,
    )

    mesh = ctx.mesh((replicas, ctx.world_size // replicas), ("replica", "sequence"))
    of_group = mesh.get_local_rank("replica")
    whole = [part.chunk(replicas)[of_group].clone() for part in (query, key, value, grad)]
    positions = torch.arange(query.shape[2])
    given = [part.clone() for part in (*whole, positions)]
    before = _cp_options.enable_load_balance
    _cp_options.enable_load_balance = layout == "head-tail"
    results = []
    try:
        with from_definition(kernel, None):
            plain = functional.scaled_dot_product_attention
            for times in (1.0, 0.5):
                set_rotate_method(rotation)
                with context_parallel(mesh["sequence"], buffers=given, buffer_seq_dims=[2, 2, 2, 2, 0]):
                    assert functional.scaled_dot_product_attention is not plain, "the attention is not replaced"
                    leaves = [(times * given[0]).requires_grad_()]
                    leaves += [part.detach().clone().requires_grad_() for part in given[1:3]]
                    output = functional.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal)
                    made = [output.detach(), *torch.autograd.grad(output, leaves, given[3])]
                    dims = [2] * len(made)
                    # Of one tensor the sequence is another dimension.
                    turned = made[0].transpose(1, 2).contiguous()
                    *joined, back = context_parallel_unshard(mesh["sequence"], [*made, turned], [*dims, 1])
                assert functional.scaled_dot_product_attention is plain, "the attention is still replaced"
                for one, kept in zip(given, (*whole, positions), strict=True):
                    assert torch.equal(one, kept), "a buffer is not what it was before"
                assert torch.equal(back, joined[0].transpose(1, 2)), "one tensor is brought together in two orders"
                names = ("output", "query gradient", "key gradient", "value gradient")
                results.append(dict(zip(names, joined, strict=True)))
    finally:
        _cp_options.enable_load_balance = before
    return results
