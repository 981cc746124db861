"""What is pickled arrives as it was, wherever it is read."""

import importlib.util
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from cloudpickle import cloudpickle as internals
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import LARGE, Channel, Parcel
from tests.whole_run import environment

MODULE = """
import enum
from dataclasses import dataclass

import torch

@dataclass
class Point:
    x: int

class Colour(enum.Enum):
    RED = 1

class OddError(ValueError):
    pass

def double(point):
    return Point(2 * point.x), Colour.RED, OddError("odd")

def add_one(tensor):
    return torch.ops.aten.add(tensor, 1).item()
"""

ELSEWHERE = """
import sys
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Parcel
function, args = payload.loads(Parcel(sys.stdin.buffer.read()))
sys.stdout.buffer.write(payload.dumps(function(*args)).stream)
"""


def copied(obj: Any, *by_value: ModuleType) -> Any:
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        ours.send(None, payload.dumps(obj, by_value))
        return payload.loads(theirs.receive()[1])


def called_elsewhere(function: Callable[..., Any], *args: Any, by_value: ModuleType) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=payload.dumps((function, args), [by_value]).stream,
        env=environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        check=True,
    )
    return payload.loads(Parcel(done.stdout))


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "nowhere_else.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("nowhere_else", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["nowhere_else"] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules["nowhere_else"]


def test_a_closure_keeps_what_it_closes_over() -> None:
    offset = [40]
    assert copied(lambda: offset[0] + 2)() == 42


def test_a_module_that_only_this_process_has_travels_by_value(module: ModuleType) -> None:
    point, colour, error = called_elsewhere(module.double, module.Point(21), by_value=module)
    assert type(point) is module.Point
    assert point == module.Point(42)
    assert colour is module.Colour.RED
    assert type(error) is module.OddError


def test_a_module_that_is_not_named_travels_by_reference(module: ModuleType) -> None:
    data = payload.dumps(module.double).stream
    assert b"nowhere_else" in data
    assert len(data) < 100


def test_a_program_may_name_the_operators_of_torch(module: ModuleType) -> None:
    # torch.ops is in sys.modules, and not of the type that other modules are of.
    assert called_elsewhere(module.add_one, torch.tensor(41), by_value=module) == 42


@pytest.mark.parametrize(
    "operators",
    [torch.ops, torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.ops.aten.relu.default],
    ids=str,
)
def test_an_operator_of_torch_arrives_as_itself(operators: object) -> None:
    assert copied(operators) is operators


def test_a_module_of_another_type_is_left_to_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = type("Odd", (ModuleType,), {})
    for name in ("nowhere", "torch.nowhere", "json"):
        with pytest.raises(TypeError, match="Odd"):
            payload.dumps(odd(name))
    reduces = type("Reduces", (ModuleType,), {"__reduce__": lambda self: (str, ("reduced",))})
    monkeypatch.setitem(sys.modules, "reduced_module", reduces("reduced_module"))
    assert copied(sys.modules["reduced_module"]) == "reduced"


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda: torch.backends.cudnn.deterministic,
        lambda: torch.backends.cudnn.flags,
        lambda: torch.backends.mkldnn.is_available(),
        lambda: torch.backends.opt_einsum.enabled,
        lambda: torch.backends.quantized.engine,
        lambda: torch.backends.cuda.flash_sdp_enabled(),
    ],
)
def test_a_function_may_name_torchs_backends(function: Callable[[], object]) -> None:
    assert copied(function)() == function()
    assert copied(torch.backends.cudnn) is torch.backends.cudnn


