"""What nccl-tests reports, as text and as JSON, in the format of v2.19.6: read right, or refused by place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.nccl_tests.output import (
    OutputError,
    Timed,
    Versions,
    nccl_version,
    parse_json,
    parse_text,
    versions,
)

HEAD = """\
# Writing JSON output to report.json
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 2 nGpus 1 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 5 iters: 50 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   1878 on       host device  0 [0000:0a:00] NVIDIA H200
#  Rank  1 Group  0 Pid   1878 on       host device  1 [0000:18:00] NVIDIA H200
NCCL version 2.28.7+cuda13.0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""


def printed(nbytes: int, redop: str, *sides: str) -> str:
    """A row; each side has time, algbw, busbw and #wrong."""
    widths = (7, 6, 6, 6)
    words = [f"  {word:>{width}}" for side in sides for word, width in zip(side.split(), widths, strict=True)]
    return f"{nbytes:12}  {nbytes // 2:12}  {'bfloat16':>8}  {redop:>6}  {-1:6}{''.join(words)}"


SMALL = printed(1024, "sum", "10.53 0.10 0.20 0", "10.63 0.11 0.22 0")
UNCHECKED = printed(2**20, "none", "38.40 27.31 23.90 0", "38.78 27.31 23.89 N/A")
WRONG = printed(2**34, "sum", "123457 139.16 243.52 0", "124691 139.16 243.53 1e+06")
FOOT = """
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 123.456\x20
#
# Collective test concluded: all_reduce_perf
#

"""


def text(*rows: str, head: str = HEAD, foot: str = FOOT) -> str:
    return head + "\n".join(rows) + foot


def side(**changed: Any) -> dict[str, Any]:
    return {"time": 10.526, "alg_bw": 0.097283, "bus_bw": 0.170245, "nwrong": 0.0, **changed}


def report(**changed: Any) -> str:
    row = {
        "size": 1024,
        "count": 512,
        "type": "bfloat16",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": side(),
        "in_place": side(time=10.9, nwrong=None),
        "actual_iterations": 50,
        "experiment_name": "",
    }
    return json.dumps(
        {
            "version": 3,
            "args": ["build\\/all_reduce_perf"],
            "nccl_version": 22807,
            "config": {"nthreads": 2, "blocking_collectives": "false", "devices": []},
            "results": [{**row, **changed}],
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 0.17, "okay": "unchecked"},
            "errors": [""],
        }
    )


def timed(found: Timed | None) -> tuple[float, float, int | None]:
    assert found is not None
    return found.seconds, found.busbw, found.wrong


# Text


def test_a_row_has_both_columns_in_si_units() -> None:
    (row,) = parse_text(text(SMALL)).rows
    assert (row.nbytes, row.dtype) == (1024, "bfloat16")
    assert timed(row.out_of_place) == pytest.approx((10.53e-6, 0.2e9, 0))
    assert timed(row.in_place) == pytest.approx((10.63e-6, 0.22e9, 0))


def test_what_was_not_checked_is_not_wrong() -> None:
    found = parse_text(text(SMALL, UNCHECKED))
    assert timed(found.rows[1].in_place)[2] is None
    assert found.correct


def test_wrong_elements_are_counted() -> None:
    found = parse_text(text(SMALL, WRONG))
    assert [row.wrong for row in found.rows] == [0, 1_000_000]
    assert not found.correct


def test_values_out_of_bounds_are_wrong_wherever_they_were() -> None:
    found = parse_text(text(SMALL, foot=FOOT.replace(": 0 OK", ": 2 FAILED")))
    assert found.out_of_bounds == 2
    assert not found.correct


def test_columns_are_found_by_their_names() -> None:
    head = HEAD.replace("time   algbw   busbw  #wrong", "time  #wrong   i_min   busbw")
    (row,) = parse_text(text(printed(1024, "sum", "10.53 7 9.99 0.20", "10.63 N/A 9.99 0.22"), head=head)).rows
    assert timed(row.out_of_place) == pytest.approx((10.53e-6, 0.2e9, 7))
    assert timed(row.in_place)[2] is None


