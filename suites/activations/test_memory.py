"""What each technique keeps and takes at its peak is as promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Ranks
from suites.activations.programs import techniques as programs
from suites.activations.programs.memory import memory
from suites.activations.reference import DTYPE, arguments
from suites.shared.memory import LiveBytes


@pytest.mark.ranks(2)
def test_memory_is_as_promised(ranks: Ranks) -> None:
    blocks, rows, width, hidden = 6, 64, 32, 128
    given = arguments(blocks=blocks, rows=rows, width=width, hidden=hidden, dropout=True, seed=1)
    taken = {name: ranks.run(memory, technique=name, **given) for name in [*programs.TECHNIQUES, "lend"]}
    # ReLU, mask and product of each block, and the block's input, of which the first is there in any case.
    own_hidden, own_inputs = 3 * blocks * rows * hidden * DTYPE.itemsize, (blocks - 1) * rows * width * DTYPE.itemsize
    first_input = rows * width * DTYPE.itemsize
    kept = {name: [of_rank.kept for of_rank in each] for name, each in taken.items()}
    assert kept == {
        "keep": [own_hidden + own_inputs] * 2,
        "recompute": [own_inputs] * 2,
        "offload": [0] * 2,
        "shard": [(own_hidden + own_inputs + first_input) // 2] * 2,
        "lend": [0, own_hidden + own_inputs + first_input],
    }
    # What the allocator counts, too, on GPUs; without, all of these are the same None.
    peaks = {name: (each[0].peak, each[0].allocated or each[0].peak) for name, each in taken.items()}
    for name in ("recompute", "offload", "shard", "lend"):
        assert all(less < more for less, more in zip(peaks[name], peaks["keep"], strict=True)), (name, peaks)
    # Backward begins while all is still there: the output, and the gradient of the last block's hidden features.
    in_backward = kept["keep"][0] + rows * (width + hidden) * DTYPE.itemsize
    assert min(peaks["keep"]) >= in_backward, peaks["keep"]


@pytest.mark.ranks(2, 3)
def test_small_tensors_are_kept_as_large_ones_are(ranks: Ranks) -> None:
    """To the byte, padding included: no tensor is too small to be sharded."""
    blocks, rows, width, hidden = 2, 3, 1, 3
    given = arguments(blocks=blocks, rows=rows, width=width, hidden=hidden, dropout=True, seed=1)
    sizes = {"hidden": rows * hidden, "input": rows * width}
    share = {name: -(-numel // ranks.world_size) for name, numel in sizes.items()}
    expected = {
        "keep": blocks * 3 * sizes["hidden"] + (blocks - 1) * sizes["input"],
        "recompute": (blocks - 1) * sizes["input"],
        "offload": 0,
        "shard": blocks * (3 * share["hidden"] + share["input"]),
    }
    for name in programs.TECHNIQUES:
        kept = [of_rank.kept for of_rank in ranks.run(memory, technique=name, **given)]
        assert kept == [expected[name] * DTYPE.itemsize] * ranks.world_size, name


@pytest.mark.ranks(2)
def test_memory_sees_an_offload_that_keeps_the_originals(ranks: Ranks) -> None:
    def kept(ctx: Context, *, hoards: bool, x: torch.Tensor, **given: Any) -> int:
        hoard: list[torch.Tensor] = []
        model = programs.network(ctx, given["weights"], dropout=True)
        live = LiveBytes(ctx.device)
        if hoards:
            for block in model:
                block.register_forward_hook(lambda block, args, output: hoard.append(output))
        forward = programs.offload(ctx, model, moved=live.note_moved)
        leaf = x.to(ctx.device).requires_grad_()
        with live:
            output = forward(leaf)
            return (
                live.live()
                - output.nbytes
                - sum(mask.nbytes for block in programs.blocks(model) for mask in block.masks)
            )

    given = arguments(blocks=3, rows=4, width=2, hidden=5, dropout=True, seed=1)
    assert ranks.run(kept, hoards=False, **given) == [0, 0]
    assert ranks.run(kept, hoards=True, **given) == [2 * 4 * 2 * DTYPE.itemsize] * 2  # all outputs but the last


@pytest.mark.ranks(2)
def test_an_offload_takes_the_numbers_off_the_device(ranks: Ranks) -> None:
    """Without GPUs host and device are one; the meta device, which has no numbers, refuses to have them copied."""

    def program(ctx: Context, *, weights: programs.Weights, **given: Any) -> None:
        ctx = replace(ctx, device=torch.device("meta"))
        model = programs.network(ctx, weights, dropout=True)
        leaf, _ = programs.on_device(ctx, given["x"], given["grad"])
        assert programs.keep(ctx, model)(leaf).is_meta
        programs.offload(ctx, model)(leaf)

    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        ranks.run(program, **arguments(blocks=1, rows=2, width=3, hidden=4, dropout=True, seed=1))


def clone_on_the_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def move_nothing(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@pytest.mark.parametrize(
    ("copied", "device", "message"),
    [(clone_on_the_device, "meta", "its copy is on meta"), (move_nothing, "cpu", "nothing was copied")],
    ids=["a clone on the device", "no copy"],
)
def test_memory_refuses_what_is_not_in_the_host(
    copied: Callable[[torch.Tensor], torch.Tensor], device: str, message: str
) -> None:
    tensor = torch.empty(3, device=device)
    with pytest.raises(ValueError, match=message):
        LiveBytes(tensor.device).note_moved(tensor, copied(tensor))
