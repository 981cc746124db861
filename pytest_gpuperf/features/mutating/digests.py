"""Digests of values, by which two runs of a program are compared to the bit. Runs in rank processes."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def make_digest(data: bytes = b"") -> hashlib._Hash:
    """Returns a digest of some bytes that takes more: SHA-1, which processors compute faster than BLAKE2."""
    return hashlib.sha1(data, usedforsecurity=False)


def add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    """Adds type, shape and bits of a tensor to a digest; of a distributed one, those that this rank has."""
    local = getattr(tensor, "to_local", None)
    held: torch.Tensor = (tensor if local is None else local()).detach()
    digest.update(f"{held.dtype}{tuple(held.shape)}".encode())
    if held.layout is not torch.strided:
        held = held.to_dense()
    if held.numel() and held.device.type != "meta":
        flat = held.resolve_conj().resolve_neg().contiguous().cpu().view(-1)
        digest.update(flat.view(torch.uint8).numpy())


def add(digest: Any, value: Any) -> None:
    """Adds a value to a digest: tensors and what holds them to the bit, other objects as they are printed."""
    if isinstance(value, torch.Tensor):
        add_tensor(digest, value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            add(digest, key)
            add(digest, one)
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for one in value:
            add(digest, one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        add(digest, [getattr(value, field.name) for field in dataclasses.fields(value)])
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        digest.update(f"{value.dtype}".encode() + value.tobytes())
    else:
        digest.update(_ADDRESS.sub("", repr(value)).encode(errors="surrogatepass"))


def digest_states(modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> bytes:
    """A digest of the parameters and buffers of modules, and of the states of optimizers."""
    digest = make_digest()
    seen: set[int] = set()

    def once(value: Any) -> None:
        if isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            add_tensor(digest, value)

    for module in modules:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            once(tensor)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                once(parameter)
                for value in (optimizer.state.get(parameter) or {}).values():
                    once(value)
    return digest.digest()
