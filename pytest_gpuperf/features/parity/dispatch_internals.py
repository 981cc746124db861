"""Private names of torch that modes over operations need.

``TorchDispatchMode`` lies in a module with a private name, although torch documents it and many packages use it. Hooks
see modules alone, and nothing else sees the operations of a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


class OperationsMode(TorchDispatchMode):
    """Sees each operation of torch that runs within it; ``operate`` runs it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[Any, str] = {}

    def __enter__(self) -> Any:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func).split(".")[1]
        return self.operate(func, name, args, kwargs or {})

    def operate(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operation.

        Args:
            function: the operator, as ``torch.ops.aten.add.Tensor``.
            name: its name, as ``add``.
            args: its arguments.
            kwargs: its keyword arguments.
        """
        return function(*args, **kwargs)


def map_nested(kind: type[T], change: Callable[[T], Any], tree: Any) -> Any:
    """Copies nested lists, tuples and dictionaries, with ``change`` applied to each object of a type."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, tuple):
        return tuple([map_nested(kind, change, one) for one in tree])
    if isinstance(tree, list):
        return [map_nested(kind, change, one) for one in tree]
    if isinstance(tree, dict):
        return {key: map_nested(kind, change, one) for key, one in tree.items()}
    return tree
