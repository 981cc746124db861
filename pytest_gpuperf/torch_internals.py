"""The only module that uses private names of torch, each in a function with a test that shows what is relied on.

Nothing here imports torch before it is called. Each function runs in rank processes, but those for pickling, which run
on both sides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup, Store

DYNAMO = "torch._dynamo"
"""The module that optimizers, DDP and checkpoints import when they are first used. Only its name is used."""

_MESSAGES = frozenset({"send", "recv", "isend", "irecv"})

COMPILER = "torch._inductor.compile_fx"
"""The module that ``torch.compile`` imports when it first compiles. Only its name is used."""

OPERATOR_MODULES = ("torch._ops", "torch._classes")
"""The modules that define the types of ``torch.ops``, ``torch.classes`` and all that is in them."""

SAME_ON_ALL_RANKS = frozenset({"all_reduce", "allreduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"})
"""Operations whose tensors have the same shapes on all ranks, as the flight recorder names them."""

COLLECTIVES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
}
"""The operations of ``torch.ops.c10d`` that are collectives, and what they are. Which exist depends on the version."""

# NCCL's recorder is one of its own. The public way to it is a file that a timeout of torch's watchdog writes.
_RECORDERS = {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}

# Which of these exist depends on the version; one of them may clear only a part.
_CLEAR = (
    "_clear_python_sharding_prop_cache",
    "_clear_fast_path_sharding_prop_cache",
    "_clear_sharding_prop_cache",
)


def open_groups() -> list[ProcessGroup]:
    """All process groups of this process, the oldest first; publicly, torch names the default group alone."""
    from torch.distributed import distributed_c10d as c10d

    return list(c10d._world.pg_map)


def is_open(group: ProcessGroup | None) -> bool:
    """Whether the group has not been destroyed; publicly, one would use it and catch what its torch raises."""
    from torch.distributed import distributed_c10d as c10d

    return group is not None and group in c10d._world.pg_map


def count_groups() -> int:
    """How many groups torch has numbered since the default group was opened; no public name counts them."""
    from torch.distributed import distributed_c10d as c10d

    return int(c10d._world.group_count)


def group_members() -> dict[str, tuple[int, ...]]:
    """The global ranks of each group that this rank is a member of; ``get_process_group_ranks`` takes one group."""
    from torch.distributed import distributed_c10d as c10d

    world = c10d._world
    # Groups that this rank is no member of have ranks here, under one key for all, and no name.
    # And the program may destroy one at this moment, on its own thread.
    named = [(name, world.pg_group_ranks.get(group)) for group, name in list(world.pg_names.items())]
    return {name: tuple(ranks) for name, ranks in named if ranks is not None}


def is_coalescing() -> bool:
    """Whether operations are being gathered that are issued together later; torch says so nowhere publicly."""
    from torch.distributed import distributed_c10d as c10d

    return bool(c10d._world.pg_coalesce_state)


def make_default(group: ProcessGroup | None) -> None:
    """Makes the group the default one; publicly, only ``init_process_group`` does, with new communicators."""
    from torch.distributed import distributed_c10d as c10d

    c10d._update_default_pg(group)


def find_default_backend(device: torch.device) -> Any:
    """The default group's backend for the device, whose options can be set; ``get_backend`` returns a name."""
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_group()._get_backend(device)


def read_default_timeout(device: torch.device) -> Any:
    """How long the default group's collectives for the device may take; publicly, it can be set and not read."""
    return find_default_backend(device).options._timeout


def find_default_store() -> Store:
    """The default group's store; publicly, only who passed it to ``init_process_group`` has it."""
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_store()


def read_sequence_number(group: ProcessGroup) -> int:
    """How many collectives the group has issued, as its backend counts them; no public name counts them."""
    backend: Any = group  # torch does not declare the method
    return int(backend._get_sequence_number_for_group())


