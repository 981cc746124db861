"""``watch(model, optimizer)``: records outputs, gradients, parameters and optimizer state in order of computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pytest_gpuperf.features.parity.products import read_products
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace, copy_local, strip_wrappers
from pytest_gpuperf.features.parity.step_starts import find_starts

_WHOLE = "(model)"


class watch:  # noqa: N801  # used as a statement: with watch(model, optimizer) as trace
    """Records a training loop: ``with watch(model, optimizer) as trace: ...; return trace``.

    A step ends when the optimizer's ``step`` returns. Without an optimizer, gradients are recorded at the end.

    Args:
        model: a module, or the modules of this rank's pipeline stages.
        optimizer: the one whose steps count.
        activations: whether to record inputs and outputs of submodules, and the outputs' gradients. They never make a
            check fail; they find the place of a fault. Leave them out for compiled models, which skip hooks.
        rename: a function of the rank's name of a module or parameter that returns the reference's.
        after: steps that were done before, as in a resumed run; the first recorded step follows them.
        steps: how many steps are recorded; by default all.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: torch.optim.Optimizer | None = None,
        *,
        activations: bool = True,
        rename: Callable[[str], str] = lambda name: name,
        after: int = 0,
        steps: int | None = None,
    ) -> None:
        self._models = [model] if isinstance(model, nn.Module) else list(model)
        self._optimizer = optimizer
        self._activations = activations
        self._rename = rename
        self._trace = Trace()
        self._after = after
        self._step = after + 1
        self._last_step = None if steps is None else after + steps
        self._last: torch.Tensor | None = None
        self._handles: list[Any] = []

    def __enter__(self) -> Trace:
        for _, parameter in self._iterate_parameters():
            self._trace.products |= read_products(parameter.device)
        if self._after:
            self._note_end(self._after)
        else:
            for name, parameter in self._iterate_parameters():
                self._note(Kind.START, name, parameter, step=0)
        if self._activations:
            for model in self._models:
                watched = set()
                for name, module in model.named_modules():
                    plain = self._rename(strip_wrappers(name))
                    if plain not in watched:  # a wrapper has the name of what it wraps
                        watched.add(plain)
                        self._watch_module(plain, module)
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(lambda *_: self._note_gradients()))
            self._handles.append(self._optimizer.register_step_post_hook(lambda *_: self._end_step()))
        return self._trace

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._optimizer is None:
            self._note_gradients()
        if kind is None and not any(key.kind is Kind.GRADIENT for key in self._trace.records):
            self._judge_outputs()
        self._remove_hooks()

    def _judge_outputs(self) -> None:
        """Makes results of the whole model's outputs: they are all that counts if nothing was differentiated."""
        records = self._trace.records
        self._trace.records = {}
        for key, record in records.items():
            if key.kind is Kind.OUTPUT and key.name.partition("[")[0] == _WHOLE:
                key = replace(key, kind=Kind.RESULT)
            self._trace.records[key] = replace(record, key=key)

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _iterate_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for model in self._models:
            for name, parameter in model.named_parameters():
                yield self._rename(strip_wrappers(name)), parameter

    def _note(self, kind: Kind, name: str, tensor: torch.Tensor, *, step: int | None = None) -> None:
        part, placement = copy_local(tensor)
        key = Key(self._step if step is None else step, kind, name)
        self._trace.add(Record(key, part, placement))

    def _watch_module(self, name: str, module: nn.Module) -> None:
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            return  # containers are never called
        name = name or _WHOLE

        def entering(_: nn.Module, args: tuple[Any, ...]) -> None:
            first = args[0] if args else None
            # What one module hands to the next is recorded as the first one's output.
            if isinstance(first, torch.Tensor) and first.is_floating_point() and first is not self._last:
                self._last = first
                self._note(Kind.INPUT, name, first)

        def leaving(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            for index, value in enumerate(output if isinstance(output, tuple | list) else [output]):
                if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                    continue
                self._last = value
                label = f"{name}[{index}]" if index else name
                self._note(Kind.OUTPUT, label, value)
                if value.requires_grad:
                    step = self._step

                    def back(gradient: torch.Tensor | None, label: str = label, step: int = step) -> None:
                        if gradient is not None:  # cuDNN's networks give none to an output that nothing uses
                            self._note(Kind.OUTPUT_GRADIENT, label, gradient, step=step)

                    value.register_hook(back)

        self._handles.append(module.register_forward_pre_hook(entering))
        self._handles.append(module.register_forward_hook(leaving))

    def _note_gradients(self) -> None:
        for name, parameter in reversed(list(self._iterate_parameters())):  # as the backward pass computes them
            if parameter.grad is not None:
                self._note(Kind.GRADIENT, name, parameter.grad)

    def _list_state(self) -> Iterator[tuple[Kind, str, torch.Tensor]]:
        """Optimizer states, then the parameters, which are updated by them."""
        state: Mapping[Any, Any] = {} if self._optimizer is None else self._optimizer.state
        for name, parameter in self._iterate_parameters():
            for entry, value in state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield Kind.STATE, f"{name}.{entry}", value
        for name, parameter in self._iterate_parameters():
            yield Kind.PARAMETER, name, parameter

    def _note_end(self, step: int) -> None:
        for kind, name, tensor in self._list_state():
            self._note(kind, name, tensor, step=step)

    def _end_step(self) -> None:
        self._note_end(self._step)
        starts = find_starts()
        if starts is not None:
            for kind, name, tensor in self._list_state():
                starts.put(Key(self._step, kind, name), tensor)
        self._step += 1
        if self._last_step is not None and self._step > self._last_step:
            self._remove_hooks()
