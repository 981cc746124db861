"""Each public option of what the suites claim to cover has a program, or a reason why it has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.suites_options.calls import read_source, subjects
from tests.suites_options.coverage import Coverage, coverage, excludes, exclusions, gaps, superfluous
from tests.suites_options.parts import Part, found, options, parts

ROOT = Path(__file__).parents[2]
EXCLUSIONS = Path(__file__).with_name("exclusions.toml")


@pytest.fixture(scope="module")
def of_suites() -> Coverage:
    return coverage(parts(), subjects(ROOT / "suites"))


def test_each_option_has_a_program_or_a_reason(of_suites: Coverage) -> None:
    lines = gaps(of_suites, exclusions(EXCLUSIONS), torch.__version__)
    assert not lines, "\n".join(lines)


def test_no_exclusion_is_superfluous(of_suites: Coverage) -> None:
    pinned = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    newest = torch.__version__.partition("+")[0] == pinned[1]
    lines = superfluous(of_suites, exclusions(EXCLUSIONS), newest=newest)
    assert not lines, "\n".join(lines)


def test_most_of_the_options_are_covered(of_suites: Coverage) -> None:
    """A reader of source that finds nothing, or everything, would pass for exclusions that fit it."""
    known = {"torch.distributed.fsdp.fully_shard(shard_placement_fn)", "torch.distributed.fsdp.FSDPModule.unshard"}
    assert known <= of_suites.covered
    assert "torch.distributed.pipelining.build_stage" in of_suites.uncovered
    assert len(of_suites.covered) > len(of_suites.uncovered)


SHARD = "torch.distributed.fsdp.fully_shard"


def shard_part() -> Part:
    target = found(SHARD)
    return Part(SHARD, target, options(target))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(m, mesh=1)", {"module", "mesh"}),
        ("import torch.distributed.fsdp as f\nf.fully_shard(m, mesh=1)", {"module", "mesh"}),
        ("import torch\ntorch.distributed.fsdp.fully_shard(m)", {"module"}),
        ("from torch.distributed.fsdp import fully_shard as s\ns(m, **o)\nown(mesh=1)", {"module", "mesh"}),
        ("from torch.distributed.fsdp import fully_shard\nown(fully_shard, {'mesh': 1})", {"mesh"}),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(m)\nown(mesh=1)", {"module"}),
        ("import functools, torch.distributed.fsdp as f\nfunctools.partial(f.fully_shard, mesh=1)", {"mesh"}),
        ("fully_shard(m, mesh=1)", None),
    ],
    ids=[
        "imported",
        "of a module",
        "by its whole name",
        "handed on",
        "as a value",
        "of another call",
        "partial",
        "own",
    ],
)
def test_options_of_a_callable(source: str, expected: set[str] | None) -> None:
    given = read_source(source).options(shard_part())
    assert (
        given == expected if expected is None or given is None else expected <= given <= expected | {"module", "mesh"}
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("all_reduce(x, op=torch.distributed.ReduceOp.SUM, async_op=False)", {"tensor"}),
        ("all_reduce(x, torch.distributed.ReduceOp.SUM, None, True)", {"tensor", "async_op"}),
        ("all_reduce(x, op=torch.distributed.ReduceOp.MAX)", {"tensor", "op"}),
        ("all_reduce(x, op=chosen, async_op=0)", {"tensor", "op", "async_op"}),
    ],
)
def test_a_value_that_is_the_default_does_not_count(call: str, expected: set[str]) -> None:
    name = "torch.distributed.all_reduce"
    assert read_source(f"import torch\ntorch.distributed.{call}").options(Part(name, found(name), ())) == expected


def test_options_of_a_method_and_of_an_operator() -> None:
    name = "torch.distributed.fsdp.FSDPModule.set_requires_all_reduce"
    method = Part(name, found(name), ("recurse",), "set_requires_all_reduce")
    assert read_source("m.set_requires_all_reduce(True, recurse=False)").options(method) == {
        "recurse",
        "requires_all_reduce",
    }
    assert read_source("m.set_requires_all_reduce(True, recurse=True)").options(method) == {"requires_all_reduce"}
    assert read_source("m.set_requires_gradient_sync(True)").options(method) is None
    operator = Part("torch.ops.symm_mem.one_shot", None, (), "one_shot")
    assert read_source("getattr(torch.ops.symm_mem, 'one_shot')").options(operator) is not None
    assert read_source("torch.ops.symm_mem.two_shot(x)").options(operator) is None


def test_an_option_that_is_new_is_named() -> None:
    """As if a newer torch had one more argument."""
    part = shard_part()
    newer = Part(part.name, part.target, (*part.options, "speed"))
    source = {"a suite": read_source(f"import torch\n{SHARD}(m, mesh=1)")}
    lines = gaps(coverage([newer], source), {f"{SHARD}({option})": "" for option in part.options}, "9.9")
    assert lines == [
        f"torch 9.9 has {SHARD}(speed), and no program of the suites uses it: write one, with a test against one "
        "device, or give the reason in tests/suites_options/exclusions.toml"
    ]


def test_an_exclusion_that_is_no_longer_needed_is_named() -> None:
    has = Coverage(covered=frozenset({"a.b", "a.b(x)"}), uncovered=frozenset({"a.b(y)"}))
    reasons = {"a.b(x)": "", "a.b(y)": "", "a.c": ""}
    used = "tests/suites_options/exclusions.toml excludes a.b(x), and a program uses a.b(x): delete the line"
    gone = "tests/suites_options/exclusions.toml excludes a.c, which torch does not have: delete the line"
    assert superfluous(has, reasons, newest=True) == [used, gone]
    assert superfluous(has, reasons, newest=False) == [used]


def test_patterns() -> None:
    assert excludes("a.*(tag)", "a.b(tag)")
    assert not excludes("a.*(tag)", "a.b(x)")
    assert excludes("a.b", "a.b(x)")
    assert not excludes("a.b", "a.bc(x)")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ('reason = "r"\noptions = ["a", "a"]', "has a twice: delete one"),
        ('reason = " "\noptions = ["a"]', "has no reason for a: write one"),
    ],
)
def test_exclusions_that_are_refused(tmp_path: Path, entries: str, message: str) -> None:
    path = tmp_path / "exclusions.toml"
    path.write_text(f"[[exclusion]]\n{entries}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        exclusions(path)
