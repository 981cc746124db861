"""Megatron-Core's tensor-parallel layers and its 1F1B schedule, on R ranks that are one parallel group.

Megatron's layers return a bias beside their output, and say at construction what is split; the programs give and take
whole tensors, as ``suites.tensor_parallel`` does.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from pytest_gpuperf import Context
from suites.shared.sharding import is_registered, parallelized, shard
from suites.shared.step import Step, Tensors, excerpt
from suites.shared.training import training_step

Microbatch = tuple[torch.Tensor, torch.Tensor]
"""Input of the first stage, and what the output of the last is multiplied with."""


def core(name: str) -> Any:
    """A module of megatron.core, imported on the rank that uses it: it takes seconds, and warns of what it lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"megatron.core.{name}")


def start(ctx: Context, *, tensor: int = 1, pipeline: int = 1) -> None:
    """Megatron's process groups, made once for a test's default group: they are 27, and live as long as that does.

    Those of a default group that is gone are forgotten.
    """
    state = core("parallel_state")
    if state.model_parallel_is_initialized():
        made = (state.get_tensor_model_parallel_world_size(), state.get_pipeline_model_parallel_world_size())
        if made == (tensor, pipeline) and is_registered(state.get_model_parallel_group(), ctx.rank):
            return
        state.destroy_model_parallel()
    with without_a_device():
        state.initialize_model_parallel(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)


@contextmanager
def without_a_device() -> Iterator[None]:
    """The default group as it is without ``device_id``: of Megatron's groups, those that are used get a communicator.

    Megatron-LM opens the default group so. NCCL takes half a second for each of the others beside busy ranks.
    """
    default = dist.distributed_c10d._get_default_group()
    device, default.bound_device_id = default.bound_device_id, None
    try:
        yield
    finally:
        default.bound_device_id = device


_AS_IMPORTED = "__as_imported__"
"""Where each of Megatron's modules has what it held when it was new: programs themselves keep nothing on a rank."""


def import_all(ctx: Context) -> None:
    """Imports what the programs need, so that the rank knows the modules' state before a program changes it."""
    for name in ("tensor_parallel", "transformer.transformer_config", "pipeline_parallel.schedules"):
        core(name)
    for attributes in _attributes_of_modules():
        attributes.setdefault(_AS_IMPORTED, dict(attributes))


def forget(ctx: Context) -> None:
    """Has Megatron forget its groups and what else its modules keep; its own function leaves lists of ranks."""
    core("parallel_state").destroy_model_parallel()
    for attributes in _attributes_of_modules():
        attributes.update(attributes.get(_AS_IMPORTED, {}))


def _attributes_of_modules() -> list[dict[str, Any]]:
    return [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "megatron"]


def _config(ctx: Context, width: int, dtype: torch.dtype = torch.float64, **kwargs: Any) -> Any:
    # A transformer's, though there is none: the schedule takes the shapes of its messages from it, and asks for fields
    # that other configurations lack. Weights are loaded: their initialization would want Megatron's own generators.
    return core("transformer.transformer_config").TransformerConfig(
        num_layers=ctx.world_size,
        hidden_size=width,
        num_attention_heads=ctx.world_size,
        params_dtype=dtype,
        use_cpu_initialization=True,
        perform_initialization=False,
        **kwargs,
    )


def _load(module: nn.Module, ctx: Context, parameters: Tensors, dims: dict[str, int]) -> None:
    """Gives the module this rank's shards of its parameters, along the dimension that each is split by."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            whole = parameters[name]
            parameter.copy_(shard(whole, ctx.world_size, dims[name])[ctx.rank] if name in dims else whole)


class Mlp(nn.Module):
    """A column-parallel layer, ReLU, and a row-parallel one. ReLU, since it keeps whole numbers whole.

    The ranks are those of ``group``, or of the tensor-parallel group that ``start`` has made.
    """

    def __init__(
        self,
        ctx: Context,
        parameters: Tensors,
        *,
        sequence_parallel: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        layers = core("tensor_parallel")
        weight = parameters["column.weight"]
        hidden, width = weight.shape
        common = {
            "config": _config(
                ctx,
                width,
                weight.dtype,
                tensor_model_parallel_size=ctx.world_size,
                sequence_parallel=sequence_parallel,
            ),
            "init_method": nn.init.zeros_,
            "bias": "column.bias" in parameters,
            "skip_bias_add": False,
            "tp_group": group,
        }
        self.column = layers.ColumnParallelLinear(width, hidden, gather_output=False, **common)
        self.row = layers.RowParallelLinear(hidden, width, input_is_parallel=True, **common)
        self.to(ctx.device)
        _load(self, ctx, parameters, {"column.weight": 0, "column.bias": 0, "row.weight": 1})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The whole output on every rank, or with sequence parallelism its part of the first dimension."""
        hidden, _ = self.column(x)
        output: torch.Tensor = self.row(hidden.relu())[0]
        return output