def count_issued() -> tuple[tuple[str, int], ...]:
    """The name of each group of this rank with how many collectives it has issued; no public name counts them."""
    from torch.distributed import distributed_c10d as c10d

    found = []
    for group, name in list(c10d._world.pg_names.items()):
        with suppress(Exception):  # a backend that counts nothing, or a group that is being destroyed
            found.append((str(name), read_sequence_number(group)))
    return tuple(found)


def find_default_group() -> ProcessGroup | None:
    """The default group; None without one. Publicly, ``torch.distributed.group.WORLD`` is it, which may raise."""
    from torch.distributed import distributed_c10d as c10d

    group: ProcessGroup | None = getattr(c10d._world, "default_pg", None)
    return group


def find_default_group_name() -> str:
    """The default group's name, as the flight recorder has it; empty without one."""
    from torch.distributed import distributed_c10d as c10d

    group = find_default_group()
    return "" if group is None else str(c10d._world.pg_names.get(group, ""))


def find_flight_recorder(backend: str) -> Callable[[], bytes] | None:
    """Pickles what the backend's flight recorder holds, without stacks; None where this torch has no such recorder.

    Args:
        backend: ``gloo`` or ``nccl``.
    """
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, _RECORDERS[backend], None)
    # Collectives, no stacks, all entries. Not the recorders' JSON, which takes twice as long to make and to read.
    return None if dump is None else lambda: bytes(dump(True, False, False))


def forget_sharding() -> None:
    """Has DTensor forget, on this thread, the sharding of operations that it has met; no public name does.

    Its ways from one sharding to another hold meshes too, and with them groups that are closed.
    """
    from torch.distributed.tensor import _collective_utils, _redistribute, debug

    for name in _CLEAR:
        clear = getattr(debug, name, None)
        if clear is not None:
            clear()
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
    _redistribute._gen_transform_infos.cache_clear()
    planners = getattr(_redistribute, "_planner_cache", None)  # not of all versions
    if planners is not None:
        planners.clear()


def global_module_hooks() -> dict[str, Mapping[int, object]]:
    """The hooks of all modules, by the kind of hook; publicly, they can be registered and not listed."""
    import torch

    hooks = vars(torch.nn.modules.module)
    return {name: value for name, value in hooks.items() if name.startswith("_global_") and isinstance(value, Mapping)}


def split_overload(obj: object) -> tuple[object, str] | None:
    """The operator and the overload's name, of an overload such as ``torch.ops.aten.add.Tensor``; None of others."""
    import torch

    return (obj.overloadpacket, obj._overloadname) if isinstance(obj, torch._ops.OpOverload) else None


def split_operator(obj: object) -> tuple[str, str] | None:
    """Namespace and name of an operator such as ``torch.ops.aten.add``; None of others. Its ``str`` has a dot."""
    import torch

    if not isinstance(obj, torch._ops.OpOverloadPacket):
        return None
    namespace, _, name = obj._qualified_op_name.partition("::")
    return namespace, name


def wait_for_tensor(tensor: Any) -> Any:
    """The tensor, or what a functional collective's tensor stands for once its data have come."""
    functional = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None and isinstance(tensor, functional.AsyncCollectiveTensor):
        return tensor.wait()
    return tensor


def list_leaves(tree: object) -> Sequence[object]:
    """The objects in nested lists, tuples and dicts; torch has no public name for it."""
    from torch.utils._pytree import tree_leaves

    return tree_leaves(tree)


def hold_stream(cycles: int) -> None:
    """Keeps the current CUDA stream busy for so many clock cycles; torch has no public kernel that only waits."""
    import torch

    torch.cuda._sleep(cycles)


def free_pinned_memory() -> None:
    """Gives back the pinned blocks that torch has cached; torch 2.11 has no public name for that."""
    import torch

    public = getattr(torch.accelerator, "empty_host_cache", None)
    (torch._C._host_emptyCache if public is None else public)()


def free_cublas_workspaces() -> None:
    """Frees what cuBLAS has allocated for this process; publicly, only its size can be set, before it is used."""
    import torch

    torch._C._cuda_clearCublasWorkspaces()


