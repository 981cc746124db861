"""The comparisons that suites share: each finds what differs, and names the rank and the tensor."""

from __future__ import annotations

import math
import re

import pytest
import torch

from suites.shared.comparison import assert_close, assert_each, assert_losses, assert_same, assert_unlike, assert_within
from suites.shared.step import Tensors

ONES = torch.ones(2, 3)
NUMBERS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (ONES + 2.0**-20, "got 1.00000095, expected 1 at [0, 0]: off by 9.54e-07, beyond the bound 0; 6 of 6 elements"),
        (ONES.double(), "got torch.float64, expected torch.float32"),
        (ONES.flatten(), "got the shape [6], expected [2, 3]"),
        (ONES[:1], "got the shape [1, 3], expected [2, 3]"),
        (ONES * math.nan, "got nan, expected 1 at [0, 0]: off by nan, beyond the bound 0; 6 of 6 elements are wrong"),
    ],
)
def test_what_is_not_equal_is_not_close(got: torch.Tensor, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"^rank 1, output: {re.escape(message)}"):
        assert_close(got, ONES, "rank 1, output")


def test_what_is_equal_is_close() -> None:
    assert_close(ONES.clone(), ONES, "")
    assert_close(torch.tensor([math.inf]), torch.tensor([math.inf]), "")


@pytest.mark.parametrize(("off", "atol", "rtol"), [(0.25, 0.25, 0.0), (0.25, 0.0, 0.25)])
def test_as_far_off_as_is_allowed_is_close_and_no_further(off: float, atol: float, rtol: float) -> None:
    assert_close(ONES + off, ONES, "", atol=atol, rtol=rtol)
    with pytest.raises(AssertionError, match=r"^where: "):
        assert_close(ONES + 2 * off, ONES, "where", atol=atol, rtol=rtol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("atol", "rtol"), [(0.25, 0.0), (0.0, 0.25), (0.125, 0.125)])
@pytest.mark.parametrize("value", [1.5, 0.5, -1.0, math.nan, math.inf, -math.inf])
def test_one_element_beyond_its_bound_is_found(dtype: torch.dtype, atol: float, rtol: float, value: float) -> None:
    expected = ONES.to(dtype)
    got = expected.clone()
    got[1, 2] = value
    with pytest.raises(AssertionError, match=r"^where: got .*, expected 1 at \[1, 2\]: .*; 1 of 6 elements are wrong$"):
        assert_close(got, expected, "where", atol=atol, rtol=rtol)


@pytest.mark.parametrize(("got", "atol"), [(math.inf, math.inf), (-math.inf, math.inf), (math.inf, 1e39)])
def test_an_infinite_number_is_within_no_bound_of_another_one(got: float, atol: float) -> None:
    with pytest.raises(AssertionError, match=r"^where: "):
        assert_close(torch.tensor([got]), torch.tensor([1.0]), "where", atol=atol)


def test_within_a_bound_infinities_are_equal_and_nothing_is_close_to_nothing() -> None:
    infinite = torch.tensor([math.inf, -math.inf, 1.0])
    assert_close(infinite + 0.125, infinite, "", atol=0.25)
    assert_close(torch.empty(0), torch.empty(0), "", atol=0.25)
    assert_close(ONES.clone().requires_grad_(), ONES.clone().requires_grad_(), "", atol=0.25)
    assert_close(torch.tensor([3]), torch.tensor([4]), "", atol=1.0)


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        (
            torch.tensor([1, 2**60]),
            torch.tensor([1, 2**60 + 1]),
            "got 1152921504606846976, expected 1152921504606846977",
        ),
        (torch.tensor([True, False]), torch.tensor([True, True]), "got False, expected True at [1]"),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 1j]), "got (1+2j), expected (1+1j) at [0]: off by 1,"),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan]), "got nan, expected nan at [1]"),
        (
            torch.tensor(3.0),
            torch.tensor(4.0),
            "got 3, expected 4 at []: off by 1, beyond the bound 0; 1 of 1 elements",
        ),
        (torch.tensor([math.inf, 2.0]), torch.tensor([math.inf, 1.0]), "got 2, expected 1 at [1]: off by 1,"),
    ],
    ids=["integers", "booleans", "complex", "no number", "one number", "infinities"],
)
def test_the_element_that_is_wrong_is_named(got: torch.Tensor, expected: torch.Tensor, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"^where: {re.escape(message)}"):
        assert_close(got, expected, "where")


