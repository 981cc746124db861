"""Stages whose ranks share their weights and pass on DTensors; batches that are cut and put together by themselves."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.microbatch import (
    TensorChunkSpec,
    _CustomReducer,
    merge_chunks,
    split_args_kwargs_into_chunks,
    sum_reducer,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, zeros

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, placed
from suites.shared.step import Tensors, gradient_of

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
CUTS = (Shard(1), Shard(0))
"""How weights of stages are cut in turn: ranks share what the first stage passes on, and the second one's sum."""


def passes_dtensors() -> bool:
    """Whether a stage of this torch takes DTensors from another one."""
    return "get_mesh" in inspect.signature(PipelineStage.__init__).parameters


class Squared(nn.Module):
    """The squares of a product; of every other stage the product, whole on each rank."""

    def __init__(self, weight: torch.Tensor, mesh: DeviceMesh, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [CUTS[stage % 2]], src_data_rank=None))
        self._whole = stage % 2 == 1

    def forward(self, x: DTensor) -> torch.Tensor:
        """The output for one chunk of the batch."""
        product = x @ self.weight
        return product.redistribute(placements=[Replicate()]) if self._whole else product * product  # type: ignore[attr-defined]


def whole_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The sum of the output, weighed by the target."""
    local = output.to_local() if isinstance(output, DTensor) else output
    return (local * (target.to_local() if isinstance(target, DTensor) else target)).sum()


def train_sharded(
    ctx: Context, *, schedule: str, static: bool, x: torch.Tensor, target: torch.Tensor, weights: list[torch.Tensor]
) -> Tensors:
    """Two stages on two ranks each: the whole gradient of the stage's weight, and of the last stage the output.

    Args:
        ctx: the rank's context.
        schedule: a name of ``SCHEDULES``; each chunk is one row.
        static: whether stages are told what they take and give, and do not find it out by the first chunk.
        x: the whole batch.
        target: what weighs the output.
        weights: of both stages.
    """
    mesh = ctx.mesh((2, 2), ("stages", "tensors"))
    stage, tensors = mesh.get_local_rank("stages"), mesh["tensors"]
    module = Squared(weights[stage].to(ctx.device), tensors, stage)

    def shared(rows: int, columns: int, cut: bool, *, grad: bool = False) -> torch.Tensor:
        place = Shard(1) if cut else Replicate()
        return zeros(rows, columns, dtype=x.dtype, device_mesh=tensors, placements=[place]).requires_grad_(grad)

    given: dict[str, Any] = {}
    if static:
        width, hidden, last = x.shape[1], weights[0].shape[1], weights[1].shape[1]
        passed, passed_back = shared(1, hidden, True, grad=True), shared(1, hidden, True)
        given = (
            {"input_args": shared(1, width, False), "output_args": passed, "output_grads": passed_back}
            if stage == 0
            else {"input_args": passed, "output_args": shared(1, last, False, grad=True), "input_grads": passed_back}
        )
    runs = SCHEDULES[schedule](
        PipelineStage(
            module,
            stage,
            2,
            ctx.device,
            group=mesh["stages"].get_group(),
            get_mesh=lambda names, layout: tensors,
            **given,
        ),
        len(x),
        loss_fn=whole_loss,
        scale_grads=False,
    )
    batch, wanted = (
        DTensor.from_local(tensor.to(ctx.device), tensors, [Replicate()], run_check=False) for tensor in (x, target)
    )
    output = runs.step(batch) if stage == 0 else runs.step(target=wanted, losses=[])
    gradient = gradient_of(module.weight)
    assert isinstance(gradient, DTensor)
    found = {"gradient": gradient.full_tensor()}
    return found if stage == 0 else found | {"output": output.full_tensor().detach()}


def cut_and_merged(ctx: Context, *, x: torch.Tensor, chunks: int) -> dict[str, Any]:
    """Chunks of a batch and what they are when put together again.

    Args:
        ctx: the rank's context.
        x: a matrix; its rows are the batch, or its columns.
        chunks: their number, which need not divide the batch.

    Returns:
        The chunks of rows as positional arguments with a number that all have, chunks of columns as keyword arguments,
        both merged again, also from containers, sums of losses, and the merged rows of a DTensor that ranks share by
        columns.
    """
    x = x.to(ctx.device)
    shared = distribute_tensor(x, ctx.mesh((ctx.world_size,)), [Shard(1)], src_data_rank=None)
    args, kwargs = split_args_kwargs_into_chunks(
        (x, 7), {"columns": x, "shared": shared}, chunks, None, _by_name(columns=1, shared=0)
    )
    rows, columns = [one[0] for one in args], [one["columns"] for one in kwargs]
    nested = [{"both": (row, [column, row[0]]), "number": 7} for row, column in zip(rows, columns, strict=True)]
    doubling = _CustomReducer(torch.ones((), dtype=x.dtype, device=x.device), lambda before, row: 2 * before + row)
    spec = {"both": (TensorChunkSpec(0), [TensorChunkSpec(-1), doubling]), "number": None}
    together: Any = merge_chunks(nested, spec)
    parts: list[Any] = [one["shared"] for one in kwargs]
    return {
        "rows": [row.clone() for row in rows],
        "numbers": [one[1] for one in args],
        "columns": [column.clone() for column in columns],
        "merged rows": merge_chunks(rows, TensorChunkSpec(0)),
        "merged columns": merge_chunks(columns, TensorChunkSpec(1)),
        "sum": merge_chunks([row.sum() for row in rows], sum_reducer),
        "nested rows": together["both"][0],
        "nested columns": together["both"][1][0],
        "doubled": together["both"][1][1],
        "number": together["number"],
        "shapes": [list(part.shape) for part in parts],
        "shared rows": [part.full_tensor() for part in parts],
        "merged shared": merge_chunks(parts, TensorChunkSpec(0)).full_tensor(),
    }


def _by_name(**dims: int) -> dict[str, Any]:
    return {name: TensorChunkSpec(dim) for name, dim in dims.items()}


def train_sharded_stages(
    ctx: Context, *, schedule: str, x: torch.Tensor, target: torch.Tensor, weights: list[torch.Tensor]
) -> Tensors:
    """Two steps of two stages of each pair of ranks; the second has the negative batch. Returns the last ones' results.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS`` with two stages a rank; each chunk is one row.
        x: the whole batch.
        target: what weighs the output.
        weights: of all four stages.
    """
    mesh = ctx.mesh((2, 2), ("stages", "tensors"))
    tensors, group = mesh["tensors"], mesh["stages"].get_group()
    indices = placed(schedule, mesh.get_local_rank("stages"), 2, len(weights))
    modules = {index: Squared(weights[index].to(ctx.device), tensors, index) for index in indices}
    stages = [
        PipelineStage(module, index, len(weights), ctx.device, group=group, get_mesh=lambda names, layout: tensors)
        for index, module in modules.items()
    ]
    runs = RUNNERS[schedule](stages, len(x), loss_fn=whole_loss, scale_grads=False)
    batch, wanted = (
        DTensor.from_local(tensor.to(ctx.device), tensors, [Replicate()], run_check=False) for tensor in (x, target)
    )
    found: Tensors = {}
    for sign in (1, -1):
        for module in modules.values():
            module.zero_grad()
        inputs = (sign * batch,) if 0 in indices else ()
        output = runs.step(*inputs, **({"target": wanted} if len(weights) - 1 in indices else {}))
        for index, module in modules.items():
            gradient = gradient_of(module.weight)
            assert isinstance(gradient, DTensor)
            found[f"gradient {index}"] = gradient.full_tensor()
        if len(weights) - 1 in indices:
            found["output"] = output.full_tensor().detach()
    return found
