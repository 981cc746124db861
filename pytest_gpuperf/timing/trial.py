"""One configuration of a search: its time, its memory and its output, or why it cannot run. Runs in rank processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pytest_gpuperf.figures.search import DoesNotFit
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.timing.clock import choose_clock, reduce_to_slowest
from pytest_gpuperf.timing.compare import Tolerance
from pytest_gpuperf.timing.device_memory import count_held_bytes, own_peak, read_pinned_peak, release_memory
from pytest_gpuperf.timing.measure import Timed
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.timing.stepping import find_reset, prepare
from pytest_gpuperf.timing.verification import Verification, Verify
from pytest_gpuperf.torch_internals import list_leaves

if TYPE_CHECKING:
    from pytest_gpuperf.ranks.context import Context

# CUDA's allocator, CUDA itself and NCCL say "out of memory", and the CPU's allocator says the other.
_OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory")
_TRIED = re.compile(r"ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_BYTES = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


@dataclass(frozen=True, slots=True)
class RankTrial:
    """What one rank saw of a configuration."""

    samples: RankSamples
    peak: int | None
    """Bytes of device memory that the program held while steps ran; None on CPUs."""
    host_peak: int | None
    """Bytes of pinned host memory that torch held while steps ran, in use or cached; None on CPUs."""
    output: tuple[torch.Tensor, ...]
    """Tensors that the first step returned."""


def trial(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    needs: float | None,
    verify: Verify | None = None,
    warm: bool = False,
) -> RankTrial:
    """Times the step that the program prepares, and looks at its memory; entry function of a run.

    Args:
        context: the rank's.
        program: prepares the step.
        kwargs: for it.
        sampling: what the author chose.
        needs: bytes of the rank that needs the most, if that is known; more than there are are not tried.
        verify: looks at what the first step and the last one return.
        warm: whether the device is warm by other steps.

    Raises:
        DoesNotFit: the rank lacks memory for it.
        AssertionError: ``verify`` found an output wrong.
        TypeError: the program returned no step, or its step no tensor.
    """
    release_memory(context.device)  # the peak is to be of this configuration alone
    there = -reduce_to_slowest([-float(_read_free_bytes(context))], context.device)[
        0
    ]  # of the rank that has the least: all decide alike
    if needs is not None and needs > there:
        raise DoesNotFit(needs, there, True)
    before = count_held_bytes(context.device)  # after a collective
    try:
        found = _time(context, program, kwargs, sampling, verify, warm)
    except RuntimeError as error:
        if _OUT_OF_MEMORY.search(str(error)) is None:
            raise
        raise DoesNotFit(_read_allocated_bytes(context) + _read_tried_bytes(str(error)), there, False) from error
    return replace(found, peak=own_peak(found.peak, before, context.device))


def assert_equal_outputs(
    first: tuple[str, Sequence[RankTrial]], other: tuple[str, Sequence[RankTrial]], tolerance: Tolerance
) -> None:
    """Compares what two configurations returned, rank by rank; runs in the pytest process.

    Args:
        first: name and ranks of the configuration that the others must agree with.
        other: name and ranks of another one.
        tolerance: how far they may be apart.

    Raises:
        AssertionError: they differ; names both, the rank and the tensor.
    """
    (expected_name, expected), (name, got) = first, other
    for rank, (want, have) in enumerate(zip(expected, got, strict=True)):
        where = f"the outputs of configurations {expected_name!r} and {name!r} differ on rank {rank}"
        if len(want.output) != len(have.output):
            raise AssertionError(f"{where}: the first has {len(want.output)} tensors, the other {len(have.output)}")
        for index, (one, another) in enumerate(zip(want.output, have.output, strict=True)):

            def message(text: str, where: str = where, index: int = index) -> str:
                return f"{where}, in tensor {index}: {text}"

            torch.testing.assert_close(another, one, rtol=tolerance.rtol, atol=tolerance.atol, msg=message)


def _time(
    context: Context,
    program: Callable[..., Any],
    kwargs: Mapping[str, Any],
    sampling: Sampling,
    verify: Verify | None,
    warm: bool,
) -> RankTrial:
    step = prepare(context, program, kwargs)
    reset = find_reset(step)
    if reset is not None:
        reset()
    output = step()
    look = Verification.of(verify, context, program)
    if look is not None:
        look(output, 1)
    tensors = tuple(leaf.detach().cpu().clone() for leaf in list_leaves(output) if isinstance(leaf, torch.Tensor))
    if not tensors:
        name = getattr(program, "__qualname__", repr(program))
        raise TypeError(
            f"the step of {name} returned no tensor on rank {context.rank}: it must return what all configurations "
            "have in common, such as the loss, so that it can be compared"
        )
    del output
    cuda = context.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_host_memory_stats()
    timed = Timed(context, choose_clock(context.device, sampling), step, sampling, look, taken=1, warm=warm)
    timed.warm_up()
    samples = timed.samples(timed.sample_until_precise())
    peak = torch.cuda.max_memory_allocated() if cuda else None
    host_peak = read_pinned_peak() if cuda else None
    timed.verify()
    return RankTrial(samples, peak, host_peak, tensors)


def _read_free_bytes(context: Context) -> int:
    """Bytes that a program could have on this rank's device; on CPUs the rank's share of the machine's memory."""
    if context.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(context.device)
        return free + torch.cuda.memory_reserved(context.device)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // context.world_size


def _read_allocated_bytes(context: Context) -> int:
    return torch.cuda.max_memory_allocated(context.device) if context.device.type == "cuda" else 0


def _read_tried_bytes(message: str) -> float:
    """Bytes of the allocation that failed, as its message has them; 0 if it has none, as NCCL's."""
    found = _TRIED.search(message)
    return 0.0 if found is None else float(found[1]) * _BYTES[found[2]]
