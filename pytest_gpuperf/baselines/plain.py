"""Values of ours as plain JSON types and back; what cannot be read is named by its place.

The values are frozen dataclasses of the standard library, whose annotations say what a file may hold. pydantic reads
them and is imported only then: a run without perf tests does not load it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import types
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

T = TypeVar("T")

OMITTED = {"omitted": True, "optional": True}
"""Metadata of a dataclass's field that is not written while it has its default."""
OPTIONAL = {"optional": True}
"""Metadata of a field that earlier files lack, or that is there for who reads them; any other one must be there."""

ID_CHARACTERS = 200  # holds nearly every node id; nobody reads more of one in a message


class FieldError(ValueError):
    """A JSON value is not what its place asks for."""

    def __init__(self, where: str, problem: str, cure: str = "", path: tuple[str | int, ...] = ()) -> None:
        super().__init__(where, problem, cure, path)
        self.where = where
        self.problem = problem
        self.cure = cure
        """What to do about it, where that is more than to restore the file."""
        self.path = path
        """The keys and indices that lead to the place."""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def make_mismatch(where: str, got: object, expected: str) -> FieldError:
    """Makes the error for a value of the wrong kind; long values are cut."""
    return FieldError(where, f"got {got!r:.80}, expected {expected}")


def cut(text: str, characters: int = ID_CHARACTERS) -> str:
    """The beginning of a text that somebody else chose, such as an id in a file."""
    return text if len(text) <= characters else f"{text[:characters]}…"


def at(where: str, *steps: str | int) -> str:
    """The place that these keys and indices lead to."""
    for step in steps:
        if isinstance(step, int):
            where = f"{where}[{step}]"
        else:
            where = f"{where}.{cut(step)}" if step.isidentifier() else f"{where}[{cut(step)!r}]"
    return where


def require_member(data: object, key: str, where: str) -> object:
    """The value of a key that an object must have.

    Raises:
        FieldError: It is no object, or lacks the key.
    """
    if not isinstance(data, dict):
        raise make_mismatch(where, data, "an object")
    if key not in data:
        raise make_mismatch(where, sorted(data), f"a key {key!r}")
    value: object = data[key]
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """Annotates a type with what its values must be besides."""

    holds: Callable[[Any], object]
    """Whether a value of the type is one."""
    expected: str
    """What messages say that it should be."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> object:
        """Reads the type, then checks the value."""
        from pydantic_core import core_schema

        def check(value: object) -> object:
            if not self.holds(value):
                raise make_mismatch("", value, self.expected)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """Annotates a type of several parts with what messages call it as a whole."""

    expected: str

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> object:
        """Reads the type; one error instead of one for each of its parts."""
        from pydantic_core import core_schema

        return core_schema.custom_error_schema(
            handler(source), custom_error_type="told", custom_error_message=self.expected
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Annotates a type that a function of ours makes of the JSON value."""

    make: Callable[[object], object] | None
    """Raises a ValueError for what it cannot be made of; None takes any value as it is."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], Any]) -> object:
        """Leaves the reading to the function."""
        from pydantic_core import core_schema

        if self.make is None:
            return core_schema.any_schema()
        return core_schema.no_info_plain_validator_function(self.make)


def read(kind: type[T], data: object, where: str) -> T:
    """Reads a dataclass from plain JSON types: all keys and no others, no conversions, finite numbers only.

    Args:
        kind: The dataclass.
        data: What ``make_plain`` made of one, or somebody else wrote.
        where: Names the place of the data in messages.

    Raises:
        FieldError: The data is anything else; the cure may be empty.
    """
    from pydantic_core import ValidationError

    _require_keys(kind, data, where, ())
    try:
        (value,) = _make_validator(cast(Hashable, kind)).validate_python((data,))
    except ValidationError as error:
        raise _make_field_error(error.errors(include_url=False)[0], where) from error
    return value  # type: ignore[no-any-return]


def make_plain(value: object) -> Any:
    """The plain JSON types of a value that ``read`` reads."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        members = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: make_plain(item) for field, item in members if not _is_omitted(field, item)}
    return value


def _is_omitted(field: dataclasses.Field[Any], value: object) -> bool:
    if "omitted" not in field.metadata:
        return False
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value == default)


@functools.cache
def _make_validator(kind: Hashable) -> SchemaValidator:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    # In a tuple, because only a type without settings of its own takes any; dataclasses inside it inherit them.
    inside: Any = types.GenericAlias(tuple, (kind,))
    schema = TypeAdapter(inside, config={"strict": True, "allow_inf_nan": False}).core_schema
    return SchemaValidator(_relax_schema(schema))


def _relax_schema(schema: Any) -> Any:
    """Lets what holds other values be read from what JSON has for it; numbers, texts and flags stay strict.

    pydantic does so for JSON as text, which it refuses where a text has a lone surrogate, as a file's name may have.
    """
    if isinstance(schema, list):
        return [_relax_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    lax = {"strict": False} if schema.get("type") in ("dataclass", "tuple", "enum") else {}
    return {key: _relax_schema(part) for key, part in schema.items()} | lax


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer of at least 1",  # all of ours count something
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
}


def _make_field_error(error: ErrorDetails, where: str) -> FieldError:
    path, got, context = error["loc"][1:], error["input"], error.get("ctx", {})
    place = at(where, *path)
    match error["type"]:
        case "value_error":
            reason = context["error"]
            problem = reason.problem if isinstance(reason, FieldError) else str(reason)
        case "missing":  # of a list: keys are there
            place = at(where, *path[:-1])
            problem = make_mismatch("", got, "more values").problem
        case "too_long":
            problem = make_mismatch("", got, f"{context['max_length']} values").problem
        case "enum" | "literal_error":
            problem = make_mismatch("", got, f"one of {context['expected'].replace(' or ', ', ')}").problem
        case other:
            problem = make_mismatch("", got, _EXPECTED.get(other) or error["msg"]).problem
    return FieldError(place, problem, path=path)


def _require_keys(kind: object, data: object, where: str, path: tuple[str | int, ...]) -> None:
    """Refuses objects that lack a key, or have one that would be lost when they are written again."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(data, dict):
        fields, kinds = dataclasses.fields(kind), _read_kinds(kind)
        for key in data:
            if key not in kinds:
                _refuse(where, path, key, f"no keys but {', '.join(kinds)}")
        for field in fields:
            if field.name not in data and "optional" not in field.metadata:
                _refuse(where, path, sorted(data), f"a key {field.name!r}")
        inside = [(name, kinds[name], item) for name, item in data.items()]
    elif isinstance(data, dict) and len(args := get_args(kind)) == 2:
        inside = [(key, args[1], item) for key, item in data.items()]
    elif isinstance(data, list) and get_origin(kind) is tuple:
        inside = [(index, get_args(kind)[0], item) for index, item in enumerate(data)]
    else:
        return
    for step, of, item in inside:
        if isinstance(item, (dict, list)):
            _require_keys(of, item, where, (*path, step))


def _refuse(where: str, path: tuple[str | int, ...], got: object, expected: str) -> NoReturn:
    error = make_mismatch(at(where, *path), got, expected)
    raise FieldError(error.where, error.problem, path=path)


@functools.cache
def _read_kinds(dataclass: Hashable) -> dict[str, object]:
    """The types of a dataclass's fields, without what annotates them."""
    return get_type_hints(dataclass)
