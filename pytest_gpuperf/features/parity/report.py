"""What a check found, in words."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuperf.features.parity.causes.find import try_hypotheses
from pytest_gpuperf.features.parity.judging import Judged, Verdict


@dataclass(frozen=True, repr=False)
class Report:
    """The result of ``parity.check``; ``str(report)`` is its text."""

    verdict: Verdict
    world: int
    samples: int
    """Runs of the reference with random rounding."""
    seconds: dict[str, float]
    """Time of the reference, the program, the runs with random rounding, and the judgement."""
    by_step: Report | None = None
    """The report of a run in which each step began from the reference's state; None if there was none."""

    @property
    def ok(self) -> bool:
        """Whether ranks compute what one device computes, up to rounding."""
        return self.verdict.ok and (self.by_step is None or self.by_step.ok)

    @property
    def slack(self) -> float:
        """The smallest relative fault (norm) that would be seen in every judged tensor."""
        return max((one.slack for one in self._counted), default=0.0)

    @property
    def strain(self) -> float:
        """The largest statistic of a judged tensor, relative to its limit; above 1 it is wrong."""
        return max((one.strain for one in self._counted), default=0.0)

    @property
    def _counted(self) -> list[Judged]:
        return [one for one in self.verdict.judged if one.key.is_judged and not one.note]

    def __repr__(self) -> str:
        # pytest shows it in a failed assertion; all that it holds would take minutes to write.
        first = self.verdict.first
        return f"Report(ok={self.ok}" + (f", first wrong: {first.title})" if first is not None else ")")

    def __str__(self) -> str:
        lines = self._describe_pass() if self.verdict.ok else self._describe_failure()
        return "\n".join(lines + self._describe_steps())

    def _describe_steps(self) -> list[str]:
        """Which steps are right if each begins from the reference's state."""
        if self.by_step is None:
            return []
        found = []
        for step in sorted({one.key.step for one in self.by_step.verdict.judged} - {0}):
            of_step = [one for one in self.by_step.verdict.judged if one.key.step == step and one.key.is_judged]
            wrong = [one for one in of_step if not one.ok]
            slack = max((one.slack for one in of_step if not one.note), default=0.0)
            found.append(f"{wrong[0].title} is wrong" if wrong else f"step {step} is right (slack {slack:.1g})")
        return ["each step from the reference's own state: " + "; ".join(found)]

    def _describe_pass(self) -> list[str]:
        counted = self._counted
        lines = [f"parity: {len(counted)} tensors of {self.world} ranks are right, up to rounding"]
        if counted:
            widest = max(counted, key=lambda one: one.slack)
            lines.append(f"a relative fault of {widest.slack:.1g} is seen in each (the least in {widest.title})")
        return lines + self._describe_undecided()

    def _describe_failure(self) -> list[str]:
        first, cause, explained = self.verdict.first, self.verdict.cause, self.verdict.explained
        assert first is not None
        lines = [
            f"parity: {self.world} ranks do not compute what one device does, and rounding does not explain it",
            f"first wrong: {first.title}",
        ]
        if first.note:
            lines.append(f"  {first.note}")
        else:
            lines.append(f"  off by {first.off:.2g} (norm, relative); rounding explains {first.slack:.2g}")
        lines += [f"  {fact}" for fact in self.verdict.facts if fact != first.note]
        if cause is None:
            lines.append("cause: unknown")
            if not first.note:
                lines.append(f"  tried, and none fits: {try_hypotheses()}")
        elif explained is first:
            lines.append(f"cause: {cause.text}")
        else:
            assert explained is not None
            lines.append(f"cause: unknown; of {explained.title}, which is wrong too: {cause.text}")
        wrong = self.verdict.wrong
        right = [one for one in self._counted if one.ok]
        others = [one for one in wrong if one is not first]
        if others:
            lines.append(f"also wrong: {_list(others)}")
        if right:
            lines.append(f"right: {_list(right)}")
        return lines + self._describe_undecided()

    def _describe_undecided(self) -> list[str]:
        return [f"not judged: {one.title}: {one.note}" for one in self.verdict.undecided[:8]]


def _list(judged: list[Judged]) -> str:
    shown = "; ".join(one.title for one in judged[:6])
    return shown if len(judged) <= 6 else f"{shown} and {len(judged) - 6} more"
