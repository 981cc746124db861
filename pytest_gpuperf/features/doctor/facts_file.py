"""Facts in a file: what ``doctor --json`` printed on another machine."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.baselines import json_files
from pytest_gpuperf.baselines.plain import FieldError, read
from pytest_gpuperf.baselines.schema import BaselineError, require_version
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.lines import SCHEMA


class FactsError(BaselineError):
    """A file of facts cannot be used."""

    def __str__(self) -> str:
        return f"facts {str(self.path)!r}: {self.problem}: {self.cure}"


_AGAIN = "write it again with: python -m pytest_gpuperf doctor --json > FILE"


def load(path: Path) -> Facts:
    """Reads the facts.

    Raises:
        FactsError: The file is not there, or has something else in it.
    """
    try:
        data = json_files.read(path)
        if data is None:
            raise FactsError(path, "there is no such file", _AGAIN)
        require_version(data, "doctor", SCHEMA, path, of="doctor's ")
        if "facts" not in data:
            raise FactsError(path, "got no key 'facts', expected what was seen of a machine", _AGAIN)
        return read(Facts, data["facts"], "file.facts")
    except FactsError:
        raise
    except BaselineError as error:
        raise FactsError(path, error.problem, error.cure if "upgrade" in error.cure else _AGAIN) from error
    except (FieldError, RecursionError) as error:
        raise FactsError(path, str(error), _AGAIN) from error
