"""``--mutate`` in whole runs of pytest: what tests notice, what they do not, and what the report says of it."""

import json
from pathlib import Path

import pytest

from pytest_gpuperf.report.results_file import load
from tests.whole_run import run_pytest, write

PROGRAMS = """
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

def summed(x):
    dist.all_reduce(x)
    return x

def gathered(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return torch.cat(parts)

def step(net, rank):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = net(torch.full((2, 4), 1.0 + rank)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def ddp(rank):
    torch.manual_seed(0)
    return step(nn.parallel.DistributedDataParallel(nn.Linear(4, 3)), rank)

def fsdp(rank):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    fully_shard(net)
    return step(net, rank)

def flagged(rank):
    flag = torch.tensor([rank])
    dist.all_reduce(flag)
    if flag.item() == 1:
        dist.all_reduce(flag)
        flag *= 3
    return flag

def objects():
    got = [None]
    dist.broadcast_object_list(got, 0)
    dist.barrier()
    return torch.ones(1)

def none_right():
    x = torch.zeros(4)
    dist.all_reduce(x)
    return x
"""


def line(text: str) -> int:
    """The first line of the programs that is this."""
    return next(number for number, one in enumerate(PROGRAMS.splitlines(), 1) if one.strip() == text)


HEAD = """
import random
import pytest
import torch
import programs

pytestmark = pytest.mark.ranks(2)
"""
STRONG = """
def test_strong(ranks):
    for x in ranks.run(lambda ctx: programs.summed(torch.tensor([1.0, 3.001]) * (ctx.rank + 1))):
        torch.testing.assert_close(x, torch.tensor([3.0, 9.003]))
"""
WEAK = """
def test_shape(ranks):
    for x in ranks.run(lambda ctx: programs.gathered(torch.full((3,), ctx.rank + 1.3))):
        assert x.shape == (6,)
"""


def sources(*tests: str) -> dict[str, str]:
    return {"programs.py": PROGRAMS, "test_it.py": HEAD + "".join(tests), "pytest.ini": "[pytest]\n"}


def test_faults_that_no_test_notices_are_listed_by_line_the_worst_first(tmp_path: Path) -> None:
    also = """
def test_strong_shape(ranks):
    x, _ = ranks.run(lambda ctx: programs.summed(torch.tensor([1.0, 3.001])))
    assert x.shape == (2,)
"""
    run = run_pytest(write(tmp_path, sources(also, STRONG, WEAK)), "--mutate", "--mutate-fail-under=58.3", "-q")
    assert run.result.ret == 0
    assert "FAILED --mutate-fail-under" not in run.text
    lines = run.section("communication coverage")
    faults = "nothing, one rank left out, shards swapped, tail not sent, bf16"
    assert lines[0].startswith("7 of 12 faults noticed (58 %), at 2 call sites, in ")
    where = line("dist.all_gather(parts, x)")
    assert lines[1:4] == [
        f"programs.py:{where} all_gather: no test noticed 5 of 5 faults: {faults}",
        "    reached by test_shape[2ranks]",
        # Of two tests that reach it one notices all.
        "every fault was noticed at 1 site (-v lists them)",
    ]
    assert "--mutate: 12 faults at 2 call sites, in " in run.text


