"""Files of recorded runs: one for each rank, and one for each sample of the reference's rounding."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_gpuperf.features.parity.products import Products
from pytest_gpuperf.features.parity.records import Key, Kind, Placement, Record, Trace
from pytest_gpuperf.report.command_error import CommandError

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Recording:
    """What one rank recorded."""

    rank: int
    world: int
    trace: Trace


def make_path(file: Path, rank: int, world: int, sample: int = 0) -> Path:
    """The file of a rank; the user's own name if there is one rank.

    Args:
        file: as the user named it.
        rank: of the world.
        world: number of ranks.
        sample: number of a run with random rounding; 0 for the plain run.
    """
    suffix = f".rounding{sample}" if sample else ""
    return file.with_name(file.name + suffix + (f".rank{rank}of{world}" if world > 1 else ""))


def write(path: Path, recording: Recording) -> None:
    """Writes a recording; a reader sees all of it or nothing."""
    records = [_make_plain(record) for record in recording.trace]
    products = dataclasses.asdict(recording.trace.products)
    plain = {
        "version": _VERSION,
        "rank": recording.rank,
        "world": recording.world,
        "products": products,
        "records": records,
    }
    partial = path.with_name(path.name + ".partial")
    torch.save(plain, partial)
    partial.replace(path)


def read(path: Path) -> Recording:
    """Reads a recording.

    Raises:
        CommandError: the file is no recording.
    """
    try:
        plain: Any = torch.load(path, weights_only=True)
        version = plain["version"]
        if version == _VERSION:
            records = [_record(one) for one in plain["records"]]
            trace = Trace({record.key: record for record in records}, products=Products(**plain["products"]))
            return Recording(plain["rank"], plain["world"], trace)
    except FileNotFoundError:
        raise CommandError(f"there is no file {path}: record it by parity_record({str(path)!r}, model)") from None
    except Exception as error:  # torch.load raises whatever the bytes lead to
        raise CommandError(f"{path} is no recording ({type(error).__name__}): write it by parity_record") from None
    raise CommandError(f"{path} is a recording of version {version}, expected {_VERSION}: record it again")


def read_ranks(file: Path) -> list[Trace]:
    """Reads what all ranks of a run recorded, in their order.

    Raises:
        CommandError: a rank's file is missing, or files of several runs lie there.
    """
    found = {path: match for path in _iterate_siblings(file) if (match := _match(path, file, r"\.rank(\d+)of(\d+)"))}
    worlds = {int(match[2]) for match in found.values()} | ({1} if file.is_file() else set())
    if not worlds:
        raise CommandError(f"there is no recording {file}: record it by parity_record({str(file)!r}, model, optimizer)")
    if len(worlds) > 1:
        raise CommandError(
            f"recordings of {' and '.join(map(str, sorted(worlds)))} ranks lie at {file}: delete those of the older run"
        )
    world = worlds.pop()
    missing = [rank for rank in range(world) if not make_path(file, rank, world).is_file()]
    if missing:
        raise CommandError(
            f"{file} lacks the recordings of {len(missing)} of {world} ranks, rank {missing[0]} first: copy all ranks' "
            "files to one folder"
        )
    return [read(make_path(file, rank, world)).trace for rank in range(world)]


def read_samples(file: Path) -> list[Trace]:
    """Reads a reference's runs with random rounding."""
    found = [
        (int(match[1]), path) for path in _iterate_siblings(file) if (match := _match(path, file, r"\.rounding(\d+)"))
    ]
    return [read(path).trace for _, path in sorted(found)]


def _iterate_siblings(file: Path) -> Iterator[Path]:
    return file.parent.iterdir() if file.parent.is_dir() else iter(())


def _match(path: Path, file: Path, suffix: str) -> re.Match[str] | None:
    return re.fullmatch(re.escape(file.name) + suffix, path.name)


def _make_plain(record: Record) -> tuple[Any, ...]:
    key, at = record.key, record.placement
    place = None
    if at is not None:
        place = (list(at.sizes), list(at.axes), list(at.coordinate), list(at.placements), at.rightmost_first)
    return key.step, key.kind.value, key.name, record.tensor, place, record.calls


def _record(plain: tuple[Any, ...]) -> Record:
    step, kind, name, tensor, place, calls = plain
    placement = None
    if place is not None:
        sizes, axes, coordinate, placements, rightmost = place
        placement = Placement(tuple(sizes), tuple(axes), tuple(coordinate), tuple(placements), rightmost)
    return Record(Key(step, Kind(kind), name), tensor, placement, calls)
