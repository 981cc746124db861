"""Python imports this at its start in every process that a trial's pytest starts: libraries get their fault here.

So do scripts of the suites that a launcher starts; ranks get the suites' programs, faults included, from pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

root = str(Path(__file__).parents[3])
sys.path.insert(0, root)
try:
    from benchmarks.mutants import patching
    from benchmarks.mutants.trial import Trial
finally:
    sys.path.remove(root)

trial = Trial.of_process()
fault = trial.fault()
if fault is not None:
    patching.install(fault, trial.reached)