def test_what_torch_sends_is_named_by_the_line_that_causes_it(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ends(ranks, kind):
    assert len(ranks.run(lambda ctx: getattr(programs, kind)(ctx.rank))) == 2
"""
    run = run_pytest(write(tmp_path, sources(tests)), "--mutate")
    backward, forward = line("loss.backward()"), line("loss = net(torch.full((2, 4), 1.0 + rank)).square().mean()")
    made = line("return step(nn.parallel.DistributedDataParallel(nn.Linear(4, 3)), rank)")
    found = "\n".join(run.section("communication coverage"))
    # Its sums of gradients go by C++, and a test of the exit alone notices nothing.
    unnoticed = "nothing, 1/R, one rank left out, stale, x R, tail not sent, max, last call does nothing, bf16"
    assert f"programs.py:{backward} all_reduce in Tensor.backward: no test noticed 9 of 9 faults: {unnoticed}" in found
    assert f"programs.py:{backward} reduce_scatter_tensor in Tensor.backward: " in found
    assert f"programs.py:{forward} all_gather_into_tensor in FSDPLinear.forward: " in found
    assert f"programs.py:{made} broadcast in DistributedDataParallel.__init__" in found


def test_a_fault_that_changes_no_bit_is_not_held_against_a_test(tmp_path: Path) -> None:
    tests = """
def test_zeros(ranks):
    assert ranks.run(lambda ctx: programs.none_right())[0].shape == (4,)
"""
    lines = run_pytest(write(tmp_path, sources(tests)), "--mutate").section("communication coverage")
    assert lines[0].startswith("0 of 0 faults noticed, at 1 call site")
    assert lines[1] == "not counted: 7 faults that changed no bit of what the programs came to"


def test_a_fault_that_changes_nothing_that_a_program_shows_is_not_held_against_a_test(tmp_path: Path) -> None:
    tests = """
def test_sign(ranks):
    for positive in ranks.run(lambda ctx: programs.summed(torch.tensor([ctx.rank + 1.3])) > 0):
        assert positive.all()
"""
    lines = run_pytest(write(tmp_path, sources(tests)), "--mutate").section("communication coverage")
    assert lines[0].startswith("0 of 0 faults noticed, at 1 call site")
    assert lines[1].startswith("not counted: ")


def test_a_program_that_returns_nothing_hides_no_fault(tmp_path: Path) -> None:
    tests = """
def program(ctx):
    x = programs.summed(torch.ones(2))
    assert x.min() > 0

def test_positive(ranks):
    ranks.run(program)
"""
    lines = run_pytest(write(tmp_path, sources(tests)), "--mutate").section("communication coverage")
    assert lines[0].startswith("0 of 6 faults noticed (0 %)")


def test_what_a_fault_makes_hang_is_noticed_and_ends(tmp_path: Path) -> None:
    tests = """
def test_flag(ranks):
    assert ranks.run(lambda ctx: programs.flagged(ctx.rank))[0].item() == 6
"""
    run = run_pytest(write(tmp_path, sources(tests)), "--mutate", timeout=100)
    lines = run.section("communication coverage")
    assert "9 of 9 faults noticed (100 %)" in lines[0]


def test_tests_that_differ_from_run_to_run_are_left_out_by_name(tmp_path: Path) -> None:
    tests = """
def test_other_each_time(ranks):
    value = random.SystemRandom().random()
    ranks.run(lambda ctx: programs.summed(torch.tensor([value])))

def test_objects(ranks):
    assert ranks.run(lambda ctx: programs.objects()) == [1, 1]

PASSED = []

def test_passes_once(ranks):
    assert not PASSED
    PASSED.append(ranks.run(lambda ctx: programs.summed(torch.ones(1))))
"""
    lines = run_pytest(write(tmp_path, sources(tests)), "--mutate").section("communication coverage")
    # Of the objects that all ranks have already, and the barrier.
    assert lines[1:3] == [
        "not counted: 1 fault that changed no bit of what the programs came to",
        "no fault is made at 1 site: barriers, receives, groups of one rank",
    ]
    assert [line for line in lines if line.startswith("left out")] == [
        "left out: test_it.py::test_other_each_time[2ranks]: two runs of it differ",
        "left out: test_it.py::test_passes_once[2ranks]: it does not pass when it is run again",
    ]


def test_a_fault_in_a_fixture_of_the_module_reaches_no_other_run(tmp_path: Path) -> None:
    tests = """
@pytest.fixture(scope="module")
def value(ranks):
    return ranks.run(lambda ctx: programs.summed(torch.ones(2)))[0]

def test_value(value):
    assert value.tolist() == [2, 2]

def test_shape_of_value(value):
    assert value.shape == (2,)
"""
    run = run_pytest(write(tmp_path, sources(tests, WEAK)), "--mutate")
    lines = run.section("communication coverage")
    # A fixture that were kept would carry its fault into the runs of the test that notices all the others.
    assert lines[0].startswith("6 of 11 faults noticed (55 %)")
    assert "no test noticed 5 of 5 faults" in lines[1]
    assert "reached by test_shape[2ranks]" in lines[2]
    assert "left out:" not in "\n".join(lines)


def test_a_failing_test_has_the_report_that_it_has_without_and_no_faults(tmp_path: Path) -> None:
    tests = """
def program(ctx):
    assert programs.summed(torch.ones(1)).item() == 3

def test_wrong(ranks):
    ranks.run(program)
"""
    run = run_pytest(write(tmp_path, sources(tests)), "--mutate")
    assert run.outcomes == {"test_wrong[2ranks]": "FAILED"}
    assert "on_rank.py" not in run.report("test_wrong[2ranks]")
    assert run.section("communication coverage")[0].startswith("0 of 0 faults noticed, at 0 call sites")


def test_a_share_below_the_threshold_fails_the_run(tmp_path: Path) -> None:
    run = run_pytest(write(tmp_path, sources(STRONG, WEAK)), "--mutate", "--mutate-fail-under=58.4")
    assert run.result.ret == 1
    assert "FAILED --mutate-fail-under=58.4: the tests notice 58.3 %" in run.text


def test_a_budget_ends_the_faults_after_each_site_had_its_first(tmp_path: Path) -> None:
    run = run_pytest(write(tmp_path, sources(STRONG, WEAK)), "--mutate=1e-9", "--mutate-fail-under=1")
    lines = run.section("communication coverage")
    assert lines[1] == "the time was up before 12 more faults, all those of 2 sites among them"
    assert lines[-1] == (
        "FAILED --mutate-fail-under=1: no fault was tried at 2 of 2 call sites: give --mutate more seconds"
    )
    assert run.result.ret == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mutate=0"], "--mutate took '0' for the seconds that faults may take, which must be a number above 0"),
        (["--mutate", "test_it.py"], "--mutate took 'test_it.py' for the seconds"),
        (["--mutate", "--mutate-fail-under=101"], "--mutate-fail-under is a share in percent, 0 to 100, got '101'"),
        (["--mutate-fail-under=90"], "--mutate-fail-under needs faults to judge by: add --mutate"),
        (["--mutate-html=page.html"], "--mutate-html needs faults to show: add --mutate"),
        (["--mutate", "--pdb"], "--mutate makes tests fail on purpose, and --pdb would stop at each: drop one of them"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: list[str], message: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): ...")
    run = pytester.runpytest_inprocess(*options)
    assert run.ret is pytest.ExitCode.USAGE_ERROR
    assert message in run.stderr.str()


def test_results_page_and_annotations_have_what_no_test_notices(tmp_path: Path) -> None:
    options = ["--mutate", "--mutate-html=out/page.html", "--gpuperf-json=results.json"]
    run = run_pytest(write(tmp_path, sources(STRONG, WEAK)), *options, env={"GITHUB_ACTIONS": "true"})
    assert run.result.ret == 0
    where = line("dist.all_gather(parts, x)")
    title = "5 of 5 faults unnoticed in all_gather"
    assert f"::warning file=programs.py,line={where},title={title}::nothing, one rank left out" in run.text
    page = (tmp_path / "out" / "page.html").read_text()
    assert f'<tr class="unnoticed"><td>{where}</td><td>    dist.all_gather(parts, x)' in page
    assert f"page written to {tmp_path / 'out' / 'page.html'}" in run.text
    form = json.loads((tmp_path / "results.json").read_text())["features"]["mutating"]
    assert (form["noticed"], form["unnoticed"]) == (7, 5)
    assert form["sites"][0]["operation"] == "all_gather"
    # Two sums of a program that no test calls, and the broadcast of a list.
    assert [call["operation"] for call in form["unreached"]] == [
        "all_reduce",
        "all_reduce",
        "broadcast_object_list",
        "all_reduce",
    ]
    lines = run.section("communication coverage")
    assert "no observed program makes 4 calls of the source:" in lines
    assert f"    programs.py:{line('dist.broadcast_object_list(got, 0)')} broadcast_object_list" in lines
    load(tmp_path / "results.json")


def test_a_page_that_cannot_be_written_fails_the_run(tmp_path: Path) -> None:
    folder = write(tmp_path, {**sources(WEAK), "taken": ""})
    run = run_pytest(folder, "--mutate", "--mutate-html=taken/page.html")
    assert run.result.ret != 0
    message = "was not written: File exists; expected a file that can be written: name another one"
    assert f"--mutate-html: '{tmp_path / 'taken/page.html'}' {message}" in run.text
