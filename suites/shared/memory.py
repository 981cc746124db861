"""What a step takes of a rank's memory: bytes that are really kept, whatever hooks claim."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations made on a device while it was on, as long as they are alive.

    What autograd saves are tensors like others to it: it sees what is really kept, whatever hooks claim.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._device = device
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.peak = 0
        """The largest ``live()`` after any operation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and notes down what it made."""
        given = {id(tensor.untyped_storage()) for tensor in self._tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in given:  # neither a view nor in place
                self._storages[id(storage)] = weakref.ref(storage), storage.nbytes()
        self.peak = max(self.peak, self.live())
        return result

    def note_moved(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Counts the copy no more: it stands for one in the host's memory.

        Raises:
            ValueError: it is on another device, or is no copy.
        """
        if copy.device.type != "cpu":
            raise ValueError(f"a tensor was to be moved to the host, and its copy is on {copy.device}")
        if copy.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            raise ValueError("a tensor was to be moved to the host, and nothing was copied")
        self._storages.pop(id(copy.untyped_storage()), None)

    def live(self) -> int:
        """Bytes that are alive now."""
        self._storages = {key: entry for key, entry in self._storages.items() if entry[0]() is not None}
        return sum(nbytes for _, nbytes in self._storages.values())

    def _tensors(self, tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device == self._device]
