"""Exceptions that are pickled arrive with all that belongs to them, or are refused."""

import pickle
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuperf.ranks import payload
from tests.ranks.travelling import called_elsewhere


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
