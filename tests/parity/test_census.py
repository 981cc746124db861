"""The census: copies that drift apart are named with the step and the ranks, and one bit is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_gpuperf.features.parity.census import Census, _weigh, compare_censuses, digests
from tests.whole_run import WholeRun, run_pytest, write

Digest = Callable[[torch.Tensor], bytes]

TESTS = """
import pytest, torch, torch.distributed as dist
from pytest_gpuperf import census
from tests.parity import training as t

pytestmark = pytest.mark.ranks(4, timeout=60)

def train(ctx, spoil, group=None, optimizer=t.sgd, seen=True):
    net = t.build()
    made = optimizer(net)
    data = t.share(t.batches(4, 16), ctx.rank, ctx.world_size)
    groups = ctx.mesh((2, 2), ("dp", "tp"))
    with census(net, made) as seen:
        for step, (x, y) in enumerate(data):
            made.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            for name, parameter in net.named_parameters():
                dist.all_reduce(parameter.grad, group=spoil(step, name, groups))
            made.step()
            if spoil(step, "flip", groups) is True and ctx.rank == 2:
                net.down.weight.data.view(torch.int32)[3, 5] ^= 1
    return seen

def test_right(parity):
    found = parity.census(train, lambda step, name, groups: None)
    assert not found.drifts
    assert "parameter up.weight" in found.equal["all ranks"]
    assert "Python's generator" in found.equal["no other rank"]

def test_one_bit(parity):
    parity.census(train, lambda step, name, groups: step == 1 if name == "flip" else None)

def test_pairs(parity):
    pairs = lambda step, name, groups: groups["tp"].get_group() if (step, name) == (2, "norm.weight") else None
    parity.census(train, pairs)

def test_optimizers_of_a_test(ranks):
    ranks.run(train, lambda step, name, groups: groups["dp"].get_group() if name == "head.bias" else None)

def test_without_optimizers(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1, 2, 3]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return run_pytest(write(tmp_path_factory.mktemp("census"), {"test_census.py": TESTS}), "--census")


def test_copies_that_stay_equal_pass(run: WholeRun) -> None:
    assert run.outcomes["test_right[4ranks]"] == "PASSED", run.text


def test_one_bit_on_one_rank_is_named_with_its_step(run: WholeRun) -> None:
    assert run.outcomes["test_one_bit[4ranks]"] == "FAILED"
    # The bit changes after the census of step 2, and the update of step 3 shows it.
    assert (
        "parameter down.weight differs since step 3 (agreed until step 2): now alike are only ranks 0, 1 and 3; rank 2"
    ) in run.report("test_one_bit[4ranks]")


def test_a_reduction_over_pairs_is_named_with_the_pairs(run: WholeRun) -> None:
    report = run.report("test_pairs[4ranks]")
    assert "gradient norm.weight differs since step 3, before the update" in report
    assert "now alike are only ranks 0 and 1; ranks 2 and 3" in report


def test_the_option_reports_the_tests_whose_copies_drift(run: WholeRun) -> None:
    lines = run.section("census")
    assert "  gradient of parameter 7 (6,) differs since" not in "\n".join(lines)  # it never agreed
    assert any(line.endswith("test_optimizers_of_a_test[4ranks]") for line in lines)
    assert any("parameter 7 (6,) differs since step 1 (agreed until the start)" in line for line in lines)
    assert any(line.startswith("copies drifted apart in 3 of 4 tests with optimizers") for line in lines)


def digest(tensor: torch.Tensor) -> bytes:
    """The digest of one tensor next to another one."""
    return digests({"other": torch.ones(3), "this": tensor})["this"]


def gpu_digest(tensor: torch.Tensor) -> bytes:
    """What a GPU's tensor leaves to hash, computed on this device."""
    given = {"other": torch.ones(3), "this": tensor}
    data = {name: one.contiguous().view(-1).view(torch.uint8) for name, one in given.items()}
    return bytes(dict(_weigh(tensor.device, data))["this"])


ways = pytest.mark.parametrize("digest", [digest, gpu_digest])


@ways
@pytest.mark.parametrize("count", [5, 1025, 40_000, 262_147])
def test_one_bit_anywhere_changes_the_digest(digest: Digest, count: int) -> None:
    tensor = torch.randn(count)
    before = digest(tensor)
    for place in (0, 1, count // 2, count - 1):
        for bit in (1, -(2**31)):
            changed = tensor.clone()
            changed.view(torch.int32)[place] ^= bit
            assert digest(changed) != before
    assert digest(tensor.clone()) == before


@ways
@pytest.mark.parametrize(("one", "other"), [(10, 200_000), (10, 40), (10, 10 + 5 * 512)], ids=["far", "row", "column"])
def test_words_that_change_places_change_the_digest(digest: Digest, one: int, other: int) -> None:
    tensor = torch.randn(300_000)
    swapped = tensor.clone()
    swapped[[one, one + 1, other, other + 1]] = swapped[[other, other + 1, one, one + 1]]
    assert digest(swapped) != digest(tensor)


def test_another_shape_changes_the_digest() -> None:
    tensor = torch.randn(300_000)
    assert digest(tensor.reshape(3, -1)) != digest(tensor)


def test_a_census_at_other_points_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ranks took the census at different points: rank 0 at 1, rank 1 at 2: take"):
        compare_censuses([Census([("the start", {})]), Census([("the start", {}), ("step 1", {})])])
