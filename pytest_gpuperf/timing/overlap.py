"""The timing of a step beside its parts, in one process group. Runs in rank processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.figures.comparison import block_ratios
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.clock import choose_clock
from pytest_gpuperf.timing.interleaving import interleave
from pytest_gpuperf.timing.measure import Timed
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import prepare
from pytest_gpuperf.timing.verification import Verification, Verify

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context


def overlap(
    context: Context,
    programs: Sequence[Callable[..., Any]],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    verify: Verify | None = None,
    warm: bool = False,
) -> list[RankSamples]:
    """Times the steps of all programs in blocks of ABCCBA; entry function of a run.

    Args:
        context: the rank's.
        programs: the whole first, then its parts.
        kwargs: for all of them.
        sampling: what the author chose; its precision is that of the whole's time over the first part's.
        verify: looks at what the whole returns.
        warm: whether the device is warm by other steps.
    """
    whole = Verification.of(verify, context, programs[0])
    arms = [
        Timed(
            context,
            choose_clock(context.device, sampling),
            prepare(context, program, kwargs),
            sampling,
            whole if index == 0 else None,
            warm=warm or index > 0,
        )
        for index, program in enumerate(programs)
    ]
    for arm in arms:
        arm.warm_up()

    def slowdowns(of_slowest: Sequence[Sequence[float]]) -> list[float]:
        return block_ratios(of_slowest[0], of_slowest[1])

    seconds = interleave(arms, slowdowns, sampling.precision, context.device)
    found = [arm.samples(of_arm) for arm, of_arm in zip(arms, seconds, strict=True)]
    arms[0].verify()  # last: a rank that raises leaves the others in their next collective
    return found