def mlp(
    ctx: Context,
    *,
    x: torch.Tensor,
    grad: torch.Tensor,
    parameters: Tensors,
    sequence_parallel: bool = False,
) -> Step[Tensors]:
    """Forward and backward; output and every gradient, of what is split this rank's shard.

    Args:
        ctx: the rank's context.
        x: sequence x batch x features.
        grad: of the output.
        parameters: ``column.weight``, ``row.weight``, and a bias for both or neither.
        sequence_parallel: each rank gives and gets its part of the sequence.
    """
    x, grad = x.to(ctx.device), grad.to(ctx.device)
    if sequence_parallel:
        x, grad = (shard(whole, ctx.world_size, 0)[ctx.rank] for whole in (x, grad))

    start(ctx, tensor=ctx.world_size)
    module = Mlp(ctx, parameters, sequence_parallel=sequence_parallel)
    train = training_step(module, x, grad)
    # A rank's gradient of what is not split comes from its own part of the sequence. Megatron marks such parameters;
    # distributed/finalize_model_grads.py sums them at the end of a step.
    marked = [name for name, value in module.named_parameters() if getattr(value, "sequence_parallel", False)]

    def step() -> Tensors:
        result = train()
        for name in marked:
            dist.all_reduce(result[f"{name} gradient"])
        return result

    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSizes:
    """The sizes of an MLP that is timed, and of its input."""

    length: int
    """The length of the one sequence."""
    width: int
    hidden: int
    dtype: torch.dtype
    seed: int = 1

    @property
    def flop(self) -> float:
        """Floating-point operations of forward and backward, of all ranks together: 2 a weight and token, then 4."""
        return 6.0 * self.length * 2 * self.width * self.hidden

    @property
    def summed_bytes(self) -> int:
        """What each of the two sums over the ranks is of: the output, and the input's gradient."""
        return self.length * self.width * self.dtype.itemsize


def drawn(ctx: Context, sizes: MlpSizes) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    """Parameters, input and the output's gradient, alike on all ranks; activations are near 1."""
    generator = torch.Generator(ctx.device).manual_seed(sizes.seed)

    def normal(*shape: int, variance: float = 1.0) -> torch.Tensor:
        numbers = torch.randn(*shape, generator=generator, dtype=sizes.dtype, device=ctx.device)
        return numbers.mul_(variance**0.5)

    parameters = {
        "column.weight": normal(sizes.hidden, sizes.width, variance=1 / sizes.width),
        "row.weight": normal(sizes.width, sizes.hidden, variance=2 / sizes.hidden),  # ReLU keeps half
    }
    x, grad = (normal(sizes.length, 1, sizes.width) for _ in range(2))
    return parameters, x, grad