def test_cpu_time_is_no_time() -> None:
    with pytest.raises(
        OutputError, match=r"expected a header above it with two columns 'time', got \['size', .*'cputime'"
    ):
        parse_text(text(SMALL, head=HEAD.replace("    time", " cputime")))


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        (
            [SMALL, SMALL.replace("10.63", "10.63 host:77 [0] NCCL INFO")],
            r"line 15, '1024 .*got 17 columns, .*'s 13 \(size",
        ),
        ([SMALL[:60]], r"line 14, '1024 .*got 6 columns"),
        ([SMALL.replace("10.53", "  nan")], r"line 14, .*got 'nan', expected a number"),
        ([SMALL.replace("10.53", " 0.00")], r"line 14, .*got a time of 0.00 us"),
        (
            [printed(1024, "sum", "10.53 0.10 0.20 none", "10.63 0.11 0.22 0")],
            r"line 14, .*got 'none', expected a number",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_named(rows: list[str], place: str) -> None:
    with pytest.raises(OutputError, match=place):
        parse_text(text(*rows))


def test_a_row_without_a_header_is_refused() -> None:
    with pytest.raises(OutputError, match=r"line 1, '1024 .*expected a header above it"):
        parse_text(SMALL)


def test_no_row_names_the_last_line() -> None:
    with pytest.raises(OutputError, match="no row of metrics; its last line is '# Collective test concluded: x'"):
        parse_text("USAGE: x\n# Collective test concluded: x\n\n")


# JSON


def test_json_has_the_same_with_more_digits() -> None:
    found = parse_json(report())
    (row,) = found.rows
    assert (row.nbytes, row.dtype) == (1024, "bfloat16")
    assert timed(row.out_of_place) == pytest.approx((10.526e-6, 0.170245e9, 0))
    assert timed(row.in_place)[:2] == pytest.approx((10.9e-6, 0.170245e9))
    assert timed(row.in_place)[2] is None
    assert found.correct


def test_json_may_lack_a_column() -> None:
    (row,) = parse_json(report(out_of_place=None)).rows
    assert row.out_of_place is None
    assert timed(row.in_place)[0] == pytest.approx(10.9e-6)


def test_json_counts_wrong_elements() -> None:
    assert parse_json(report(in_place=side(nwrong=12.0))).rows[0].wrong == 12
    assert not parse_json(report(in_place=side(nwrong=12.0))).correct
    assert not parse_json(report().replace('"count": 0, "okay": "true"', '"count": 1, "okay": "false"')).correct


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (report()[:200], "JSON ends or breaks at line 1"),
        (json.dumps({"version": 3}), "the file: expected 'results', got version"),
        (json.dumps({"results": []}), r"no row of metrics: got results \[\]"),
        (
            report(in_place={"cpu_time": 3.0, "bus_bw": 1.0, "nwrong": None}),
            r"results\[0\].in_place: expected 'time', got cpu_",
        ),
        (report(out_of_place=side(bus_bw="nan")), r"results\[0\].out_of_place: got 'nan', expected a number"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(file: str, place: str) -> None:
    with pytest.raises(OutputError, match=place):
        parse_json(file)


# Versions


def test_the_loaded_library_counts_and_not_the_headers() -> None:
    assert versions(HEAD) == Versions("2.19.6", "2.28.7")


def test_nccl_itself_tells_where_nccl_tests_does_not() -> None:
    assert versions("NCCL version 2.28.9+cuda13.0\n# nThread 2") == Versions(None, "2.28.9")
    assert versions("# nThread 2") == Versions(None, None)


@pytest.mark.parametrize(("code", "version"), [(22809, "2.28.9"), (21005, "2.10.5"), (23103, "2.31.3")])
def test_version_numbers(code: int, version: str) -> None:
    assert nccl_version(code) == version
