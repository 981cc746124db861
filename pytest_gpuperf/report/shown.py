"""What tests show besides metrics, such as curves of sweeps: each kind from a test's report to summary and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuperf.report.forms import require
from pytest_gpuperf.report.properties import make_json_property, read_list
from pytest_gpuperf.report.table import Line


@dataclass(frozen=True, slots=True)
class Shown:
    """A kind of what tests show."""

    name: str
    """Its key in ``shown`` of a results file."""
    form: type[Any]
    """A dataclass: what each value must be, as JSON."""
    lines: Callable[[Sequence[Mapping[str, Any]]], list[Line]]
    """Returns the summary's lines about the values of a run."""

    @property
    def where(self) -> str:
        """The user property of a report that carries the values of a test, as a list in JSON."""
        return f"gpuperf_shown_{self.name}"

    def carry(self, values: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Returns the user properties of a test that shows these values; none without values.

        Raises:
            FieldError: a value does not have the kind's form.
        """
        carried = make_json_property(self.where, list(values))
        for _, text in carried:
            self.require(json.loads(text), self.where)
        return carried

    def read(self, report: pytest.TestReport) -> list[Mapping[str, Any]]:
        """Returns the values that a report carries.

        Raises:
            ValueError: one is no JSON, or of another form.
        """
        values = read_list(report, self.where)
        self.require(values, self.where)
        return values

    def require(self, values: Iterable[Mapping[str, Any]], where: str) -> None:
        """Requires each of these values to have the kind's form.

        Args:
            values: of any form.
            where: names their place in messages.

        Raises:
            FieldError: one has another form.
        """
        require(self.form, values, where)


class Collected:
    """What the tests of a run show, by kind."""

    def __init__(self, kinds: Sequence[Shown]) -> None:
        """Has no value yet.

        Args:
            kinds: those that are collected; summaries keep their order.
        """
        self.kinds = kinds
        self._values: dict[str, list[Mapping[str, Any]]] = {kind.name: [] for kind in kinds}

    def take(self, report: pytest.TestReport) -> None:
        """Adds what a report carries."""
        for kind in self.kinds:
            self._values[kind.name] += kind.read(report)

    def of(self, kind: Shown) -> Sequence[Mapping[str, Any]]:
        """Returns the values of a kind, in the order of the tests."""
        return self._values.get(kind.name, [])

    def lines(self) -> list[Line]:
        """Returns the summary's lines."""
        return [line for kind in self.kinds for line in kind.lines(self.of(kind))]

    def by_name(self) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """Returns the values of each kind that has any."""
        return {name: tuple(values) for name, values in self._values.items() if values}
