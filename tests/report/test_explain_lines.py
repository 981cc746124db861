"""What is said of explanations."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.plain import make_plain, read
from pytest_gpuperf.report.explain_lines import describe_explanation, summarize_explanations
from pytest_gpuperf.report.verdict_line import list_details
from pytest_gpuperf.report.why import say_chosen
from pytest_gpuperf.verdicts.explanation import Explained, Explanation
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import COMMANDS, SAME

SET, UNSET = {"NCCL_MAX_NCHANNELS": ("", "12")}, {"NCCL_PROTO": ("Simple", "")}
CHANGED = {"NCCL_ALGO": ("Ring", "Tree")}
MOVED = replace(SAME, outcome=Outcome.REGRESSED, change=-0.2)


def moved(found: Explained, undone: Mapping[str, tuple[str, str]], value: float = 352e9, **more: object) -> Verdict:
    return replace(MOVED, explanation=replace(Explanation(found, undone, value), **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (SAME, ""),
        (
            moved(Explained.EXPLAINED, SET),
            "explained by NCCL_MAX_NCHANNELS=12: without it 352.0 GB/s, as recorded",
        ),
        (
            moved(Explained.EXPLAINED, {**SET, "NCCL_SOCKET_NTHREADS": ("", "1")}),
            "explained by NCCL_MAX_NCHANNELS=12 and NCCL_SOCKET_NTHREADS=1: without them 352.0 GB/s, as recorded",
        ),
        (
            moved(Explained.EXPLAINED, UNSET),
            "explained by NCCL_PROTO not set: with NCCL_PROTO=Simple 352.0 GB/s, as recorded",
        ),
        (
            moved(Explained.EXPLAINED, {**CHANGED, **SET}),
            "explained by NCCL_ALGO=Tree and NCCL_MAX_NCHANNELS=12: with NCCL_ALGO=Ring and NCCL_MAX_NCHANNELS not set "
            "352.0 GB/s, as recorded",
        ),
        (
            moved(Explained.EXPLAINED, {**CHANGED, **SET}, problem="time ran out: raise --race-budget"),
            "explained by NCCL_ALGO=Tree and NCCL_MAX_NCHANNELS=12: with NCCL_ALGO=Ring and NCCL_MAX_NCHANNELS not set "
            "352.0 GB/s, as recorded; which of them is open: time ran out: raise --race-budget",
        ),
        (
            moved(Explained.EXPLAINED, SET, 400e9),
            "explained by NCCL_MAX_NCHANNELS=12: without it 400.0 GB/s, recorded 356.0 GB/s",
        ),
        (
            moved(Explained.PARTLY, SET, 272e9),
            "partly explained by NCCL_MAX_NCHANNELS=12: without it 272.0 GB/s, recorded 356.0 GB/s",
        ),
        (moved(Explained.NOT, SET), "not explained by NCCL_MAX_NCHANNELS=12: without it 352.0 GB/s as well"),
        (
            moved(Explained.OPEN, SET),
            "maybe explained by NCCL_MAX_NCHANNELS=12: without it 352.0 GB/s, and launches differ too much to decide",
        ),
        (
            replace(MOVED, explanation=Explanation(Explained.UNTRIED)),
            "not explained: no variable that can be put back differs from the baseline",
        ),
        (
            replace(MOVED, explanation=Explanation(Explained.UNTRIED, problem="time ran out")),
            "not explained, since nothing was tried: time ran out",
        ),
        (
            moved(Explained.NOT, SET, untried={"NCCL_NVLS_ENABLE": "it may keep multicast off"}),
            "not explained by NCCL_MAX_NCHANNELS=12: without it 352.0 GB/s as well; not tried: NCCL_NVLS_ENABLE, "
            "because it may keep multicast off",
        ),
    ],
)
def test_what_was_found_is_one_sentence(verdict: Verdict, words: str) -> None:
    assert describe_explanation(verdict) == words


@pytest.mark.parametrize(
    ("name", "then", "now", "words"),
    [
        (
            "all_reduce 67108864",
            "RING, SIMPLE, 24 channels",
            "RING, SIMPLE, 12 channels",
            "all_reduce of 64 MiB: 12 channels, recorded 24 channels",
        ),
        (
            "all_gather 1024",
            "RING, SIMPLE, 24 channels",
            "TREE, LL, 24 channels",
            "all_gather of 1 KiB: TREE, LL, recorded RING, SIMPLE",
        ),
        ("transport", "P2P/CUMEM", "SHM/direct/direct", "transport: SHM/direct/direct, recorded P2P/CUMEM"),
        (
            "transport",
            "P2P/CUMEM",
            "P2P (2 pairs), NET (2 pairs)",
            "transport: P2P (2 pairs), NET (2 pairs), recorded *",
        ),
    ],
)
def test_of_nccl_s_choices_what_differs_is_said(name: str, then: str, now: str, words: str) -> None:
    said = say_chosen({name: (then, now)})
    assert said.startswith(f"what NCCL chose: {words.removesuffix('*')}")
    assert say_chosen({}) == ""


def test_the_lines_of_a_verdict_have_both() -> None:
    verdict = replace(
        moved(Explained.EXPLAINED, SET), differs=SET, chosen={"transport": ("P2P/CUMEM", "SHM/direct/direct")}
    )
    assert list_details(verdict, COMMANDS)[-3:] == [
        "what differs: NCCL_MAX_NCHANNELS not set -> 12",
        "what NCCL chose: transport: SHM/direct/direct, recorded P2P/CUMEM",
        "explained by NCCL_MAX_NCHANNELS=12: without it 352.0 GB/s, as recorded",
    ]


def test_the_summary_counts_what_each_variable_explains() -> None:
    verdicts = [moved(Explained.EXPLAINED, SET), moved(Explained.EXPLAINED, SET), moved(Explained.NOT, CHANGED), SAME]
    assert summarize_explanations(verdicts) == ["NCCL_MAX_NCHANNELS=12 explains 2 of 3 metrics that moved"]
    assert summarize_explanations([SAME]) == []


def test_json_and_back() -> None:
    share = Share(-0.2, (-0.21, -0.19), 4)
    verdict = replace(
        moved(Explained.EXPLAINED, SET, share=share, untried={"PATH": "why"}), chosen={"transport": ("P2P", "SHM")}
    )
    assert read(Verdict, make_plain(verdict), "verdict") == verdict
