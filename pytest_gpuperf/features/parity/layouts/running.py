"""The command ``parity``: trains a model in each layout, from the start and from checkpoints."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from pytest_gpuperf.api.ranks import Ranks
from pytest_gpuperf.features.parity.comparing import Options, compare_held
from pytest_gpuperf.features.parity.layouts.applying import refuse
from pytest_gpuperf.features.parity.layouts.asked import Layout, Subject
from pytest_gpuperf.features.parity.layouts.attention import require_attention
from pytest_gpuperf.features.parity.layouts.plans import derive
from pytest_gpuperf.features.parity.layouts.programs import SAVED_AFTER, resume_run, run_whole, save
from pytest_gpuperf.features.parity.layouts.table import Result, Row
from pytest_gpuperf.features.parity.layouts.training import SplitError, build, make_batch, train_reference
from pytest_gpuperf.features.parity.records import Trace
from pytest_gpuperf.features.parity.reference import References
from pytest_gpuperf.features.parity.report import Report
from pytest_gpuperf.report.command_error import CommandError

ONE_DEVICE = "one device"
_TEST = """
import pytest

@pytest.mark.ranks({world}, timeout={timeout})
def test_layouts(ranks, gpuperf_layouts):
    gpuperf_layouts(ranks)
"""


def try_layouts(subject: Subject, layouts: Sequence[Layout], gpus: int, timeout: float) -> list[Row]:
    """Trains the model in each layout, and compares it with one device.

    Args:
        subject: the user's functions.
        layouts: to try.
        gpus: how many the run uses; 0 for gloo.
        timeout: of each run, in seconds.

    Raises:
        CommandError: ranks could not be started, or the reference cannot be compared with.
    """
    with tempfile.TemporaryDirectory(prefix="gpuperf-parity-") as folder:
        attempts = _Attempts(subject, layouts, Path(folder), gpus)
        attempts.require_reference()
        world = max(layout.world for layout in layouts if not gpus or layout.world <= gpus)
        test = Path(folder) / "test_layouts.py"
        test.write_text(_TEST.format(world=world, timeout=timeout))
        os.environ.pop("PYTEST_ADDOPTS", None)  # the options of the user's own tests
        arguments = [str(test), "-c", os.devnull, "--rootdir", folder, "--noconftest", "-p", "no:cacheprovider"]
        arguments += ["--gpus", str(gpus), "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = pytest.main(arguments, plugins=[_Plugin(attempts)])
        if code != pytest.ExitCode.OK:
            raise CommandError(f"ranks could not run the layouts; pytest printed:\n{printed.getvalue()[-3000:]}")
        return attempts.rows


class _Plugin:
    """Gives the test what it shall do."""

    def __init__(self, attempts: _Attempts) -> None:
        self._attempts = attempts

    @pytest.fixture
    def gpuperf_layouts(self) -> Callable[[Ranks], None]:
        """Tries all layouts."""
        return self._attempts.run


class _Attempts:
    def __init__(self, subject: Subject, layouts: Sequence[Layout], folder: Path, gpus: int) -> None:
        self._subject = subject
        self._layouts = layouts
        self._folder = folder
        self._gpus = gpus
        self._references = References(lambda: train_reference(subject), subject.seed)
        self._plans: dict[int, Mapping[str, str]] = {}
        self.rows: list[Row] = []

    def require_reference(self) -> None:
        """Trains on one device, before any rank starts.

        Raises:
            CommandError: that fails, or cannot be compared with.
        """
        try:
            self._references.whole  # noqa: B018  # is kept
        except CommandError:
            raise
        except Exception as error:
            raise CommandError(f"one device cannot train the model: {type(error).__name__}: {error}") from error

    def run(self, ranks: Ranks) -> None:
        """Tries each layout from the start, then from checkpoints."""
        rows = {layout: self._try_from_start(ranks, layout) for layout in self._layouts}
        right = [layout for layout, row in rows.items() if row.result is Result.RIGHT]
        for layout, row in rows.items():
            self.rows.append(row)
            # The checkpoint of a wrong run would be wrong too.
            if layout in right and self._subject.steps > SAVED_AFTER:
                self.rows += self._try_from_checkpoints(ranks, layout, right)

    def _try_from_start(self, ranks: Ranks, layout: Layout) -> Row:
        start = "step 1"
        if self._gpus and layout.world > self._gpus:
            why = f"it has {layout.world} ranks, and --gpus is {self._gpus}"
            return Row(layout.name, start, Result.NOT_TRIED, why=why)
        try:
            refuse(layout)
            if layout.sizes["cp"] > 1:
                self._require_attention()
            plan = self._plan(layout)
        except SplitError as error:
            return Row(layout.name, start, Result.NOT_TRIED, why=str(error))
        return self._judge_run(
            layout, start, lambda: self._run_program(ranks, layout, run_whole, plan, layout.name), after=0
        )

    def _try_from_checkpoints(self, ranks: Ranks, layout: Layout, right: Sequence[Layout]) -> Iterator[Row]:
        other = right[(right.index(layout) + 1) % len(right)].name
        if other == layout.name:
            self._save_one_device()
            other = ONE_DEVICE
        plan = self._plan(layout)
        for source, start in ((layout.name, "its checkpoint"), (other, f"that of {other}")):

            def traces(source: str = source) -> list[Trace] | str:
                return self._run_program(ranks, layout, resume_run, plan, source)

            yield self._judge_run(layout, start, traces, after=SAVED_AFTER)

    def _run_program(
        self, ranks: Ranks, layout: Layout, program: Callable[..., Trace | str], plan: Mapping[str, str], source: str
    ) -> list[Trace] | str:
        """The traces of the ranks, or why there are none."""
        there = str(self._folder / source.replace(" ", "-"))
        traces = ranks.resized(layout.world).run(program, self._subject, layout, dict(plan), there)
        whys = [one for one in traces if isinstance(one, str)]
        return whys[0] if whys else [one for one in traces if isinstance(one, Trace)]

    def _judge_run(self, layout: Layout, start: str, traces: Callable[[], list[Trace] | str], *, after: int) -> Row:
        try:
            found = traces()
            if isinstance(found, str):
                return Row(layout.name, start, Result.NOT_TRIED, why=found)
            report = compare_held(self._references, found, Options(), after=after)
        except Exception as error:  # what the user's model raises under an API is the answer
            lines = str(error).strip().splitlines() or [""]
            return Row(layout.name, start, Result.FAILED, why=f"{type(error).__name__}: {lines[0]}")
        return _make_row(layout, start, report)

    def _plan(self, layout: Layout) -> Mapping[str, str]:
        """The derived plan of tensor parallelism.

        Raises:
            SplitError: there is none, and the user gave none.
        """
        size = layout.sizes["tp"]
        if size == 1 or self._subject.plan:
            return {}
        if size not in self._plans:
            inputs, _ = make_batch(self._subject, 1, torch.device("cpu"))
            with self._references.alike():
                self._plans[size] = derive(build(self._subject), inputs, size)
        return self._plans[size]

    def _require_attention(self) -> None:
        inputs, _ = make_batch(self._subject, 1, torch.device("cpu"))
        with self._references.alike():
            require_attention(build(self._subject), inputs)

    def _save_one_device(self) -> None:
        def finish(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
            if step == SAVED_AFTER:
                save(model, optimizer, self._folder / ONE_DEVICE.replace(" ", "-"))

        with self._references.alike():
            train_reference(self._subject, finish)


def _make_row(layout: Layout, start: str, report: Report) -> Row:
    verdict = report.verdict
    if verdict.first is None:
        return Row(layout.name, start, Result.RIGHT, report.slack)
    cause = "unknown" if verdict.cause is None else verdict.cause.text
    if verdict.cause is not None and verdict.explained is not verdict.first:
        assert verdict.explained is not None
        cause = f"unknown; of {verdict.explained.title}: {cause}"
    return Row(layout.name, start, Result.WRONG, report.slack, verdict.first.title, cause)
