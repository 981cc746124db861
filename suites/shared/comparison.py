"""Whether ranks hold what they should: every assertion names the rank and the tensor that is wrong."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from suites.shared.causes import cause_of
from suites.shared.step import Tensors

Results = Sequence[Tensors]
"""What each rank holds, in the ranks' order."""


def assert_close(
    got: torch.Tensor, expected: torch.Tensor, where: str, *, atol: float = 0.0, rtol: float = 0.0
) -> None:
    """One tensor is as expected, in dtype and shape too; by default to the last bit."""
    alike = got.dtype == expected.dtype and got.shape == expected.shape
    if alike and (
        _near(got, expected, rtol, atol)
        or torch.equal(got, expected)
        or torch.allclose(got, expected, rtol=rtol, atol=atol)
    ):
        return
    raise AssertionError(_message(got, expected, where, atol, rtol))


def _message(got: torch.Tensor, expected: torch.Tensor, where: str, atol: float, rtol: float) -> str:
    """Names what is wrong: shape, dtype, or the element that is beyond its bound by most."""
    if got.shape != expected.shape:
        return f"{where}: got the shape {list(got.shape)}, expected {list(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{where}: got {got.dtype}, expected {expected.dtype}"
    have, want = (_wide(tensor.detach().cpu()) for tensor in (got, expected))
    off = (have - want).abs()
    bound = atol + rtol * want.abs()
    # Infinities are within no bound, and of one sign they differ by no number; what is no number is always wrong.
    beyond = got.detach().cpu() != expected.detach().cpu()
    if atol or rtol:
        beyond &= ~(off <= bound) | have.isinf() | want.isinf()
    excess = (off - bound).nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(~beyond, -math.inf)
    worst = int(excess.argmax())
    place = [int(index) for index in torch.unravel_index(torch.tensor(worst), off.shape)]
    shown = [_number(tensor.flatten()[worst]) for tensor in (got.detach().cpu(), expected.detach().cpu())]
    return (
        f"{where}: got {shown[0]}, expected {shown[1]} at {place}: off by {float(off.flatten()[worst]):.3g}, beyond "
        f"the bound {float(bound.expand_as(off).flatten()[worst]):.3g}; {int(beyond.sum())} of {off.numel()} elements "
        "are wrong"
    )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _number(element: torch.Tensor) -> str:
    value = element.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _near(got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> bool:
    """Tells that all elements are finite and within their bounds, as ``torch.allclose`` does in three times the time.

    If it does not, they may be so all the same. It looks at float32 and float64 alone.
    """
    if not (rtol or atol) or expected.dtype not in (torch.float32, torch.float64) or not expected.numel():
        return False
    have, want = got.detach(), expected.detach()
    off = (have - want).abs_()
    if rtol:
        off.sub_(want.abs().mul_(rtol))
    most = float(off.max())
    return most <= atol and math.isfinite(most)


def assert_same(
    got: Results, expected: Results, atol: float | Callable[[str], float] = 0.0, *, ordered: bool = True
) -> None:
    """Every rank has what is expected of it, by name, and nothing else.

    Args:
        got: by rank.
        expected: by rank.
        atol: how far a tensor may be off, or a function of its name that returns it; by default not at all.
        ordered: whether the names must come in the same order.
    """
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        names = list if ordered else sorted
        assert names(have) == names(want), f"rank {rank} has {names(have)}, not {names(want)}"
        for name, tensor in want.items():
            most = atol(name) if callable(atol) else atol
            with _with_cause(name, functools.partial(_named, name, got, expected)):
                assert_close(have[name], tensor, f"rank {rank}, {name}", atol=most)


def assert_each(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str, *, atol: float = 0.0, rtol: float = 0.0
) -> None:
    """Every rank's one tensor, which is called ``what``, is the one expected of it."""
    for rank, (have, want) in enumerate(zip(got, expected, strict=True)):
        with _with_cause(what, lambda: (got, expected)):
            assert_close(have, want, f"rank {rank}, {what}", atol=atol, rtol=rtol)


def assert_losses(got: Sequence[float], expected: Sequence[float], *, rtol: float) -> None:
    """The loss of each step, from the first one on, is the one expected."""
    assert len(got) == len(expected), f"losses of {len(got)} steps, not of {len(expected)}"
    for step, (have, want) in enumerate(zip(got, expected, strict=True), start=1):
        one, other = (torch.tensor(value, dtype=torch.float64) for value in (have, want))
        assert_close(one, other, f"step {step}, loss", rtol=rtol)


_Held = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]


def _named(name: str, got: Results, expected: Results) -> _Held:
    return [of_rank[name] for of_rank in got], [of_rank[name] for of_rank in expected]


@contextlib.contextmanager
def _with_cause(name: str, held: Callable[[], _Held]) -> Iterator[None]:
    """Adds the cause to the message of a comparison that fails, if it is known of what all ranks hold."""
    try:
        yield
    except AssertionError as wrong:
        try:
            got, expected = held()
        except KeyError:  # a rank has no such tensor
            raise wrong from None
        if cause := cause_of(name, got, expected):
            raise AssertionError(f"{wrong}; cause: {cause}") from None
        raise


def assert_unlike(tensors: Mapping[str, torch.Tensor]) -> None:
    """No two tensors of one shape share more than half of their elements.

    Ranks with equal batches, or layers with equal weights, give right results to a program that mixes them up.
    """
    for (one, first), (other, second) in itertools.combinations(tensors.items(), 2):
        assert first.shape == second.shape, f"{one} is {tuple(first.shape)}, {other} is {tuple(second.shape)}"
        alike = int((first == second).sum())
        assert 2 * alike <= first.numel(), (
            f"{one} and {other} share {alike} of {first.numel()} elements: draw each with a seed of its own"
        )


def assert_in_float32(got: torch.Tensor, exact: torch.Tensor, where: str) -> None:
    """A number was computed of 16-bit ones in float32: rounded to 16 bits on its way, it is off by 2**-12 or so."""
    assert_close(got, exact.float(), where, rtol=2.0**-17)


def assert_squares_in_float32(squared: Callable[[list[torch.Tensor]], torch.Tensor], share: float = 1.0) -> None:
    """The sum of all gradients' squares, or this share of it, is computed in float32 of 16-bit numbers.

    Each gradient has three equal numbers. 16 bits round its norm, the square of that, and each sum of squares.
    """
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        gradients = [torch.full((3,), (-1.0) ** value * value, dtype=dtype) for value in range(1, 256)]
        exact = torch.cat(gradients).double().square().sum()
        assert_in_float32(squared(gradients), exact * share, f"the squares of {dtype} gradients, together")


def assert_within(got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor, where: str) -> None:
    """No element is off by more than its own bound; one that is no number is."""
    if got.shape != expected.shape:
        raise AssertionError(f"{where}: got the shape {list(got.shape)}, expected {list(expected.shape)}")
    off = (got.double() - expected).abs()
    if bool((off <= bound).all()):
        return
    beyond = ~(off <= bound)
    worst = (off - bound).nan_to_num(nan=math.inf, posinf=math.inf).argmax()
    place = [int(index) for index in torch.unravel_index(worst, off.shape)]
    have, want, far, most = (float(tensor.expand_as(off).flatten()[worst]) for tensor in (got, expected, off, bound))
    raise AssertionError(
        f"{where}: got {have:.9g}, expected {want:.9g} at {place}: off by {far:.3g}, beyond the bound {most:.3g}; "
        f"{int(beyond.sum())} of {off.numel()} elements are wrong"
    )