@pytest.mark.parametrize(
    ("got", "expected", "cause"),
    [
        ([2 * NUMBERS] * 2, [NUMBERS] * 2, "cause: times 2 = the 2 ranks: the mean is missing"),
        ([NUMBERS, NUMBERS], [NUMBERS[:3], NUMBERS[3:]], ""),
        ([2 * NUMBERS[0, :3]] * 2, [NUMBERS[0, :3]] * 2, ""),
    ],
    ids=["a sum for a mean", "another shape", "a few numbers"],
)
def test_the_cause_is_named_if_it_is_known(got: list[torch.Tensor], expected: list[torch.Tensor], cause: str) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_each(got, expected, "gradient")
    text = str(raised.value)
    assert ("; cause: " in text) == bool(cause), text
    assert re.search(cause, text), text


def test_every_ranks_tensor_is_compared() -> None:
    assert_each([ONES, ONES], [ONES, ONES], "sum")
    with pytest.raises(AssertionError, match=r"^rank 1, sum: "):
        assert_each([ONES, ONES + 1], [ONES, ONES], "sum")
    with pytest.raises(ValueError, match="zip"):
        assert_each([ONES], [ONES, ONES], "sum")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"output": ONES + 1, "loss": ONES}, "rank 1, output: "),
        ({"output": ONES}, r"rank 1 has \['output'\], not \['loss', 'output'\]"),
        (
            {"output": ONES, "loss": ONES, "mask": ONES},
            r"rank 1 has \['loss', 'mask', 'output'\], not \['loss', 'output'\]",
        ),
    ],
)
def test_every_ranks_tensors_are_compared_by_name(second: Tensors, message: str) -> None:
    right = {"output": ONES, "loss": ONES}
    assert_same([right, dict(reversed(right.items()))], [right, right], ordered=False)
    with pytest.raises(AssertionError, match=f"^{message}"):
        assert_same([right, second], [right, right], ordered=False)


def test_names_in_another_order_are_not_the_same() -> None:
    right = {"output": ONES, "loss": ONES}
    with pytest.raises(AssertionError, match=r"^rank 0 has \['loss', 'output'\], not \['output', 'loss'\]$"):
        assert_same([dict(reversed(right.items()))], [right])


def test_a_tolerance_may_depend_on_the_name() -> None:
    right, near = {"output": ONES, "loss": ONES}, {"output": ONES, "loss": ONES + 0.25}
    assert_same([near], [right], lambda name: 0.25 if name == "loss" else 0.0)
    assert_same([near], [right], 0.25)
    with pytest.raises(AssertionError, match=r"^rank 0, loss: "):
        assert_same([near], [right], lambda name: 0.25 if name == "output" else 0.0)


def test_each_element_has_a_bound_of_its_own() -> None:
    expected, bound = torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert_within(-bound, expected, bound, "")
    message = r"^rank 0, mean: got 2, expected 0 at \[0, 1\]: off by 2, beyond the bound 1; 1 of 4 elements are wrong$"
    with pytest.raises(AssertionError, match=message):
        assert_within(torch.full((2, 2), 2.0) * (bound == 1), expected, bound, "rank 0, mean")
    with pytest.raises(
        AssertionError, match=r"^mean: got nan, expected 0 at \[1, 1\]: off by nan, beyond the bound 3; 1 of 4 "
    ):
        assert_within(torch.tensor([[0.0, 0.0], [0.0, math.nan]]), expected, bound, "mean")
    with pytest.raises(AssertionError, match=r"^mean: got the shape \[2\], expected \[2, 2\]$"):
        assert_within(torch.zeros(2), expected, bound, "mean")


def test_two_tensors_that_share_most_elements_are_named() -> None:
    zeros, ones = torch.zeros(2, 2), torch.ones(2, 2)
    half = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert_unlike({"rank 0": zeros, "rank 1": ones, "rank 2": half})
    message = "rank 0 and rank 2 share 4 of 4 elements: draw each with a seed of its own"
    with pytest.raises(AssertionError, match=message):
        assert_unlike({"rank 0": zeros, "rank 1": ones, "rank 2": zeros.clone()})
    with pytest.raises(AssertionError, match="rank 0 and rank 1 share 3 of 4 elements"):
        assert_unlike({"rank 0": zeros, "rank 1": torch.tensor([[0.0, 0.0], [0.0, 4.0]])})
    with pytest.raises(AssertionError, match=r"rank 0 is \(2, 2\), rank 1 is \(4,\)"):
        assert_unlike({"rank 0": zeros, "rank 1": torch.ones(4)})


def test_the_step_of_a_wrong_loss_is_named() -> None:
    assert_losses([1.0, 2.0], [1.0, 2.0], rtol=0.0)
    with pytest.raises(
        AssertionError, match=r"^step 2, loss: got 3, expected 2 at \[\]: off by 1, beyond the bound 0.2; "
    ):
        assert_losses([1.0, 3.0], [1.0, 2.0], rtol=0.1)
    with pytest.raises(AssertionError, match=r"^losses of 1 steps, not of 2"):
        assert_losses([1.0], [1.0, 2.0], rtol=0.1)
