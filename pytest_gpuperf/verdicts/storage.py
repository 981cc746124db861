"""Files of baselines on disk: read with suspicion, replaced whole under a lock.

Runs in the pytest controller only.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from pytest_gpuperf.verdicts.baselines import RESTORE, BaselineError, Baselines

LOCK_SECONDS = 60.0  # a holder reads and writes one small file; longer means it hangs
DIGITS = 5  # significant digits: 1e-5 is far below any spread, and short numbers make reviewable diffs


class BaselineWriteError(BaselineError):
    """A file of baselines cannot be written."""

    def __init__(self, path: object, cause: Exception) -> None:
        super().__init__(path, f"cannot be written: got {cause!r}", "make the folder writable, or choose another one")
        self.cause = cause
        self.args = (path, cause)  # what pickle calls the constructor with


def load(path: Path, hardware_key: str) -> Baselines | None:
    """Reads a file of baselines; None where there is no file.

    Raises:
        BaselineError: For a file that is there but does not say what it should.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(
            path, f"cannot be read: got {error!r}", "make it a readable file, or move it away"
        ) from error
    if not raw.strip():
        raise BaselineError(path, "got an empty file, expected JSON", RESTORE)
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except UnicodeDecodeError as error:
        raise BaselineError(path, f"got bytes that are not UTF-8 ({error}), expected JSON", RESTORE) from error
    except RecursionError as error:
        raise BaselineError(path, "got values nested too deeply, expected baselines", RESTORE) from error
    except ValueError as error:
        raise BaselineError(path, f"got no valid JSON ({error}), expected JSON", RESTORE) from error
    return Baselines.from_json(data, path, hardware_key)


def save(path: Path, baselines: Baselines) -> None:
    """Replaces a file of baselines; one that cannot be read is left as it is.

    Raises:
        BaselineError: Where the file in its place is not a file of this hardware's baselines.
        BaselineWriteError: Where the file cannot be written.
    """
    update(path, baselines.hardware_key, lambda _: baselines)


def update(path: Path, hardware_key: str, change: Callable[[Baselines | None], Baselines]) -> Baselines:
    """Loads, changes and saves under one lock, so that no other writer's change is lost.

    Args:
        path: The file; its folder is made where it is missing.
        hardware_key: The hardware the file has to be of.
        change: Makes the new baselines from the stored ones, None where there is no file.

    Returns:
        What change made.

    Raises:
        BaselineError: Where the stored file cannot be used; it is left as it is.
        BaselineWriteError: Where the file cannot be written; the old one is left as it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_SECONDS).acquire()
    except OSError as error:
        raise BaselineWriteError(path, error) from error
    with held:
        changed = change(load(path, hardware_key))
        if changed.hardware_key != hardware_key:
            raise ValueError(
                f"change made baselines of {changed.hardware_key!r}, expected {hardware_key!r}: keep the key"
            )
        _replace(path, json.dumps(_rounded(changed.to_json()), sort_keys=True, indent=1, allow_nan=False) + "\n")
    return changed


def _replace(path: Path, text: str) -> None:
    # In the same folder, so that the replacement is atomic; the lock keeps the name ours.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BaselineWriteError(path, error) from error


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return values
