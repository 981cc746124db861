"""What a checkpoint's files must be: their pieces, each with its length, its checksum, and the tensor in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import Metadata

FORMAT = 1
"""The format of the manifests that this version writes; it reads this format and earlier ones."""
MANIFEST = "manifest.json"
NAMED = 3
"""How many tensors of a file a message names."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file that follow one another."""

    nbytes: int
    tensor: str
    """Which tensor they hold, and from which element on; empty if none."""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A file and its pieces, which have all of its bytes."""

    name: str
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, path: Path, pieces: tuple[Piece, ...]) -> File:
        """Notes what a file that was just written holds; the last piece takes what follows."""
        with path.open("rb") as stream:
            read = [stream.read(piece.nbytes) for piece in pieces[:-1]] + [stream.read()]
        return cls(
            path.name,
            tuple(Piece(len(data), piece.tensor, _checksum(data)) for piece, data in zip(pieces, read, strict=True)),
        )

    @classmethod
    def parsed(cls, entry: Mapping[str, Any]) -> File:
        """The file that ``dataclasses.asdict`` has made an entry of."""
        return cls(entry["name"], tuple(Piece(**piece) for piece in entry["pieces"]))

    @property
    def nbytes(self) -> int:
        """The number of bytes in the whole file."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What belongs to a checkpoint."""

    format: int
    step: int
    files: tuple[File, ...]

    def write(self, folder: Path) -> None:
        """Writes the manifest of a folder, under a line with its own checksum, and waits until it is on the disk."""
        text = json.dumps(asdict(self)).encode()
        with (folder / MANIFEST).open("wb") as stream:
            stream.write(_checksum(text).encode() + b"\n" + text)
            stream.flush()
            os.fsync(stream.fileno())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            ValueError: it is missing, or damaged.
        """
        return cls.parsed(stored(folder))

    @classmethod
    def parsed(cls, text: str) -> Manifest:
        """Reads a manifest's text; of a newer format only that."""
        entries = json.loads(text)
        if entries["format"] > FORMAT:
            return cls(entries["format"], 0, ())
        return cls(entries["format"], entries["step"], tuple(File.parsed(entry) for entry in entries["files"]))


def stored(folder: Path) -> str:
    """The text of a folder's manifest, without the line of its checksum.

    Raises:
        ValueError: it is missing, or damaged.
    """
    try:
        checksum, _, text = (folder / MANIFEST).read_bytes().partition(b"\n")
    except OSError as raised:
        raise ValueError(f"cannot be read ({raised.strerror})") from raised
    if _checksum(text).encode() != checksum:
        raise ValueError("does not have the checksum in its first line")
    return text.decode()


def files_of(folder: Path, metadata: Metadata) -> dict[str, tuple[Piece, ...]]:
    """Each file of a folder with its pieces, without checksums, as the metadata of its checkpoint places tensors."""
    placed: dict[str, list[tuple[int, int, str]]] = {path.name: [] for path in folder.iterdir()}
    for index, info in metadata.storage_data.items():
        start = "" if index.offset is None else f" from {list(index.offset)}"
        placed[info.relative_path].append((info.offset, info.length, f"{index.fqn}{start}"))
    files = {}
    for name, tensors in placed.items():
        pieces, end = [], 0
        for offset, length, tensor in sorted(tensors):
            if offset > end:
                pieces.append(Piece(offset - end, ""))
            pieces.append(Piece(length, tensor))
            end = offset + length
        files[name] = (*pieces, Piece(0, ""))
    return files


def damage(file: File, folder: Path, others: Mapping[int, Path]) -> str:
    """What is wrong with a file; empty if it is what was saved.

    Args:
        file: as the manifest has it.
        folder: where it is.
        others: folders of other steps, whose files may have got here.
    """
    path = folder / file.name
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            wrong = [piece for piece in file.pieces if _checksum(stream.read(piece.nbytes)) != piece.sha256]
    except OSError as raised:
        return f"{path} cannot be read ({raised.strerror}): lost are {_tensors(file.pieces)}"
    if size != file.nbytes:
        verb = "is truncated to" if size < file.nbytes else "has grown to"
        lost = f": lost are {_tensors(wrong)}" if wrong else ""
        return f"{path} {verb} {size} bytes, expected {file.nbytes}{lost}"
    if not wrong:
        return ""
    for step, other in others.items():
        if any(_same(path, theirs) for theirs in _listed(other) if theirs.name == file.name):
            return f"{path} is the file of step {step}: lost are {_tensors(wrong)}"
    return f"{path} has other bytes than were saved, in {_tensors(wrong)}"


def _listed(folder: Path) -> tuple[File, ...]:
    try:
        return Manifest.read(folder).files
    except ValueError:
        return ()


def _same(path: Path, theirs: File) -> bool:
    return path.stat().st_size == theirs.nbytes and not damage(theirs, path.parent, {})


def _tensors(pieces: tuple[Piece, ...] | list[Piece]) -> str:
    names = [piece.tensor for piece in pieces if piece.tensor]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more if names else "no tensor, but what says where tensors are"


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
