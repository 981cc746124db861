"""torch's ways to recompute: by function or wrapper, all of a block or some operations of it, with a check or not."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy, lambda_auto_wrap_policy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from pytest_gpuperf import Context
from suites.activations.programs.techniques import Block, Forward, Technique, under

Apply = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def each(apply: Apply) -> Technique:
    """A technique that calls each block in a way."""

    def technique(ctx: Context, model: nn.Sequential) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            for block in model:
                x = apply(block, x)
            return x

        return forward

    return technique


def _wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Technique:
    """A technique that wraps each block, whose parameters stay where they are."""
    return lambda ctx, model: nn.Sequential(*(wrap(block) for block in model))


def _keeps_products(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operation is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Products are kept, and only the rest is computed again."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _keeps_products)
    output: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return output


def _yes_or_no(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A policy keeps the magnitudes, and not the products."""

    def keeps(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(operation is torch.ops.aten.relu.default)

    contexts = functools.partial(create_selective_checkpoint_contexts, keeps)
    output: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return output


def _all_policies(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is kept is changed in place later, where the policy allows that; each of the other policies is there too."""
    aten = torch.ops.aten
    of = {
        aten.mm.default: CheckpointPolicy.PREFER_SAVE,
        aten.relu.default: CheckpointPolicy.MUST_RECOMPUTE,
        aten.mul.Tensor: CheckpointPolicy.MUST_SAVE,
    }

    def chosen(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return of.get(operation, CheckpointPolicy.PREFER_RECOMPUTE)

    def changed(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x) * 2
        return made.mul_(4).div_(8)  # powers of two: GPUs multiply by the reciprocal

    contexts = functools.partial(create_selective_checkpoint_contexts, chosen, allow_cache_entry_mutation=True)
    output: torch.Tensor = checkpoint(changed, x, use_reentrant=False, context_fn=contexts)
    return output


def _without_early_stop(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with set_checkpoint_early_stop(False):
        return _in_autocast(block, x, use_reentrant=False)


def _in_segments(count: int, *, reentrant: bool) -> Technique:
    """Segments of several blocks are computed again, and the last one is not."""

    def technique(ctx: Context, model: nn.Sequential) -> Forward:
        def forward(x: torch.Tensor) -> torch.Tensor:
            parts = min(count, len(model))
            output: torch.Tensor = checkpoint_sequential(model, parts, x, use_reentrant=reentrant)
            return output

        return forward

    return technique


def _without_pinned_memory(ctx: Context, model: nn.Sequential) -> Forward:
    return under(save_on_cpu, model)


def _in_autocast(block: nn.Module, x: torch.Tensor, **options: Any) -> torch.Tensor:
    """Autocast leaves float64 as it is; if the block is computed again outside of autocast, its gradients double."""
    device = x.device.type

    def watched(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x)
        return made * (1 if torch.is_autocast_enabled(device) else 2)

    with torch.autocast(device, dtype=torch.bfloat16):
        output: torch.Tensor = checkpoint(watched, x, **options)
    return output


def _listed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The operations to keep are listed."""
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    output: torch.Tensor = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return output


def _reentrant(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return _in_autocast(block, x, use_reentrant=True)


def _reentrant_of_several(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Takes and returns several, of which some are no tensors, and some need no gradient."""

    def several(factor: int, x: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return block(x) * factor + offset, offset + 1, factor

    offset = torch.tensor(5.0, dtype=x.dtype, device=x.device)
    made, more, factor = checkpoint(several, 2, x, offset, use_reentrant=True)
    output: torch.Tensor = (made - (more - 1)) / factor
    return output


def _to_the_end(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The whole block is computed again, and its tensors' shapes are compared with those before."""
    return _in_autocast(block, x, use_reentrant=False, early_stop=False, determinism_check="default")


def _in_place(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The part that is computed again writes into its own output, and into a copy of its input."""

    def doubled_and_halved(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = block(x.clone().mul_(2).div_(2))
        return made.mul_(2).div_(2)

    output: torch.Tensor = checkpoint(doubled_and_halved, x, use_reentrant=False)
    return output


def _with_gradients_inside(block: nn.Module, x: torch.Tensor, **options: Any) -> torch.Tensor:
    """What is computed again takes gradients itself: of a sum of squares, of which nothing is left in the end."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
        made: torch.Tensor = block(x + gradient - 2 * leaf.detach())
        return made

    output: torch.Tensor = checkpoint(inside, x, use_reentrant=False, **options)
    return output


def _after_a_failure(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A first call fails in the middle, and one without gradients keeps nothing; neither is left in what follows."""

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(f"no output of {tuple((x * x).shape)}")

    with contextlib.suppress(ArithmeticError):
        checkpoint(failing, x, use_reentrant=False)
    with torch.no_grad():
        twice = checkpoint(lambda x: 2 * x, x, use_reentrant=False)
    output: torch.Tensor = checkpoint(block, x + (twice - 2 * x.detach()), use_reentrant=False)
    return output


def _twice(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is computed again computes a part of itself again."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(block, x, use_reentrant=False)
        return output

    output: torch.Tensor = checkpoint(inner, x, use_reentrant=False)
    return output


def _applied(ctx: Context, model: nn.Sequential) -> Forward:
    """Every other block is wrapped in place, in a model of the same blocks."""
    holder = nn.Sequential(*model)
    every_other = {id(block) for block in list(model)[::2]}
    apply_activation_checkpointing(
        holder,
        checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, Block) and id(module) in every_other,
    )
    return holder


class _Named(nn.Module):
    """A block that is given some of its inputs by name."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor, *, taken: torch.Tensor, given: torch.Tensor, times: int) -> torch.Tensor:
        """The block's output and ``times`` what is given, less what is taken."""
        output: torch.Tensor = self.block(x) + times * given - taken
        return output


def _by_name(ctx: Context, model: nn.Sequential) -> Forward:
    """What is given by name comes back by name, in whatever order, beside what is given by place."""
    wrapped = [checkpoint_wrapper(_Named(block), checkpoint_impl=CheckpointImpl.REENTRANT) for block in model]

    def forward(x: torch.Tensor) -> torch.Tensor:
        given, taken = (torch.tensor(value, dtype=x.dtype, device=x.device) for value in (3.0, 7.0))
        for block in wrapped:
            x = block(x, times=2, given=given, taken=taken) + 1
        return x

    return forward


def _own_function(function: Callable[..., Any], *args: Any, calls: list[int], **kwargs: Any) -> Any:
    calls.append(len(args))
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def _by_a_function_of_ours(ctx: Context, model: nn.Sequential) -> Forward:
    calls: list[int] = []
    wrapped = nn.Sequential(*(checkpoint_wrapper(block, checkpoint_fn=_own_function, calls=calls) for block in model))

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.clear()
        output: torch.Tensor = wrapped(x)
        assert calls == [1] * len(model), f"our function was called with {calls} tensors"
        return output

    return forward


def _is_block(module: nn.Module) -> bool:
    return isinstance(module, Block)


def _by_policy(policy: Any) -> Technique:
    """All blocks are wrapped in place, in a model of the same blocks, as the policy says."""

    def technique(ctx: Context, model: nn.Sequential) -> Forward:
        inner = nn.Sequential(*model)
        holder = nn.Sequential(inner)
        apply_activation_checkpointing(holder, auto_wrap_policy=policy)
        kinds = [type(block) for block in inner]
        assert kinds == [CheckpointWrapper] * len(model), f"the policy has made {kinds} of the blocks"
        return holder

    return technique


WAYS: Mapping[str, Technique] = {
    "selective": each(_selective),
    "selective, listed": each(_listed),
    "selective, by yes or no": each(_yes_or_no),
    "selective, by all policies": each(_all_policies),
    "in segments": _in_segments(2, reentrant=False),
    "in segments, reentrant": _in_segments(2, reentrant=True),
    "without an early stop": each(_without_early_stop),
    "offloaded, not pinned": _without_pinned_memory,
    "reentrant": each(_reentrant),
    "reentrant, of several": each(_reentrant_of_several),
    "to the end": each(_to_the_end),
    "in place": each(_in_place),
    "nested": each(_twice),
    "gradients inside": each(_with_gradients_inside),
    "gradients inside, to the end": each(functools.partial(_with_gradients_inside, early_stop=False)),
    "after a failure": each(_after_a_failure),
    "wrapped": _wrapped(functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)),
    "wrapped, reentrant": _wrapped(functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)),
    "offloaded": _wrapped(offload_wrapper),
    "wrapped, by name": _by_name,
    "wrapped, by a function": _by_a_function_of_ours,
    "every other": _applied,
    "by a policy of classes": _by_policy(ModuleWrapPolicy({Block})),
    "by a policy of ours": _by_policy(CustomPolicy(_is_block)),
    "by a policy's function": _by_policy(functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_block)),
}


def transparent(ctx: Context) -> list[str]:
    """Names of a model's tensors as its wrapped layers have them, in its state, by itself and in a further wrapper.

    Raises:
        AssertionError: something else than the wrapped layers' own is found through the wrapper.
    """
    plain, other = (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).to(ctx.device) for _ in range(2))
    wrapper: Any = checkpoint_wrapper(plain)
    assert wrapper[1] is plain[1]
    assert wrapper.append == plain.append
    wrapped = nn.Sequential(wrapper)
    before = {f"0.{name}": value.clone() for name, value in plain.state_dict().items()}
    state = wrapped.state_dict()
    assert all(torch.equal(state[name], value) for name, value in before.items()), f"a state of {list(state)}"
    wrapped.load_state_dict({f"0.{name}": value for name, value in other.state_dict().items()})
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in plain.state_dict().items())
    outer = checkpoint_wrapper(wrapped)
    return [*state, *(name for around in (wrapper, outer) for name, _ in around.named_parameters())]


class _Counting(TorchDispatchMode):
    """Counts how often sines are computed."""

    sines = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.sines += func is torch.ops.aten.sin.default
        return func(*args, **(kwargs or {}))


class _Sines(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x


def sines(ctx: Context) -> dict[str, int]:
    """How often a layer's sines are computed in forward and backward, by policy and by how the policy is given.

    Backward needs them: without a policy that keeps them they are computed twice.
    """
    found = {}
    layer = _Sines()
    for name in ("MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE", "PREFER_RECOMPUTE"):
        policy = CheckpointPolicy[name]
        contexts = functools.partial(
            create_selective_checkpoint_contexts, lambda ctx, operation, *args, chosen=policy, **kwargs: chosen
        )
        ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "function": functools.partial(checkpoint, layer, use_reentrant=False, context_fn=contexts),
            "wrapper": checkpoint_wrapper(layer, context_fn=contexts),
            "named wrapper": checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT, context_fn=contexts),
        }
        for way, apply in ways.items():
            x = torch.ones(3, device=ctx.device, requires_grad=True)
            with _Counting() as counting:  # type: ignore[no-untyped-call]  # torch annotates no modes
                apply(x).sum().backward()
            found[f"{name} by {way}"] = counting.sines
    return found


def refused(ctx: Context, *, check: str) -> list[bool]:
    """Whether a recomputation is refused that has another shape, dtype, or none of these; with this check of it."""
    found = []
    for again in (lambda x: x[:1], lambda x: x.half(), lambda x: x):
        calls: list[int] = []

        def first_whole(x: torch.Tensor, again: Any = again, calls: list[int] = calls) -> torch.Tensor:
            calls.append(1)
            part = x if len(calls) == 1 else again(x)
            return (part.exp() + 1).sum()

        x = torch.ones(3, 2, device=ctx.device, requires_grad=True)
        output = checkpoint(first_whole, x, use_reentrant=False, determinism_check=check)
        try:
            output.backward()
        except CheckpointError:
            found.append(True)
        except RuntimeError:  # which follows if nobody checks
            found.append(False)
        else:
            found.append(False)
    return found
