"""Whatever happens to a save or to its files, the last good checkpoint loads, and the error names what is lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import event, example, given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_gpuperf import Context, RankDied, Ranks
from suites.checkpoint.programs.directory import (
    Checkpoints,
    Loaded,
    Store,
    named_tensors,
)
from suites.checkpoint.programs.failing import (
    TENSORS,
    complaint,
    recover,
    save,
    save_on_full_disk,
    save_until_killed,
    save_until_operation,
    state_of,
    synced_and_renamed,
)
from suites.checkpoint.programs.manifest import FORMAT, MANIFEST
from suites.checkpoint.programs.training import State

NUMEL = 12 * 1024
"""Elements of a tensor: 96 KiB."""
NAMES = [*(f"model.sharded{number}" for number in range(TENSORS)), "model.replicated"]
GOOD, LATER = 9, 10  # as text they would be in the other order
VICTIMS = {"all ranks": (0, 1), "rank 0": (0,), "rank 1": (1,)}


def assert_refused(ranks: Ranks, message: str, program: Callable[..., object], **given: Any) -> None:
    """Every rank raises what matches the message: the exception's name, and what it says."""
    for told in ranks.run(complaint, program, **given):
        assert re.match(message, told), told


def assert_survives(ranks: Ranks, store: Store, folder: Path, percent: int, victims: str) -> int:
    """Kills a save after a percentage of the time that saves take; returns the step that loads: before it, or its own.

    Args:
        ranks: that save.
        store: what saves.
        folder: for a mark that a save has returned.
        percent: of the time.
        victims: which ranks are killed.
    """
    seconds = max(ranks.run(save, store=store, step=GOOD, numel=NUMEL))
    mark = folder / "returned"
    with contextlib.suppress(RankDied):
        ranks.run(
            save_until_killed,
            store=store,
            step=LATER,
            numel=NUMEL,
            after=percent / 100 * seconds,
            victims=VICTIMS[victims],
            mark=mark,
        )
    ((step, passed_over), *_) = ranks.run(recover, store=store, numel=NUMEL)
    assert not passed_over
    assert step in ((LATER,) if mark.exists() else (GOOD, LATER))
    ranks.run(save, store=store, step=LATER + 1, numel=NUMEL)
    assert [found for found, _ in ranks.run(recover, store=store, numel=NUMEL)] == [LATER + 1] * ranks.world_size
    return int(step)


@pytest.mark.ranks(2, device="cpu")  # a rank with a GPU takes seconds to be replaced, and files know of no device
@pytest.mark.examples(0.2)  # 10 kills in CI
@given(percent=st.integers(0, 120), victims=st.sampled_from(sorted(VICTIMS)))
@example(percent=50, victims="rank 0")
def test_killed_at_a_random_moment(ranks: Ranks, percent: int, victims: str) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        step = assert_survives(ranks, Checkpoints(folder / "checkpoints"), folder, percent, victims)
        assert not list(folder.glob("checkpoints/.*")), "the next save leaves what the killed one had written"
    event(f"{victims} killed: {'the step before' if step == GOOD else 'the step itself'} loads")


@pytest.mark.long
@pytest.mark.ranks(2, device="cpu", isolation="process")  # audit hooks stay
def test_killed_before_each_operation_on_files(ranks: Ranks, tmp_path: Path) -> None:
    store, steps = Checkpoints(tmp_path), 40
    ranks.run(save, store=store, step=1, numel=12)
    latest, ended = 1, False
    for number in range(1, steps):
        step = latest + 1
        with contextlib.suppress(RankDied):
            ended = all(ranks.run(save_until_operation, store=store, root=tmp_path, step=step, numel=12, number=number))
        ((found, passed_over), *_) = ranks.run(recover, store=store, numel=12)
        assert not passed_over
        assert found in (latest, step), f"killed before operation {number}: step {found} loads"
        latest = found
        if ended:
            break
    assert ended, f"a save takes {steps} operations on files or more"
    assert number > 10, f"only {number - 1} operations on files were seen"


