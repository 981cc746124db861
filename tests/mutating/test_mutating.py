"""``--mutate`` in one whole run of pytest: what tests notice, what they do not, and what the report says of it."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.report.results_file import load
from tests.whole_run import WholeRun, run_pytest, write

PROGRAMS = """
import torch
import torch.distributed as dist

def summed(x):
    dist.all_reduce(x)
    return x

def gathered(x):
    parts = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(parts, x)
    return torch.cat(parts)

def never_called():
    got = [None]
    dist.broadcast_object_list(got, 0)
"""
HEAD = """
import random
import pytest
import torch
import torch.distributed as dist
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
ALSO = """
def test_strong_shape(ranks):
    x, _ = ranks.run(lambda ctx: programs.summed(torch.tensor([1.0, 3.001])))
    assert x.shape == (2,)
"""
# Files apart have sites apart.
SENT_BY_TORCH = """
from torch.distributed.fsdp import fully_shard

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
    return step(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3)), rank)

def fsdp(rank):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    fully_shard(net)
    return step(net, rank)

@pytest.mark.parametrize("program", [ddp, fsdp])
def test_ends(ranks, program):
    assert len(ranks.run(lambda ctx: program(ctx.rank))) == 2
"""
ZEROS = """
def program(ctx):
    x = torch.zeros(4)
    dist.all_reduce(x)
    return x

def test_zeros(ranks):
    assert ranks.run(program)[0].shape == (4,)
"""
SIGN = """
def program(ctx):
    x = torch.tensor([ctx.rank + 1.3])
    dist.all_reduce(x)
    return x > 0

def test_sign(ranks):
    for positive in ranks.run(program):
        assert positive.all()
"""
SILENT = """
def program(ctx):
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.min() > 0

def test_positive(ranks):
    ranks.run(program)
"""
FLAG = """
def program(ctx):
    flag = torch.tensor([ctx.rank])
    dist.all_reduce(flag)
    if flag.item() == 1:
        dist.all_reduce(flag)
        flag *= 3
    return flag

def test_flag(ranks):
    assert ranks.run(program)[0].item() == 6
"""
VARYING = """
def summed(x):
    dist.all_reduce(x)
    return x

def objects(ctx):
    got = [None]
    dist.broadcast_object_list(got, 0)
    dist.barrier()
    return torch.ones(1)

def test_other_each_time(ranks):
    value = random.SystemRandom().random()
    ranks.run(lambda ctx: summed(torch.tensor([value])))

def test_objects(ranks):
    assert ranks.run(objects) == [1, 1]

def padded(ctx):
    sent = torch.tensor([1.0, random.SystemRandom().random()])
    got = torch.zeros(4)
    dist.all_gather_into_tensor(got, sent)
    return got[::2].clone()

def test_padding(ranks):
    for got in ranks.run(padded):
        assert got.tolist() == [1, 1]

PASSED = []

def test_passes_once(ranks):
    assert not PASSED
    PASSED.append(ranks.run(lambda ctx: summed(torch.ones(1))))
"""
FIXTURE = """
def summed(ctx):
    x = torch.ones(2)
    dist.all_reduce(x)
    return x

def gathered(ctx):
    parts = [torch.empty(3) for _ in range(2)]
    dist.all_gather(parts, torch.full((3,), ctx.rank + 1.3))
    return parts

@pytest.fixture(scope="module")
def value(ranks):
    return ranks.run(summed)[0]

def test_value(value):
    assert value.tolist() == [2, 2]

def test_shape_of_value(value):
    assert value.shape == (2,)

def test_shape(ranks):
    assert len(ranks.run(gathered)[0]) == 2
"""
WRONG = """
def program(ctx):
    assert programs.summed(torch.ones(1)).item() == 3

def test_wrong(ranks):
    ranks.run(program)
"""
SUBTESTS = """
pytest.importorskip("_pytest.subtests")

def program(ctx):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x

def test_each(ranks, subtests):
    for x in ranks.run(program):
        with subtests.test():
            assert x == 2
"""
ADOPTED = """
import pytest
import torch
import torch.distributed as dist
from pytest_gpuperf import on_ranks

pytest.importorskip("expecttest")
pytest.importorskip("numpy")
from torch.testing._internal.common_distributed import MultiProcessTestCase

def summed():
    x = torch.ones(3)
    dist.all_reduce(x)
    return x

@on_ranks
class TestOfTorch(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sum(self):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", rank=self.rank, world_size=2, store=store)
        self.assertEqual(summed(), torch.full((3,), 2.0))

@on_ranks(2)
class TestForTorchrun:
    def setup_method(self, method):
        dist.init_process_group("gloo")

    def teardown_method(self, method):
        dist.destroy_process_group()

    @pytest.mark.parametrize("count", [1])
    def test_gather(self, count):
        parts = [torch.empty(count), torch.empty(count)]
        dist.all_gather(parts, torch.full((count,), dist.get_rank() + 1.0))
        assert len(parts) == 2
"""
FILES = {
    "test_it.py": HEAD + ALSO + STRONG + WEAK,
    "test_sent_by_torch.py": HEAD + SENT_BY_TORCH,
    "test_zeros.py": HEAD + ZEROS,
    "test_sign.py": HEAD + SIGN,
    "test_silent.py": HEAD + SILENT,
    "test_flag.py": HEAD + FLAG,
    "test_varying.py": HEAD + VARYING,
    "test_fixture.py": HEAD + FIXTURE,
    "test_wrong.py": HEAD + WRONG,
    "test_subtests.py": HEAD + SUBTESTS,
    "test_adopted.py": ADOPTED,
}


