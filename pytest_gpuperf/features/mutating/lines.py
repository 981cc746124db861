"""What ``--mutate`` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuperf.features.mutating.coverage import Coverage, Outcome
from pytest_gpuperf.features.mutating.faults import Site, list_kinds
from pytest_gpuperf.report.units import format_count

_TESTS = 3  # that are named for a site
_CALLS = 10  # that no program makes, and that are listed


def describe_plan(faults: int, sites: int, seconds: float) -> str:
    """What is about to be done.

    Args:
        faults: how many.
        sites: where.
        seconds: that they take if the fastest test notices each.
    """
    return (
        f"--mutate: {format_count(faults, 'fault')} at {format_count(sites, 'call site')}, "
        f"in {math.ceil(seconds)} s if the fastest test notices each"
    )


def iterate_coverage_lines(coverage: Coverage, root: Path, fail_under: float | None, *, verbose: bool) -> Iterator[str]:
    """The report: the whole, the sites with faults that nobody noticed, the worst first, and what was left out."""
    noticed, share = len(coverage.of(Outcome.NOTICED)), coverage.share
    part = "" if share is None else f" ({share:.0f} %)"
    yield (
        f"{noticed} of {format_count(coverage.counted, 'fault')} noticed{part}, at "
        f"{format_count(len(coverage.sites), 'call site')}, in {coverage.seconds:.0f} s"
    )
    if coverage.left_over:
        where = f", all those of {format_count(coverage.untried, 'site')} among them" if coverage.untried else ""
        yield f"the time was up before {format_count(len(coverage.left_over), 'more fault')}{where}"
    guarded = 0
    for site in coverage.list_worst_first():
        missed = [one.fault.kind for one in coverage.of(Outcome.UNNOTICED, site)]
        if missed:
            total = len(missed) + len(coverage.of(Outcome.NOTICED, site))
            yield f"{format_site(site, root)}: no test noticed {len(missed)} of {total} faults: {', '.join(missed)}"
            yield f"    reached by {join_names(coverage.tests(site), verbose=verbose)}"
        elif coverage.of(Outcome.NOTICED, site):
            guarded += 1
            if verbose:
                yield f"{format_site(site, root)}: all noticed"
    if guarded and not verbose:
        yield f"every fault was noticed at {format_count(guarded, 'site')} (-v lists them)"
    if apart := len(coverage.of(Outcome.EQUIVALENT)):
        only = sum(
            bool(coverage.of(Outcome.EQUIVALENT, site)) and not coverage.count_at(site) for site in coverage.sites
        )
        where = f"; {format_count(only, 'site has', 'sites have')} no others" if only else ""
        yield f"not counted: {format_count(apart, 'fault')} that changed no bit of what the programs came to{where}"
    if lost := len(coverage.of(Outcome.NOT_MADE)):
        yield f"not counted: {format_count(lost, 'fault')} at sites that no program came by again"
    bare = sum(not list_kinds(calls) for calls in coverage.sites.values())
    if bare:
        yield f"no fault is made at {format_count(bare, 'site')}: barriers, receives, groups of one rank"
    if coverage.unreached:
        yield f"no observed program makes {format_count(len(coverage.unreached), 'call')} of the source:"
        shown = coverage.unreached if verbose else coverage.unreached[:_CALLS]
        yield from (f"    {show_path(call.file, root)}:{call.line} {call.operation}" for call in shown)
        if len(shown) < len(coverage.unreached):
            yield f"    and {len(coverage.unreached) - len(shown)} more (-v lists them)"
    for test, why in sorted(coverage.left_out.items()):
        yield f"left out: {test}: {why}"
    if fail_under is not None and (why := coverage.describe_shortfall(fail_under)):
        yield f"FAILED --mutate-fail-under={fail_under:g}: {why}"


def format_site(site: Site, root: Path) -> str:
    """A site as reports name it."""
    over = f" over {site.over}" if site.over else ""
    part = f", tensor {site.part}" if site.part > 1 else ""
    return f"{show_path(site.file, root)}:{site.line} {site.operation}{over}{part}"


def show_path(file: str, root: Path) -> str:
    """A file as reports name it: relative to the root, if it is below it."""
    path = Path(file)
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def join_names(tests: list[str], *, verbose: bool) -> str:
    """The tests by their names within their files, the first few of them unless ``verbose``."""
    shown = tests if verbose else tests[:_TESTS]
    more = f" and {len(tests) - len(shown)} more" if len(shown) < len(tests) else ""
    return ", ".join(test.rpartition("::")[2] for test in shown) + more
