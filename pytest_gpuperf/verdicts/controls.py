"""The control workload of a run, held against that of the baselines' launches: what of a loss is the machine's."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gpuperf.baselines.schema import LaunchInfo
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.rule import Policy, Rule

FEWEST = 2  # launches that a part is held against: of one no spread is known


@dataclass(frozen=True, slots=True)
class Control:
    """What one part of the control workload came to in one launch."""

    seconds: float
    power_capped: bool
    """Whether a GPU was at its power limit meanwhile."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The launches of a baseline that a part of the control workload is held against."""

    launches: tuple[str, ...]
    same_software: bool
    """Whether they ran with the versions and settings of this run."""


@dataclass(slots=True)
class _Part:
    world_size: int
    logs: list[float] = field(default_factory=list)
    capped: list[bool] = field(default_factory=list)

    @property
    def at_limit(self) -> bool:
        """One look at a GPU that still cools down decides nothing."""
        return most(self.capped)


def most(flags: Sequence[bool]) -> bool:
    """Whether more than half of them are set."""
    return 2 * sum(flags) > len(flags)


class Controls:
    """The control workload of all launches of one run."""

    def __init__(self, launches: Mapping[str, LaunchInfo], gpus: str, policy: Policy) -> None:
        """None was measured yet.

        Args:
            launches: Of the baselines, by id.
            gpus: Tells this machine's GPUs from others of their kind.
            policy: What counts as moved.
        """
        self._launches = launches
        self._gpus = gpus
        self._policy = policy
        self._parts: dict[str, _Part] = {}
        self._software: Mapping[str, str] = {}

    def add(self, world_size: int, found: Mapping[str, Control], software: Mapping[str, str]) -> None:
        """Takes what one launch measured on so many ranks, by name, with these versions and settings."""
        self._software = software
        for name, control in found.items():
            part = self._parts.setdefault(name, _Part(world_size))
            part.logs.append(math.log(control.seconds))
            part.capped.append(control.power_capped)

    def parts(self, world_size: int, *, at_limit: bool) -> list[str]:
        """Those on so many ranks during which a GPU was at its power limit, or those during which none was.

        How fast a GPU is at its power limit, which differs from one to the next, says nothing of work that does not
        take it there; and what slows other work says nothing of how fast a GPU multiplies.
        """
        return [name for name, p in self._parts.items() if (p.world_size, p.at_limit) == (world_size, at_limit)]

    @property
    def moved(self) -> Mapping[str, float]:
        """The losses of those that moved against all launches of the baselines; above 0 is slower."""
        losses = {name: self.slower(name, self._launches) for name in self._parts}
        return {name: loss for name, loss in losses.items() if loss}

    @property
    def slower_at_limit(self) -> bool:
        """Whether the GPUs are slower at their power limit than those of the baselines."""
        return any(loss > 0 and self._parts[name].at_limit for name, loss in self.moved.items())

    def reference(self, name: str, launches: Iterable[str]) -> Reference | None:
        """Which of these launches a part is held against; None if they are too few.

        Of those that measured it, with the same software where there are any, on the same GPUs where there are any.
        """
        have = [id_ for id_ in launches if id_ in self._launches and name in self._launches[id_].control]
        same = [id_ for id_ in have if self._launches[id_].environment == self._software]
        own = [id_ for id_ in same if self._gpus and self._launches[id_].gpus == self._gpus]
        for chosen, same_software in ((own, True), (same, True), (have, False)):
            if len(chosen) >= FEWEST:
                return Reference(tuple(chosen), same_software)
        return None

    def slower(self, name: str, launches: Iterable[str]) -> float:
        """A part's loss against these launches; 0 if it did not move."""
        known, looks = self._history(name, launches), self._parts[name].logs
        histories = [history for part in self._parts if (history := self._history(part, self._launches)) is not None]
        if known is None or not histories:
            return 0.0
        # A rule of their own: they are as quiet as they are, whatever the tests are. Each may move either way.
        rule = Rule.of(self._policy, histories, 2 * len(histories))
        return statistics.median(looks) - known.center if rule.moved(known, looks) else 0.0

    def _history(self, name: str, launches: Iterable[str]) -> History | None:
        machines: dict[str, list[float]] = {}
        for id_ in launches:
            info = self._launches.get(id_)
            if info is not None and name in info.control:
                machines.setdefault(info.gpus, []).append(math.log(info.control[name]))
        if sum(map(len, machines.values())) < FEWEST:
            return None
        # Among several machines it scatters as they differ, which is what it is to tell.
        return History.within(list(machines.values()))
