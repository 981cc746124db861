"""Hooks of gradients, steps of optimizers and loads of states: each is seen, and one of them left out. Runs in ranks.

The functions are torch's public ones, replaced or hooked while a program runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_gpuperf.features.mutating import places
from pytest_gpuperf.features.mutating.c10d_internals import frame_here
from pytest_gpuperf.features.mutating.faults import Calls, Family, Site
from pytest_gpuperf.features.mutating.record import Record

_HOOKS: tuple[tuple[type, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
)
_LOADS: tuple[tuple[type, str], ...] = (
    (torch.nn.Module, "load_state_dict"),
    (torch.optim.Optimizer, "load_state_dict"),
)


class States:
    """Sees the hooks, steps and loads of one program that its own lines call."""

    def __init__(self, record: Record) -> None:
        """Has seen nothing.

        Args:
            record: takes note of the calls.
        """
        self._record = record
        self._kept: dict[int, _Kept] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Sees what is called within."""
        with ExitStack() as stack:
            for owner, name in _HOOKS:
                stack.enter_context(_replaced(owner, name, self._hook))
            for owner, name in _LOADS:
                stack.enter_context(_replaced(owner, name, self._load))
            for handle in (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(handle.remove)
            yield

    def _see(self, frame: FrameType, family: Family, operation: str) -> bool:
        """Takes note of a call; whether it is to be altered."""
        file, line, _, _ = places.place_of(frame, operation)
        size = dist.get_world_size() if dist.is_initialized() else 1
        site = Site(file, line, operation, "", 0)
        with self._record.lock:
            self._record.see(site, lambda: Calls(family, 0, size))
            return self._record.is_faulty(site)

    def _hook(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def register(owner: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            frame = frame_here()
            if places.is_of_user(frame) and self._see(frame, Family.HOOK, name):
                self._record.applied += 1
                self._record.changed += 1
                return real(owner, lambda *_: None, *args, **kwargs)
            return real(owner, hook, *args, **kwargs)

        return register

    def _load(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def load(owner: Any, *args: Any, **kwargs: Any) -> Any:
            frame = frame_here()
            if not places.is_of_user(frame) or not self._see(frame, Family.LOAD, f"{type(owner).__name__}.{name}"):
                return real(owner, *args, **kwargs)
            self._record.applied += 1
            before = {key: tensor.detach().clone() for key, tensor in _tensors(owner).items()} if _is_last() else {}
            result = real(owner, *args, **kwargs)
            self._record.changed += _unload(_tensors(owner), before) if _is_last() else 0
            return result

        return load

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._see(frame_here(), Family.STEP, f"{type(optimizer).__name__}.step"):
            self._record.applied += 1
            if _is_last():
                self._kept[id(optimizer)] = _Kept(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        kept = self._kept.pop(id(optimizer), None)
        if kept is not None:
            self._record.changed += kept.restore(optimizer)


class _Kept:
    """Parameters and state of an optimizer before its step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Copies them."""
        self._parameters = [_local(one).clone() for group in optimizer.param_groups for one in group["params"]]
        self._state = {
            parameter: {key: _copy(value) for key, value in state.items()}
            for parameter, state in optimizer.state.items()
        }

    def restore(self, optimizer: torch.optim.Optimizer) -> bool:
        """Puts them back; whether the step had changed a parameter."""
        changed = False
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for parameter, kept in zip(parameters, self._parameters, strict=True):
            local = _local(parameter)
            changed |= not torch.equal(local, kept)
            local.copy_(kept)
        optimizer.state.clear()
        optimizer.state.update(self._state)
        return changed


@contextmanager
def _replaced(owner: type, name: str, made: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, made(real, name))
    try:
        yield
    finally:
        setattr(owner, name, real)


def _tensors(owner: Any) -> dict[Any, torch.Tensor]:
    """The tensors of a module or an optimizer, without those of the parameters that an optimizer only refers to."""
    if isinstance(owner, torch.nn.Module):
        return {name: _local(one) for name, one in (*owner.named_parameters(), *owner.named_buffers())}
    parameters = [one for group in owner.param_groups for one in group["params"]]
    return {
        (index, key): _local(value)
        for index, parameter in enumerate(parameters)
        for key, value in owner.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def _unload(loaded: dict[Any, torch.Tensor], before: dict[Any, torch.Tensor]) -> bool:
    """Gives the largest of the loaded tensors what it had before, or zeros; whether that changes it."""
    if not loaded:
        return False
    key = max(loaded, key=lambda one: loaded[one].numel())
    old = before.get(key)
    kept = torch.zeros_like(loaded[key]) if old is None or old.shape != loaded[key].shape else old
    changed = not torch.equal(loaded[key], kept)
    loaded[key].copy_(kept)
    return changed


def _local(tensor: torch.Tensor) -> torch.Tensor:
    held = tensor.detach()
    to_local = getattr(held, "to_local", None)
    local: torch.Tensor = held if to_local is None else to_local()
    return local


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1
