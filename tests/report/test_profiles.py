"""Profiles in reports and in the summary."""

import dataclasses

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.features.profiling.lines import PROFILES, describe_profiles
from pytest_gpuperf.traces.profile import Lane, Profile, RankTimes
from tests.report.examples import report

PROFILE = Profile(
    test="test_it.py::test_x[2ranks]",
    arm="together",
    file="out/a.json.gz",
    steps=3,
    overlap_exposed=0.25,
    ranks=(RankTimes(0, "cuda:0", 4e-3, 3e-3, 2e-3, 0.4e-3), RankTimes(1, "cuda:1", 4e-3, 3e-3, 2.1e-3, 0.63e-3)),
    lanes=(Lane(0, "compute", "stream 7", ((0.0, 3e-3, "gemm"),)),),
)


def lines(*profiles: Profile) -> list[str]:
    return [line.text for line in describe_profiles(make_plain(profiles))]


def test_a_profile_travels_with_the_report_as_it_is_documented() -> None:
    (found,) = PROFILES.read(report(user_properties=[("x", "y"), *PROFILES.carry([make_plain(PROFILE)])]))
    assert found == make_plain(PROFILE)
    assert found["lanes"] == [
        {"rank": 0, "kind": "compute", "track": "stream 7", "intervals": [[0.0, 3e-3, "gemm"]]},
    ]


def test_without_profiles_the_summary_says_nothing() -> None:
    assert lines() == []


def test_the_summary_has_what_is_exposed_beside_the_overlaps_own_figure() -> None:
    assert lines(PROFILE) == [
        "profile: test_it.py::test_x[2ranks]: 630.0 us of 2.100 ms communication exposed in the trace "
        "(30.0 %, rank 1); 25.0 % by perf.overlap",
        "1 trace in out: open one at https://ui.perfetto.dev",
    ]


def test_other_programs_have_no_line_of_their_own() -> None:
    others = [dataclasses.replace(PROFILE, overlap_exposed=None, file=file) for file in ("out/a.gz", "b.gz")]
    assert lines(*others) == ["2 traces in ., out: open one at https://ui.perfetto.dev"]


def test_an_overlap_without_communication_says_so() -> None:
    silent = tuple(dataclasses.replace(rank, communication=0.0, exposed=0.0) for rank in PROFILE.ranks)
    assert lines(dataclasses.replace(PROFILE, ranks=silent))[0] == (
        "profile: test_it.py::test_x[2ranks]: no communication in the trace; exposed 25.0 % by perf.overlap"
    )


def test_a_program_that_was_not_profiled_has_a_warning_and_no_line() -> None:
    assert lines(Profile("test_it.py::test_x", "measure", "", "ValueError: no")) == []