def test_what_is_large_stays_where_it_lies() -> None:
    small, large = torch.zeros(LARGE // 4 - 1), torch.zeros(LARGE // 4)
    data = payload.dumps((small, large))
    (buffer,) = data.buffers
    assert isinstance(buffer, pickle.PickleBuffer)
    assert buffer.raw().nbytes == LARGE
    large[0] = 7  # which a copy would not show
    assert payload.loads(data)[1][0] == 7


def test_a_parameter_keeps_what_marks_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.sequence_parallel = True  # type: ignore[attr-defined]
    parameter.hook = lambda: None  # type: ignore[attr-defined]
    found = copied({"weight": parameter})["weight"]
    assert (type(found), found.sequence_parallel) == (torch.nn.Parameter, True)
    assert not hasattr(found, "hook")


def test_a_namespace_with_a_dot_keeps_its_operators() -> None:
    library = torch.library.Library("pytest_gpuperf.payload", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    packet = getattr(torch.ops, "pytest_gpuperf.payload").nothing
    assert copied(packet) is packet
    assert copied(packet.default) is packet.default
    library._destroy()


def test_an_operator_that_is_not_registered_where_it_arrives_says_so() -> None:
    library = torch.library.Library("pytest_gpuperf", "DEF")
    library.define("gone(Tensor x) -> Tensor")
    data = payload.dumps(torch.ops.pytest_gpuperf.gone)
    del torch.ops.pytest_gpuperf.gone
    library._destroy()
    message = r"^torch\.ops\.pytest_gpuperf\.gone is not registered in this process: register it in an installed module"
    with pytest.raises(AttributeError, match=message):
        payload.loads(data)


def test_classes_that_travelled_by_value_keep_their_identity(module: ModuleType) -> None:
    assert copied(module.Point, module) is module.Point
    assert type(copied(module.Point(1), module)) is module.Point


def test_the_registry_of_cloudpickle_is_left_as_it_was(module: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(pytest)
    try:
        before = cloudpickle.list_registry_pickle_by_value()
        payload.dumps(1, [module, pytest])
        assert cloudpickle.list_registry_pickle_by_value() == before
        with pytest.raises(TypeError, match="lock"):
            payload.dumps(threading.Lock(), [module, pytest])
        assert cloudpickle.list_registry_pickle_by_value() == before
    finally:
        cloudpickle.unregister_pickle_by_value(pytest)


def test_a_module_that_was_replaced_since_it_was_named_is_passed_over() -> None:
    assert payload.loads(payload.dumps(1, [ModuleType("never_imported"), ModuleType("json")])) == 1


def test_a_view_carries_only_its_own_bytes() -> None:
    whole = torch.arange(1_000_000)
    data = payload.dumps(whole[10:14])
    assert len(data.stream) < 10_000
    assert not data.buffers
    assert torch.equal(payload.loads(data), torch.arange(10, 14))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5], dtype=torch.float16),
        torch.tensor([1.5], dtype=torch.float32).to(torch.float8_e4m3fn),
        torch.tensor([1, 2], dtype=torch.uint16),
        torch.tensor([True, False]),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(1).expand(4),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
    ],
    ids=["bfloat16", "float16", "float8", "uint16", "bool", "scalar", "empty", "transposed", "expanded", "conj", "neg"],
)
def test_a_tensor_arrives_with_dtype_shape_and_values(tensor: torch.Tensor) -> None:
    arrived = copied({"nested": [tensor]})["nested"][0]
    assert arrived.dtype == tensor.dtype
    assert arrived.shape == tensor.shape
    assert arrived.tolist() == tensor.tolist()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch 2.11, whatever the tensor
def test_a_sparse_tensor_arrives() -> None:
    sparse = torch.eye(3).to_sparse()
    arrived = copied(sparse)
    assert arrived.layout == torch.sparse_coo
    assert torch.equal(arrived.to_dense(), torch.eye(3))


def test_one_tensor_named_twice_stays_one_tensor() -> None:
    tensor = torch.ones(2)
    first, second = copied([tensor, tensor])
    assert first is second


def test_a_result_arrives_detached() -> None:
    leaf = torch.ones(2, requires_grad=True)
    arrived = copied(leaf * 2)
    assert arrived.tolist() == [2.0, 2.0]
    assert not arrived.requires_grad
    assert arrived.grad_fn is None


def test_a_leaf_that_asks_for_its_gradient_still_does() -> None:
    arrived = copied(torch.ones(2, requires_grad=True))
    assert arrived.requires_grad
    assert arrived.is_leaf


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_stays_a_parameter(requires_grad: bool) -> None:
    arrived = copied(torch.nn.Parameter(torch.arange(8.0)[2:4], requires_grad=requires_grad))
    assert type(arrived) is torch.nn.Parameter
    assert arrived.requires_grad is requires_grad
    assert arrived.tolist() == [2.0, 3.0]


def test_a_module_keeps_its_parameters() -> None:
    layer = torch.nn.Linear(2, 3)
    arrived = copied(layer)
    assert torch.equal(arrived.weight, layer.weight)
    assert [name for name, _ in arrived.named_parameters()] == ["weight", "bias"]


