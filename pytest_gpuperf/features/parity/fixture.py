"""The ``parity`` fixture: compares a program on ranks with a reference on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from pytest_gpuperf.api.ranks import Ranks, require_callable
from pytest_gpuperf.features.parity.census import Agreement, compare_censuses
from pytest_gpuperf.features.parity.comparing import Options, compare_held
from pytest_gpuperf.features.parity.judging import list_groups
from pytest_gpuperf.features.parity.layout import Part
from pytest_gpuperf.features.parity.on_rank import Counted, Traced
from pytest_gpuperf.features.parity.records import Key, Trace
from pytest_gpuperf.features.parity.reference import SAMPLES, References, require_reference
from pytest_gpuperf.features.parity.report import Report
from pytest_gpuperf.features.parity.step_starts import StepStarts


class ParityError(AssertionError):
    """Ranks do not compute what one device computes; ``report`` has all that was found."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@final
class Parity:
    """Compares programs on the test's ranks with references on one device."""

    def __init__(self, ranks: Ranks, seed: int = 0) -> None:
        self._ranks = ranks
        self._seed = seed

    def check(self, reference: Callable[[], Any], program: Callable[..., Any], *args: Any, **options: Any) -> Report:
        """Fails unless ranks hold what the reference computes, up to rounding.

        Args:
            reference: runs on one device, in the pytest process; called about 8 times. Returns tensors by name, or the
                trace of ``watch``.
            program: runs on every rank as ``program(ctx, *args)``. Returns what the rank holds, by the same names.
            *args: for the program.
            **options: see ``report``.

        Returns:
            The report; ``report.slack`` is the smallest relative fault that would be seen.

        Raises:
            ParityError: a tensor is wrong. The message names the first one, and the cause if it is known.
            TypeError: the reference or the program returns no tensors by name.
            ValueError: the reference is not finite, or is another one each time; names or layouts do not fit.
        """
        __tracebackhide__ = True
        report = self.report(reference, program, *args, **options)
        if not report.ok:
            raise ParityError(report)
        return report

    def census(self, program: Callable[..., Any], *args: Any) -> Agreement:
        """Fails if copies that agreed drift apart; needs no reference.

        Args:
            program: runs on every rank as ``program(ctx, *args)``, and returns what ``with census(model, optimizer) as
                seen`` saw.
            *args: for the program.

        Returns:
            What is equal on which ranks.

        Raises:
            AssertionError: something drifted. The message names it, the step, and the ranks.
            TypeError: the program returns no census.
            ValueError: ranks took their censuses at different points.
        """
        __tracebackhide__ = True
        require_callable(program)
        taken = self._ranks.run(Counted(program), *args)
        meshes = [dict(mesh) for mesh in taken[0].meshes]
        found = compare_censuses(taken, list_groups({}, meshes, self._ranks.world_size))
        if found.drifts:
            raise AssertionError(str(found))
        return found

    def report(
        self,
        reference: Callable[[], Any],
        program: Callable[..., Any],
        *args: Any,
        share: Callable[[int], Any] | None = None,
        mesh: Mapping[str, int] | None = None,
        layouts: Mapping[str, str] | None = None,
        microbatches: int = 1,
        precision: torch.dtype | None = None,
        samples: int = SAMPLES,
        each_step: bool = False,
    ) -> Report:
        """Compares as ``check`` does, and returns the report whatever it says.

        Args:
            reference: as in ``check``.
            program: as in ``check``.
            *args: for the program.
            share: ``share(rank)`` runs the reference on the rank's share of the batch. It helps to name causes.
            mesh: names and sizes of the mesh's axes, the last one counting fastest; by default that of ``ctx.mesh``.
            layouts: how ranks hold a tensor, by name (``*`` stands for any text), where shapes do not say it:
                ``replicated``, ``shard(0)``, ``zigzag(0)``, ``interleaved(0)``, ``rank-local``, ``partial(sum)``,
                ``partial(mean)``.
            microbatches: into how many a rank cuts its batch; it helps to name causes.
            precision: what the program computes in, if no output shows it, as with compressed gradients.
            samples: runs of the reference with random rounding.
            each_step: whether the program runs again, and each of its steps begins from the reference's parameters and
                optimizer states. That needs ``watch`` on both sides. It shows which steps are wrong by themselves, and
                judges late steps of a training whose rounding grows.
        """
        __tracebackhide__ = True
        require_reference(reference)
        require_callable(program)
        references = References(reference, self._seed)
        references.whole  # noqa: B018  # bad input is refused before ranks start
        begin = time.perf_counter()
        traces = self._run_on_ranks(Traced(program), args)
        took = time.perf_counter() - begin
        options = Options(dict(mesh or {}), dict(layouts or {}), microbatches, precision, samples, share)
        report = compare_held(references, traces, options)
        if each_step:
            starts = _cut_starts(references.starts, report.verdict.parts, len(traces))
            again = self._run_on_ranks(Traced(program, starts), args)
            report = replace(report, by_step=compare_held(references, again, options, each_step=True))
        return replace(report, seconds={**report.seconds, "program": took})

    def _run_on_ranks(self, program: Traced, args: Sequence[Any]) -> list[Trace]:
        __tracebackhide__ = True
        return list(self._ranks.run(program, *args))


def _cut_starts(whole: StepStarts, parts: Mapping[Key, Mapping[int, Part]], world: int) -> list[StepStarts]:
    """Each rank's parts of the reference's parameters and optimizer states.

    Raises:
        ValueError: there are none, since nothing was watched.
    """
    if not parts:
        raise ValueError("each_step=True needs the traces of watch(model, optimizer) from reference and program")
    return [
        StepStarts({key: held[rank].of(whole.tensors[key]).clone() for key, held in parts.items() if rank in held})
        for rank in range(world)
    ]
