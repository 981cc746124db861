"""The results of one run as a file: what it measured, as baselines that could be adopted, and its verdicts."""

from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines import storage
from pytest_gpuperf.baselines.json_fields import FieldError, Fields
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.verdicts.verdict import Verdict

SCHEMA = 1
AGAIN = "fetch it again, or write it anew with --gpuperf-json"


class ResultsError(BaselineError):
    """A file of results cannot be used."""

    def __str__(self) -> str:
        return f"results {str(self.path)!r}: {self.problem}: {self.cure}"


@dataclass(frozen=True, slots=True)
class Results:
    """What one run measured, and what it came to."""

    candidate: Baselines
    """Every launch of every perf test that ran; no anchors, no updates, nothing that a reviewer writes."""
    verdicts: tuple[Verdict, ...]
    unchecked: tuple[tuple[str, str], ...] = ()
    """Figures that have a baseline and that their tests did not check: test, metric."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON types; key and environment are repeated on top for the reader."""
        environments = [dict(info.environment) for info in self.candidate.launches.values()]
        return {
            "results": SCHEMA,
            "hardware_key": self.candidate.hardware_key,
            "environment": environments[0] if environments else {},
            "candidate": self.candidate.to_json(),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "unchecked": [{"test": test, "metric_name": name} for test, name in self.unchecked],
        }


def write(path: Path, results: Results) -> None:
    """Replaces a file of results.

    Raises:
        BaselineWriteError: Where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage.BaselineWriteError(path, error) from error
    storage.replace(path, storage.text_of(storage.rounded(results.to_json())))


def load(path: Path) -> Results:
    """Reads a file of results.

    Raises:
        ResultsError: For a file that is not there, or says anything else.
    """
    try:
        data = storage.read(path)
        if data is None:
            raise ResultsError(path, "there is no such file", AGAIN)
        return _results(path, Fields.of(data, "file"))
    except ResultsError:
        raise
    except BaselineError as error:
        cure = error.cure if error.cure.startswith("upgrade") else AGAIN
        raise ResultsError(path, error.problem, cure) from error
    except (FieldError, RecursionError) as error:
        raise ResultsError(path, str(error), AGAIN) from error


def _results(path: Path, fields: Fields) -> Results:
    schema = fields.integer("results")
    if schema > SCHEMA:
        problem = f"results schema {schema} is newer than this version reads ({SCHEMA})"
        raise ResultsError(path, problem, "upgrade pytest-gpuperf")
    fields.only("results", "hardware_key", "environment", "candidate", "verdicts", "unchecked")
    candidate = Baselines.from_json(dict(fields.child("candidate").values), path, fields.text("hardware_key"))
    for test, entry in candidate.tests.items():
        if by_hand := entry.by_hand():
            problem = f"file.candidate.tests[{test!r}]: got {sorted(by_hand)}, expected what was measured alone"
            cure = "delete it: a reviewer writes it, into the baselines themselves"
            raise ResultsError(path, problem, cure)
    verdicts = tuple(Verdict.from_json(dict(item.values)) for item in fields.items("verdicts"))
    unchecked = fields.items("unchecked") if "unchecked" in fields.values else ()
    return Results(candidate, verdicts, tuple((item.text("test"), item.text("metric_name")) for item in unchecked))