def test_a_dtensor_cannot_leave_its_process_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = DTensor.from_local(torch.ones(2, 3), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError) as caught:
            payload.dumps({"out": tensor})
    finally:
        dist.destroy_process_group()
    assert str(caught.value) == (
        "a DTensor of shape (2, 3) belongs to its process group and cannot leave the rank: return .to_local() or "
        ".full_tensor()"
    )


def raised(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def arrived(error: BaseException) -> Any:
    data = payload.dump_exception(error)
    assert data is not None
    return payload.load_exception(data)


def frames(error: BaseException) -> list[str]:
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return names


def fail_with_a_cause() -> None:
    try:
        int("seven")
    except ValueError as error:
        raise KeyError("outer") from error


def test_an_exception_arrives_with_traceback_cause_and_notes() -> None:
    original = raised(fail_with_a_cause)
    original.add_note("a note")
    error = arrived(original)
    assert type(error) is KeyError
    assert error.args == ("outer",)
    assert error.__notes__ == ["a note"]
    assert frames(error) == ["raised", "fail_with_a_cause"]
    assert type(error.__cause__) is ValueError
    assert frames(error.__cause__) == ["fail_with_a_cause"]


def test_an_exception_of_a_module_by_value_keeps_its_type(module: ModuleType) -> None:
    _, _, error = called_elsewhere(module.double, module.Point(1), by_value=module)
    with pytest.raises(module.OddError, match="odd"):
        raise error


def test_exceptions_that_are_one_anothers_context_do_not_hang() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    data = payload.dump_exception(first)
    assert data is None or str(payload.load_exception(data)) == "first"


class CustomConstructor(Exception):
    def __init__(self, what: str, *, how_many: int) -> None:
        super().__init__(f"{how_many} {what}")
        self.how_many = how_many


def test_an_exception_with_a_constructor_of_its_own_arrives_or_is_refused() -> None:
    data = payload.dump_exception(CustomConstructor("eggs", how_many=12))
    if data is not None:  # tblib 3.1 and up rebuild it without the constructor
        error: Any = payload.load_exception(data)
        assert (type(error), str(error), error.how_many) == (CustomConstructor, "12 eggs", 12)


class CannotBeRead(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return CannotBeRead._read, ()

    @staticmethod
    def _read() -> None:
        raise TypeError("wants more arguments")


def test_an_exception_that_could_not_be_read_back_is_refused() -> None:
    pickle.dumps(CannotBeRead())
    assert payload.dump_exception(CannotBeRead()) is None


def test_an_exception_that_holds_what_cannot_be_pickled_is_refused() -> None:
    assert payload.dump_exception(ValueError(threading.Lock())) is None


def names_submodules() -> object:
    return torch.nn.functional.relu, torch.distributed.tensor, importlib.util.find_spec


def test_the_submodule_cache_changes_no_pickle() -> None:
    closed_over = importlib
    functions = [lambda: names_submodules(), lambda: closed_over.util, lambda: 1]
    here = [sys.modules[__name__]]
    plain = [payload.dumps(function, here) for function in functions]
    cache = payload.SubmoduleCache()
    for _ in range(2):
        with cache.used():
            assert [payload.dumps(function, here) for function in functions] == plain


def test_the_submodule_cache_sees_what_is_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "late_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, Any] = {}
    exec("import late_package\ndef function():\n    return late_package.late.ANSWER", space)
    cache = payload.SubmoduleCache()
    with cache.used():
        assert b"late_package.late" not in payload.dumps(space["function"]).stream
        importlib.import_module("late_package.late")
        assert b"late_package.late" in payload.dumps(space["function"]).stream


def test_the_submodule_cache_gives_cloudpickle_its_own_function_back() -> None:
    original = internals._find_imported_submodules
    cache = payload.SubmoduleCache()
    with cache.used():
        assert internals._find_imported_submodules is not original
    assert internals._find_imported_submodules is original
    with pytest.raises(TypeError, match="lock"), cache.used():
        payload.dumps(threading.Lock())
    assert internals._find_imported_submodules is original


def test_a_cloudpickle_without_that_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(internals, "_find_imported_submodules")
    with payload.SubmoduleCache().used():
        assert not hasattr(internals, "_find_imported_submodules")


def test_a_module_named_twice_is_registered_once() -> None:
    module = ModuleType("named_twice")
    sys.modules["named_twice"] = module
    try:
        assert payload.loads(payload.dumps(1, by_value=[module, module])) == 1
    finally:
        del sys.modules["named_twice"]
