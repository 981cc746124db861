"""A training step whose activations are kept, recomputed, offloaded, sharded over the ranks or lent to a peer.

L blocks, B rows of D features, H hidden features: a block is linear D -> H, ReLU, dropout, linear H -> D. Between
forward and backward a block that keeps everything holds its input (B x D), the ReLU's output and, where dropout
is on, the mask and the product of both (each B x H).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from pytest_gpuperf import Context
from suites.data import gradient

LEARNING_RATE = 1.0  # keeps whole numbers whole

Weights = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""The two weights of each block, H x D and D x H."""
Forward = Callable[[torch.Tensor], torch.Tensor]
Technique = Callable[[Context, nn.Sequential], Forward]
Step = Callable[[], dict[str, torch.Tensor]]


class Block(nn.Module):
    """Linear, ReLU, dropout of half the hidden features, linear. It notes down the masks that it draws.

    A dropout of its own: masks of zeros and ones, without nn.Dropout's factor of 2, keep whole numbers small.
    """

    def __init__(self, first: torch.Tensor, second: torch.Tensor, *, dropout: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.dropout = dropout
        self.masks: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output; x is B x D."""
        hidden = nn.functional.linear(x, self.first).relu()
        if self.dropout:
            mask = torch.bernoulli(torch.full_like(hidden, 0.5))
            self.masks.append(mask)
            hidden = hidden * mask
        return nn.functional.linear(hidden, self.second)


def network(ctx: Context, weights: Weights, *, dropout: bool) -> nn.Sequential:
    """The blocks on the rank's device."""
    return nn.Sequential(*(Block(a.to(ctx.device), b.to(ctx.device), dropout=dropout) for a, b in weights))


def blocks(model: nn.Sequential) -> list[Block]:
    """Its blocks, by their type."""
    return [block for block in model if isinstance(block, Block)]


def keep(ctx: Context, model: nn.Sequential) -> Forward:
    """Everything that backward needs stays where it is."""
    return model


def recompute(ctx: Context, model: nn.Sequential, *, preserve_rng_state: bool = True) -> Forward:
    """Each block keeps its input alone; backward computes the rest again (Chen et al., arXiv 1604.06174)."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)
        return x

    return forward


def offload(ctx: Context, model: nn.Sequential, *, moved: Callable[[torch.Tensor], None] | None = None) -> Forward:
    """Everything waits in the host's memory, pinned where there are GPUs; ``moved`` is shown the host's copies."""

    def hooks() -> saved_tensors_hooks:
        # pin_memory makes a copy on CPUs too; without it a CPU tensor would stay the tensor that it is.
        torchs_own = save_on_cpu(pin_memory=True)
        if moved is None:
            return torchs_own

        def pack(tensor: torch.Tensor) -> Any:
            device, copy = torchs_own.pack_hook(tensor)
            moved(copy)
            return device, copy

        return saved_tensors_hooks(pack, torchs_own.unpack_hook)

    return under(hooks, model)


def shard(ctx: Context, model: nn.Sequential) -> Forward:
    """Each rank keeps 1 / R of everything and gathers the whole when backward asks; inputs are equal on all ranks.

    Rajbhandari et al., ZeRO (arXiv 1910.02054), section 6.1, partitioned activations.
    """
    return under(lambda: saved_tensors_hooks(*sharding(ctx, model)), model)


def under(hooks: Callable[[], AbstractContextManager[Any]], model: Forward) -> Forward:
    """The model, whose saved tensors go through hooks that are made anew for each forward."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with hooks():
            return model(x)

    return forward


TECHNIQUES: Mapping[str, Technique] = {"keep": keep, "recompute": recompute, "offload": offload, "shard": shard}

Saved = tuple[torch.Tensor, torch.Size] | torch.Tensor


def sharding(ctx: Context, model: nn.Module) -> tuple[Callable[[torch.Tensor], Saved], Callable[[Saved], torch.Tensor]]:
    """The hooks of ``shard``: a saved tensor is padded with zeros until R divides it."""
    stays = parameter_of(model)

    def pack(tensor: torch.Tensor) -> Saved:
        if stays(tensor):
            return tensor
        flat = tensor.reshape(-1)
        share = -(-flat.numel() // ctx.world_size)
        padded = nn.functional.pad(flat, (0, share * ctx.world_size - flat.numel()))
        # A clone: a view of its own share would keep the whole alive.
        return padded.view(ctx.world_size, share)[ctx.rank].clone(), tensor.shape

    def unpack(saved: Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        mine, shape = saved
        whole = mine.new_empty(ctx.world_size * mine.numel())
        dist.all_gather_into_tensor(whole, mine)
        return whole[: shape.numel()].view(shape)

    return pack, unpack


def parameter_of(model: nn.Module) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor is a parameter or a view of one: those stay alive anyway, and saving room on them is none."""
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return lambda tensor: tensor.untyped_storage().data_ptr() in storages


def train(
    ctx: Context, *, technique: Technique, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool
) -> Step:
    """A step of SGD; returns output, gradients, the new parameters, and the masks that the forward drew.

    The parameters are not changed in place, so that each step starts from the same ones.

    Args:
        ctx: the rank's context.
        technique: what becomes of the activations.
        weights: of the blocks.
        x: this rank's input.
        grad: the gradient of this rank's output.
        dropout: whether half the hidden features are dropped.
    """
    model = network(ctx, weights, dropout=dropout)
    return training_step(model, technique(ctx, model), *on_device(ctx, x, grad))


def on_device(ctx: Context, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input, whose gradient is wanted too, and the output's gradient."""
    return x.to(ctx.device).detach().requires_grad_(), grad.to(ctx.device)


def training_step(model: nn.Sequential, forward: Forward, x: torch.Tensor, grad: torch.Tensor) -> Step:
    """The step of ``train``, for a model that is there already."""

    def step() -> dict[str, torch.Tensor]:
        x.grad = None
        model.zero_grad()
        for block in blocks(model):
            block.masks.clear()
        output = forward(x)
        # The forward's, which are the first: recomputation draws, and notes down, some more.
        results = {f"mask {index}": block.masks[0] for index, block in enumerate(blocks(model)) if block.masks}
        output.backward(grad)
        results |= {"output": output.detach(), "input gradient": gradient(x)}
        for name, parameter in model.named_parameters():
            results[f"{name} gradient"] = gradient(parameter)
            results[f"{name} after the step"] = parameter.detach() - LEARNING_RATE * gradient(parameter)
        return results

    return step


@dataclass(slots=True)
class Plan:
    """What a rank lends in one step: shape and dtype of each tensor, and the order in which it wants them back."""

    tensors: list[tuple[torch.Size, torch.dtype]] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)


def lend(ctx: Context, *, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool) -> Step:
    """Even ranks train; the odd rank after each stores its activations and sends them back during backward.

    What pipeline stages do whose neighbours have room (Kim et al., BPipe, ICML 2023). The step of an odd rank
    returns what it stored.
    """
    model = network(ctx, weights, dropout=dropout)
    leaves = on_device(ctx, x, grad)
    plan = peers_plan(ctx, model, *leaves)
    if plan is not None:
        return storing(ctx, plan)
    return training_step(model, lending_forward(ctx, model), *leaves)


def lends(ctx: Context) -> bool:
    """Whether this rank's activations go to the next one."""
    return ctx.rank % 2 == 0


def lending_forward(ctx: Context, model: nn.Sequential) -> Forward:
    """The forward of a rank that lends."""
    return under(lambda: saved_tensors_hooks(*lending(ctx, model)), model)


def peers_plan(ctx: Context, model: nn.Sequential, x: torch.Tensor, grad: torch.Tensor) -> Plan | None:
    """What the rank before this one lends to it; None on a rank that lends itself.

    A trial step finds it out once, so that later no message needs to announce another.

    Raises:
        ValueError: a rank has no peer.
    """
    if ctx.world_size % 2:
        raise ValueError(f"ranks lend in pairs: the world must be of even size, got {ctx.world_size}")
    plan = Plan()
    if lends(ctx):
        with saved_tensors_hooks(*noting(plan, model)):
            output = model(x)
        output.backward(grad)
    plans: list[Any] = [None] * ctx.world_size
    # Not the plan itself: torch pickles by reference, and the ranks may be unable to import this module.
    dist.all_gather_object(plans, (plan.tensors, plan.fetches))
    return None if lends(ctx) else Plan(*plans[ctx.rank - 1])


def noting(plan: Plan, model: nn.Module) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
    """Hooks that keep everything and note down what ``lending`` would send and fetch."""
    stays = parameter_of(model)

    def pack(tensor: torch.Tensor) -> tuple[int | None, torch.Tensor]:
        if stays(tensor):
            return None, tensor
        plan.tensors.append((tensor.shape, tensor.dtype))
        return len(plan.tensors) - 1, tensor

    def unpack(saved: tuple[int | None, torch.Tensor]) -> torch.Tensor:
        index, tensor = saved
        if index is not None:
            plan.fetches.append(index)
        return tensor

    return pack, unpack


Lent = tuple[torch.Size, torch.dtype] | torch.Tensor


def lending(ctx: Context, model: nn.Module) -> tuple[Callable[[torch.Tensor], Lent], Callable[[Lent], torch.Tensor]]:
    """Hooks that send each saved tensor to the next rank and receive it again."""
    stays = parameter_of(model)
    peer = ctx.rank + 1

    def pack(tensor: torch.Tensor) -> Lent:
        if stays(tensor):
            return tensor
        dist.send(tensor.contiguous(), peer)
        return tensor.shape, tensor.dtype

    def unpack(saved: Lent) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        shape, dtype = saved
        fetched = torch.empty(shape, dtype=dtype, device=ctx.device)
        dist.recv(fetched, peer)
        return fetched

    return pack, unpack


def storing(ctx: Context, plan: Plan) -> Step:
    """The other half of ``lending``."""
    peer = ctx.rank - 1

    def step() -> dict[str, torch.Tensor]:
        stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]
        for tensor in stored:
            dist.recv(tensor, peer)
        for index in plan.fetches:
            dist.send(stored[index], peer)
        return {str(index): tensor for index, tensor in enumerate(stored)}

    return step


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations made on a device while it was on, as long as they are alive.

    What autograd saves are tensors like others to it: it sees what is really kept, whatever hooks claim.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.peak = 0
        """The largest ``live()`` after any operation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and notes down what it made."""
        given = {id(tensor.untyped_storage()) for tensor in self._tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in given:  # neither a view nor in place
                self._storages[id(storage)] = weakref.ref(storage), storage.nbytes()
        self.peak = max(self.peak, self.live())
        return result

    def forget(self, tensor: torch.Tensor) -> None:
        """Counts this one no more: it stands for one in another memory."""
        self._storages.pop(id(tensor.untyped_storage()), None)

    def live(self) -> int:
        """Bytes that are alive now."""
        self._storages = {key: entry for key, entry in self._storages.items() if entry[0]() is not None}
        return sum(nbytes for _, nbytes in self._storages.values())

    def _tensors(self, tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device == self._device]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the rank's device beyond parameters, input and gradients."""

    kept: int
    """Between forward and backward, without the output."""
    peak: int
    """During the step."""
    allocated: int | None
    """During the step, as the CUDA allocator counts; None without GPUs."""


def memory(
    ctx: Context, *, technique: str, weights: Weights, x: torch.Tensor, grad: torch.Tensor, dropout: bool
) -> Memory:
    """What one step of a technique takes: a key of ``TECHNIQUES``, or ``lend``."""
    model = network(ctx, weights, dropout=dropout)
    x, grad = on_device(ctx, x, grad)
    live = LiveBytes(ctx.device)
    if technique == "lend":
        plan = peers_plan(ctx, model, x, grad)
        if plan is not None:
            return _stored(ctx, live, storing(ctx, plan))
        forward = lending_forward(ctx, model)
    elif technique == "offload":
        forward = offload(ctx, model, moved=live.forget)
    else:
        forward = TECHNIQUES[technique](ctx, model)
    forward(x).backward(grad)  # makes what only a first step makes: gradients, workspaces of matrix products
    before = _allocated(ctx)
    with live:
        output = forward(x)
        for block in blocks(model):
            block.masks.clear()
        kept = live.live() - output.untyped_storage().nbytes()
        output.backward(grad)
    return Memory(kept, live.peak, _peak_since(before))


def _stored(ctx: Context, live: LiveBytes, step: Step) -> Memory:
    step()
    before = _allocated(ctx)
    with live:
        stored = step()
    return Memory(sum(tensor.nbytes for tensor in stored.values()), live.peak, _peak_since(before))


def _allocated(ctx: Context) -> int | None:
    if ctx.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak_since(before: int | None) -> int | None:
    return None if before is None else torch.cuda.max_memory_allocated() - before
