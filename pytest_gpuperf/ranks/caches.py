"""What torch remembers of process groups that are closed. Runs in rank processes.

DTensor keeps the sharding of every operation that it has met, and with it the mesh that it met it on. Two meshes
of the same ranks and names are equal to it whatever groups they have (DeviceMesh.__eq__), so that a test would be
handed an earlier test's mesh, whose groups' names now belong to nobody, or to other ranks.
"""

from __future__ import annotations

import sys

# Which of these there are depends on the version; one alone may clear but a part.
_CLEAR = (
    "_clear_python_sharding_prop_cache",
    "_clear_fast_path_sharding_prop_cache",
    "_clear_sharding_prop_cache",
)


def forget_meshes() -> None:
    """Has DTensor find out anew what it kept with a mesh; if nobody has loaded it, it kept nothing."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    for name in _CLEAR:
        clear = getattr(debug, name, None)
        if clear is not None:
            clear()
