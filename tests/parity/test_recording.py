"""``parity_record`` in a script that is run twice, and ``parity-compare``, which judges the second run by the first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_gpuperf import parity_record
from pytest_gpuperf.features.parity.judging_files import judge_files
from pytest_gpuperf.features.parity.recorded_files import Recording, make_path, read, write
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace
from pytest_gpuperf.report.command_error import CommandError
from tests.warm_python import FRESH
from tests.whole_run import environment
from tests.whole_run import write as write_files

TRAIN = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from pytest_gpuperf import parity_record

assert "pytest" not in sys.modules or "FORKED" in os.environ
file, fault = sys.argv[1], sys.argv[2]
world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if world > 1 else 0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
g = torch.Generator().manual_seed(1)
with parity_record(file, model, optimizer, steps=2):
    for _ in range(4):
        x, y = torch.randn(12, 8, generator=g), torch.randn(12, 4, generator=g)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for name, parameter in model.named_parameters():
            if world > 1 and name != fault:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
"""


def run(folder: Path, *command: str, fresh: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = environment(OMP_NUM_THREADS="1", **variables, **({} if fresh else {"FORKED": "1"}))
    whole = [sys.executable, "-W", "ignore", *command]
    with (FRESH if fresh else subprocess.Popen)(
        whole, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(whole, process.returncode, out, err)


def launched(folder: Path, file: str) -> None:
    command = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "train.py", file, "")
    done = run(folder, *command, fresh=True)
    assert done.returncode == 0, done.stderr


def forked(folder: Path, file: str, fault: str) -> None:
    """Does with forks what torchrun does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def one(rank: int) -> subprocess.CompletedProcess[str]:
        return run(
            folder,
            *("train.py", file, fault),
            RANK=str(rank),
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(store.port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )

    with ThreadPoolExecutor(2) as threads:
        for done in threads.map(one, range(2)):
            assert done.returncode == 0, done.stderr


def compare(folder: Path, *arguments: str) -> tuple[int, str]:
    done = run(folder, "-m", "pytest_gpuperf", "parity-compare", *arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one script: on one device, with two samples of rounding, on ranks, and on ranks with a fault.

    The samples and the fault are on forks of a process that has imported torch.
    """
    folder = write_files(tmp_path_factory.mktemp("recorded"), {"train.py": TRAIN})
    for number in range(3):
        done = run(folder, "train.py", "one.pt", "", fresh=not number, PARITY_ROUNDING=str(number))
        assert done.returncode == 0, done.stderr
    launched(folder, "two.pt")
    forked(folder, "wrong.pt", "1.weight")
    return folder


def test_each_rank_and_each_sample_has_a_file(folder: Path) -> None:
    assert {path.name for path in folder.iterdir() if ".pt" in path.name} == {
        "one.pt",
        "one.pt.rounding1",
        "one.pt.rounding2",
        *(f"{name}.pt.rank{rank}of2" for name in ("two", "wrong") for rank in (0, 1)),
    }
    recording = read(folder / "two.pt.rank1of2")
    assert (recording.rank, recording.world) == (1, 2)
    assert max(record.key.step for record in recording.trace) == 2


def test_a_sample_differs_by_rounding(folder: Path) -> None:
    plain, sample = (read(folder / name).trace for name in ("one.pt", "one.pt.rounding1"))
    key = Key(1, Kind.GRADIENT, "0.weight")
    difference = (plain.records[key].tensor - sample.records[key].tensor).abs().max()
    assert 0 < float(difference) < 1e-5
    start = Key(0, Kind.START, "0.weight")
    assert torch.equal(plain.records[start].tensor, sample.records[start].tensor)


def test_the_right_run_passes(folder: Path) -> None:
    code, text = compare(folder, "one.pt", "two.pt")
    assert "parity: 66 tensors of 2 ranks are right, up to rounding" in text
    assert "tolerance: from 2 runs of one.pt with random rounding" in text
    assert code == 0


def test_the_wrong_run_fails_with_the_tensor_and_the_cause(folder: Path) -> None:
    code, text = compare(folder, "one.pt", "wrong.pt")
    assert "first wrong: step 1, gradient of 1.weight" in text
    assert "cause: each rank holds a part: their mean over all ranks is right; an all_reduce with the mean" in text
    assert code == 1


def test_without_samples_the_tolerance_is_a_rule_of_thumb_and_says_so(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pt"
    alone.write_bytes((folder / "one.pt").read_bytes())
    report, said = judge_files(alone, folder / "two.pt", mesh={}, layouts={})
    assert report.ok, str(report)
    assert said == (
        f"tolerance: 0.001 of each tensor's largest element, a rule of thumb, since {alone} has no runs with random "
        "rounding: run it with PARITY_ROUNDING=1, 2, ... 6 too"
    )
    report, _ = judge_files(alone, folder / "wrong.pt", mesh={}, layouts={})
    assert report.verdict.first is not None
    assert report.verdict.first.title == "step 1, gradient of 1.weight"


def _recorded(file: Path, **tensors: torch.Tensor) -> Path:
    records = [Record(Key(1, Kind.PARAMETER, name), tensor) for name, tensor in tensors.items()]
    write(file, Recording(0, 1, Trace({record.key: record for record in records})))
    return file


def _ranks_recorded(file: Path, count: int, world: int) -> Path:
    for rank in range(count):
        write(make_path(file, rank, world), Recording(rank, world, Trace()))
    return file


def _of_version_9(file: Path) -> Path:
    torch.save({"version": 9}, file)
    return file


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: (_recorded(f / "a", w=torch.ones(2)), f / "b"), "there is no recording .*b: record it by parity_re"),
        (lambda f: (_ranks_recorded(f / "a", 2, 2), f / "b"), "a is a recording of 2 ranks, expected one device"),
        (
            lambda f: (_recorded(f / "a", w=torch.ones(2)), _ranks_recorded(f / "b", 1, 3)),
            "b lacks the recordings of 2 of 3 ranks, rank 1 first: copy all ranks' files to one folder",
        ),
        (
            lambda f: (_recorded(f / "a", w=torch.ones(2)), _ranks_recorded(_ranks_recorded(f / "b", 2, 2), 3, 3)),
            "recordings of 2 and 3 ranks lie at .*b: delete those of the older run",
        ),
        (
            lambda f: ((f / "a", (f / "a").write_text("x"))[0], f / "b"),
            "a is no recording .*: write it by parity_record",
        ),
        (
            lambda f: (_of_version_9(f / "a"), f / "b"),
            "a is a recording of version 9, expected 2: record it again",
        ),
    ],
)
def test_files_that_cannot_be_compared(tmp_path: Path, make: Callable[[Path], tuple[Path, Path]], words: str) -> None:
    reference, file = make(tmp_path)
    with pytest.raises(CommandError, match=words):
        judge_files(reference, file, mesh={}, layouts={})