@pytest.mark.ranks(2, device="cpu")  # the limit is for what drivers write, too
@pytest.mark.examples(0.2)
@given(share=st.integers(0, 99), victim=st.integers(0, 1))
def test_full_disk(ranks: Ranks, share: int, victim: int) -> None:
    """The kernel refuses a rank's file beyond a size; every rank hears of it, and nothing stays to fill the disk."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = Checkpoints(folder)
        ranks.run(save, store=store, step=GOOD, numel=NUMEL)
        largest = max(path.stat().st_size for path in folder.glob(f"step-*/__{victim}_*"))
        room = share * largest // 100
        reasons = ranks.run(save_on_full_disk, store=store, step=LATER, numel=NUMEL, room=room, victim=victim)
        for reason in reasons:
            assert reason.startswith(f"SaveFailedError: step {LATER} was not saved in {folder}: rank {victim}: "), (
                reason
            )
        assert [path.name for path in folder.iterdir()] == [f"step-{GOOD:08d}"]
        assert ranks.run(recover, store=store, numel=NUMEL) == [(GOOD, ())] * ranks.world_size
        event("full disk: the step before loads")
        ranks.run(save, store=store, step=LATER, numel=NUMEL)


def _tensor_at(folder: Path, file: str, place: int) -> str:
    """The tensor that has a byte of a file, by torch's own metadata; nothing if none has."""
    data = dcp.FileSystemReader(folder).read_metadata().storage_data
    return next(
        (
            index.fqn
            for index, info in data.items()
            if info.relative_path == file and info.offset <= place < info.offset + info.length
        ),
        "",
    )


def _damage(kind: str, folder: Path, file: str, place: int, step: int = LATER) -> str:
    """Damages a file of a checkpoint, and returns what the error must say beside its name."""
    path = folder / f"step-{step:08d}" / file
    if kind == "missing":
        path.unlink()
        return "cannot be read (No such file or directory)"
    if kind == "of another step":
        shutil.copyfile(folder / f"step-{GOOD:08d}" / file, path)
        return f"of step {GOOD}"
    if kind == "truncated":
        os.truncate(path, place)
        return "does not have the checksum" if file == MANIFEST else f"is truncated to {place} bytes"
    if kind == "grown":
        size = path.stat().st_size
        os.truncate(path, size + place + 1)
        return "does not have the checksum" if file == MANIFEST else f"has grown to {size + place + 1} bytes, expected"
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)
    return "does not have the checksum" if file == MANIFEST else "has other bytes than were saved"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["truncated", "grown", "bit-flipped", "missing", "of another step"])
@pytest.mark.examples(0.32)
@given(data=st.data())
def test_damaged_file(ranks: Ranks, kind: str, data: st.DataObject) -> None:
    """Each file of a checkpoint, a copy of it each."""
    with TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        for step in (GOOD, LATER):
            ranks.run(save, store=Checkpoints(whole), step=step, numel=NUMEL)
        files = sorted(path.name for path in (whole / f"step-{LATER:08d}").iterdir())
        assert files == [".metadata", "__0_0.distcp", "__1_0.distcp", MANIFEST]
        for file in files:
            folder = Path(shutil.copytree(whole, Path(name) / file))
            assert_passed_over(ranks, folder, kind, file, data.draw(st.integers(0, 2**31), label=file))
        event(f"{kind}: the step before loads")


