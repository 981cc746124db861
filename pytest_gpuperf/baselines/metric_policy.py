"""What is to be found of one metric, written beside a baseline by hand where the run's policy does not fit."""

from dataclasses import dataclass, replace

from pytest_gpuperf.baselines.json_fields import Fields, mismatch
from pytest_gpuperf.verdicts.rule import Policy

CURE = (
    'write for example "policy": {"busbw": {"detect": 0.15, "reason": "launches differ by 5 % at this size"}}, '
    "or delete it"
)


@dataclass(frozen=True, slots=True)
class MetricPolicy:
    """The bounds of one metric on one hardware."""

    reason: str
    detect: float | None = None
    """The slowdown that is to be found, as a ratio minus 1; the run's where it is None."""
    min_effect: float | None = None
    """The slowdown that is no regression, as a ratio minus 1; the run's where it is None."""

    def on(self, policy: Policy) -> Policy:
        """A run's policy with this metric's bounds.

        Raises:
            ValueError: Together they have no meaning, or decide nothing.
        """
        detect = policy.detect if self.detect is None else self.detect
        min_effect = policy.min_effect if self.min_effect is None else self.min_effect
        return replace(policy, detect=detect, min_effect=min_effect)

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        bounds = {"detect": self.detect, "min_effect": self.min_effect}
        return {"reason": self.reason, **{name: bound for name, bound in bounds.items() if bound is not None}}

    @classmethod
    def from_json(cls, fields: Fields) -> "MetricPolicy":
        """Reads what to_json wrote, or a reviewer.

        Raises:
            FieldError: Where the fields say anything else, or nothing.
        """
        fields.only("reason", "detect", "min_effect")
        if not (reason := fields.text("reason")).strip():
            raise mismatch(f"{fields.where}.reason", reason, "why the run's policy does not fit")
        bounds = {name: fields.positive(name) for name in ("detect", "min_effect") if name in fields.values}
        for name, bound in bounds.items():
            if bound >= 1:
                raise mismatch(f"{fields.where}.{name}", bound, "a fraction below 1, 0.15 for 15 %")
        if not bounds:
            raise mismatch(fields.where, sorted(fields.values), "detect, min_effect or both")
        return cls(reason, **bounds)
