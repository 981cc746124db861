"""NCCL's log is kept in a rank's memory, from before NCCL is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gpuperf import Context, Ranks
from pytest_gpuperf.ranks import nccl_debug

LINE = "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


def written(ctx: Context) -> tuple[str, list[str]]:
    """Writes to where NCCL is told to, as it does; returns where, and what the context reads."""
    path = os.environ["NCCL_DEBUG_FILE"]
    with Path(path).open("w") as file:
        file.write(LINE)
        file.flush()
        return path, sorted(ctx.nccl_log().transports)


@pytest.mark.ranks(2, nccl_log=True)
def test_a_rank_reads_what_nccl_writes(ranks: Ranks) -> None:
    for path, transports in ranks.run(written):
        assert path.startswith("/proc/self/fd/")
        assert transports == ["P2P/CUMEM"]


def numbered(ctx: Context) -> tuple[str, str]:
    return os.environ["NCCL_HOSTID"], os.environ["OTHER"]


@pytest.mark.ranks(2, env={"NCCL_HOSTID": "pod-{rank}", "OTHER": "{}"})
def test_a_variable_holds_the_rank_s_number(ranks: Ranks) -> None:
    assert ranks.run(numbered) == [("pod-0", "{}"), ("pod-1", "{}")]


def test_a_file_that_the_user_names_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / f"log.{os.getpid()}").write_text(LINE)
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "log.%p"))
    assert nccl_debug.read_log().over("P2P")


def test_a_file_that_is_not_written_yet_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "%h"))
    assert not nccl_debug.read_log().connections


def test_nobody_has_asked_for_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    nccl_debug.keep_log()
    with pytest.raises(
        RuntimeError, match=r"keeps no log of NCCL: give its test the marker ranks\(\.\.\., nccl_log=Tr"
    ):
        nccl_debug.read_log()
