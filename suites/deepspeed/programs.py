"""Training steps of DeepSpeed's engine, on R ranks, each with a part of the batch.

The model is linear, ReLU, linear, without biases, and the loss linear in its output, so that whole numbers stay
exact: see ``test_correctness``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from pytest_gpuperf import Context
from suites.shared.deepspeed_engine import launched, load_deepspeed
from suites.shared.step import Step, Tensors

Weights = Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """What is split over the ranks, and what the GPUs leave to the hosts."""

    stage: int
    """0 nothing, 1 the optimizer's state, 2 gradients as well, 3 parameters as well."""
    offload_optimizer: bool = False
    """The optimizer's state and step on the host; from stage 1 on."""
    offload_parameters: bool = False
    """Parameters on the host while they are not in use; in stage 3."""

    def __post_init__(self) -> None:
        if self.stage not in range(4):
            raise ValueError(f"ZeRO has the stages 0 to 3, got {self.stage!r}")
        if self.offload_optimizer and self.stage < 1:
            raise ValueError("offload_optimizer needs stage 1 or more: in stage 0 no optimizer state is ZeRO's")
        if self.offload_parameters and self.stage < 3:
            raise ValueError(f"offload_parameters needs stage 3, which alone parts with parameters; got {self.stage}")

    def config(self) -> dict[str, Any]:
        """The section ``zero_optimization`` of DeepSpeed's configuration."""
        # By default stage 3 keeps parameters of less than 100,000 elements whole: all that the suites have.
        section: dict[str, Any] = {"stage": self.stage, "stage3_param_persistence_threshold": 0}
        if self.offload_optimizer:
            section["offload_optimizer"] = {"device": "cpu"}
        if self.offload_parameters:
            section["offload_param"] = {"device": "cpu"}
        return section


@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """The settings of torch.optim.SGD."""

    lr: float
    momentum: float


def module(weights: Weights) -> nn.Sequential:
    """The model with these weights, ``0.weight`` and ``2.weight``."""
    hidden, inputs = weights["0.weight"].shape
    outputs = weights["2.weight"].shape[0]
    model = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, outputs, bias=False))
    model.load_state_dict(weights)
    return model


@contextlib.contextmanager
def _lost(ctx: Context, collective: str | None) -> Iterator[None]:
    """Zeros instead of what rank 1 gives to this collective, which DeepSpeed calls as a method of its backend."""
    if collective is None or ctx.rank != 1:
        yield
        return
    backend: Any = importlib.import_module("deepspeed.comm.comm").cdb
    real = getattr(backend, collective)

    def with_zeros(*args: Any, **kwargs: Any) -> Any:
        # An all_reduce has one tensor, to send and to receive; the others name what they send.
        sent = kwargs["input_tensor"] if "input_tensor" in kwargs else args[0]
        sent.zero_()
        return real(*args, **kwargs)

    with mock.patch.object(backend, collective, with_zeros):
        yield


def train(
    ctx: Context,
    *,
    weights: Weights,
    batches: list[list[tuple[torch.Tensor, torch.Tensor]]],
    zero: Zero,
    sgd: Sgd,
    loss_scale: float = 1.0,
    reduce_gradients: bool = True,
    lost: str | None = None,
) -> Step[dict[str, Any]]:
    """As many optimizer steps as there are batches; losses, gradients and weights of all, and what this rank held.

    That is counted in elements, under ``held``: the momenta, the most gradients that the module had after a backward
    pass, and the weights that it has after a step. Shards are in DeepSpeed's optimizer, not in the module.

    Args:
        ctx: the rank's context.
        weights: of the model; the same on all ranks.
        batches: this many steps, each of as many microbatches; a microbatch is input and target of all ranks, one
            after the other.
        zero: the stage and what is offloaded.
        sgd: the optimizer, in the only precision there is: float32.
        loss_scale: wrong on purpose unless 1.
        reduce_gradients: wrong on purpose if not: stage 0 keeps each rank's own gradients.
        lost: wrong on purpose unless None: the collective to which rank 1 gives zeros.
    """
    model = module(weights).to(ctx.device)
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.lr, momentum=sgd.momentum)
    rows = batches[0][0][0].shape[0] // ctx.world_size
    with launched(ctx):
        engine, *_ = load_deepspeed(ctx).initialize(
            model=model,
            optimizer=optimizer,
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": rows,
                "gradient_accumulation_steps": len(batches[0]),
                # 1.0 by default: it would scale gradients, and the reference knows nothing of it.
                "gradient_clipping": 0.0,
                "zero_optimization": zero.config(),
                # Any optimizer of torch's, also where DeepSpeed would rather compile its own.
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
            },
        )
    if not reduce_gradients:
        engine.enable_backward_allreduce = False
    access = importlib.import_module("deepspeed.utils")
    parameters = dict(zip(names, engine.module.parameters(), strict=True))

    @launched(ctx)
    @_lost(ctx, lost)
    def step() -> dict[str, Any]:
        losses = []
        whole_gradients = 0
        gradients: Weights = {}
        for batch in batches:
            for x, target in batch:
                x, target = (t.to(ctx.device).chunk(ctx.world_size)[ctx.rank] for t in (x, target))
                loss = (engine(x) * target).sum() / rows
                losses.append(loss.detach().clone())
                engine.backward(loss * loss_scale)
                whole_gradients = max(whole_gradients, _elements(value.grad for value in parameters.values()))
                if engine.is_gradient_accumulation_boundary():
                    gradients = {name: _cpu(access.safe_get_full_grad(value)) for name, value in parameters.items()}
                engine.step()
        whole = access.safe_get_full_fp32_param if zero.stage else torch.Tensor.detach
        held = {
            "momenta": _momenta(engine),
            "gradients": whole_gradients,
            "weights": _elements(parameters.values()),
        }
        after = {name: _cpu(whole(parameter)) for name, parameter in parameters.items()}
        return {"losses": torch.stack(losses), "gradients": gradients, "weights": after, "held": held}

    return step


def train_with_collectives(
    ctx: Context,
    *,
    weights: Weights,
    batches: list[list[tuple[torch.Tensor, torch.Tensor]]],
    sgd: Sgd,
) -> Step[dict[str, Any]]:
    """Runs the same training without DeepSpeed, so that the suite can be pointed at it.

    It splits nothing, and all_reduces the gradients.
    """
    model = module(weights).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.lr, momentum=sgd.momentum)
    rows = batches[0][0][0].shape[0] // ctx.world_size

    def step() -> dict[str, Any]:
        losses = []
        gradients: Weights = {}
        for batch in batches:
            optimizer.zero_grad()
            for x, target in batch:
                x, target = (t.to(ctx.device).chunk(ctx.world_size)[ctx.rank] for t in (x, target))
                loss = (model(x) * target).sum() / rows
                losses.append(loss.detach())
                (loss / len(batch)).backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= ctx.world_size
                gradients[name] = parameter.grad.clone()
            optimizer.step()
        after = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        return {"losses": torch.stack(losses), "gradients": gradients, "weights": after}

    return step


def _momenta(engine: Any) -> int:
    """How many momenta this rank holds."""
    optimizer = engine.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return sum(value["momentum_buffer"].numel() for value in optimizer.state.values() if "momentum_buffer" in value)


def _elements(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(tensor.numel() for tensor in tensors if tensor is not None)


def _cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone()
