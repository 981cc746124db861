"""A file of results, as far as it becomes baselines: what a run measured. Its verdicts are for others to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuperf.baselines import json_files
from pytest_gpuperf.baselines.plain import OMITTED, OPTIONAL, FieldError, at, read
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, require_version

SCHEMA = 1
AGAIN = "check the path, or write the file again with pytest --gpuperf-json=FILE"


class ResultsError(BaselineError):
    """A file of results cannot be used."""

    def __str__(self) -> str:
        return f"results {str(self.path)!r}: {self.problem}: {self.cure}"


@dataclass(frozen=True, slots=True)
class ResultsForm:
    """The keys of a file of results; what is in the candidate and in the verdicts has readers of its own."""

    results: int
    """The version of the form."""
    hardware_key: str
    environment: Mapping[str, str]
    """The environment of the first launch, repeated at the top for people who read the file."""
    candidate: Mapping[str, Any]
    """Baselines: every launch of every perf test that ran; no anchors, no updates, nothing that a reviewer writes."""
    verdicts: tuple[Mapping[str, Any], ...]
    unchecked: tuple[Mapping[str, str], ...] = field(default=(), metadata=OPTIONAL)
    """Metrics that have a baseline and that their tests did not check."""
    ran: tuple[Mapping[str, Any], ...] = field(default=(), metadata=OPTIONAL)
    """What became of each test on ranks."""
    shown: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict, metadata=OMITTED)
    """What tests show besides metrics, by kind: curves, matrices, searches, profiles; see docs/reference/files.md."""
    topology: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    """How the machine's GPUs reach one another, for pages that draw it."""
    raced: Mapping[str, Any] | None = field(default=None, metadata=OMITTED)
    """The two codes of a race of all tests."""
    smoke: bool = field(default=False, metadata=OMITTED)
    """Whether the run only tried bodies, and timed nothing."""
    summary: Mapping[str, Any] | None = field(default=None, metadata=OMITTED)
    """What the run came to as a whole, for the top of a page: title, columns, rows and remarks."""
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=OMITTED)
    """What features add, by the feature's name."""


def load(path: Path) -> tuple[Baselines, ResultsForm]:
    """Reads what a run measured, and the form around it.

    Raises:
        ResultsError: For a file that is not there, or says anything else.
    """
    try:
        data = json_files.read(path)
        if data is None:
            raise ResultsError(path, "there is no such file", AGAIN)
        require_version(data, "results", SCHEMA, path, of="results ")
        form = read(ResultsForm, data, "file")
        candidate = Baselines.from_json(form.candidate, path, form.hardware_key)
    except ResultsError:
        raise
    except BaselineError as error:
        cure = error.cure if error.cure.startswith("upgrade") else AGAIN
        raise ResultsError(path, error.problem, cure) from error
    except (FieldError, RecursionError) as error:
        raise ResultsError(path, str(error), AGAIN) from error
    for test, entry in candidate.tests.items():
        if entry.expected:
            problem = f"{at('file', 'candidate', 'tests', test)}: got 'expected', expected what was measured alone"
            raise ResultsError(path, problem, "delete it: a reviewer writes it, into the baselines themselves")
    return candidate, form
