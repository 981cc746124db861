"""A plugin of pytest that puts a fault in place, and writes down the first test that fails.

A fault of the suites' programs is imported here and travels to the ranks with the program. One of torch is put into the
processes that pytest starts, and pytest itself keeps the torch that is right: it computes the references.
"""

from __future__ import annotations

import json
import os

import pytest
import torch._dynamo  # noqa: F401  # optimizers import it; what pytest has imported, the ranks' forkserver loads once

from benchmarks.mutants import patching
from benchmarks.mutants.trial import START, Trial

_trial = Trial.of_process()
_fault = _trial.fault()
os.environ["PYTHONPATH"] = os.pathsep.join([str(START), *filter(None, [os.environ.get("PYTHONPATH")])])
if _fault is not None and _fault.in_suites:
    patching.install(_fault, _trial.reached)


@pytest.hookimpl(trylast=True)  # once --hypothesis-profile is loaded
def pytest_configure() -> None:
    """Has hypothesis stop at the first failing example: nobody reads a smaller one."""
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases, database=None)
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Writes down the first failure, and that some test passed."""
    report: pytest.TestReport = yield
    if report.failed and not _trial.failure.exists():
        raised = call.excinfo
        message = "" if raised is None else raised.exconly(tryshort=True)
        found = {"test": item.nodeid, "when": call.when, "message": message[:400]}
        _trial.failure.write_text(json.dumps(found), encoding="utf-8")
    if report.passed and call.when == "call":
        _trial.passed.touch()
    return report
