"""The report of communication coverage, of values made by hand."""

from pathlib import Path

from pytest_gpuperf.features.mutating.coverage import Coverage, Judged, Outcome
from pytest_gpuperf.features.mutating.faults import Calls, Family, Fault, Kind, Site
from pytest_gpuperf.features.mutating.lines import format_site, iterate_coverage_lines

ROOT = Path("/src")


def coverage() -> Coverage:
    made = Coverage(seconds=1.2)
    sites = [
        Site("/src/a.py", 3, "all_reduce", "", 0),
        Site("/src/b.py", 4, "all_gather", "tp", 0),
        Site("/other/c.py", 5, "all_reduce in Tensor.backward", "", 2),
    ]
    for site, tests in zip(sites, (1, 5, 1), strict=True):
        for number in range(tests):
            made.see(site, Calls(Family.REDUCE, 1, 2, True), f"test_it.py::test_{number}")
    made.judged = [
        Judged(Fault(sites[0], Kind.SKIPPED), Outcome.NOTICED, "test_it.py::test_0"),
        Judged(Fault(sites[0], Kind.BF16), Outcome.UNNOTICED),
        Judged(Fault(sites[1], Kind.SKIPPED), Outcome.UNNOTICED),
        Judged(Fault(sites[2], Kind.SKIPPED), Outcome.NOTICED, "test_it.py::test_0"),
        Judged(Fault(sites[2], Kind.TAIL), Outcome.NOT_MADE),
    ]
    return made


def test_sites_whose_faults_change_nothing_are_counted() -> None:
    made = coverage()
    site = Site("/src/d.py", 6, "all_reduce", "", 0)
    made.see(site, Calls(Family.REDUCE, 1, 2, True), "test_it.py::test_0")
    made.judged += [Judged(Fault(site, kind), Outcome.EQUIVALENT) for kind in (Kind.SKIPPED, Kind.TAIL)]
    assert "not counted: 2 faults that changed no bit of what the programs came to; 1 site has no others" in list(
        iterate_coverage_lines(made, ROOT, None, verbose=False)
    )


def test_the_worst_site_comes_first_and_a_guarded_one_is_counted() -> None:
    assert list(iterate_coverage_lines(coverage(), ROOT, None, verbose=False)) == [
        "2 of 4 faults noticed (50 %), at 3 call sites, in 1 s",
        "b.py:4 all_gather over tp: no test noticed 1 of 1 faults: call skipped",
        "    reached by test_0, test_1, test_2 and 2 more",
        "a.py:3 all_reduce: no test noticed 1 of 2 faults: bf16",
        "    reached by test_0",
        "every fault was noticed at 1 site (-v lists them)",
        "not counted: 1 fault at sites that no program came by again",
    ]


def test_verbose_lines_name_every_test_and_every_site() -> None:
    lines = list(iterate_coverage_lines(coverage(), ROOT, None, verbose=True))
    assert "    reached by test_0, test_1, test_2, test_3, test_4" in lines
    assert "/other/c.py:5 all_reduce in Tensor.backward, tensor 2: all noticed" in lines
    assert not any("-v lists" in line for line in lines)


def test_a_file_outside_of_the_root_keeps_its_whole_path() -> None:
    assert format_site(Site("/other/c.py", 5, "send", "a subgroup", 1), ROOT) == "/other/c.py:5 send over a subgroup"


def test_a_share_counts_only_if_each_site_had_a_fault() -> None:
    """However high it is: the most telling sites may be those that there was no time for."""
    made = coverage()
    assert list(iterate_coverage_lines(made, ROOT, 50, verbose=False))[-1].startswith("not counted: ")
    assert list(iterate_coverage_lines(made, ROOT, 51, verbose=False))[-1] == (
        "FAILED --mutate-fail-under=51: the tests notice 50.0 %"
    )
    late = Site("/src/d.py", 6, "all_reduce", "", 0)
    made.see(late, Calls(Family.REDUCE, 1, 2, True), "test_it.py::test_0")
    made.left_over = {
        Fault(late, Kind.SKIPPED),
        Fault(late, Kind.BF16),
        Fault(Site("/src/a.py", 3, "all_reduce", "", 0), Kind.TAIL),
    }
    lines = list(iterate_coverage_lines(made, ROOT, 10, verbose=False))
    assert lines[1] == "the time was up before 3 more faults, all those of 1 site among them"
    assert lines[-1] == (
        "FAILED --mutate-fail-under=10: no fault was tried at 1 of 4 call sites: give --mutate more seconds"
    )
