"""What the processes of a trial of one fault tell each other, through the environment and a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.mutants.fault import Fault

FOLDER = "GPUPERF_MUTANT"  # the variable that names the trial's folder
START = Path(__file__).parent / "start"
"""A folder for PYTHONPATH: Python imports its ``sitecustomize`` in every process that starts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A folder with the fault, a mark once its module was imported, and the first test that failed."""

    folder: Path

    @classmethod
    def of_process(cls) -> Trial:
        """The trial that this process is part of."""
        return cls(Path(os.environ[FOLDER]))

    @property
    def reached(self) -> Path:
        """Is there once a process has imported the faulty module."""
        return self.folder / "reached"

    @property
    def passed(self) -> Path:
        """Is there once a test has passed."""
        return self.folder / "passed"

    @property
    def failure(self) -> Path:
        """Says which test failed first, and how; a JSON object."""
        return self.folder / "failure.json"

    def fault(self) -> Fault | None:
        """The fault; None in a trial without one."""
        stored = json.loads((self.folder / "fault.json").read_text(encoding="utf-8"))
        return None if stored is None else Fault(**stored)

    def begin(self, fault: Fault | None) -> None:
        """Stores the fault for the processes to come."""
        (self.folder / "fault.json").write_text(json.dumps(fault and asdict(fault)), encoding="utf-8")