def sources(*tests: str) -> dict[str, str]:
    return {"programs.py": PROGRAMS, "test_it.py": HEAD + "".join(tests), "pytest.ini": "[pytest]\n"}


def line(text: str, source: str = PROGRAMS) -> int:
    """The first line of the source that is this."""
    return next(number for number, one in enumerate(source.splitlines(), 1) if one.strip() == text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


@pytest.fixture(scope="module")
def run(folder: Path) -> WholeRun:
    options = ["--mutate", "--mutate-html=out/page.html", "--gpuperf-json=results.json", "-q"]
    return run_pytest(write(folder, {**sources(), **FILES}), *options, env={"GITHUB_ACTIONS": "true"})


@pytest.fixture(scope="module")
def form(run: WholeRun, folder: Path) -> dict[str, Any]:
    assert "faults noticed" in run.text, run.text
    load(folder / "results.json")
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())["features"]["mutating"]
    return found


def outcomes(form: Mapping[str, Any], file: str, operation: str = "") -> dict[str, int]:
    """How many faults at the sites of a file came to what."""
    sites = [site for site in form["sites"] if site["file"] == file and operation in ("", site["operation"])]
    assert sites
    return dict(Counter(fault["outcome"] for site in sites for fault in site["faults"]))


def test_faults_that_no_test_notices_are_listed_by_line_the_worst_first(run: WholeRun, form: dict[str, Any]) -> None:
    assert outcomes(form, "programs.py", "all_reduce") == {"noticed": 7}  # one of two tests that reach it notices all
    lines = run.section("communication coverage")
    where = line("dist.all_gather(parts, x)")
    found = lines.index(
        f"programs.py:{where} all_gather: no test noticed 5 of 5 faults: "
        "call skipped, one rank left out, shards swapped, tail not sent, bf16"
    )
    assert lines[found + 1] == "    reached by test_shape[2ranks]"
    counted = form["noticed"] + form["unnoticed"]
    share = 100 * form["noticed"] / counted
    assert lines[0].startswith(f"{form['noticed']} of {counted} faults noticed ({share:.0f} %), at ")
    shares = []
    for site in form["sites"]:
        counts = Counter(fault["outcome"] for fault in site["faults"])
        shares.append(counts["unnoticed"] / max(1, counts["unnoticed"] + counts["noticed"]))
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares.count(1) < len(shares)
    faults = sum(len(site["faults"]) for site in form["sites"])
    assert f"--mutate: {faults + NOT_REPEATED} faults at {len(form['sites'])} call sites, in " in run.text


NOT_REPEATED = 7  # faults at the site that only tests reach that differ from run to run


def test_what_torch_sends_is_named_by_the_line_that_causes_it(run: WholeRun) -> None:
    source = FILES["test_sent_by_torch.py"]
    backward = line("loss.backward()", source)
    forward = line("loss = net(torch.full((2, 4), 1.0 + rank)).square().mean()", source)
    made = line("return step(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3)), rank)", source)
    found = "\n".join(run.section("communication coverage"))
    # Its sums of gradients go by C++, and a test of the exit alone notices nothing.
    unnoticed = "call skipped, 1/R, one rank left out, stale, x R, tail not sent, max, last call skipped, bf16"
    assert f"torch.py:{backward} all_reduce in Tensor.backward: no test noticed 9 of 9 faults: {unnoticed}" in found
    assert f"torch.py:{backward} reduce_scatter_tensor in Tensor.backward: " in found
    assert f"torch.py:{forward} all_gather_into_tensor in FSDPLinear.forward: " in found
    assert f"torch.py:{made} broadcast in DistributedDataParallel.__init__" in found


