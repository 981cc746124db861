"""A mesh and features of one training, and the fewest of them with which it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from suites.hybrid.programs.combinations import Features, replicates
from suites.hybrid.programs.training import Mesh

MESHES: list[Mesh] = [
    {"shard": 4},
    {"tp": 4},
    {"cp": 4},
    {"shard": 1, "ep": 4},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tp": 2},
    {"shard": 2, "cp": 2},
    {"shard": 2, "ep": 2},
    {"shard": 2, "pp": 2},
    {"cp": 2, "tp": 2},
    {"pp": 2, "tp": 2},
    {"pp": 2, "cp": 2},
]
"""The plainest first, then those with one axis, then those with two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """What a training has; by default only the plain values, which are also the simplest ones that hypothesis draws."""

    mesh: Mesh = field(default_factory=lambda: MESHES[0])
    recompute: bool = False
    compiled: bool = False
    zero: int = 3
    accumulate: bool = False
    lazy: bool = False
    clips: bool = False
    pads: bool = False
    schedule: str = "1F1B"
    seed: int = 0

    @property
    def features(self) -> Features:
        """For the program."""
        return Features(
            recompute=self.recompute,
            compiled=self.compiled,
            zero=self.zero if self.zero > 1 or replicates(self.mesh) else 3,
            accumulate=self.accumulate,
            lazy=self.lazy,
        )

    @property
    def switched_on(self) -> dict[str, str]:
        """The fields other than the mesh that are not plain and make a difference on this mesh, and their names."""
        piped = "pp" in self.mesh
        names = {
            "recompute": "recomputation" if self.recompute else "",
            "compiled": "compiled layers" if self.compiled else "",
            "zero": f"ZeRO-{self.features.zero}" if self.features.zero != 3 else "",
            "accumulate": "accumulation" if self.accumulate and not piped else "",
            "lazy": "lazy reduction" if self.lazy and self.accumulate and not piped else "",
            "clips": "clipping" if self.clips else "",
            "pads": "padding" if self.pads else "",
            "schedule": self.schedule if piped and self.schedule != "1F1B" else "",
        }
        return {feature: name for feature, name in names.items() if name}

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {degree}" for axis, degree in self.mesh.items() if degree > 1)
        return f"{mesh} with {', '.join(self.switched_on.values()) or 'nothing besides'}"

    def plain(self, feature: str) -> list[Combination]:
        """This one with the plain value of a feature, or with plainer meshes of its axes; none if it has it already."""
        if feature == "mesh":
            plainer = MESHES[: MESHES.index(self.mesh)]
            return [replace(self, mesh=mesh).without_idle() for mesh in plainer if {*mesh} <= {*self.mesh, "shard"}]
        return [self._plain(feature).without_idle()] if feature in self.switched_on else []

    def without_idle(self) -> Combination:
        """Gives each field that matters on other meshes, not on this one, its plain value; the training is the same."""
        return self._plain(*({one.name for one in fields(self)} - {"mesh", "seed", *self.switched_on}))

    def _plain(self, *features: str) -> Combination:
        return replace(self, **{feature: getattr(Combination(), feature) for feature in features})


def smallest(failing: Combination, fails: Callable[[Combination], bool]) -> Combination:
    """The combination without all features that the failure does not need: with any one less it passes."""
    before, failing = None, failing.without_idle()
    while before != failing:
        before = failing
        for feature in ("mesh", *before.switched_on):
            failing = next((one for one in failing.plain(feature) if fails(one)), failing)
    return failing
