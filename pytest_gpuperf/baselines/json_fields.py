"""Typed reading of one JSON object, with errors that name the place, what was got and what was expected."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class FieldError(ValueError):
    """A JSON value is not what its place asks for."""

    def __init__(self, where: str, problem: str, cure: str = "") -> None:
        super().__init__(where, problem, cure)
        self.where = where
        self.problem = problem
        self.cure = cure
        """What to do about it, where that is more than to restore the file."""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def mismatch(where: str, got: object, expected: str) -> FieldError:
    """Makes the error for a value of the wrong kind; long values are cut."""
    return FieldError(where, f"got {got!r:.80}, expected {expected}")


def finite(value: object) -> float | None:
    """Returns the number as a float; None for what is no finite number (bool is none)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and the place where it stands."""

    where: str
    values: Mapping[str, object]

    @classmethod
    def of(cls, value: object, where: str) -> "Fields":
        """Takes a value that has to be an object."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise mismatch(where, value, "an object")
        return cls(where, value)

    def only(self, *known: str) -> None:
        """Refuses keys that would be lost when the object is written again."""
        for key in self.values:
            if key not in known:
                raise mismatch(self.where, key, f"no keys but {', '.join(known)}")

    def text(self, key: str) -> str:
        """Reads a string."""
        value = self._get(key)
        if not isinstance(value, str):
            raise mismatch(self._at(key), value, "a string")
        return value

    def choice(self, key: str, *choices: str) -> str:
        """Reads one of a few strings."""
        value = self._get(key)
        if not isinstance(value, str) or value not in choices:
            raise mismatch(self._at(key), value, f"one of {', '.join(map(repr, choices))}")
        return value

    def integer(self, key: str) -> int:
        """Reads an integer of at least 1, for all of ours count something."""
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise mismatch(self._at(key), value, "an integer of at least 1")
        return value

    def number(self, key: str) -> float:
        """Reads a finite number."""
        value = self._get(key)
        number = finite(value)
        if number is None:
            raise mismatch(self._at(key), value, "a finite number")
        return number

    def positive(self, key: str) -> float:
        """Reads a finite number above 0."""
        number = self.number(key)
        if number <= 0:
            raise mismatch(self._at(key), self._get(key), "a number above 0")
        return number

    def optional_number(self, key: str) -> float | None:
        """Reads a finite number or null."""
        return None if self._get(key) is None else self.number(key)

    def boolean(self, key: str) -> bool:
        """Reads true or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise mismatch(self._at(key), value, "true or false")
        return value

    def optional_interval(self, key: str) -> tuple[float, float] | None:
        """Reads two finite numbers, the smaller first, or null."""
        values = self._get(key)
        if values is None:
            return None
        if isinstance(values, list) and len(values) == 2:
            low, high = finite(values[0]), finite(values[1])
            if low is not None and high is not None and low <= high:
                return low, high
        raise mismatch(self._at(key), values, "two finite numbers, the smaller first, or null")

    def child(self, key: str) -> "Fields":
        """Reads an object."""
        return Fields.of(self._get(key), self._at(key))

    def children(self, key: str) -> Iterator[tuple[str, "Fields"]]:
        """Reads an object of objects."""
        parent = self.child(key)
        return ((name, parent.child(name)) for name in parent.values)

    def items(self, key: str) -> list["Fields"]:
        """Reads a list of objects."""
        return [Fields.of(item, f"{self._at(key)}[{index}]") for index, item in enumerate(self._list(key))]

    def texts(self, key: str) -> tuple[str, ...]:
        """Reads a list of strings."""
        values = self._list(key)
        if not all(isinstance(item, str) for item in values):
            raise mismatch(self._at(key), values, "a list of strings")
        return tuple(str(item) for item in values)

    def pair(self, key: str) -> tuple[float, float]:
        """Reads a list of two finite numbers."""
        numbers = [finite(item) for item in self._list(key)]
        match numbers:
            case [float() as first, float() as second]:
                return first, second
            case _:
                raise mismatch(self._at(key), self._get(key), "a list of two finite numbers")

    def built(self, make: Callable[[], T]) -> T:
        """Makes a value from these fields; the objections of its constructor get this place."""
        try:
            return make()
        except FieldError:
            raise
        except ValueError as error:
            raise FieldError(self.where, str(error)) from error

    def _list(self, key: str) -> list[object]:
        value = self._get(key)
        if not isinstance(value, list):
            raise mismatch(self._at(key), value, "a list")
        return value

    def _get(self, key: str) -> object:
        if key not in self.values:
            raise mismatch(self.where, sorted(self.values), f"a key {key!r}")
        return self.values[key]

    def _at(self, key: str) -> str:
        return f"{self.where}.{key}" if key.isidentifier() else f"{self.where}[{key!r}]"
