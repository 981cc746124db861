"""The library parts that the suites claim to cover, and the public options of each, read from the installed torch."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

CALLABLES = [
    "torch.nn.SyncBatchNorm",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.nn.utils.get_total_norm",
    "torch.utils.checkpoint.checkpoint",
    "torch.distributed.algorithms.Join",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.offload_wrapper",
    "torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager",
    "torch.distributed.algorithms.model_averaging.hierarchical_model_averager.HierarchicalModelAverager",
    "torch.distributed.checkpoint.DefaultLoadPlanner",
    "torch.distributed.checkpoint.DefaultSavePlanner",
    "torch.distributed.checkpoint.FileSystemReader",
    "torch.distributed.checkpoint.FileSystemWriter",
    "torch.distributed.checkpoint.HuggingFaceStorageReader",
    "torch.distributed.checkpoint.HuggingFaceStorageWriter",
    "torch.distributed.checkpoint.async_save",
    "torch.distributed.checkpoint.load",
    "torch.distributed.checkpoint.save",
    "torch.distributed.fsdp.CPUOffloadPolicy",
    "torch.distributed.fsdp.MixedPrecisionPolicy",
    "torch.distributed.fsdp.OffloadPolicy",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.register_fsdp_forward_method",
    "torch.distributed.fsdp.share_comm_ctx",
    "torch.distributed.init_device_mesh",
    "torch.distributed.optim.PostLocalSGDOptimizer",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.distributed.tensor.experimental._attention.context_parallel_unshard",
]
"""Functions and classes whose arguments are options."""

MODULES = [
    "torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed._functional_collectives",
    "torch.distributed._symmetric_memory",
    "torch.distributed.nn.functional",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.parallel",
]
"""Modules of which each public function and class counts, and its arguments."""

COLLECTIVES = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "new_group",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
]
"""Functions of ``torch.distributed``, whose ``__all__`` has much besides."""

CLASSES = [
    "torch.distributed.algorithms.ddp_comm_hooks.DDPCommHookType",
    "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.distributed.tensor.DTensor",
    "torch.nn.SyncBatchNorm",
    "torch.nn.parallel.DistributedDataParallel",
]
"""Classes of which each public method counts, and its arguments; of an enumeration each member."""

AUTOGRADS = ("_backward", "_setup_context")
"""Ends of names of what autograd calls."""

OPERATORS = ("symm_mem",)
"""Namespaces of which each operator counts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A callable of a library, or a method, and its options."""

    name: str
    target: Any
    options: tuple[str, ...]
    """Arguments that have a default."""
    attribute: str = ""
    """The name behind a dot by which suites use it, of a method, a member or an operator."""
    owner: Any = None
    """The class of a method: a suite that does not name it calls another method of that name."""


def parts() -> Iterator[Part]:
    """All parts that the installed torch has."""
    names = [*CALLABLES, *(f"torch.distributed.{name}" for name in COLLECTIVES)]
    names += [f"{module}.{name}" for module in MODULES for name in _public(found(module))]
    for name in dict.fromkeys(names):
        target = found(name)
        if callable(target):
            yield Part(name, target, options(target))
    for name in CLASSES:
        yield from _members(name, found(name))
    for namespace in OPERATORS:
        yield from _operators(namespace)


@functools.cache
def found(name: str) -> Any:
    """The object of a dotted name; None if the installed torch has none."""
    names = name.split(".")
    for split in range(len(names), 0, -1):
        thing: Any
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some modules of torch use what torch has deprecated
                thing = importlib.import_module(".".join(names[:split]))
        except ImportError:
            continue
        for attribute in names[split:]:
            thing = getattr(thing, attribute, None)
        return getattr(thing, "__func__", thing)
    return None


@functools.cache
def parameters(target: Any) -> tuple[str, ...]:
    """Names of the arguments that a caller can give by place, in order."""
    return tuple(name for name, value in _signature(target) if value.kind <= value.POSITIONAL_OR_KEYWORD)


@functools.cache
def options(target: Any) -> tuple[str, ...]:
    """Names of the arguments that a caller can leave out; private ones are no options."""
    return tuple(
        name for name, value in _signature(target) if value.default is not value.empty and not name.startswith("_")
    )


def defaults(target: Any) -> dict[str, Any]:
    """Values of the arguments that a caller leaves out."""
    return {name: value.default for name, value in _signature(target) if value.default is not value.empty}


def _signature(target: Any) -> list[tuple[str, inspect.Parameter]]:
    try:
        return list(inspect.signature(target).parameters.items())
    except (TypeError, ValueError):  # of a C function, or an enumeration
        return []


def _public(module: ModuleType | None) -> list[str]:
    """Public functions and classes of a module: those it lists, else those it defines itself."""
    if module is None:
        return []
    listed: list[str] | None = getattr(module, "__all__", None)
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return [
        name
        for name in listed or names
        if (inspect.isfunction(getattr(module, name)) or inspect.isclass(getattr(module, name)))
        and not name.endswith(AUTOGRADS)
    ]


def _members(name: str, owner: Any) -> Iterator[Part]:
    if owner is None:
        return
    for attribute, value in vars(owner).items():
        if attribute.startswith("_"):
            continue
        value = getattr(value, "__func__", value)
        yield Part(f"{name}.{attribute}", value, options(value) if callable(value) else (), attribute, owner)


def _operators(namespace: str) -> Iterator[Part]:
    import torch

    prefix = f"{namespace}::"
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        operator = name.removeprefix(prefix)
        if name.startswith(prefix) and not operator.startswith("_"):
            yield Part(f"torch.ops.{namespace}.{operator}", None, (), operator)
