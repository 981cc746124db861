"""Which facts of two machines keep their figures from being compared, and what to do about it."""

import pytest

from pytest_gpuperf.baselines.match import POWER_LIMIT, Scalar, describe_cure, describe_difference
from pytest_gpuperf.hardware.key import match_fields
from tests.fake_gpus import gpu, link

STORED: dict[str, Scalar] = {"cc": "9.0", "gpu_count": 2, "mem_gib": 140, "power_limit_w": 700.0, "topology": "nv18"}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"power_limit_w": 600.0}, "got GPUs with power_limit_w 600.0, expected power_limit_w 700.0"),
        ({"power_limit_w": 699.0}, "got GPUs with power_limit_w 699.0, expected power_limit_w 700.0"),
        ({"mem_gib": 94}, "got GPUs with mem_gib 94, expected mem_gib 140"),
        ({"mem_gib": 138}, "got GPUs with mem_gib 138, expected mem_gib 140"),
        ({"power_limit_w": "700"}, "got GPUs with power_limit_w '700', expected power_limit_w 700.0"),
        ({"cc": "9.0a"}, "got GPUs with cc '9.0a', expected cc '9.0'"),
        (
            {"power_limit_w": 600.0, "mem_gib": 94},
            "got GPUs with mem_gib 94, power_limit_w 600.0, expected mem_gib 140, power_limit_w 700.0",
        ),
    ],
)
def test_what_differs_is_named(found: dict[str, Scalar], told: str) -> None:
    assert describe_difference(STORED, {**STORED, **found}) == told
    assert describe_difference({**STORED, **found}, STORED) is not None


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"power_limit_w": 700},
        {"power_limit_w": 700.004},  # a file keeps five digits
        {"mem_gib": 141},  # the driver's own part of it
        {"power_limit_w": None},
        {"rack": "B2"},
    ],
)
def test_what_differs_little_or_is_not_told_can_be_compared(found: dict[str, Scalar]) -> None:
    assert describe_difference(STORED, {**STORED, **found}) is None
    assert describe_difference({**STORED, **found}, STORED) is None


def test_the_cure_names_the_limit() -> None:
    here = {**STORED, "power_limit_w": 600.0}
    elsewhere = "keep baselines of these GPUs in a folder of their own (--baselines DIR)"
    assert describe_cure(STORED, here) == f"measure with its power limit (nvidia-smi -pl 700), or {elsewhere}"
    assert describe_cure(STORED, {**STORED, "mem_gib": 94}) == f"measure on such GPUs, or {elsewhere}"
    assert (
        describe_cure(STORED, {**here, "mem_gib": 94}) == f"measure on such GPUs, or {elsewhere}"
    )  # no limit makes it 140
    assert describe_cure({"cc": "8.0"}, {"cc": "9.0"}) == f"measure on such GPUs, or {elsewhere}"


def test_the_limit_is_among_the_facts_of_a_machine() -> None:
    assert match_fields([gpu(0, 600.0), gpu(1, 650.0)], link(2))[POWER_LIMIT] == 600.0
