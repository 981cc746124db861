"""What crosses the links: the bytes that a rank sends with each hook, by collective."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import pytest

from pytest_gpuperf import Ranks
from suites.compression.programs import averaging as programs
from suites.compression.programs.quantized import START
from suites.compression.test_correctness import QUANTIZERS

SHAPE = (64, 48)
NUMEL = 3072
# Of N elements to R ranks, by half of an all_reduce: 4, 2 or 1 bytes each; besides, with 1 byte a float32 scale for
# each 256 (so many that R blocks of 256 divide them: no padding). PowerSGD: a column and a row.
WIDTHS = {
    "float32": 4 * NUMEL,
    "bfloat16": 2 * NUMEL,
    "float16": 2 * NUMEL,
    "int8": NUMEL + 4 * 12,
    "float8": NUMEL + 4 * 12,
    "int8 with feedback": NUMEL + 4 * 12,
    "float8 with feedback": NUMEL + 4 * 12,
    "PowerSGD": 4 * (64 + 48),
}


def expected(name: str, world_size: int) -> dict[str, int]:
    """By collective: a rank sends (R - 1) / R of the bytes in the first half of an all_reduce, and again in the second.

    Gathering everybody's whole gradient takes R - 1 times the bytes, which is as many with 2 ranks, and with 4 is not.
    """
    half = WIDTHS[name] * (world_size - 1) // world_size
    if name.partition(" ")[0] in ("int8", "float8"):
        return {"all_to_all": half, "all_gather": half}
    return {"all_reduce": 2 * half}


@pytest.mark.ranks(2, 4)
def test_bytes_on_the_wire(ranks: Ranks) -> None:
    sent = {
        name: ranks.run(programs.bytes_sent, hook=hook, state=state, shape=SHAPE)
        for name, (hook, state) in programs.HOOKS.items()
    }
    assert sent == {name: [expected(name, ranks.world_size)] * ranks.world_size for name in WIDTHS}


@pytest.mark.ranks(2)
def test_power_sgd_compresses_nothing_before_its_step_however_many_buckets_there_are(ranks: Ranks) -> None:
    hook, state = programs.HOOKS["PowerSGD"]
    sent = ranks.run(programs.bytes_sent, hook=hook, state=state, shape=SHAPE, steps=START, matrices=3)
    # DistributedDataParallel also broadcasts its new buckets in the second step.
    assert [of_rank["all_reduce"] for of_rank in sent] == [3 * expected("float32", 2)["all_reduce"]] * 2


@pytest.mark.parametrize("name", [name for name in programs.HOOKS if name.partition(" ")[0] in QUANTIZERS])
def test_a_hook_has_the_format_and_the_feedback_of_its_name(name: str) -> None:
    """Formats send as many bytes, and one may keep the other's bound."""
    _, state = programs.HOOKS[name]
    quantized = state()
    assert quantized.quantizer is QUANTIZERS[name.partition(" ")[0]]
    assert quantized.feedback == name.endswith("with feedback")


@pytest.mark.ranks(2)
def test_power_sgd_sends_as_many_columns_and_rows_as_its_rank(ranks: Ranks) -> None:
    hook, _ = programs.HOOKS["PowerSGD"]
    for rank in (2, 5):
        sent = ranks.run(programs.bytes_sent, hook=hook, state=lambda rank=rank: programs.low_rank(rank), shape=SHAPE)
        assert sent == [{"all_reduce": rank * WIDTHS["PowerSGD"]}] * 2


@pytest.mark.ranks(2, 4)
def test_bytes_on_the_wire_without_a_hook(ranks: Ranks) -> None:
    """DistributedDataParallel's own all_reduce, which C++ calls."""
    sent = ranks.run(programs.bytes_sent, hook=None, shape=SHAPE)
    assert sent == [expected("float32", ranks.world_size)] * ranks.world_size