def assert_passed_over(ranks: Ranks, folder: Path, kind: str, file: str, drawn: int) -> None:
    """A file of the later step is damaged: the step before loads, and the message names what is lost."""
    later = folder / f"step-{LATER:08d}"
    size = (later / file).stat().st_size
    place = (drawn + size // 2) % size  # the first one drawn is in the middle
    tensor = _tensor_at(later, file, place)
    what = _damage(kind, folder, file, place)
    for step, passed_over in ranks.run(recover, store=Checkpoints(folder), numel=NUMEL):
        assert step == GOOD
        (message,) = passed_over
        assert message.startswith(f"step {LATER} is damaged: {later / file} ")
        assert what in message
        if kind in ("truncated", "bit-flipped"):
            assert tensor in message
        if kind == "bit-flipped":
            assert not [name for name in NAMES if name != tensor and name in message]


@pytest.mark.ranks(2)
def test_all_that_is_damaged_is_named(ranks: Ranks, tmp_path: Path) -> None:
    """Several files of a checkpoint, and several checkpoints, the latest first."""
    store = Checkpoints(tmp_path)
    oldest, middle, latest = GOOD, LATER, LATER + 1
    for step in (oldest, middle, latest):
        ranks.run(save, store=store, step=step, numel=12)
    files = ["__0_0.distcp", "__1_0.distcp"]
    for step, file in zip((middle, oldest), files, strict=True):
        shutil.copyfile(tmp_path / f"step-{step:08d}" / file, tmp_path / f"step-{latest:08d}" / file)
    for file in files:
        _damage("bit-flipped", tmp_path, file, 100, step=middle)
    for step, passed_over in ranks.run(recover, store=store, numel=12):
        assert step == oldest
        first, second = passed_over
        assert first.startswith(f"step {latest} is damaged: ")
        assert f"{files[0]} is the file of step {middle}" in first
        assert f"{files[1]} is the file of step {oldest}" in first
        assert second.startswith(f"step {middle} is damaged: ")
        assert all(f"{file} has other bytes" in second for file in files)


def _rewrite(folder: Path, **changed: object) -> None:
    """Changes a manifest as a later version, or an engineer, would: with its checksum."""
    text = json.dumps(json.loads((folder / MANIFEST).read_bytes().partition(b"\n")[2]) | changed).encode()
    (folder / MANIFEST).write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


@pytest.mark.ranks(2)
def test_newer_format_is_no_damage(ranks: Ranks, tmp_path: Path) -> None:
    """Training must not silently go on from an older step because its latest checkpoint is of a later version."""
    store = Checkpoints(tmp_path)
    for step in (GOOD, LATER):
        ranks.run(save, store=store, step=step, numel=12)
    _rewrite(tmp_path / f"step-{LATER:08d}", format=FORMAT + 1, parts=[])
    message = f"NewerFormatError: .*format {FORMAT + 1}, and this version reads up to {FORMAT}: load it"
    assert_refused(ranks, message, recover, store=store, numel=12)


@pytest.mark.ranks(2)
def test_no_whole_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    none = "NoCheckpointError: .*holds no whole checkpoint: it holds none at all: begin anew"
    assert_refused(ranks, none, recover, store=store, numel=12)
    ranks.run(save, store=store, step=GOOD, numel=12)
    (tmp_path / f"step-{GOOD:08d}").rename(tmp_path / f"step-{LATER:08d}")
    renamed = f"NoCheckpointError: .*step {LATER} is damaged: .*{MANIFEST} is of step {GOOD}: begin anew"
    assert_refused(ranks, renamed, recover, store=store, numel=12)


def other_dtype(state: State) -> None:
    state["model"]["replicated"] = state["model"]["replicated"].double()


def other_shape(state: State) -> None:
    state["model"]["replicated"] = state["model"]["replicated"][:7]


def one_more(state: State) -> None:
    state["model"]["bias"] = torch.zeros(3)


def one_less(state: State) -> None:
    del state["model"]["replicated"]


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_dtype, r"model.replicated: the checkpoint has torch.int64 \[12\], the state torch.float64 \[12\]"),
        (other_shape, r"model.replicated: the checkpoint has torch.int64 \[12\], the state torch.int64 \[7\]"),
        (one_more, r"model.bias: the checkpoint has none, the state torch.float32 \[3\]"),
        (one_less, r"model.replicated: the checkpoint has torch.int64 \[12\], the state none"),
    ],
    ids=["dtype", "shape", "one more", "one less"],
)
def test_other_tensors(ranks: Ranks, tmp_path: Path, change: Callable[[State], None], message: str) -> None:
    def program(ctx: Context) -> None:
        store = Checkpoints(tmp_path)
        store.save(GOOD, state_of(ctx, GOOD, 12))
        state = state_of(ctx, 0, 12)
        change(state)
        store.load(state)

    refusal = f"MismatchError: .*does not fit the state: {message}: build the model that was saved"
    assert_refused(ranks, refusal, program)


