"""Batches that are cut along another dimension than the first, for stages that are replicated or not."""

from __future__ import annotations

import functools
import inspect

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.microbatch import TensorChunkSpec, split_args_kwargs_into_chunks
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.pipeline_parallel.programs.stages import RUNNERS, SINGLE, Layers, placed, sequential
from suites.shared.step import Tensors, gradient_of


def takes_chunks(schedule: str) -> bool:
    """Whether a schedule can cut its arguments along another dimension."""
    return "args_chunk_spec" in inspect.signature(RUNNERS[schedule]).parameters


class Gated(nn.Module):
    """A stage whose output is multiplied by a keyword argument, of the batch's size too."""

    def __init__(self, layers: Layers, device: torch.device) -> None:
        super().__init__()
        self.layers = sequential(layers, device)

    def forward(self, x: torch.Tensor, *, gate: torch.Tensor) -> torch.Tensor:
        """The layers' output, by the gate."""
        output: torch.Tensor = self.layers(x) * gate
        return output


def loss_along_second(output: torch.Tensor, target: torch.Tensor, *, times: int = 1) -> torch.Tensor:
    """A sum whose gradient is the target so many times; torch cuts targets along their first dimension."""
    return times * (output * target.transpose(0, 1)).sum()


def train_chunks(
    ctx: Context,
    *,
    schedule: str,
    stages: list[Layers],
    microbatches: int,
    x: torch.Tensor,
    gate: torch.Tensor,
    target: torch.Tensor,
    times: int,
    replicas: int = 1,
) -> Tensors:
    """One step; returns the gradients of the rank's stages, and on the rank of the last stage the merged output.

    With replicas DistributedDataParallel wraps the stages, and each replica takes its part of the batch.

    Args:
        ctx: the rank's context.
        schedule: a key of ``RUNNERS``.
        stages: the layers of all stages.
        microbatches: how many a replica's batch is cut into.
        x: S x B x D; it is cut along B.
        gate: S x B x 1, of every stage.
        target: B x S x D.
        times: the factor of the loss.
        replicas: how many pipelines there are.
    """
    mesh = ctx.mesh((replicas, ctx.world_size // replicas), ("replica", "stage"))
    replica, place = mesh.get_local_rank("replica"), mesh.get_local_rank("stage")
    x, gate, target = (part.chunk(replicas, dim)[replica] for part, dim in ((x, 1), (gate, 1), (target, 0)))
    indices = placed(schedule, place, mesh.size(1), len(stages))
    modules = {index: Gated(stages[index], ctx.device) for index in indices}
    held: dict[int, nn.Module] = {**modules}
    if replicas > 1:
        held = {
            index: DistributedDataParallel(module, process_group=mesh.get_group("replica"))
            for index, module in modules.items()
        }
    made = [
        PipelineStage(module, index, len(stages), ctx.device, group=mesh.get_group("stage"))
        for index, module in held.items()
    ]
    loss_kwargs = "loss_kwargs" in inspect.signature(RUNNERS[schedule].step).parameters  # older versions pass none
    runner = RUNNERS[schedule](
        made[0] if schedule in SINGLE else made,
        microbatches,
        loss_fn=loss_along_second if loss_kwargs else functools.partial(loss_along_second, times=times),
        args_chunk_spec=TensorChunkSpec.from_tuple((1,)) if 0 in indices else None,
        kwargs_chunk_spec=TensorChunkSpec.from_dict({"gate": 1}),
        output_merge_spec=TensorChunkSpec(1),
        scale_grads=False,
    )
    last = len(stages) - 1 in indices
    output = runner.step(
        *([x.to(ctx.device)] if 0 in indices else []),
        gate=gate.to(ctx.device),
        **({"target": target.to(ctx.device)} if last else {}),
        **({"loss_kwargs": {"times": times}} if last and loss_kwargs else {}),
    )
    results = {
        f"stage {index}, {name} gradient": gradient_of(value)
        for index, module in modules.items()
        for name, value in module.named_parameters()
    }
    return results | ({"output": output.detach()} if last else {})


def chunks_of_a_mask(ctx: Context, *, lengths: torch.Tensor, most: int, chunks: int) -> list[torch.Tensor]:
    """What each chunk of a batch may attend to, if its sequences have tokens up to a length of their own.

    Args:
        ctx: the rank's context.
        lengths: of all sequences.
        most: the longest one may be.
        chunks: how many the batch is cut into.

    Returns:
        Masks of all queries and keys, a batch for each chunk, by that mask and another one that all sequences share.
    """
    valid = lengths.to(ctx.device)
    mask = create_block_mask(
        lambda sequence, head, query, key: key < valid[sequence], len(lengths), None, most, most, device=ctx.device.type
    )
    shared = create_block_mask(
        lambda sequence, head, query, key: key <= query, None, None, most, most, device=ctx.device.type
    )
    (args, of_chunks) = split_args_kwargs_into_chunks((shared,), {"mask": mask, "lengths": valid}, chunks)
    masks = [(chunk["mask"].mask_mod, one.mask_mod) for chunk, (one,) in zip(of_chunks, args, strict=True)]
    sizes = [len(chunk["lengths"]) for chunk in of_chunks]
    return [
        torch.cat([create_mask(mod, size, None, most, most, device=ctx.device.type) for mod in mods], 1)
        for mods, size in zip(masks, sizes, strict=True)
    ]
