"""One file for all ranks."""

from pathlib import Path

import pytest

from pytest_gpuperf.traces.merging import write
from pytest_gpuperf.traces.profile import Profile
from tests.traces.kineto import HOST, gpu_step, kernel, launch, trace
from tests.traces.opened import Opened


def test_each_rank_is_a_process_and_each_collective_an_arrow_over_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "all.json.gz"
    ranks = [trace(gpu_step(float(delay)), rank, f"cuda:{rank}") for rank, delay in enumerate((4, 0, 2))]
    merged = write(path, ranks, {"test": "a test"})
    opened = Opened(path)
    assert opened.processes == {1: "rank 0 (cuda:0)", 2: "rank 1 (cuda:1)", 3: "rank 2 (cuda:2)"}
    assert set(opened.threads.values()) == {"thread 4711 (python)", "stream 7", "stream 20, communication"}
    assert [[one["pid"] for one in parts] for parts in opened.collectives()] == [[2, 3, 1]]
    assert merged.collectives == 1
    assert [times.rank for times in merged.ranks] == [0, 1, 2]
    assert {lane.rank for lane in merged.lanes} == {0, 1, 2}
    assert opened.data["gpuperf"] == {"test": "a test"}


def test_arrows_of_two_ranks_with_the_same_numbers_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "all.json.gz"
    write(path, [trace(gpu_step(0.0), rank) for rank in (0, 1)], {})
    launches = [points for (category, _), points in Opened(path).arrows.items() if category == "ac2g"]
    assert [[point["pid"] for point in points] for points in launches] == [[1, 1], [2, 2]]


def test_slices_that_overlap_on_a_stream_get_rows(tmp_path: Path) -> None:
    path = tmp_path / "one.json.gz"
    drained = [launch(8.0, 5), kernel("next", 60.0, 20.0, 5), launch(9.0, 6), kernel("then", 81.0, 5.0, 6)]
    write(path, [trace([*gpu_step(0.0), *drained])], {})
    opened = Opened(path)
    rows = {one["name"]: opened.threads[one["tid"]] for one in opened.slices}
    assert [rows[name] for name in ("void gemm<float>", "next", "then")] == ["stream 7", "stream 7, row 2", "stream 7"]


def test_arrows_without_their_slices_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one.json.gz"
    lost = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 99, "pid": 4711, "tid": 4711, "ts": 77.0}
    write(path, [trace([*gpu_step(0.0), lost])], {})
    assert len(Opened(path).arrows) == 1


@pytest.mark.parametrize("phase", ["s", "f"])
def test_an_arrow_with_one_end_is_left_out(phase: str, tmp_path: Path) -> None:
    # torch writes an end for each call that launches nothing; Perfetto reports each as an import error.
    path = tmp_path / "one.json.gz"
    call = {**launch(12.0, 98), "name": "cudaEventQuery"}
    alone = {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": 98, "pid": HOST, "tid": HOST, "ts": call["ts"]}
    write(path, [trace([*gpu_step(0.0), call, alone])], {})
    assert len(Opened(path).arrows) == 1


def test_a_trace_that_cannot_be_read_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "one.json.gz"
    path.write_bytes(b"earlier")
    with pytest.raises(ValueError, match="the trace of rank 1 has no step"):
        write(path, [trace(gpu_step(0.0)), trace([kernel("alone", 0.0, 1.0, 1)], 1)], {})
    assert path.read_bytes() == b"earlier"
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.json.gz"]


def test_the_worst_rank_has_the_most_exposed_communication(tmp_path: Path) -> None:
    ranks = [trace(gpu_step(0.0, exposed=exposed), rank) for rank, exposed in enumerate((5.0, 20.0, 10.0))]
    merged = write(tmp_path / "all.json.gz", ranks, {})
    worst = Profile("a test", "together", "", ranks=merged.ranks).worst
    assert worst is not None
    assert worst.rank == 1
    assert worst.exposed == pytest.approx(20e-6)
    assert Profile("a test", "together", "").worst is None
