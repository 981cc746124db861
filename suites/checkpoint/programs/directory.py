"""A folder of checkpoints in which a save that fails, at whatever moment, leaves the ones before it whole.

A save writes into a folder whose name begins with a dot, notes the length and checksum of every piece of every file
in a manifest, and renames the folder. A rename is atomic, so a checkpoint has its name only when it is whole. Whoever
loads looks for the latest checkpoint whose files are what the manifest says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, TensorStorageMetadata

from suites.checkpoint.programs.manifest import FORMAT, MANIFEST, File, Manifest, damage, files_of, stored
from suites.checkpoint.programs.training import State

Answer = TypeVar("Answer")


class SaveFailedError(Exception):
    """A checkpoint was not saved; those before it are as they were. Raised on every rank."""


class DamagedError(Exception):
    """A checkpoint's files are not what was saved; names the file and its tensors."""


class NewerFormatError(Exception):
    """A checkpoint was written by a later version, and must not be taken for a damaged one."""


class NoCheckpointError(Exception):
    """A folder holds no checkpoint that is whole."""


class MismatchError(Exception):
    """A checkpoint holds other tensors than the state that it is to be loaded into."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded."""

    step: int
    passed_over: tuple[str, ...] = ()
    """What is wrong with later ones, the latest first."""


class Store(Protocol):
    """What keeps checkpoints: ``Checkpoints``, or your own. All ranks call it together."""

    def save(self, step: int, state: State) -> None:
        """Saves a step's state. When it returns on any rank, the checkpoint is there to stay."""

    def load(self, state: State) -> Loaded:
        """Loads the latest whole checkpoint into the tensors of a state."""


class Checkpoints:
    """A folder of checkpoints on a file system that all ranks share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def save(self, step: int, state: State) -> None:
        """Saves a step's state; all ranks call it.

        Raises:
            SaveFailedError: on every rank, if any of them failed.
        """
        part, final = self._root / f".step-{step:08d}", self._root / f"step-{step:08d}"
        try:
            _together(lambda: self._begin(part, final))
            dcp.save(state, storage_writer=dcp.FileSystemWriter(part))
            noted = _together(lambda: _note(part))
            files = tuple(File.parsed(entry) for of_rank in noted for entry in of_rank)
            _together(lambda: self._commit(part, final, Manifest(FORMAT, step, files)))
        except (CheckpointException, _FailedError) as raised:
            _on_first(lambda: shutil.rmtree(part, ignore_errors=True))  # a full disk needs the space
            raise SaveFailedError(f"step {step} was not saved in {self._root}: {_reason(raised)}") from raised

    def load(self, state: State) -> Loaded:
        """Loads the latest whole checkpoint into the tensors of a state; all ranks call it.

        Raises:
            MismatchError: the checkpoint has other tensors.
            NewerFormatError: a later version wrote the latest one.
            NoCheckpointError: none is whole.
        """
        found = self.latest()
        folder = self._root / f"step-{found.step:08d}"
        reader = dcp.FileSystemReader(folder)
        require_match(reader.read_metadata(), state, folder)
        dcp.load(state, storage_reader=reader)
        return found

    def latest(self) -> Loaded:
        """Finds the latest whole checkpoint, without loading it.

        Raises:
            NewerFormatError: a later version wrote the latest one.
            NoCheckpointError: none is whole.
        """
        passed_over: list[str] = []
        for step in reversed(_together(self.steps)[0]):
            try:
                self.check(step)
            except DamagedError as damaged:
                passed_over.append(str(damaged))
            else:
                return Loaded(step, tuple(passed_over))
        found = "; ".join(passed_over) or "it holds none at all"
        raise NoCheckpointError(f"{self._root} holds no whole checkpoint: {found}: begin anew, or name another folder")

    def check(self, step: int) -> None:
        """Reads a checkpoint's files and compares them with its manifest; ranks share the files.

        Raises:
            DamagedError: they are not what was saved.
            NewerFormatError: a later version wrote them.
        """
        folder = self._root / f"step-{step:08d}"
        text, complaint = _together(lambda: _stored(folder))[0]  # one rank's, so that all agree
        if complaint:
            raise DamagedError(f"step {step} is damaged: {folder / MANIFEST} {complaint}")
        manifest = Manifest.parsed(text)
        if manifest.format > FORMAT:
            raise NewerFormatError(
                f"{folder} has the format {manifest.format}, and this version reads up to {FORMAT}: load it with the "
                "version that wrote it"
            )
        if manifest.step != step:
            raise DamagedError(f"step {step} is damaged: {folder / MANIFEST} is of step {manifest.step}")
        others = {other: self._root / f"step-{other:08d}" for other in self.steps() if other != step}
        found = _together(lambda: [damage(file, folder, others) for file in _share(manifest.files)])
        if texts := [text for of_rank in found for text in of_rank if text]:
            raise DamagedError(f"step {step} is damaged: {'; '.join(texts)}")

    def steps(self) -> list[int]:
        """The steps of all checkpoints that have their name, damaged ones too, in order."""
        return sorted(int(path.name.removeprefix("step-")) for path in self._root.glob("step-[0-9]*"))

    def _begin(self, part: Path, final: Path) -> None:
        if _rank() == 0:
            for left in self._root.glob(".step-*"):  # of saves that were killed
                shutil.rmtree(left)
            if final.exists():
                self._replace(final)
            part.mkdir(parents=True)

    def _replace(self, final: Path) -> None:
        """Makes room for a step that is saved again, if what is there is damaged."""
        text, complaint = _stored(final)
        if not complaint and not any(damage(file, final, {}) for file in Manifest.parsed(text).files):
            raise FileExistsError(f"{final} is there and whole: delete it, or save under another step")
        shutil.rmtree(final)

    def _commit(self, part: Path, final: Path, manifest: Manifest) -> None:
        if _rank() == 0:
            manifest.write(part)
            _sync(part)  # the names of its files
            part.rename(final)
            _sync(self._root)


def _note(part: Path) -> list[dict[str, Any]]:
    """What this rank's share of the files of a save holds."""
    # In torch 2.10 what dcp.save returns does not say where tensors are.
    files = files_of(part, dcp.FileSystemReader(part).read_metadata())
    return [asdict(File.of(part / name, files[name])) for name in _share(sorted(files))]


