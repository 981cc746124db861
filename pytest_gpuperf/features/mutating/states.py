"""Hooks of gradients, steps of optimizers, loads and saves: each is seen, and one of them left out. Runs in ranks.

The functions are torch's public ones, replaced or hooked while a program runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_gpuperf.features.mutating import places
from pytest_gpuperf.features.mutating.c10d_internals import find_caller_frame
from pytest_gpuperf.features.mutating.digests import add_tensor
from pytest_gpuperf.features.mutating.faults import Calls, Family, Site
from pytest_gpuperf.features.mutating.record import Record, is_captured

_HOOKS: tuple[tuple[type, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
)
_LOADS: tuple[tuple[type, str], ...] = (
    (torch.nn.Module, "load_state_dict"),
    (torch.optim.Optimizer, "load_state_dict"),
)
_CHECKPOINT = "torch.distributed.checkpoint"  # slow to import: only a program that has it loaded can call it


class States:
    """Sees the hooks, steps and loads of one program that its own lines call."""

    def __init__(self, record: Record) -> None:
        """Has seen nothing.

        Args:
            record: takes note of the calls.
        """
        self._record = record
        self._kept: dict[int, _Kept] = {}
        self._saved: torch.Tensor | None = None

    @contextmanager
    def install(self) -> Iterator[None]:
        """Sees what is called within."""
        with ExitStack() as stack:
            for owner, name in _HOOKS:
                stack.enter_context(_replace(owner, name, self._hook))
            for owner, name in _LOADS:
                stack.enter_context(_replace(owner, name, self._load))
            stack.enter_context(_replace(torch, "save", self._save))
            for module in (torch, torch.random, torch.cuda, torch.cuda.random):
                stack.enter_context(_replace(module, "manual_seed", self._seed))
            if (checkpoint := sys.modules.get(_CHECKPOINT)) is not None:
                stack.enter_context(_replace(checkpoint, "save", self._save))
                stack.enter_context(_replace(checkpoint, "load", self._load))
            for handle in (
                register_optimizer_step_pre_hook(self._keep_before_step),
                register_optimizer_step_post_hook(self._restore_after_step),
            ):
                stack.callback(handle.remove)
            yield

    def _see(self, frame: FrameType, family: Family, operation: str) -> Site:
        """Takes note of a call; its site."""
        file, line, _, _ = places.find_place(frame, operation)
        size = dist.get_world_size() if dist.is_initialized() else 1
        site = Site(file, line, operation, "", 0)
        with self._record.lock:
            self._record.see(site, lambda: Calls(family, 0, size))
        return site

    def _is_faulty(self, frame: FrameType, family: Family, operation: str) -> bool:
        """Takes note of a call; whether it is to be altered."""
        return self._record.is_faulty(self._see(frame, family, operation))

    def _hook(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def register(owner: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            frame = find_caller_frame()
            if places.is_of_user(frame) and self._is_faulty(frame, Family.HOOK, name):
                self._record.applied += 1
                self._record.changed += 1
                return real(owner, lambda *_: None, *args, **kwargs)
            return real(owner, hook, *args, **kwargs)

        return register

    def _load(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def load(*args: Any, **kwargs: Any) -> Any:
            frame, owner = find_caller_frame(), next(iter((*args, *kwargs.values())))
            operation = name if isinstance(owner, Mapping) else f"{type(owner).__name__}.{name}"
            if not places.is_of_user(frame) or not self._is_faulty(frame, Family.LOAD, operation):
                return real(*args, **kwargs)
            self._record.applied += 1
            before = (
                {key: tensor.detach().clone() for key, tensor in _collect_tensors(owner).items()} if _is_last() else {}
            )
            result = real(*args, **kwargs)
            self._record.changed += _unload(_collect_tensors(owner), before) if _is_last() else 0
            return result

        return load

    def _save(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def save(*args: Any, **kwargs: Any) -> Any:
            frame, state = find_caller_frame(), next(iter((*args, *kwargs.values())))
            largest = _find_largest(_collect_tensors(state)) if places.is_of_user(frame) else None
            if largest is None:
                return real(*args, **kwargs)
            site = self._see(frame, Family.SAVE, name)
            with self._stale(largest) if self._record.is_faulty(site) else nullcontext():
                add_tensor(self._record.find_sent_digest(site), largest)
                return real(*args, **kwargs)

        return save

    def _seed(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def begin(seed: int) -> Any:
            frame = find_caller_frame()
            if places.is_of_user(frame) and self._is_faulty(frame, Family.SEED, name):
                self._record.applied += 1
                self._record.changed += _is_last()
                # One seed for all ranks is no longer one, and one by rank is that of the rank before.
                return real(int(seed) - _is_last())
            return real(seed)

        return begin

    @contextmanager
    def _stale(self, tensor: torch.Tensor) -> Iterator[None]:
        """Within, the tensor holds what it held at the save before, or zeros."""
        kept, old = tensor.clone(), self._saved
        alike = old is not None and (old.shape, old.dtype) == (kept.shape, kept.dtype)
        tensor.copy_(old if old is not None and alike else torch.zeros_like(kept))
        self._record.applied += 1
        self._record.changed += not torch.equal(tensor, kept)
        try:
            yield
        finally:
            tensor.copy_(kept)
            self._saved = kept

    def _keep_before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not is_captured() and self._is_faulty(find_caller_frame(), Family.STEP, f"{type(optimizer).__name__}.step"):
            self._record.applied += 1
            if _is_last():
                self._kept[id(optimizer)] = _Kept(optimizer)

    def _restore_after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        kept = self._kept.pop(id(optimizer), None)
        if kept is not None:
            self._record.changed += kept.restore(optimizer)


class _Kept:
    """Parameters and state of an optimizer before its step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Copies them."""
        self._parameters = [_detach_local(one).clone() for group in optimizer.param_groups for one in group["params"]]
        self._state = {
            parameter: {key: _copy(value) for key, value in state.items()}
            for parameter, state in optimizer.state.items()
        }

    def restore(self, optimizer: torch.optim.Optimizer) -> bool:
        """Puts them back; whether the step had changed a parameter."""
        changed = False
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for parameter, kept in zip(parameters, self._parameters, strict=True):
            local = _detach_local(parameter)
            changed |= not torch.equal(local, kept)
            local.copy_(kept)
        optimizer.state.clear()
        optimizer.state.update(self._state)
        return changed


@contextmanager
def _replace(
    owner: type | ModuleType, name: str, made: Callable[[Callable[..., Any], str], Callable[..., Any]]
) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, made(real, name))
    try:
        yield
    finally:
        setattr(owner, name, real)


def _collect_tensors(owner: Any) -> dict[Any, torch.Tensor]:
    """The tensors of a module, a state or an optimizer, without the parameters that an optimizer only refers to."""
    if isinstance(owner, torch.nn.Module):
        return {name: _detach_local(one) for name, one in (*owner.named_parameters(), *owner.named_buffers())}
    if not isinstance(owner, torch.optim.Optimizer):
        return {index: _detach_local(one) for index, one in enumerate(_flatten(owner))}
    parameters = [one for group in owner.param_groups for one in group["params"]]
    return {
        (index, key): _detach_local(value)
        for index, parameter in enumerate(parameters)
        for key, value in owner.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def _flatten(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, torch.nn.Module):
        yield from _collect_tensors(state).values()
    elif isinstance(state, Mapping | list | tuple):
        for one in state.values() if isinstance(state, Mapping) else state:
            yield from _flatten(one)


def _find_largest(tensors: Mapping[Any, torch.Tensor]) -> torch.Tensor | None:
    """The largest one, without gradients; of numbers, if there are any: other bytes may be a generator's state."""
    data = [tensor.data for tensor in tensors.values()]
    return max(data, key=lambda tensor: (tensor.is_floating_point(), tensor.numel()), default=None)


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


def _detach_local(tensor: torch.Tensor) -> torch.Tensor:
    held = tensor.detach()
    to_local = getattr(held, "to_local", None)
    local: torch.Tensor = held if to_local is None else to_local()
    return local


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1