def nested(dtype: torch.dtype) -> State:
    """Tensors in dictionaries and lists, and numbers beside them."""
    first, second, third, fourth = (torch.zeros(number, dtype=dtype) for number in range(1, 5))
    return {"model": {"a": first, "deep": {"b": second}}, "averages": [third, {"c": fourth, "rate": 0.5}], "step": 7}


@pytest.mark.ranks(1)
def test_tensors_are_named_as_torch_names_them(ranks: Ranks, tmp_path: Path) -> None:
    """In lists too: whoever does not name them does not compare them."""

    def program(ctx: Context) -> None:
        store = Checkpoints(tmp_path)
        state = nested(torch.float32)
        store.save(GOOD, state)
        metadata = dcp.FileSystemReader(tmp_path / f"step-{GOOD:08d}").read_metadata().state_dict_metadata
        saved = {name for name, entry in metadata.items() if isinstance(entry, dcp.TensorStorageMetadata)}
        assert set(named_tensors(state)) == saved == {"model.a", "model.deep.b", "averages.0", "averages.1.c"}
        store.load(nested(torch.float64))

    sizes = {"averages.0": 3, "averages.1.c": 4, "model.a": 1, "model.deep.b": 2}
    wrong = (
        f"{name}: the checkpoint has torch.float32 [{n}], the state torch.float64 [{n}]" for name, n in sizes.items()
    )
    refusal = re.escape(f"{'; '.join(wrong)}: build the model")
    assert_refused(ranks, f"MismatchError: .*{refusal}", program)


@pytest.mark.ranks(2)
def test_step_that_is_there(ranks: Ranks, tmp_path: Path) -> None:
    """A whole checkpoint is not replaced; a damaged one is, by training that came to its step again."""
    store = Checkpoints(tmp_path)
    ranks.run(save, store=store, step=GOOD, numel=12)
    whole = "SaveFailedError: .*is there and whole: delete it, or save under another step"
    assert_refused(ranks, whole, save, store=store, step=GOOD, numel=12)
    assert ranks.run(recover, store=store, numel=12)[0] == (GOOD, ())
    _damage("bit-flipped", tmp_path, "__1_0.distcp", 100, step=GOOD)
    ranks.run(save, store=store, step=GOOD, numel=12)
    assert ranks.run(recover, store=store, numel=12)[0] == (GOOD, ())


@pytest.mark.ranks(2)
def test_synced_before_it_has_its_name(ranks: Ranks, tmp_path: Path) -> None:
    """A kill leaves the kernel's page cache alone, power that fails does not: files and names are synced first."""
    calls = [call for of_rank in ranks.run(synced_and_renamed, store=Checkpoints(tmp_path)) for call in of_rank]
    part, final = tmp_path / f".step-{LATER:08d}", tmp_path / f"step-{LATER:08d}"
    renamed = calls.index(("rename", str(part)))
    files = {("sync", str(part / path.name)) for path in final.iterdir() if path.name != ".metadata"}
    metadata = ("sync", str(part / ".metadata.tmp"))
    assert {*files, metadata, ("sync", str(part))} <= {*calls[:renamed], *calls[calls.index(("end", "")) + 1 :]}
    assert ("sync", str(tmp_path)) in calls[renamed:]


class WholeOnFirstRank:
    """Somebody's own store: rank 0 gathers everything, and replaces one file."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, step: int, state: State) -> None:
        whole = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            for name, tensor in state["model"].items()
        }
        if dist.get_rank() == 0:
            self.root.mkdir(exist_ok=True)
            torch.save({"step": step, "model": whole}, self.root / "next")
            os.replace(self.root / "next", self.root / "checkpoint")
        dist.barrier()

    def load(self, state: State) -> Loaded:
        saved = torch.load(self.root / "checkpoint", weights_only=True)
        for name, tensor in state["model"].items():
            whole = saved["model"][name]
            if isinstance(tensor, DTensor):
                whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.copy_(whole)
        return Loaded(saved["step"])


@pytest.mark.ranks(2, device="cpu")
@pytest.mark.parametrize("percent", [30, 90])
def test_your_own_store(ranks: Ranks, tmp_path: Path, percent: int) -> None:
    assert_survives(ranks, WholeOnFirstRank(tmp_path / "checkpoints"), tmp_path, percent, "all ranks")
