"""Training is the same wherever parameters and optimizer state live, and they live where the program says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.shared.comparison import assert_close, assert_in_float32, assert_unlike
from suites.shared.inputs import rank_input, rank_inputs
from suites.shared.step import each_step, once
from suites.shared.traffic import messages_of
from suites.zero_infinity.programs import racing
from suites.zero_infinity.programs.racing import FILES, GPU, PINNED, PLACES, Work

STEPS = 4


def small(**changed: Any) -> Work:
    """Blocks of 16 elements, which three ranks do not divide."""
    sizes: dict[str, Any] = {"blocks": 2, "width": 2, "hidden": 4, "rows": 5, "compute": torch.float32, "seed": 3}
    return Work(**(sizes | {"learning_rate": 2.0**-4} | changed))


def given(ctx: Context, *, work: Work) -> dict[str, Any]:
    """What training begins with, drawn on the ranks' device."""
    return {
        "blocks": [work.block(index, ctx.device) for index in range(work.blocks)],
        "batches": [work.batch(rank, ctx.device) for rank in range(ctx.world_size)],
        "loss": racing.whole_loss(work, ctx.world_size, ctx.device),
    }


def on_one_device(work: Work, blocks: list[torch.Tensor], batches: Any) -> list[torch.Tensor]:
    """Loss and norm of each step with all ranks' rows, in float64."""
    leaves = [block.double().requires_grad_() for block in blocks]
    optimizer = torch.optim.AdamW(leaves, lr=work.learning_rate, foreach=False)
    results = []
    for _ in range(STEPS):
        errors = []
        for x, target in batches:
            hidden = x.double()
            for leaf in leaves:
                up, down = leaf[: len(leaf) // 2], leaf[len(leaf) // 2 :]
                inner = torch.nn.functional.gelu(hidden @ up.view(work.hidden, work.width).T)
                hidden = hidden + inner @ down.view(work.width, work.hidden).T
            errors.append((hidden - target.double()).square().mean())
        loss = torch.stack(errors).mean()
        gradients = torch.autograd.grad(loss, leaves)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        optimizer.step()
        norm = torch.cat(gradients).square().sum().sqrt()
        results.append(torch.stack([loss.detach(), norm]).float())
    return results


@pytest.mark.ranks(3)
def test_every_place_trains_as_one_device(ranks: Ranks, tmp_path: Path) -> None:
    work = small()

    def program(ctx: Context) -> dict[str, list[torch.Tensor]]:
        return {place: each_step(ctx, racing.train, STEPS, place=place, work=work, folder=tmp_path) for place in PLACES}

    begin = ranks.run(given, work=work)[0]
    expected = on_one_device(work, begin["blocks"], begin["batches"])
    assert_close(begin["loss"], expected[0][0], "the loss of the whole", rtol=1e-5)
    for rank, each in enumerate(ranks.run(program)):
        for place, steps in each.items():
            for number, (got, should) in enumerate(zip(steps, expected, strict=True)):
                assert_close(got, should, f"rank {rank}, {place}, step {number}", rtol=1e-5)
    assert list(tmp_path.iterdir()) == [], "files have no names"


def test_no_two_blocks_and_no_two_batches_are_alike() -> None:
    """With equal ones a step that takes another block's file, or another rank's batch, would train right."""
    work, cpu = small(blocks=4), torch.device("cpu")
    assert_unlike({f"block {index}": work.block(index, cpu) for index in range(work.blocks)})
    batches: dict[str, torch.Tensor] = {}
    for rank in range(8):
        batches[f"rank {rank}, input"], batches[f"rank {rank}, target"] = work.batch(rank, cpu)
    assert_unlike(batches)


@pytest.mark.ranks(2)
def test_where_everything_lives(ranks: Ranks, tmp_path: Path) -> None:
    """Values and the moments that a step has changed, each in its place; the kernel says what is a file.

    All of them are float32, though computation is not.
    """
    work = small(compute=torch.bfloat16)

    def program(ctx: Context, place: str) -> tuple[int, list[str], list[bool], int]:
        training = racing.Training(ctx, place, work, tmp_path)
        training.step()
        kept = [share.values for share in training.shares]
        kept += [share.state[name] for share in training.shares for name in ("exp_avg", "exp_avg_sq")]
        assert all(bool(tensor.any()) for tensor in kept), "the optimizer has moments elsewhere"
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = sum(str(tmp_path) in line and line.split()[1].endswith("s") for line in maps)
        nbytes = sum(tensor.nbytes for tensor in kept)
        pinned = [tensor.device.type == "cpu" and tensor.is_pinned() for tensor in kept]
        return mapped, [tensor.device.type for tensor in kept], pinned, nbytes

    count = racing.KEPT * work.blocks
    for place in PLACES:
        for mapped, devices, pinned, nbytes in ranks.run(program, place):
            assert mapped == (count if place == FILES else 0), place
            home = "cuda" if place == GPU and ranks.backend == "nccl" else "cpu"
            assert devices == [home] * count, place
            assert pinned == [place == PINNED and ranks.backend == "nccl"] * count, place
            assert nbytes == work.state_bytes(2)


@pytest.mark.ranks(2)
def test_what_is_fetched_is_each_ranks_share(ranks: Ranks, tmp_path: Path) -> None:
    """With all bits of float32, though computation takes fewer."""
    work = small(compute=torch.bfloat16)
    blocks = ranks.run(given, work=work)[0]["blocks"]
    for rank, copies in enumerate(ranks.run(once, racing.fetch, place=PINNED, work=work, folder=tmp_path)):
        for index, (copy, block) in enumerate(zip(copies, blocks, strict=True)):
            assert_close(copy, block.chunk(2)[rank], f"rank {rank}, block {index}")
        assert sum(copy.nbytes for copy in copies) == work.crossing_bytes(2)


@pytest.mark.ranks(3)
def test_operations_are_those_of_torchs_counter(ranks: Ranks, tmp_path: Path) -> None:
    work = small()

    def counted(ctx: Context) -> int:
        step = racing.train(ctx, place=PINNED, work=work, folder=tmp_path)
        with FlopCounterMode(display=False) as counter:
            step()
        return int(counter.get_total_flops())

    assert sum(ranks.run(counted)) == work.flop(3)


def test_bytes_count_padding() -> None:
    """Each of 3 ranks has 6 of 16 elements; there are 2 blocks of float32, and 3 numbers of each element."""
    work = small(compute=torch.bfloat16)
    assert (work.share(3), work.crossing_bytes(3), work.state_bytes(3)) == (2 * 6, 2 * 6 * 4, 3 * 2 * 6 * 4)


def test_a_loss_of_16_bits_is_computed_in_float32() -> None:
    work = small(compute=torch.bfloat16, rows=64)
    x, target = work.batch(0, torch.device("cpu"))
    assert_in_float32(work.loss([], x, target), (x.double() - target.double()).square().mean(), "loss")


@pytest.mark.ranks(3)
def test_a_mean_of_16_bits_is_divided_in_float32(ranks: Ranks, tmp_path: Path) -> None:
    """Sums of small whole numbers are exact in bfloat16, and thirds of them are not."""
    work = small(compute=torch.bfloat16)
    given: dict[str, Any] = {"shape": (work.numel,), "dtype": work.compute, "seed": 1}

    def program(ctx: Context, place: str) -> list[torch.Tensor]:
        share = racing.Share(ctx, work, 0, racing.home_at(ctx, place, tmp_path))
        taken = share.take(ctx, rank_input(ctx.rank, **given).to(ctx.device))
        assert share.values.grad is not None
        return [taken, share.values.grad]

    mean = torch.stack(rank_inputs(3, **given)).float().sum(0) / 3
    rtol = 2.0**-23 if ranks.backend == "nccl" else 0.0  # CUDA multiplies by the reciprocal of 3, which is rounded
    size = -(-work.numel // 3)
    for place in PLACES:
        for rank, got in enumerate(ranks.run(program, place)):
            own = mean[rank * size : (rank + 1) * size]
            for tensor, what in zip(got, ("share", "gradient at home"), strict=True):
                assert_close(tensor[: len(own)].cpu(), own, f"rank {rank}, {place}, {what}", rtol=rtol)


@pytest.mark.ranks(3)
def test_blocks_and_gradients_travel_in_the_dtype_of_computation(ranks: Ranks, tmp_path: Path) -> None:
    """Each of 3 ranks has 6 of 16 elements, padding included, of 2 bytes each; in the end come 2 numbers of float32."""
    work = small(compute=torch.bfloat16)
    gathers, scatters = [("all_gather", 6 * 2)] * work.blocks, [("reduce_scatter", 18 * 2)] * work.blocks
    for place in PLACES:
        for messages in ranks.run(messages_of, racing.train, place=place, work=work, folder=tmp_path):
            assert messages == [*gathers, *scatters, ("all_reduce", 2 * 4)], place


@pytest.mark.ranks(2)
def test_a_disk_that_is_full_on_one_rank_is_too_small_for_all(ranks: Ranks, tmp_path: Path) -> None:
    """A rank that went on would wait for the others in its first collective."""

    def refused(ctx: Context, full: int) -> bool:
        usage = SimpleNamespace(free=0 if ctx.rank == full else 2**60)
        with mock.patch("shutil.disk_usage", return_value=usage):
            try:
                racing.train(ctx, place=FILES, work=small(), folder=tmp_path)
            except Infeasible:
                return True
        return False

    for full in range(2):
        assert ranks.run(refused, full) == [True, True], f"rank {full} has no room"
    assert ranks.run(refused, 2) == [False, False]


@pytest.mark.ranks(2)
def test_files_that_do_not_fit_are_not_made(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"the files need 1572864\.0 GiB, \d+\.\d GiB are free"):
        ranks.run(racing.train, place=FILES, work=small(width=2**20, hidden=2**25), folder=tmp_path)