def _stored(folder: Path) -> tuple[str, str]:
    """A folder's manifest, and what is wrong with it."""
    try:
        return stored(folder), ""
    except ValueError as raised:
        return "", str(raised)


def require_match(metadata: dcp.Metadata, state: State, where: Path) -> None:
    """Checks that a checkpoint has the tensors of a state, of their shape and dtype: torch casts without a word.

    Raises:
        MismatchError: it has others; names each.
    """
    saved = {
        name: (entry.properties.dtype, tuple(entry.size))
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    wanted = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in named_tensors(state).items()}
    wrong = []
    for name in sorted(saved.keys() | wanted.keys()):
        have, want = (_described(of.get(name)) for of in (saved, wanted))
        if have != want:
            wrong.append(f"{name}: the checkpoint has {have}, the state {want}")
    if wrong:
        raise MismatchError(f"{where} does not fit the state: {'; '.join(wrong)}: build the model that was saved")


def _described(tensor: tuple[torch.dtype, tuple[int, ...]] | None) -> str:
    return "none" if tensor is None else f"{tensor[0]} {list(tensor[1])}"


def named_tensors(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a nested state, by the names that torch.distributed.checkpoint gives them."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    nested = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    found: dict[str, torch.Tensor] = {}
    for key, value in nested:
        found |= named_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    return found


class _FailedError(Exception):
    """What failed, on which rank."""


def _together(action: Callable[[], Answer]) -> list[Answer]:
    """Every rank's result, on every rank: plain values, as programs travel to ranks without their modules.

    Raises:
        _FailedError: on every rank, if any of them failed.
    """
    result: Answer | None = None
    failure = ""
    try:
        result = action()
    except Exception as raised:
        failure = f"rank {_rank()}: {type(raised).__name__}: {raised}"
    found: list[Any] = [(result, failure)]
    if dist.is_initialized():
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, (result, failure))
    if failures := [text for _, text in found if text]:
        raise _FailedError("; ".join(failures))
    return [of_rank for of_rank, _ in found]


def _on_first(action: Callable[[], object]) -> None:
    _together(lambda: action() if _rank() == 0 else None)


def _reason(raised: CheckpointException | _FailedError) -> str:
    if isinstance(raised, CheckpointException):
        return "; ".join(
            f"rank {rank}: {type(error).__name__}: {error}" for rank, (error, _) in raised.failures.items()
        )
    return str(raised)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


Item = TypeVar("Item")


def _share(items: list[Item] | tuple[Item, ...]) -> list[Item]:
    """The part of what has to be read that is this rank's."""
    return list(items[_rank() :: dist.get_world_size() if dist.is_initialized() else 1])


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
