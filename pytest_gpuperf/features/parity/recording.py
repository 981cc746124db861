"""``parity_record(FILE, model, optimizer)``: records a training script, which is run twice, and needs no pytest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn

from pytest_gpuperf.features.parity.recorded_files import Recording, make_path, write
from pytest_gpuperf.features.parity.records import Trace
from pytest_gpuperf.features.parity.rounding import RandomRounding
from pytest_gpuperf.features.parity.watching import watch

VARIABLE = "PARITY_ROUNDING"
"""Set to 1, 2, ... for runs of the reference with random rounding."""
STEPS = 3


class parity_record:  # noqa: N801  # used as a statement: with parity_record("one.pt", model, optimizer)
    """Records the first steps of a training script: ``with parity_record("one.pt", model, optimizer): train()``.

    The script runs under python, torchrun, srun and the like. Each rank writes its own file;
    ``python -m pytest_gpuperf parity-compare one.pt four.pt`` compares two runs. With ``PARITY_ROUNDING=1`` in the
    environment, every operation inside is rounded at random, and the run becomes a sample of the reference's rounding.

    Args:
        file: where to write; ranks and samples append to the name.
        model: a module, or the modules of this rank's pipeline stages.
        optimizer: the one whose steps count.
        steps: how many steps are recorded; later ones cost nothing.
        activations: as in ``watch``.
        rename: as in ``watch``.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | None = None,
        *,
        steps: int = STEPS,
        activations: bool = True,
        rename: Callable[[str], str] = lambda name: name,
    ) -> None:
        if steps < 1:
            raise ValueError(f"parity_record takes steps of 1 or more, got {steps}")
        self._file = Path(file)
        self._watch = watch(model, optimizer, activations=activations, rename=rename, steps=steps)
        self._sample = _sample()
        self._rounding: RandomRounding | None = None
        self._trace = Trace()

    def __enter__(self) -> Trace:
        self._trace = self._watch.__enter__()
        if self._sample:
            self._rounding = RandomRounding(self._sample, products=self._trace.products)
            self._rounding.__enter__()
        return self._trace

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._rounding is not None:
            self._rounding.__exit__(kind, error, traceback)
        self._watch.__exit__(kind, error, traceback)
        if kind is not None:
            return  # half a step would look like a fault
        rank, world = _place()
        if not self._trace.records:
            print(f"parity_record: no tensor to write to {self._file}", file=sys.stderr)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write(make_path(self._file, rank, world, self._sample), Recording(rank, world, self._trace))


def _place() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _sample() -> int:
    text = os.environ.get(VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE} is {text!r}, expected a number: 1, 2, ... for samples, 0 or unset for none")
    return int(text)
