"""Pickling of programs, arguments, results and exceptions. Runs on both sides.

cloudpickle takes closures; modules named ``by_value`` (test modules and their neighbours, which a rank
may not be able to import, or could import only without pytest's rewritten assertions) travel by value.
Tensors arrive on the CPU, detached and without the rest of the storage that they are a view of.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
from tblib import pickling_support

from pytest_gpuperf import torch_internals
from pytest_gpuperf.ranks import cloudpickle_internals, importable
from pytest_gpuperf.ranks.channel import LARGE, Buffer, Parcel

_WITH_A_SETTER = 6  # values of cloudpickle's reduction of a class or a function that travels by value
_FLAGS = (bool, int, float, str)
"""What a parameter's attribute may be to travel with it: what marks it, and not a hook or a group."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    departing: importable.Departing | None = None
    """What it writes to ranks of modules that travel by value; None on the way back."""

    def reducer_override(self, obj: Any) -> Any:
        # Most of what a program refers to are functions; each is asked as little as can be.
        if isinstance(obj, FunctionType):
            # A test class that a program refers to may have methods under @given, whose wrappers hold locks.
            tests = getattr(obj, "is_hypothesis_test", False)
            return self._reduce_function(obj.hypothesis.inner_test if tests else obj)  # type: ignore[attr-defined]
        if isinstance(obj, type):
            if _is_found_by_its_name_alone(obj):
                return getattr, (sys.modules[obj.__module__], obj.__name__)
            return self._reduce_class(obj)
        if isinstance(obj, CodeType):
            return self._reduce_code(obj)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            return _reduce_tensor(torch, obj)
        if torch is not None and type(obj).__module__ in torch_internals.OPERATOR_MODULES:
            reduced = _reduce_named(torch, obj)
            if reduced is not None:
                return reduced
        return self._reduce_module(obj) if isinstance(obj, ModuleType) else super().reducer_override(obj)

    def _reduce_function(self, function: FunctionType) -> Any:
        reduced = super().reducer_override(function)
        if self.departing is None or not _travels_by_value(reduced):
            return reduced
        return self.departing.reduce_function(function, reduced)

    def _reduce_class(self, cls: type) -> Any:
        reduced = super().reducer_override(cls)
        if self.departing is None or not _travels_by_value(reduced) or not importable.is_named(cls):
            return reduced
        return importable.reduce_by_name(reduced, cls.__qualname__)

    def _reduce_code(self, code: CodeType) -> Any:
        if (reduce := self.dispatch_table.get(CodeType)) is None:
            return super().reducer_override(code)
        # Cloudpickle 3.1.3 replaces the file's name, which reports of failures need.
        make, values = reduce(code)
        return _make_code, (make, values, code.co_filename)

    def _reduce_module(self, module: ModuleType) -> Any:
        if _is_of_a_type_of_its_own(module):
            return importlib.import_module, (module.__name__,)
        written = None if self.departing is None else self.departing.reduce_module(module)
        return NotImplemented if written is None else written


def _travels_by_value(reduced: Any) -> bool:
    return isinstance(reduced, tuple) and len(reduced) == _WITH_A_SETTER


def _make_code(make: Callable[..., CodeType], values: tuple[Any, ...], file: str) -> CodeType:
    return make(*values).replace(co_filename=file)


def _is_of_a_type_of_its_own(module: ModuleType) -> bool:
    # cloudpickle knows modules by their exact type, of which torch.backends, its modules and others' lazy ones are not.
    kind = type(module)
    return (
        kind is not ModuleType and kind.__reduce__ is object.__reduce__ and sys.modules.get(module.__name__) is module
    )


def _is_found_by_its_name_alone(kind: type) -> bool:
    # torch renames classes of its extension, SDPBackend among them, but for the qualified name, by which pickle looks.
    named = kind.__name__ != kind.__qualname__.rpartition(".")[2]
    return named and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _reduce_named(torch: Any, obj: Any) -> Any:
    # cloudpickle finds torch.ops by itself where a program names it; but it knows modules by their exact type, and
    # torch.ops, torch.ops.aten and torch.classes are of others.
    if (overload := torch_internals.split_overload(obj)) is not None:
        return getattr, overload
    if (operator := torch_internals.split_operator(obj)) is not None:
        return _find_operator, operator
    if isinstance(obj, ModuleType) and obj.__name__.startswith("torch."):
        names = obj.__name__.split(".")[1:]
        if importable.find_within(torch, names) is obj:
            return _find_torch_module, tuple(names)
    return None


def _find_torch_module(*names: str) -> Any:
    import torch

    return importable.find_within(torch, names)


def _find_operator(namespace: str, name: str) -> Any:
    import torch

    try:
        return getattr(getattr(torch.ops, namespace), name)
    except AttributeError:
        raise AttributeError(
            f"torch.ops.{namespace}.{name} is not registered in this process: register it in an installed module that "
            "the test's module imports, or in the program itself"
        ) from None


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        raise TypeError(
            f"a DTensor of shape {tuple(tensor.shape)} belongs to its process group and cannot leave the "
            "rank: return .to_local() or .full_tensor()"
        )
    tensor = torch_internals.wait_for_tensor(tensor)
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return tensor.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    plain = tensor.detach().cpu()
    if plain.layout != torch.strided or plain.is_quantized:
        return plain.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    plain = plain.resolve_conj().resolve_neg()
    if plain.untyped_storage().nbytes() != plain.numel() * plain.element_size():
        plain = plain.clone()
    if plain.untyped_storage().nbytes() != plain.numel() * plain.element_size():
        plain = plain.contiguous()  # expanded, or with gaps
    if type(tensor) is torch.nn.Parameter:
        flags = {name: value for name, value in vars(tensor).items() if isinstance(value, _FLAGS)}
        return _rebuild_parameter, (plain, tensor.requires_grad, flags)
    # requires_grad is part of what a test sends, for example a leaf whose gradient it asks for.
    requires_grad = tensor.requires_grad and tensor.is_leaf
    return _rebuild, (_view_bytes(plain), plain.dtype, tuple(plain.shape), plain.stride(), requires_grad)


