"""Operations of DTensors that ranks share unevenly give what they give on one device, and so do their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import pytest
import torch
from torch.distributed.tensor import Placement, Shard

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_close, assert_each
from suites.shared.inputs import integers
from suites.shared.step import Tensors
from suites.tensor_parallel.programs import computed, flattened, rearranged, varied
from suites.tensor_parallel.programs.operations import OPERATIONS, applied, named, of_parts, operated
from suites.tensor_parallel.programs.parts import KINDS, operations
from suites.tensor_parallel.programs.parts import OPERATIONS as PARTS
from suites.tensor_parallel.programs.parts import operated as parts_operated
from suites.tensor_parallel.programs.wide_operations import chosen, lacks_rules, results, shared

ROUNDING = 1e-12
"""As a share of the size and in units: orders of additions differ by some 1e-16."""


@pytest.mark.ranks(3)
@pytest.mark.parametrize("cut", [0, 1], ids=["rows cut", "columns cut"])
def test_as_on_one_device(ranks: Ranks, cut: int) -> None:
    """Each rank has another number of rows or columns; no two numbers are alike, so that each maximum has one place."""
    x = torch.randperm(5 * 7, generator=torch.Generator().manual_seed(1)).view(5, 7).double() / 8 - 1
    expected: Tensors = {}
    for name, operation in OPERATIONS.items():
        for dim in range(2):
            expected |= named(name, dim, applied(operation, x, dim))
    got = ranks.run(operated, x=x, cut=cut)
    for name, value in expected.items():
        assert_each([of_rank[name].cpu() for of_rank in got], [value] * 3, name, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.ranks(3)
def test_of_a_sum_that_nobody_has_yet(ranks: Ranks) -> None:
    parts = [torch.randn(5, 7, generator=torch.Generator().manual_seed(rank)).double() for rank in range(3)]
    whole = torch.stack(parts).sum(0)
    got = ranks.run(of_parts, parts=parts)
    for name, operation in OPERATIONS.items():
        for dim in range(2):
            told = [of_rank[f"{name} along {dim}"].cpu() for of_rank in got]
            assert_each(told, [operation(whole, dim)] * 3, f"{name} along {dim}", rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.ranks(2)
def test_of_parts_of_each_kind(ranks: Ranks) -> None:
    """Numbers of both signs, some no whole ones: the maximum of parts is no multiple of that of their multiples."""
    if lacks_rules():
        pytest.skip(f"DTensors of torch {torch.__version__} get some of these wrong: 2.13 is needed")
    drawn = [integers((4, 3), torch.float64, seed=seed, low=-6, high=6) for seed in range(3)]
    parts, all_have = [part / 2 for part in drawn[:2]], drawn[2] + 0.25
    parts[0][0, 0], parts[1][0, 0] = -0.5, 0.0  # whose maximum is zero, and zero is false
    got = ranks.run(parts_operated, parts=parts, all_have=all_have)
    for kind, put_together in KINDS.items():
        whole = put_together(torch.stack(parts))
        expected = {name: PARTS[name](whole, all_have) for name in operations(kind)}
        for rank, of_rank in enumerate(got):
            assert list(of_rank[kind]) == list(expected), f"rank {rank}, parts of {kind}"
            for name, value in expected.items():
                assert_close(
                    of_rank[kind][name].cpu(), value, f"rank {rank}, {kind}, {name}", rtol=ROUNDING, atol=ROUNDING
                )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("cut", range(3), ids=["rows cut", "columns cut", "the last dimension cut"])
@pytest.mark.parametrize("table", [rearranged, computed], ids=["rearranged", "computed"])
def test_of_three_dimensions(ranks: Ranks, table: ModuleType, cut: int) -> None:
    """The last dimension has another size on each rank."""
    _check_table(ranks, table, (2,), [Shard(cut)])


@pytest.mark.ranks(4)
def test_of_two_axes(ranks: Ranks) -> None:
    _check_table(ranks, rearranged, (2, 2), [Shard(2), Shard(0)])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("cut", [1, 2], ids=["columns cut", "the last dimension cut"])
def test_of_several_dimensions_and_from_the_end(ranks: Ranks, cut: int) -> None:
    _check_table(ranks, varied, (2,), [Shard(cut)])


@pytest.mark.ranks(2)
def test_of_dimensions_that_were_made_one(ranks: Ranks) -> None:
    """The ranks have every second three rows, since they share the inner one of both dimensions."""
    _check_table(ranks, flattened, (2,), [Shard(1)])


@pytest.mark.ranks(4)
def test_of_dimensions_that_two_axes_cut_and_that_were_made_one(ranks: Ranks) -> None:
    _check_table(ranks, flattened, (2, 2), [Shard(0), Shard(1)], flattened.SOME)


def _check_table(
    ranks: Ranks,
    table: ModuleType,
    mesh: tuple[int, ...],
    placements: list[Placement],
    names: Sequence[str] | None = None,
) -> None:
    size = torch.Size(rearranged.SHAPE)
    x = torch.randperm(size.numel(), generator=torch.Generator().manual_seed(1)).view(size).double() / 60 - 1
    if table in (flattened, varied) and lacks_rules():
        pytest.skip(f"DTensors of torch {torch.__version__} get some of these wrong: 2.13 is needed")
    if ranks.backend == "nccl" and table is rearranged and lacks_rules():
        pytest.skip(f"DTensors of torch {torch.__version__} index out of bounds, which ends GPUs: 2.13 is needed")
    got = ranks.run(shared, x=x, table=table.__name__, mesh=mesh, placements=placements, names=names)
    expected = results(chosen(table.OPERATIONS, names), x)
    for rank, of_rank in enumerate(got):
        missing = sorted(set(expected) - set(of_rank))
        # Older torch refuses some; most of them must be there.
        assert len(missing) <= (len(expected) // 2 if lacks_rules() else 0), f"rank {rank} has no {missing}"
    for name, value in expected.items():
        told = [of_rank[name].cpu() for of_rank in got if name in of_rank]
        assert_each(told, [value] * len(told), name, rtol=ROUNDING, atol=ROUNDING)
