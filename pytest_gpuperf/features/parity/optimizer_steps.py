"""What every optimizer is given at each of its steps, recorded without a word of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace, copy_local


class OptimizerSteps:
    """Records gradients and parameters at the steps of all optimizers, by the parameters' numbers.

    Args:
        clock: tells the place in the order of computation.
    """

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._records: list[tuple[int, Kind, int, int, Record]] = []
        self._numbers: dict[torch.optim.Optimizer, int] = {}
        self._steps: dict[torch.optim.Optimizer, int] = {}
        self._parameters: dict[tuple[int, int], torch.Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> OptimizerSteps:
        self._hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer)),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def trace(self, returned: object) -> Trace:
        """The steps as a trace.

        Args:
            returned: what the run returned; reports name a parameter that is among its values by its name there.
        """
        values = returned if isinstance(returned, Mapping) else {}
        names = {id(value): str(name) for name, value in values.items() if isinstance(value, torch.Tensor)}
        trace = Trace()
        for optimizer, kind, index, step, record in self._records:
            name = f"parameter {index}" + (f" of optimizer {optimizer}" if optimizer else "")
            trace.add(Record(Key(step, kind, name, auto=True), record.tensor, record.placement, at=record.at))
            if (title := names.get(id(self._parameters[optimizer, index]))) is not None:
                trace.titles[name] = title
        return trace

    def _iterate_parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        yield from enumerate(parameters)

    def _note(self, optimizer: torch.optim.Optimizer, kind: Kind, index: int, step: int, tensor: torch.Tensor) -> None:
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        part, placement = copy_local(tensor)
        record = Record(Key(step, kind, "", auto=True), part, placement, at=self._clock())
        self._records.append((number, kind, index, step, record))

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        step = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if step == 1:
            number = self._numbers.setdefault(optimizer, len(self._numbers))
            for index, parameter in self._iterate_parameters(optimizer):
                self._parameters[number, index] = parameter
                self._note(optimizer, Kind.START, index, 0, parameter)
        for index, parameter in reversed(list(self._iterate_parameters(optimizer))):
            if parameter.grad is not None:
                self._note(optimizer, Kind.GRADIENT, index, step, parameter.grad)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        for index, parameter in self._iterate_parameters(optimizer):
            self._note(optimizer, Kind.PARAMETER, index, self._steps[optimizer], parameter)