def _excerpts(module: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> Step[Tensors]:
    """Forward and backward; excerpts of the output and of every gradient, of what is split this rank's shard."""
    step = training_step(module, x, grad)
    return lambda: excerpt(step())


def by_megatron(ctx: Context, *, sizes: MlpSizes) -> Step[Tensors]:
    """Megatron-Core's layers, for timing: backward sums the input's gradient while it multiplies the weight's.

    They get the default group, in which DTensor's layers sum as well: no group of Megatron's is made.
    """
    parameters, x, grad = drawn(ctx, sizes)
    return _excerpts(Mlp(ctx, parameters, group=ctx.group), x, grad)


def by_dtensor(ctx: Context, *, sizes: MlpSizes) -> Step[Tensors]:
    """DTensor's layers, for timing: the same MLP, split by ``parallelize_module``."""
    parameters, x, grad = drawn(ctx, sizes)
    with torch.device("meta"):  # the parameters take the weights' place
        layers = OrderedDict(
            column=nn.Linear(sizes.width, sizes.hidden, bias=False),
            relu=nn.ReLU(),
            row=nn.Linear(sizes.hidden, sizes.width, bias=False),
        )
    module = nn.Sequential(layers)
    module.load_state_dict(parameters, assign=True)
    plan: dict[str, ParallelStyle] = {"column": ColwiseParallel(), "row": RowwiseParallel()}
    return _excerpts(parallelized(ctx, module, plan), x, grad)


def embedding(ctx: Context, *, tokens: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor) -> Step[Tensors]:
    """The vocabulary-parallel embedding: each rank has some rows of the weight, and all get all tokens' rows.

    Args:
        ctx: the rank's context.
        tokens: whole numbers below the vocabulary's size.
        grad: of the output.
        weight: of the whole vocabulary.
    """
    tokens, grad = tokens.to(ctx.device), grad.to(ctx.device)

    start(ctx, tensor=ctx.world_size)
    module = core("tensor_parallel").VocabParallelEmbedding(
        *weight.shape,
        init_method=nn.init.zeros_,
        config=_config(ctx, weight.shape[1], tensor_model_parallel_size=ctx.world_size),
    )
    module.to(ctx.device)
    _load(module, ctx, {"weight": weight}, {"weight": 0})

    def step() -> Tensors:
        module.zero_grad()
        output = module(tokens)
        output.backward(grad)
        return {"output": output.detach().clone(), "weight gradient": module.weight.grad.clone()}

    return step


class Stage(nn.Module):
    """One linear layer and ReLU of a pipeline, in the form that Megatron's schedules want."""

    def __init__(self, weight: torch.Tensor, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.config = config
        self.model_type = core("enums").ModelType.encoder_or_decoder
        self._received: torch.Tensor | None = None

    def set_input_tensor(self, received: list[torch.Tensor | None]) -> None:
        """What the stage before has sent; None on the first stage."""
        self._received = received[0] if isinstance(received, list) else received

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output for what was received, or for ``x`` on the first stage."""
        return nn.functional.linear(x if self._received is None else self._received, self.weight).relu()


def pipeline(ctx: Context, *, weights: list[torch.Tensor], microbatches: list[Microbatch]) -> Step[Tensors]:
    """1F1B; rank r runs stage r and returns its weight's gradient, the last rank also each microbatch's loss.

    Args:
        ctx: the rank's context.
        weights: one square matrix for each stage.
        microbatches: sequence x batch x features each.
    """
    length, rows, width = microbatches[0][0].shape
    batches = [(x.to(ctx.device), target.to(ctx.device)) for x, target in microbatches]

    def loss(target: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        # Megatron divides by the number of microbatches.
        total = (output * target).sum()
        return total, {"loss": total.detach().clone()}

    def forward_step(data: Iterator[Microbatch], model: Stage) -> tuple[torch.Tensor, Callable[..., Any]]:
        x, target = next(data)
        return model(x), partial(loss, target)

    start(ctx, pipeline=ctx.world_size)
    config = _config(ctx, width, pipeline_model_parallel_size=ctx.world_size, pipeline_dtype=torch.float64)
    stage = Stage(weights[ctx.rank].to(ctx.device), config)
    run = core("pipeline_parallel.schedules").forward_backward_pipelining_without_interleaving

    def step() -> Tensors:
        stage.zero_grad()
        losses = run(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=stage,
            num_microbatches=len(batches),
            seq_length=length,
            micro_batch_size=rows,
        )
        assert stage.weight.grad is not None
        result = {"weight gradient": stage.weight.grad.clone()}
        if ctx.rank == ctx.world_size - 1:
            result["losses"] = torch.stack([each["loss"] for each in losses])
        return result

    return step
