"""A file of references: the launches of all recorded machines of one kind of GPU, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines.json_files import read
from pytest_gpuperf.baselines.json_text import round_floats
from pytest_gpuperf.baselines.match import Scalar
from pytest_gpuperf.baselines.plain import FieldError, make_plain
from pytest_gpuperf.baselines.plain import read as read_plain
from pytest_gpuperf.baselines.schema import BaselineError, require_version
from pytest_gpuperf.figures.metric import Better

SCHEMA = 1
KIND = ("gpu_name", "cc", "mem_gib", "power_limit_w")
"""The facts of ``hardware.key.match_fields`` that make one kind of GPU."""
UPGRADE = "install this version of pytest-gpuperf again, or make the file again with make references"


@dataclass(frozen=True, slots=True)
class Source:
    """The machines of one hardware key that were recorded."""

    gpu_count: int
    topology: str
    """Label of the links between the GPUs, as in the hardware key; empty for one GPU."""
    machines: int
    launches: int
    first: str
    """Date of the first launch, ISO 8601."""
    last: str
    software: Mapping[str, str]
    """Versions that all launches had, by name."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The launches of one metric on the machines of one hardware key."""

    body_hash: str
    unit: str
    better: Better
    clock: str
    machines: Mapping[str, tuple[float, ...]]
    """The metric of each launch, in unit, by the identity of the machine's GPUs."""


@dataclass(frozen=True, slots=True)
class References:
    """All that is recorded of one kind of GPU."""

    kind: Mapping[str, Scalar]
    """The facts of ``KIND``."""
    sources: Mapping[str, Source]
    """By hardware key."""
    figures: Mapping[str, Mapping[str, Mapping[str, Recorded]]]
    """By hardware key, node id and metric."""

    def to_json(self) -> object:
        """Return plain JSON types, with floats of five digits."""
        return round_floats({"references": SCHEMA, **make_plain(self)})

    @classmethod
    def load(cls, path: Path) -> References | None:
        """Read a file; None if there is none.

        Raises:
            BaselineError: the file is of a later version, or is no file of references.
        """
        data = read(path)
        if data is None:
            return None
        try:
            require_version(data, "references", SCHEMA, path, "references' ")
            return read_plain(cls, {name: value for name, value in data.items() if name != "references"}, "file")
        except FieldError as error:
            raise BaselineError(path, str(error), UPGRADE) from error
