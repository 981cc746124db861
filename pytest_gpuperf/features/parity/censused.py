"""``--census``: every program's optimizers are counted on all ranks, and copies that drift apart are reported."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
import torch

from pytest_gpuperf.api.ranks import ProgramRunner, Ranks
from pytest_gpuperf.features.parity.census import Agreement, Census, compare_censuses, digests
from pytest_gpuperf.features.parity.optimizer_steps import OptimizerSteps
from pytest_gpuperf.features.parity.records import Kind

SECTION = "census"


class _Digests(OptimizerSteps):
    """Keeps digests of what optimizers are given and make, in place of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.census = Census()

    def _note(self, optimizer: torch.optim.Optimizer, kind: Kind, index: int, step: int, tensor: torch.Tensor) -> None:
        when = "the start" if kind is Kind.START else f"step {step}" + (", before" if kind is Kind.GRADIENT else "")
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        of = f" of optimizer {number}" if number else ""
        what = "gradient of " if kind is Kind.GRADIENT else ""
        if not self.census.rows or self.census.rows[-1][0] != when:
            self.census.rows.append((when, {}))
        self.census.rows[-1][1].update(digests({f"{what}parameter {index} {tuple(tensor.shape)}{of}": tensor}))


class _Counted:
    """An entry on a rank that returns its result with a census."""

    def __init__(self, entry: Callable[..., Any]) -> None:
        self._entry = entry

    def __call__(self, ctx: Any, *args: Any, **kwargs: Any) -> tuple[Any, Census]:
        """Runs the entry."""
        steps = _Digests()
        with steps:
            result = self._entry(ctx, *args, **kwargs)
        return result, steps.census


class _CensusRunner:
    """Runs programs with a census, and keeps what drifted."""

    def __init__(self, runner: ProgramRunner, found: list[Agreement]) -> None:
        self._runner = runner
        self._found = found

    @property
    def backend(self) -> str:
        """The ranks' backend."""
        return self._runner.backend

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
    ) -> list[Any]:
        """Runs the entry on every rank, and compares their censuses."""
        __tracebackhide__ = True
        results = self._runner.run(world_size, _Counted(entry), args, kwargs, program)
        censuses = [census for _, census in results]
        points = [[when for when, _ in census.rows] for census in censuses]
        # Stages of a pipeline may have optimizers of their own, so only points that all ranks have are compared.
        if points and all(one == points[0] for one in points) and points[0]:
            self._found.append(compare_censuses(censuses))
        return [result for result, _ in results]


class CensusOfTests:
    """Counts the programs of all tests."""

    def __init__(self) -> None:
        self._found: list[Agreement] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Gives tests ranks that are counted."""
        value = yield
        if not isinstance(value, Ranks):
            return value
        counted = value.with_runner(lambda runner: _CensusRunner(runner, self._found))
        if fixturedef.cached_result is not None:
            fixturedef.cached_result = (counted, fixturedef.cached_result[1], None)
        return counted

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds what drifted to the test's report."""
        report = yield
        if call.when == "call" and self._found:
            lines = [str(drift) for found in self._found for drift in found.drifts]
            report.sections.append((SECTION, "\n".join(lines)))
            self._found.clear()
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Reports which tests' copies drifted."""
        reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
        counted = [(one.nodeid, text) for one in reports for title, text in one.sections if title == SECTION]
        drifted = [(name, text) for name, text in counted if text]
        terminalreporter.section("census")
        for name, text in drifted:
            terminalreporter.write_line(name)
            for line in text.splitlines()[:8]:
                terminalreporter.write_line(f"  {line}")
        terminalreporter.write_line(f"copies drifted apart in {len(drifted)} of {len(counted)} tests with optimizers")
