"""Programs that are pickled find what they name, wherever they are read."""

import sys
import threading
from collections.abc import Callable
from types import CodeType, ModuleType

import cloudpickle
import pytest
import torch
from torch import library
from torch.nn.attention import SDPBackend

from pytest_gpuperf.ranks import payload
from tests.ranks.travelling import called_elsewhere, copied


def test_a_closure_keeps_what_it_closes_over() -> None:
    offset = [40]
    assert copied(lambda: offset[0] + 2)() == 42


def test_a_module_that_only_this_process_has_travels_by_value(module: ModuleType) -> None:
    point, colour, error = called_elsewhere(module.double, module.Point(21), by_value=module)
    assert type(point) is module.Point
    assert point == module.Point(42)
    assert colour is module.Colour.RED
    assert type(error) is module.OddError


def nested() -> Callable[[], CodeType]:
    """Returns a function within, which returns the code of one within itself."""

    def within() -> CodeType:
        return (lambda: None).__code__

    return within


def test_code_keeps_its_file_and_lines() -> None:
    arrived = payload.loads(payload.dumps(nested, [sys.modules[__name__]]))
    sent = nested()
    for one, other in (
        (arrived.__code__, nested.__code__),
        (arrived().__code__, sent.__code__),
        (arrived()(), sent()),
    ):
        assert (one.co_filename, one.co_firstlineno) == (__file__, other.co_firstlineno)


def test_a_module_that_is_not_named_travels_by_reference(module: ModuleType) -> None:
    data = payload.dumps(module.double).stream
    assert b"nowhere_else" in data
    assert len(data) < 100


def test_a_program_may_name_classes_that_torch_renames() -> None:
    assert called_elsewhere(lambda: (SDPBackend, SDPBackend.MATH), by_value=sys.modules[__name__]) == (
        SDPBackend,
        SDPBackend.MATH,
    )


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


def test_a_namespace_with_a_dot_keeps_its_operators() -> None:
    namespace = library.Library("payload.dotted", "DEF")
    namespace.define("nothing(Tensor x) -> Tensor")
    packet = getattr(torch.ops, "payload.dotted").nothing
    assert copied(packet) is packet
    assert copied(packet.default) is packet.default
    namespace._destroy()


def test_an_operator_that_is_not_registered_where_it_arrives_says_so() -> None:
    namespace = library.Library("payload", "DEF")
    namespace.define("gone(Tensor x) -> Tensor")
    data = payload.dumps(torch.ops.payload.gone)
    del torch.ops.payload.gone
    namespace._destroy()
    message = r"^torch\.ops\.payload\.gone is not registered in this process: register it in an installed module"
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


def test_a_module_named_twice_is_registered_once() -> None:
    module = ModuleType("named_twice")
    sys.modules["named_twice"] = module
    try:
        assert payload.loads(payload.dumps(1, by_value=[module, module])) == 1
    finally:
        del sys.modules["named_twice"]
