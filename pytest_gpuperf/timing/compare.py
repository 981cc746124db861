"""The race of two arms in one process group. Runs in rank processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpuperf.figures.comparison import block_ratios
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.clock import choose_clock
from pytest_gpuperf.timing.interleaving import interleave
from pytest_gpuperf.timing.measure import Timed
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import Step, find_reset, prepare
from pytest_gpuperf.timing.verification import Verification, Verify
from pytest_gpuperf.torch_internals import list_leaves

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far the arms' outputs may be apart, as torch.testing.assert_close takes it; None: its defaults."""

    rtol: float | None = None
    atol: float | None = None


def compare(
    context: Context,
    baseline: Callable[..., Any],
    optimized: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    tolerance: Tolerance,
    verify: Verify | None = None,
    warm: bool = False,
) -> tuple[RankSamples, RankSamples]:
    """Times both arms' steps in blocks of ABBA; entry function of a run. Other steps may have left the device warm.

    The outputs of each arm's first step are compared before anything is timed: a step may change its
    inputs, and a wrong answer needs no time.
    """
    steps = prepare(context, baseline, kwargs), prepare(context, optimized, kwargs)
    looks = [Verification.of(verify, context, program) for program in (baseline, optimized)]
    _compare_outputs(
        _take_first_output(steps[0], baseline, looks[0]), _take_first_output(steps[1], optimized, looks[1]), tolerance
    )
    arms = [
        Timed(context, choose_clock(context.device, sampling), step, sampling, look, taken=1, warm=warm or index > 0)
        for index, (step, look) in enumerate(zip(steps, looks, strict=True))
    ]
    for arm in arms:
        arm.warm_up()
    slow, fast = interleave(arms, lambda of_slowest: block_ratios(*of_slowest), sampling.precision, context.device)
    found = arms[0].samples(slow), arms[1].samples(fast)
    for arm in arms:  # last: a rank that raises leaves the others in their next collective
        arm.verify()
    return found


def _take_first_output(step: Step, program: Callable[..., Any], look: Verification | None) -> list[torch.Tensor]:
    # Cloned: the step may give back a buffer that the other arm, or its own next call, writes to.
    reset = find_reset(step)
    if reset is not None:
        reset()
    output = step()
    if look is not None:
        look(output, 1)
    tensors = [leaf.detach().clone() for leaf in list_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        name = getattr(program, "__qualname__", repr(program))
        raise TypeError(
            f"the step of {name} returned no tensor: both arms must return their output from the step, so that "
            "it can be compared before their times are"
        )
    return tensors


def _compare_outputs(expected: list[torch.Tensor], got: list[torch.Tensor], tolerance: Tolerance) -> None:
    if len(expected) != len(got):
        raise AssertionError(f"the arms' outputs differ: baseline has {len(expected)} tensors, optimized {len(got)}")
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):

        def message(text: str, index: int = index) -> str:
            return f"the arms' outputs differ in tensor {index}: {text}"

        torch.testing.assert_close(have, want, rtol=tolerance.rtol, atol=tolerance.atol, msg=message)
