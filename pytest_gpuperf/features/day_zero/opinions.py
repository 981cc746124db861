"""Asks references about a metric without a record, then the model."""

from __future__ import annotations

from pytest_gpuperf.features.day_zero.model.expecting import form_opinion
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.features.day_zero.references.expecting import Expecting
from pytest_gpuperf.features.day_zero.references.shelf import Shelf
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.verdicts.opinion import Opinion
from pytest_gpuperf.verdicts.rule import Policy


class Opinions:
    """Says what references expect of a metric without a record, else what the model of the hardware does."""

    def __init__(self, machine: Machine, policy: Policy) -> None:
        self._machine = machine
        self._policy = policy
        self._references: Expecting | None = None
        self._opened = False
        """Whether references were looked for: they are read once, and only if a metric has no record."""

    def __call__(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Opinion:
        """Return what references expect of a metric, or the model if they do not know it."""
        rates = Rates.of(self._machine)
        if not self._opened:
            shelf = Shelf.open(self._machine.match)
            self._references = None if shelf is None else Expecting(shelf, rates, self._policy)
            self._opened = True
        said = None if self._references is None else self._references.opinion(test, metric_name, metric, body_hash)
        return form_opinion(metric, rates) if said is None else said
