"""Baselines as files of JSON in a folder: read with suspicion, replaced whole under a lock."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pytest_gpuperf.baselines import files
from pytest_gpuperf.baselines.json_text import format_json, parse
from pytest_gpuperf.baselines.schema import RESTORE, BaselineError, Baselines
from pytest_gpuperf.baselines.stored_text import make_stored_data, parse_text

LOCK_SECONDS = 60.0  # a holder reads and writes one small file; longer means it hangs


class BaselineWriteError(BaselineError):
    """A file of baselines cannot be written."""

    def __init__(self, path: object, cause: Exception) -> None:
        super().__init__(path, f"cannot be written: got {cause!r}", "make the folder writable, or choose another one")
        self.cause = cause
        self.why = getattr(cause, "strerror", None) or repr(cause)
        """What the system said, in short."""
        self.args = (path, cause)  # what pickle calls the constructor with


@dataclass(frozen=True, slots=True)
class Files:
    """A folder with a JSON file for each hardware."""

    folder: Path

    def path(self, hardware_key: str) -> Path:
        """The file of one hardware."""
        return self.folder / f"{hardware_key}.json"

    def where(self, hardware_key: str) -> str:
        """The file's path as text."""
        return str(self.path(hardware_key))

    def hardware_keys(self) -> list[str]:
        """List the hardware keys of the folder's files, in order; none if there is no folder."""
        return sorted(path.stem for path in self.folder.glob("*.json") if not path.name.startswith("."))

    def load(self, hardware_key: str) -> Baselines | None:
        """Reads the file, if there is one."""
        return load(self.path(hardware_key), hardware_key)

    def update(self, hardware_key: str, change: Callable[[Baselines | None], Baselines | None]) -> Baselines | None:
        """Changes the file under a lock; its folder is made if it is missing."""
        return update(self.path(hardware_key), hardware_key, change)


def load(path: Path, hardware_key: str) -> Baselines | None:
    """Reads a file of baselines; None where there is no file.

    Raises:
        BaselineError: For a file that is there but does not say what it should.
    """
    data = read(path)
    return None if data is None else parse_text(path, lambda: Baselines.from_json(data, path, hardware_key))


def read(path: Path) -> dict[str, object] | None:
    """Reads a file of one JSON object; None where there is no file.

    Raises:
        BaselineError: For a file that holds anything else.
    """
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(
            path, f"cannot be read: got {error!r}", "make it a readable file, or move it away"
        ) from error
    if not raw.strip():
        raise BaselineError(path, "got an empty file, expected JSON", RESTORE)
    return parse_text(path, lambda: parse(raw))


def save(path: Path, baselines: Baselines) -> None:
    """Replaces a file of baselines; one that cannot be read is left as it is.

    Raises:
        BaselineError: Where the file in its place is not a file of this hardware's baselines.
        BaselineWriteError: Where the file cannot be written.
    """
    update(path, baselines.hardware_key, lambda _: baselines)


def update(path: Path, hardware_key: str, change: Callable[[Baselines | None], Baselines | None]) -> Baselines | None:
    """Loads, changes and saves under one lock, so that no other writer's change is lost.

    Args:
        path: The file, or a link to it; its folder is made where it is missing.
        hardware_key: The hardware the file has to be of.
        change: Makes the new baselines from the stored ones, None where there is no file; returns None, or the
            stored ones, to leave the file as it is.

    Returns:
        What change made.

    Raises:
        BaselineError: Where the stored file cannot be used; it is left as it is.
        BaselineWriteError: Where the file cannot be written; the old one is left as it is.
    """
    target = _follow_link(path)  # whoever writes by another link, or by none, takes the same lock
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(target.with_name(f".{target.name}.lock"), timeout=LOCK_SECONDS).acquire()
    except OSError as error:
        raise BaselineWriteError(path, error) from error
    with held:
        files.remove_leftovers(target)
        data = read(path)
        stored = None if data is None else parse_text(path, lambda: Baselines.from_json(data, path, hardware_key))
        changed = change(stored)
        if changed is None or changed == stored:
            return changed
        if changed.hardware_key != hardware_key:
            raise ValueError(
                f"change made baselines of {changed.hardware_key!r}, expected {hardware_key!r}: keep the key"
            )
        replace(target, format_json(make_stored_data(changed, stored, data)))
    return changed


def replace(path: Path, text: str) -> None:
    """Replaces a file at once: a reader meets the old text or the new one, whatever happens to the writer.

    A link stays one, and its target is replaced.

    Raises:
        BaselineWriteError: Where it cannot be written; the old one is left as it is.
    """
    target = _follow_link(path)
    try:
        files.replace(target, text)
    except OSError as error:
        raise BaselineWriteError(target, error) from error


def _follow_link(path: Path) -> Path:
    # pathlib would raise where the system refuses the path; whoever opens it says so, and of which file.
    return Path(os.path.realpath(path)) if os.path.islink(path) else path
