"""The timing of one program at many sizes, prepared once. Runs in rank processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.clock import choose_clock
from pytest_gpuperf.timing.measure import Timed
from pytest_gpuperf.timing.sampling import MAX_STEPS_PER_SWEPT, Sampling
from pytest_gpuperf.timing.stepping import Step, name_kind
from pytest_gpuperf.timing.verification import Verification

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

VerifySize: TypeAlias = "Callable[[Context, Any, int, int], object]"
"""As ``Verify``, and takes the size in bytes last."""


def sweep(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sizes: Sequence[int],
    sampling: Sampling,
    verify: VerifySize | None = None,
    only: Sequence[int] = (),
    warm: bool = False,
) -> list[RankSamples]:
    """Times the step of each size, the smallest first; entry function of a run. The sizes share the budget.

    Args:
        context: the rank's.
        program: prepares the steps of all sizes.
        kwargs: for it.
        sizes: bytes, increasing.
        sampling: what the author chose.
        verify: looks at what the first step and the last one of each size return.
        only: sizes that are timed, each for as long as if all were; all if there is none.
        warm: whether the device is warm by other steps.
    """
    step_of = program(context, sizes=tuple(sizes), **kwargs)
    if not callable(step_of):
        name = getattr(program, "__qualname__", repr(program))
        raise TypeError(
            f"swept program {name} returned {name_kind(step_of)}, not a function of a size: it must prepare its inputs "
            "and return a function that takes bytes and returns the step of that size"
        )
    each = dataclasses.replace(sampling, budget=sampling.budget / len(sizes))
    return [
        _time_size(
            context,
            program,
            step_of(nbytes),
            nbytes,
            each,
            verify,
            warm=warm or place > 0,
        )
        for place, nbytes in enumerate(only or sizes)
    ]


def _time_size(
    context: Context,
    program: Callable[..., Any],
    step: Step,
    nbytes: int,
    sampling: Sampling,
    verify: VerifySize | None,
    *,
    warm: bool,
) -> RankSamples:
    name = f"{getattr(program, '__qualname__', repr(program))} of {nbytes} B"
    if not callable(step):
        raise TypeError(
            f"swept program {name} returned {name_kind(step)}, not a step: its function of a size must return a "
            "function of no arguments, which is then timed"
        )

    def look(context: Context, output: Any, steps: int) -> None:
        assert verify is not None
        verify(context, output, steps, nbytes)

    verification = None if verify is None else Verification(look, context, name)
    timed = Timed(
        context,
        choose_clock(context.device, sampling),
        step,
        sampling,
        verification,
        warm=warm,
        most_steps=MAX_STEPS_PER_SWEPT,
    )
    timed.warm_up()
    samples = timed.samples(timed.sample_until_precise())
    timed.verify()
    return samples
