"""What a user reads: the page's example, reports in full, and errors about input that cannot be judged."""

from __future__ import annotations

import re

import pytest

from tests.whole_run import ROOT, WholeRun, run_pytest, write

PAGE = (ROOT / "docs" / "is-it-rounding.md").read_text()

TESTS = """
import pytest, torch, torch.distributed as dist
from torch import nn
from pytest_gpuperf import watch

pytestmark = pytest.mark.ranks(2, timeout=60)
X = torch.linspace(-1, 1, 24).reshape(6, 4)

def test_right(parity):
    report = parity.check(lambda: {"y": X.exp()}, lambda ctx: {"y": X.chunk(2)[ctx.rank].exp()})
    assert report.slack < 1e-5
    assert str(report).startswith("parity: 1 tensors of 2 ranks are right, up to rounding")
    assert "is seen in each (the least in y)" in str(report)

def test_wrong(parity):
    parity.check(lambda: {"x": X, "y": X.exp(), "z": X.exp() + 1}, lambda ctx: {"x": X, "y": 2 * X.exp(), "z": X})

def test_unknown(parity):
    parity.check(lambda: {"y": X.exp()}, lambda ctx: {"y": X.exp() ** 2})

def test_arguments(parity):
    parity.check(lambda ctx: {"y": X}, lambda ctx: {"y": X})

def test_no_function(parity):
    parity.check({"y": X}, lambda ctx: {"y": X})

def test_nan(parity):
    parity.check(lambda: {"y": X / 0 * 0}, lambda ctx: {"y": X})

def test_collective_in_the_reference(parity):
    def reference():
        y = X.clone()
        dist.all_reduce(y)
        return {"y": y}
    parity.check(reference, lambda ctx: {"y": X})

def test_changes_its_input(parity):
    x = X.clone()
    parity.check(lambda: {"y": x.mul_(2)}, lambda ctx: {"y": X})

def test_generator(parity):
    g = torch.Generator().manual_seed(3)
    parity.check(lambda: {"y": torch.randn(3, generator=g)}, lambda ctx: {"y": X})

def test_names(parity):
    parity.check(lambda: {"y": X, "loss": X.sum()}, lambda ctx: {"y": X, "Loss": X.sum()})

def test_trace_and_names(parity):
    def reference():
        net = nn.Linear(4, 2)
        with watch(net) as trace:
            net(X).sum().backward()
        return trace
    parity.check(reference, lambda ctx: {"y": X})

def test_shapes(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X[:5, :3]})

def test_nothing(parity):
    parity.check(lambda: {"y": X}, lambda ctx: None)

def test_one_rank_returns_nothing(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X} if ctx.rank == 0 else {})

def test_empty(parity):
    parity.check(lambda: {}, lambda ctx: {"y": X})

def test_text(parity):
    parity.check(lambda: {"y": X, "name": "net"}, lambda ctx: {"y": X})

def test_layout_text(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X}, layouts={"y": "sharded(0)"})

def test_layout_name(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X}, layouts={"z": "replicated"})

def test_layout_axis(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X}, layouts={"y": "shard(0) over tp"})

def test_layout_mesh(parity):
    parity.check(lambda: {"y": X}, lambda ctx: {"y": X}, mesh={"dp": 3, "tp": 1})

def test_layout_rows(parity):
    parity.check(lambda: {"y": X[:1]}, lambda ctx: {"y": X[0]}, layouts={"y": "rank-local"})

def test_declared(parity):
    def program(ctx):
        mine = X.chunk(2)[ctx.rank]
        return {"loss": mine.square().sum(), "mean": mine.mean(), "odd": X[ctx.rank :: 2].exp()}
    layouts = {"l*": "partial(sum)", "mean": "partial(mean)", "odd": "interleaved(0)"}
    parity.check(lambda: {"loss": X.square().sum(), "mean": X.mean(), "odd": X.exp()}, program, layouts=layouts)

def test_near_tie(parity):
    scores = torch.tensor([[0.3, 0.30000004], [1.0, 2.0]])
    choose = lambda: {"expert": (scores * torch.tensor([1.0, 1.0])).argmax(1), "scores": scores * 2}
    other = torch.tensor([1 - int(scores.argmax(1)[0]), 1])
    report = parity.check(choose, lambda ctx: {"expert": other, "scores": scores * 2})
    assert "not judged: expert: 1 of 2 choices are near ties, within 1e-07 of each other: rounding alone" in str(report)

def test_other_types(parity):
    names = lambda: {"complex": torch.polar(X.exp(), X), "count": torch.arange(5), "mask": X > 0,
                     "fp8": X.to(torch.float8_e4m3fn), "number": 3, "rate": 0.1}
    assert parity.check(names, lambda ctx: names()).ok
    wrong = lambda ctx: {**names(), "complex": torch.polar(X.exp(), -X), "mask": X > 0.5}
    titles = [one.title for one in parity.report(names, wrong).verdict.wrong]
    assert sorted(titles) == ["complex", "mask"]

def test_chaos(parity):
    def logistic():
        x = X.abs() / 2 + 0.1
        for _ in range(60):
            x = 3.9 * x * (1 - x)
        return {"x": x, "y": X.exp()}
    report = parity.check(logistic, lambda ctx: {"x": logistic()["x"].flip(0), "y": X.exp()})
    assert "not judged: x: rounding alone may change it by" in str(report)

def test_compiled(parity):
    net = nn.Linear(4, 3)
    def train(net, call):
        with watch(net, activations=False) as trace:
            call(X).square().sum().backward()
        return trace
    def reference():
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        return train(net, torch.compile(net, backend="eager"))
    def program(ctx):
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
        return train(net, net)
    parity.check(reference, program)

def test_many_tensors(parity):
    names = lambda: {f"t{i}": X + i for i in range(2000)}
    assert parity.check(names, lambda ctx: names()).ok

def test_dropout(parity):
    def hidden(p=0.5):
        return {"h": nn.functional.dropout(X.exp(), p)}
    parity.check(hidden, lambda ctx: hidden())

def test_census_of_something_else(parity):
    parity.census(lambda ctx: 3)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """One run of all tests, since each run loads torch."""
    ((file, source), *_) = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return run_pytest(write(tmp_path_factory.mktemp("messages"), {"test_messages.py": TESTS, file: source}))


@pytest.mark.parametrize(
    "name",
    [
        "right",
        "one_rank_returns_nothing",
        "declared",
        "near_tie",
        "other_types",
        "chaos",
        "compiled",
        "many_tensors",
    ],
)
def test_it_passes(run: WholeRun, name: str) -> None:
    assert run.outcomes[f"test_{name}[2ranks]"] == "PASSED", run.report(f"test_{name}[2ranks]")


ERRORS = {
    "wrong": (
        "parity: 2 ranks do not compute what one device does, and rounding does not explain it",
        "first wrong: y",
        "off by 1 (norm, relative); rounding explains",
        "cause: times 2 = the 2 ranks: the mean is missing, or it is summed once too often",
        "also wrong: z",
        "right: x",
    ),
    "unknown": ("cause: unknown", "tried, and none fits: a count of steps, numbers that are not finite,"),
    "arguments": ("TypeError: reference must take no arguments, since it runs on one device",),
    "no_function": ("TypeError: reference must be a function without arguments, got a dict",),
    "nan": ("ValueError: reference() is not finite: y holds 24 NaN of 24 elements",),
    "collective_in_the_reference": ("reference() runs in the pytest process, which has no ranks",),
    "changes_its_input": (
        "ValueError: reference() is not repeatable: y differs between two runs of the same seed. It must not "
        "change what it closes over",
    ),
    "generator": ("ValueError: reference() is not repeatable: y differs",),
    "names": ("ValueError: names differ: only reference() returns 'loss'; only ranks return 'Loss'",),
    "trace_and_names": ("ValueError: the program returned tensors by name, and the other a trace of watch()",),
    "shapes": ("first wrong: y", "ranks hold (5, 3), which no layout of (6, 4) gives"),
    "nothing": ("TypeError: rank ", "returned None: return tensors by name", "a rank that holds nothing returns {}"),
    "empty": ("ValueError: reference() returned no tensors: there is nothing to compare",),
    "text": ("TypeError: reference() returned a str under 'name': parity compares tensors and numbers",),
    "layout_text": ("LayoutError: layout 'sharded(0)' cannot be read: write replicated, shard(0),",),
    "layout_name": ("LayoutError: layouts= names 'z', and the reference holds y",),
    "layout_axis": ("LayoutError: layout 'shard(0) over tp' names axis 'tp', and the mesh has no axes: give mesh=",),
    "layout_mesh": ("LayoutError: mesh dp=3, tp=1: the run has 2 ranks: give sizes whose product that is",),
    "layout_rows": ("LayoutError: layout 'rank-local': the reference has 1 entries for 2 ranks",),
    "dropout": (
        "the reference draws random numbers (bernoulli), which ranks may draw otherwise: set dropout's rate to 0",
        "cause: on all ranks a mask keeps other elements, and masks are drawn (bernoulli)",
        "set the rate to 0 for this test, or draw the mask by global positions",
    ),
    "census_of_something_else": (
        "TypeError: rank ",
        "returned a int, not a census: write with census(model, optimizer)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_it_fails_and_says_why(run: WholeRun, name: str) -> None:
    assert run.outcomes[f"test_{name}[2ranks]"] == "FAILED"
    report = " ".join(run.report(f"test_{name}[2ranks]").replace("\nE ", "\n").split())
    for words in ERRORS[name]:
        assert words in report


def test_the_page_s_example_prints_what_the_page_shows(run: WholeRun) -> None:
    shown = re.findall(r"^```\n(parity: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    assert run.outcomes["test_data_parallel[2ranks-]"] == "PASSED", run.text
    assert run.outcomes["test_data_parallel[2ranks-1.weight]"] == "FAILED", run.text
    report = run.report("test_data_parallel[2ranks-1.weight]")
    # Numbers depend on the seed, which is the test's name; the last line goes on with how to declare it.
    exact = {_without_numbers(line.removeprefix("E ").strip()) for line in report.splitlines()}
    for line in shown.splitlines():
        bare = _without_numbers(line.strip())
        assert any(one.startswith(bare) or one.endswith(bare) for one in exact), line


def _without_numbers(line: str) -> str:
    return re.sub(r"\d\S*", "#", line)