def test_a_fault_that_changes_no_bit_is_not_held_against_a_test(form: dict[str, Any]) -> None:
    assert outcomes(form, "test_zeros.py") == {"equivalent": 7}


def test_a_fault_that_changes_nothing_that_a_program_shows_is_not_held_against_a_test(form: dict[str, Any]) -> None:
    assert outcomes(form, "test_sign.py") == {"equivalent": 7}


def test_a_program_that_returns_nothing_hides_no_fault(form: dict[str, Any]) -> None:
    assert outcomes(form, "test_silent.py") == {"unnoticed": 6, "equivalent": 1}


def test_what_a_fault_makes_hang_is_noticed_and_ends(form: dict[str, Any]) -> None:
    assert outcomes(form, "test_flag.py") == {"noticed": 9, "equivalent": 1}


def test_tests_that_differ_from_run_to_run_are_left_out_by_name(run: WholeRun, form: dict[str, Any]) -> None:
    # Of the objects that all ranks have already, and the barrier; what pads a message is no difference.
    assert outcomes(form, "test_varying.py") == {"equivalent": 5, "noticed": 1}
    lines = run.section("communication coverage")
    assert "no fault is made at 1 site: barriers, receives, groups of one rank" in lines
    assert [line for line in lines if line.startswith("left out")] == [
        "left out: test_varying.py::test_other_each_time[2ranks]: two runs of it differ",
        "left out: test_varying.py::test_passes_once[2ranks]: it does not pass when it is run again",
    ]


def test_a_fault_in_a_fixture_of_the_module_reaches_no_other_run(form: dict[str, Any]) -> None:
    # A fixture that were kept would carry its fault into the runs of the test that notices all the others.
    assert outcomes(form, "test_fixture.py", "all_reduce") == {"noticed": 6, "equivalent": 1}
    assert outcomes(form, "test_fixture.py", "all_gather") == {"unnoticed": 5}


def test_a_failing_test_has_the_report_that_it_has_without_and_no_faults(run: WholeRun, form: dict[str, Any]) -> None:
    assert run.result.ret == pytest.ExitCode.TESTS_FAILED
    assert run.result.parseoutcomes()["failed"] == 1
    assert "on_rank.py" not in run.report("test_wrong[2ranks]")
    assert not any("test_wrong" in test for site in form["sites"] for test in site["tests"])


def test_a_subtest_that_a_fault_fails_notices_it_and_does_not_fail_the_run(run: WholeRun, form: dict[str, Any]) -> None:
    pytest.importorskip("_pytest.subtests")
    assert outcomes(form, "test_subtests.py") == {"noticed": 6, "equivalent": 1}
    assert "SUBFAILED" not in run.text


def test_adopted_classes_have_faults_too(form: dict[str, Any]) -> None:
    pytest.importorskip("expecttest")
    assert outcomes(form, "test_adopted.py", "all_reduce") == {"noticed": 6, "equivalent": 1}
    assert outcomes(form, "test_adopted.py", "all_gather") == {"unnoticed": 4, "equivalent": 1}


def test_results_page_and_annotations_have_what_no_test_notices(
    run: WholeRun, form: dict[str, Any], folder: Path
) -> None:
    where = line("dist.all_gather(parts, x)")
    title = "5 of 5 faults unnoticed in all_gather"
    assert f"::warning file=programs.py,line={where},title={title}::call skipped, one rank left out" in run.text
    page = (folder / "out" / "page.html").read_text()
    assert f'<tr class="unnoticed"><td>{where}</td><td>    dist.all_gather(parts, x)' in page
    assert f"page written to {folder / 'out' / 'page.html'}" in run.text
    assert form["unreached"] == [
        {
            "file": "programs.py",
            "line": line("dist.broadcast_object_list(got, 0)"),
            "operation": "broadcast_object_list",
        }
    ]
    lines = run.section("communication coverage")
    assert lines[lines.index("no observed program makes 1 call of the source:") + 1] == (
        f"    programs.py:{line('dist.broadcast_object_list(got, 0)')} broadcast_object_list"
    )


def test_a_budget_ends_the_faults_of_the_selected_tests(tmp_path: Path) -> None:
    options = ["--mutate=1e-9", "--mutate-fail-under=1", "-k", "test_shape"]
    run = run_pytest(write(tmp_path, sources(STRONG, WEAK)), *options)
    lines = run.section("communication coverage")
    assert lines[0].startswith("0 of 0 faults noticed, at 1 call site")
    assert lines[1] == "the time was up before 5 more faults, all those of 1 site among them"
    assert lines[-1] == (
        "FAILED --mutate-fail-under=1: no fault was tried at 1 of 1 call sites: give --mutate more seconds"
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