def _view_bytes(plain: Any) -> Any:
    # torch's own way goes through a zip archive: ten times slower for a small tensor, more copies of a large one.
    nbytes = plain.untyped_storage().nbytes()
    if nbytes == 0:
        return bytearray()
    array = (ctypes.c_ubyte * nbytes).from_address(plain.untyped_storage().data_ptr())
    _keep_alive(array, plain)
    return pickle.PickleBuffer(array)


def _keep_alive(array: Any, plain: Any) -> None:
    array.owner = plain  # the buffer does not know whose memory it is


def _rebuild(data: Buffer, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    if not data:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cpu").requires_grad_(requires_grad)
    storage = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_parameter(plain: Any, requires_grad: bool, flags: dict[str, Any]) -> Any:
    import torch

    parameter = torch.nn.Parameter(plain, requires_grad)
    vars(parameter).update(flags)
    return parameter


def list_named_submodules(code: CodeType, dependencies: Iterable[Any]) -> list[ModuleType]:
    """The submodules of packages that a function's code names: of ``torch``, ``torch.distributed`` for example.

    Cloudpickle finds the same by a walk through all of ``sys.modules``, for every function that it pickles by value.
    With torch loaded that takes 5 ms. It also finds a submodule whose package is not imported, which none of torch is.

    Args:
        code: of the function.
        dependencies: what it refers to, packages among it.
    """

    def within(package: str) -> Iterator[ModuleType]:
        for name in code.co_names:
            module = sys.modules.get(path := f"{package}.{name}")
            if module is not None:
                yield module
                yield from within(path)

    packages = [each for each in dependencies if isinstance(each, ModuleType) and getattr(each, "__package__", None)]
    return [module for package in packages for module in within(package.__name__)]


@contextlib.contextmanager
def submodules_looked_up() -> Iterator[None]:
    """Has cloudpickle look submodules up within the block; one that works otherwise is left alone."""
    finder = cloudpickle_internals.read_submodule_finder()
    if finder is None or finder is list_named_submodules:  # that was another thread, which puts cloudpickle's back
        yield
        return
    cloudpickle_internals.replace_submodule_finder(list_named_submodules)
    try:
        yield
    finally:
        cloudpickle_internals.replace_submodule_finder(finder)


@contextlib.contextmanager
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    # The registry belongs to cloudpickle's other users in this process too: it is left as it was.
    known = cloudpickle.list_registry_pickle_by_value()
    registered: dict[str, ModuleType] = {}  # by name: sys.modules may hold a module twice
    try:
        for module in modules:
            if module.__name__ not in known and sys.modules.get(module.__name__) is module:
                cloudpickle.register_pickle_by_value(module)
                registered[module.__name__] = module
        yield
    finally:
        for module in registered.values():
            cloudpickle.unregister_pickle_by_value(module)


def dumps(obj: Any, by_value: Iterable[ModuleType] = ()) -> Parcel:
    """The object's pickle, with what is large in it left where it lies.

    Raises:
        Exception: whatever an object that cannot be pickled raises; its type is not ours to choose.
    """
    apart: list[pickle.PickleBuffer] = []

    def goes_into_the_pickle(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < LARGE:
            return True
        apart.append(buffer)
        return False

    modules = tuple(by_value)
    with _by_value(modules), submodules_looked_up(), io.BytesIO() as file:
        pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=goes_into_the_pickle)
        if modules:
            pickler.departing = importable.Departing({module.__name__: module for module in modules})
        pickler.dump(obj)
        return Parcel(file.getvalue(), apart)


class _Naming(_Pickler):
    named: set[str]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            self.named.update(obj.co_names)  # of what it imports, among others
        elif isinstance(obj, ModuleType):
            self.named.add(obj.__name__)
        elif isinstance(obj, FunctionType | type):
            self.named.add(obj.__module__)
        return super().reducer_override(obj)


def list_named_packages(obj: Any, by_value: Iterable[ModuleType] = ()) -> frozenset[str]:
    """Return the names of packages that the code in an object's pickle may use itself, and a few that are none.

    Args:
        obj: a program, with its arguments.
        by_value: modules that travel by value.
    """
    modules = tuple(by_value)
    with _by_value(modules), submodules_looked_up(), io.BytesIO() as file:
        pickler = _Naming(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=lambda buffer: False)
        pickler.named = set()
        pickler.dump(obj)
    return frozenset(str(name).partition(".")[0] for name in pickler.named)


def loads(parcel: Parcel) -> Any:
    """The object that ``dumps`` was given."""
    return pickle.loads(parcel.stream, buffers=parcel.buffers)


def dump_exception(error: BaseException) -> bytes | None:
    """The exception's pickle with its traceback and its causes, or None where it cannot be pickled.

    It is read back once, since an exception whose constructor takes other arguments than its ``args``
    pickles well and fails only when it is loaded.
    """
    try:
        pickling_support.install(*_chain(error))
        with io.BytesIO() as file:
            _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(error)
            data = file.getvalue()
        load_exception(data)
    except Exception:  # an exception may hold any object, and pickling may raise anything
        return None
    return data


def load_exception(data: bytes) -> BaseException:
    """The exception that ``dump_exception`` was given."""
    error: BaseException = pickle.loads(data)
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue = [error]
    while queue:
        item = queue.pop()
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            queue.extend(linked for linked in (item.__cause__, item.__context__) if linked is not None)
