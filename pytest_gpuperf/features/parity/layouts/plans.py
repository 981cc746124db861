"""Finds which linear layers tensor parallelism can split, by experiments with the model.

Layers A and B are a pair if rank r's features of A reach rank r's features of B, and nothing else. Then A is split by
columns and B by rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pytest_gpuperf.features.parity.layouts.training import SplitError, call, list_tensors, map_nested

COLUMNS, ROWS = "columns", "rows"


@dataclass(frozen=True, slots=True)
class _Run:
    """What a forward pass showed."""

    outputs: tuple[torch.Tensor, ...]
    entered: Mapping[str, torch.Tensor]
    """The input of each linear layer."""


def derive(model: nn.Module, inputs: Any, size: int) -> dict[str, str]:
    """Returns ``columns`` or ``rows`` for each layer that can be split.

    Args:
        model: on one device.
        inputs: of one step.
        size: number of ranks.

    Raises:
        SplitError: no pair of layers can be split.
    """
    probe = _Probe(model, inputs)
    plan: dict[str, str] = {}
    near: list[str] = []
    for index, name in enumerate(probe.order):
        rows = probe.linears[name]
        free = [one for one in probe.order[:index] if one not in plan and _find_parent(one) == _find_parent(name)]
        for begin in range(len(free)):
            columns = free[begin:]
            if rows.in_features % size or any(probe.linears[one].out_features % size for one in columns):
                continue
            why = probe.why_not(columns, name, size)
            if why is None:
                plan |= {**dict.fromkeys(columns, COLUMNS), name: ROWS}
                break
            if why:
                near.append(why)
    if not plan:
        found = f" ({near[0]})" if near else ""
        raise SplitError(f"no pair of linear layers can be cut for {size} ranks{found}: give --plan")
    return plan


def _find_parent(name: str) -> str:
    return name.rpartition(".")[0]


class _Probe:
    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self._model = model
        self._inputs = inputs
        modules = {name: one for name, one in model.named_modules() if type(one) is nn.Linear}
        order: list[str] = []
        calls: dict[str, int] = {}

        def see(name: str) -> Callable[[Any, torch.Tensor], None]:
            def note(_: Any, out: torch.Tensor) -> None:
                calls[name] = calls.get(name, 0) + 1
                if name not in order:
                    order.append(name)

            return note

        with self._hook({name: see(name) for name in modules}):
            self._call_model()
        # A layer that is called twice would need the same pair each time.
        self.order = [name for name in order if calls[name] == 1]
        self.linears = {name: modules[name] for name in self.order}
        self._plain = self._run({})

    def why_not(self, columns: Sequence[str], rows: str, size: int) -> str | None:
        """Returns why the layers are no pair; empty if they have nothing to do with each other, None if they are."""
        others = self._find_other_parameter(columns, rows)
        for rank in range(size):
            changed = self._run({name: self._make_noise(self.linears[name], rank, size) for name in columns})
            before, after = self._plain.entered[rows], changed.entered[rows]
            if before.shape != after.shape:
                return ""
            moved = (before != after).flatten(0, -2).any(0)
            mine = torch.zeros_like(moved)
            mine[_make_slice(self.linears[rows].in_features, rank, size)] = True
            if not bool(moved.any()):
                return ""
            if bool((moved & ~mine).any()):
                return f"features of {', '.join(columns)} mix before {rows}"
            held = self._run(
                {name: self._make_noise(self.linears[name], rank, size) for name in columns}, held={rows: before}
            )
            if any(not torch.equal(a, b) for a, b in zip(held.outputs, self._plain.outputs, strict=True)):
                return f"{', '.join(columns)} reach the output by another way than {rows}"
        if others:
            return f"{others} acts between {', '.join(columns)} and {rows}: its gradient would be a part"
        return None

    def _find_other_parameter(self, columns: Sequence[str], rows: str) -> str:
        """A parameter that reaches ``rows`` by another way than ``columns``; empty if there is none."""
        entered: list[torch.Tensor] = []
        changes: dict[str, Callable[[Any, torch.Tensor], Any]] = {name: lambda _, out: out.detach() for name in columns}
        handle = self.linears[rows].register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        try:
            with self._hook(changes), torch.enable_grad():
                self._call_model()
        finally:
            handle.remove()
        if not entered or not entered[0].requires_grad:
            return ""
        named = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(entered[0].sum(), list(named.values()), allow_unused=True)
        return next((name for name, g in zip(named, gradients, strict=True) if g is not None), "an input")

    def _run(
        self,
        changes: Mapping[str, Callable[[Any, torch.Tensor], Any]],
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> _Run:
        entered: dict[str, torch.Tensor] = {}
        handles = []
        for name, linear in self.linears.items():

            def entering(_: nn.Module, args: tuple[Any, ...], name: str = name) -> Any:
                entered[name] = args[0].detach().clone()
                return (held[name], *args[1:]) if held and name in held else None

            handles.append(linear.register_forward_pre_hook(entering))
        try:
            with self._hook(changes), torch.no_grad():
                output = self._call_model()
        finally:
            for handle in handles:
                handle.remove()
        return _Run(tuple(one.detach().clone() for one in list_tensors(output)), entered)

    def _call_model(self) -> Any:
        torch.manual_seed(0)
        return call(self._model, map_nested(torch.clone, self._inputs))

    @contextlib.contextmanager
    def _hook(self, changes: Mapping[str, Callable[[Any, torch.Tensor], Any]]) -> Iterator[None]:
        modules = dict(self._model.named_modules())
        handles = [
            modules[name].register_forward_hook(lambda module, _, out, change=change: change(module, out))
            for name, change in changes.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @staticmethod
    def _make_noise(linear: nn.Linear, rank: int, size: int) -> Callable[[Any, torch.Tensor], torch.Tensor]:
        """Moves the features of a rank."""

        def change(_: Any, out: torch.Tensor) -> torch.Tensor:
            changed = out.clone()
            part = _make_slice(linear.out_features, rank, size)
            generator = torch.Generator().manual_seed(rank)
            noise = torch.randn(changed[..., part].shape, generator=generator).to(out)
            changed[..., part] += noise
            return changed

        return change


def _make_slice(features: int, rank: int, size: int) -> slice:
    return slice(rank * features // size, (rank + 1) * features // size)
