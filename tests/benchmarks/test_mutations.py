"""Faults are put in place where they should be, and only a test that fails catches one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import mutations
from benchmarks.mutants.fault import Fault
from benchmarks.mutations import (
    CAUGHT,
    EQUIVALENT,
    PASSED,
    SKIPPED,
    UNTRUE,
    Result,
    caught_before,
    main,
    record,
    sample,
    summary,
    table,
    tried,
    tried_again,
)
from tests.warm_python import FRESH
from tests.whole_run import write

TEST = """
import pytest, torch
import torch.distributed as dist

def summed(ctx):
    own = torch.full((3,), ctx.rank + 1.0)
    dist.all_reduce(own)
    return own

@pytest.mark.ranks(1, 2)
def test_sum(ranks):
    assert ranks.world_size == 2, "no smaller world is tried"
    assert all(torch.equal(each, torch.full((3,), 3.0)) for each in ranks.run(summed))
"""
# Of the suites themselves: only these send their modules to the ranks with the fault in them.
REAL = "suites/collectives/test_correctness.py::test_every_rank_is_root_once"
PROGRAMS, TORCH = "suites.collectives.programs.plain", "torch.distributed.distributed_c10d"
NOTHING = "def all_reduce(tensor, *args, **kwargs):\n    return None\n"


PROFILE = "from hypothesis import settings\n\nsettings.register_profile('quick')\n"


def written(folder: Path, tests: str) -> list[str]:
    """What pytest is told to run these tests."""
    write(folder, {"conftest.py": PROFILE, "test_it.py": tests})
    return [str(folder / "test_it.py"), f"--rootdir={folder}", "-o", f"gpuperf_leases={folder / '.leases'}"]


@pytest.mark.parametrize(
    ("fault", "outcome", "message"),
    [
        (Fault(name="of torch", module="torch.distributed", old="", new=NOTHING), CAUGHT, "assert"),
        (Fault(name="harmless", module=TORCH, old="", new="HARMLESS = 1"), PASSED, ""),
        (Fault(name="unreached", module="torch.utils.tensorboard", old="", new="x = 1"), UNTRUE, "no process imported"),
        (Fault(name="the same", module=PROGRAMS, old="", new="", equivalent="it adds nothing"), EQUIVALENT, "adds"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_a_fault_is_caught_if_it_is_in_place_and_a_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, outcome: str, message: str
) -> None:
    if fault.module.startswith("torch.distributed"):  # what is forked has imported it without the fault
        monkeypatch.setattr(subprocess, "Popen", FRESH)
    result = tried("collectives", fault, written(tmp_path, TEST))
    assert result.outcome == outcome, result
    assert message in result.message
    assert result.test.endswith("test_sum[2ranks]") == (outcome == CAUGHT)


@pytest.mark.parametrize(
    ("old", "outcome", "message"),
    [
        ("dist.broadcast(x, src=root)", CAUGHT, "broadcast with root 1"),
        ("dist.nothing(x)", UNTRUE, "holds 0 times, not once"),
    ],
    ids=["in place", "not there"],
)
def test_a_fault_of_a_program_reaches_the_ranks(tmp_path: Path, old: str, outcome: str, message: str) -> None:
    fault = Fault(name="of a program", module=PROGRAMS, old=old, new="dist.broadcast(x, src=0)")
    result = tried("collectives", fault, [REAL, "-o", f"gpuperf_leases={tmp_path / '.leases'}"])
    assert result.outcome == outcome, result
    assert message in result.message
    assert result.test.partition("[")[0] == (REAL if outcome == CAUGHT else "")


@pytest.mark.parametrize(
    ("first", "runs"), [(CAUGHT, 1), (PASSED, 2), (UNTRUE, 2)], ids=["catches it", "passes", "gone"]
)
def test_the_test_that_caught_a_fault_comes_first_and_then_all_others(
    monkeypatch: pytest.MonkeyPatch, first: str, runs: int
) -> None:
    ran: list[Sequence[str]] = []

    def scripted(subject: str, fault: Fault | None, tests: Sequence[str]) -> Result:
        ran.append(tests)
        return Result(subject=subject, fault="one", outcome=first if len(ran) == 1 else CAUGHT, seconds=2.0)

    monkeypatch.setattr(mutations, "tried", scripted)
    result = tried_again("scan", Fault(name="one", module="torch", old="x", new="y"), ["t.py::test_it"], ["t.py"])
    assert (result.outcome, result.seconds) == (CAUGHT, 2.0 * runs)
    assert ran == [["t.py::test_it"], ["t.py"]][:runs]


def test_the_record_names_functions_of_tests_that_caught_faults(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    faults = {"scan": tuple(Fault(name=name, module="torch", old="x", new="y") for name in ("one", "other"))}
    for fault, outcome in (("one", CAUGHT), ("other", PASSED)):
        record(path, Result(subject="scan", fault=fault, outcome=outcome, test="t.py::test_it[2ranks]"), faults)
    assert caught_before(path) == {("scan", "one"): "t.py::test_it"}
    assert caught_before(tmp_path / "none.json") == {}


def test_a_subject_whose_tests_all_skip_tells_nothing(tmp_path: Path) -> None:
    tests = "import pytest\n\ndef test_it():\n    pytest.skip('no library')\n"
    result = tried("megatron", None, written(tmp_path, tests))
    assert result.outcome == SKIPPED


@pytest.mark.parametrize(("options", "message"), [("", "its tests need GPUs"), ("--gpus auto", "no end after 600 s")])
def test_a_fault_that_only_gpus_tell_is_tried_if_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    def hangs(*args: object, **settings: object) -> None:
        raise subprocess.TimeoutExpired("pytest", 600.0)

    monkeypatch.setattr(subprocess, "run", hangs)
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    result = tried("scan", Fault(name="one", module="torch", old="", new="x", gpus=True), ["t.py"])
    assert result.message == message
    assert result.outcome == (UNTRUE if options else SKIPPED)


def test_a_text_that_the_source_holds_twice_is_refused() -> None:
    fault = Fault(name="ambiguous", module="torch", old="x", new="y")
    message = r"^the fault 'ambiguous' replaces 'x', which torch holds 2 times, not once: copy the text"
    with pytest.raises(ValueError, match=message):
        fault.applied_to("x = x")


def test_what_no_test_could_catch_and_what_was_skipped_are_not_counted() -> None:
    outcomes = [CAUGHT, CAUGHT, PASSED, EQUIVALENT, SKIPPED]
    lines, share = summary(Result(subject="scan", fault=str(n), outcome=one) for n, one in enumerate(outcomes))
    assert lines[-1].endswith("  2 of   3, 66.7%")
    assert share == pytest.approx(2 / 3)


def test_every_subject_has_a_table() -> None:
    faults = table()
    assert set(faults) == {path.parent.name for path in (mutations.ROOT / "suites").glob("*/test_correctness.py")}


@pytest.mark.parametrize("count", [1, 3, 10_000])
def test_a_sample_has_different_faults_and_each_only_once(count: int) -> None:
    """A sample that is larger than the tables is the tables."""
    faults = table()
    drawn = [(subject, fault and fault.name) for subject, fault in sample(faults, caught_before(), count)]
    assert len(set(drawn)) == len(drawn)
    if count < 100:
        assert len(drawn) == count
    else:
        assert {subject for subject, _ in drawn} >= set(faults) - {"deepspeed", "megatron"}


HUNK = "name: {name}\nmodule: torch\n@@ lines\n-x\n+y\n"


def test_a_name_that_two_faults_have_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {f"scan/{file}.diff": HUNK.format(name="one") for file in ("a", "b")})
    with pytest.raises(ValueError, match=r"^scan has two faults of the name 'one': rename one$"):
        table(tmp_path)


def test_a_patch_that_two_faults_are_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {f"scan/{name}.diff": HUNK.format(name=name) for name in ("one", "other")})
    with pytest.raises(ValueError, match=r"^scan has one patch twice, as 'one' and 'other': delete one$"):
        table(tmp_path)


def test_a_result_replaces_the_earlier_one_and_faults_of_no_table_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    faults = {"scan": tuple(Fault(name=name, module="torch", old="x", new="y") for name in ("one", "other"))}
    for fault, outcome in (("other", PASSED), ("gone", CAUGHT), ("one", CAUGHT), ("other", CAUGHT)):
        record(path, Result(subject="scan", fault=fault, outcome=outcome), faults)
    assert [(entry["fault"], entry["outcome"]) for entry in json.loads(path.read_text())] == [
        ("one", CAUGHT),
        ("other", CAUGHT),
    ]


@pytest.mark.parametrize(("alone", "status"), [(PASSED, 0), (CAUGHT, 2), (UNTRUE, 0)], ids=["passes", "fails", "gone"])
def test_a_test_that_catches_faults_has_to_pass_alone_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], alone: str, status: int
) -> None:
    fault = Fault(name="one", module="torch", old="x", new="y")

    def scripted(subject: str, fault: Fault | None, tests: Sequence[str]) -> Result:
        without = alone if tests == ["t.py::test_it"] else PASSED
        return Result(subject=subject, fault=fault.name if fault else "", outcome=CAUGHT if fault else without)

    monkeypatch.setattr(mutations, "tried", scripted)
    monkeypatch.setattr(mutations, "table", lambda: {"scan": (fault,)})
    monkeypatch.setattr(mutations, "caught_before", lambda: {("scan", "one"): "t.py::test_it"})
    assert main([]) == status
    assert ("scan fails without a fault" in capsys.readouterr().out) == (status == 2)
