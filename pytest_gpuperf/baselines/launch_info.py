"""What a launch was: fresh processes and communicators, the unit of the statistics, shared by all tests of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_gpuperf.baselines.json_fields import Fields


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """When, on which commit and host, and with which software a launch ran."""

    at: str
    """ISO 8601, UTC."""
    commit: str
    host: str
    environment: Mapping[str, str]
    """Versions: driver, cuda, nccl, torch, python and whatever else tells two launches apart."""
    control: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the control workload, by name."""
    gpus: str = ""
    """Tells the GPUs from others of their kind; empty if it is not known which they were."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        plain = {"at": self.at, "commit": self.commit, "host": self.host, "environment": dict(self.environment)}
        gpus = {"gpus": self.gpus} if self.gpus else {}
        return {**plain, **gpus, **({"control": dict(self.control)} if self.control else {})}


def launch_info(fields: Fields) -> LaunchInfo:
    """Reads one description of a launch.

    Raises:
        FieldError: Where the fields say anything else.
    """
    fields.only(*LaunchInfo.__dataclass_fields__)
    environment = fields.child("environment")
    control = fields.child("control") if "control" in fields.values else Fields("", {})
    return LaunchInfo(
        at=fields.text("at"),
        commit=fields.text("commit"),
        host=fields.text("host"),
        environment={key: environment.text(key) for key in environment.values},
        control={key: control.positive(key) for key in control.values},
        gpus=fields.text("gpus") if "gpus" in fields.values else "",
    )


def launches_joined(launches: Mapping[str, LaunchInfo], others: Mapping[str, LaunchInfo]) -> dict[str, LaunchInfo]:
    """All of them; of a launch in both, the control workload of both."""
    joined = dict(launches)
    for id_, info in others.items():
        known = joined.get(id_)
        joined[id_] = info if known is None else replace(info, control={**known.control, **info.control})
    return joined