def test_a_layout_may_be_declared(tmp_path: Path) -> None:
    whole = torch.arange(8.0).exp()
    _recorded(tmp_path / "one", w=whole)
    for rank in range(2):
        record = Record(Key(1, Kind.PARAMETER, "w"), whole[rank::2])
        write(make_path(tmp_path / "two", rank, 2), Recording(rank, 2, Trace({record.key: record})))
    for layout, expected in (("w=interleaved(0)", 0), ("w=shard(0)", 1)):
        code, text = compare(tmp_path, "one", "two", "--layout", layout)
        assert code == expected, text


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--mesh", "dp2"), "takes axes with their sizes, as in dp=2,tp=2, got 'dp2'"),
        (("--layout", "loss"), "takes a name and a layout, as in 'loss=partial(mean)', got 'loss'"),
    ],
)
def test_options_that_cannot_be_read(tmp_path: Path, option: tuple[str, str], words: str) -> None:
    code, text = compare(tmp_path, "one", "two", *option)
    assert words in text
    assert code == 2


@pytest.mark.parametrize("value", ["x", "-1"])
def test_a_variable_that_is_no_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PARITY_ROUNDING", value)
    with pytest.raises(ValueError, match=f"PARITY_ROUNDING is '{value}', expected a number: 1, 2, ... for samples"):
        parity_record("one.pt", nn.Linear(2, 2))


def test_steps_must_be_some() -> None:
    with pytest.raises(ValueError, match="parity_record takes steps of 1 or more, got 0"):
        parity_record("one.pt", nn.Linear(2, 2), steps=0)


def test_a_script_that_fails_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), parity_record(tmp_path / "one.pt", nn.Linear(2, 2)):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