def is_of_data_loaders(handler: object) -> bool:
    """Whether it is the handler of SIGCHLD that the first DataLoader with workers sets for a process's life.

    Torch has no public name for it. If a worker has failed, it raises. Otherwise it calls the handler before it.
    """
    return getattr(handler, "__module__", None) == "torch.utils.data._utils.signal_handling"


def store_address(frame: FrameType) -> tuple[Any, Any] | None:
    """Host and port of the store that a thread connects to as ``init_process_group`` opens one; None if it does not.

    Publicly, nobody can ask. A frame of that function's name has variables of these names.

    Args:
        frame: the thread's innermost one.
    """
    code = frame.f_code
    if code.co_name != "_create_c10d_store" or not code.co_filename.endswith("torch/distributed/rendezvous.py"):
        return None
    return frame.f_locals.get("hostname"), frame.f_locals.get("port")


def find_message(frame: FrameType) -> tuple[bool, tuple[int, ...], int] | None:
    """Whether a thread sends, its peers' global ranks and the bytes, if it is in a send or receive; None if it is not.

    Publicly, nobody can ask. A frame of these functions has variables of these names. A receive without a source may
    be from any rank of its group.

    Args:
        frame: the thread's innermost one.
    """
    code, variables = frame.f_code, frame.f_locals
    if code.co_name not in _MESSAGES or not code.co_filename.endswith("torch/distributed/distributed_c10d.py"):
        return None
    sends = code.co_name.endswith("send")
    peer, place = (variables.get(f"{start}{'dst' if sends else 'src'}") for start in ("", "group_"))
    group = variables.get("group") or find_default_group()
    members = () if group is None else group_ranks(group)
    nbytes = getattr(variables.get("tensor"), "nbytes", 0)
    if group is None or not members:
        return sends, (), nbytes
    if peer is None and place is not None:
        peer = members[place]
    others = tuple(member for member in members if member != members[group.rank()])
    return sends, others if peer is None else (peer,), nbytes


def group_ranks(group: ProcessGroup) -> tuple[int, ...]:
    """The global ranks of a group, none if it is closed; ``get_process_group_ranks`` raises then."""
    from torch.distributed import distributed_c10d as c10d

    return tuple(c10d._world.pg_group_ranks.get(group, ()))


def find_kernel_below(operation: Any) -> Callable[..., Any]:
    """What runs an operation's kernel below BackendSelect, for the keys that a kernel there was called with.

    Publicly, ``torch.library.get_kernel`` returns it. That one holds the GIL while it runs: gloo's thread may want it
    to drop a tensor, under a mutex that the call waits for.
    """
    import torch

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    run = operation._handle.redispatch_boxed
    return lambda keys, *arguments: run(keys & below, *arguments)


def group_being_opened(stack: Sequence[FrameType]) -> tuple[str, tuple[int, ...]] | None:
    """The name and the ranks of the group that a thread is opening by ``new_group``; no public name tells of it.

    Args:
        stack: the thread's frames.
    """
    for frame in stack:
        if frame.f_code.co_name == "_new_group_with_tag":
            found = frame.f_locals
            name, ranks = found.get("group_name"), found.get("ranks")
            return (str(name), tuple(ranks)) if name is not None and ranks is not None else None
    return None


def read_signature(operation: Any) -> list[tuple[str, str]]:
    """Names and types of an operation's arguments; publicly, they are a part of its text."""
    return [(argument.name, str(argument.type)) for argument in operation._schema.arguments]


def find_reduction(frame: FrameType | None) -> str:
    """The reduction that a collective's caller asks for: ``SUM``; empty if that cannot be told.

    An operation of c10d gets it as an object that nothing opens.

    Args:
        frame: the innermost one of Python, None on a thread that has none.
    """
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    if file.endswith("/distributed_c10d.py"):
        reduction = getattr(frame.f_locals.get("opts"), "reduceOp", None)
        return str(getattr(getattr(reduction, "op", reduction), "name", ""))
    if file.endswith("/torch/_ops.py"):  # functional collectives name it
        return next((one.upper() for one in frame.f_locals.get("args", ()) if isinstance(one, str)), "")
    return ""
