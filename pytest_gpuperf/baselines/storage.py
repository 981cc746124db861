"""Files of baselines on disk: read with suspicion, replaced whole under a lock.

Runs in the pytest controller only.
"""

import errno
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from pytest_gpuperf.baselines.json_fields import FieldError, Fields
from pytest_gpuperf.baselines.schema import RESTORE, BaselineError, Baselines

T = TypeVar("T")

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
    data = read(path)
    return None if data is None else _parsed(path, lambda: Baselines.from_json(data, path, hardware_key))


def read(path: Path) -> dict[str, object] | None:
    """Reads a file of one JSON object; None where there is no file.

    Raises:
        BaselineError: For a file that holds anything else.
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
    return _parsed(path, lambda: parse(raw))


def parse(raw: bytes) -> dict[str, object]:
    """Reads one JSON object strictly: no key twice, no NaN.

    Raises:
        ValueError: For anything else; a FieldError for JSON that is no object.
    """
    data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    return dict(Fields.of(data, "file").values)


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
    target = _target(path)  # whoever writes by another link, or by none, takes the same lock
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(target.with_name(f".{target.name}.lock"), timeout=LOCK_SECONDS).acquire()
    except OSError as error:
        raise BaselineWriteError(path, error) from error
    with held:
        data = read(path)
        stored = None if data is None else _parsed(path, lambda: Baselines.from_json(data, path, hardware_key))
        changed = change(stored)
        if changed is None or changed == stored:
            return changed
        if changed.hardware_key != hardware_key:
            raise ValueError(
                f"change made baselines of {changed.hardware_key!r}, expected {hardware_key!r}: keep the key"
            )
        replace(target, text_of(_as_stored(changed, stored, data)))
    return changed


def replace(path: Path, text: str) -> None:
    """Replaces a file at once: a reader meets the old text or the new one, whatever happens to the writer.

    A link stays one, and its target is replaced.

    Raises:
        BaselineWriteError: Where it cannot be written; the old one is left as it is.
    """
    target = _target(path)
    # In the same folder, so that the replacement is atomic; whoever shares a name takes a lock first.
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        if os.path.islink(target):  # links that lead to each other have no target
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise BaselineWriteError(target, error) from error


def text_of(data: object) -> str:
    """JSON made to be reviewed: sorted, a value a line."""
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def rounded(value: object) -> object:
    """Floats of five significant digits, at any depth of plain JSON types."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return short if math.isfinite(short) else value  # the largest of all floats rounds up to infinity


def _target(path: Path) -> Path:
    # pathlib would raise where the system refuses the path; whoever opens it says so, and of which file.
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _as_stored(changed: Baselines, stored: Baselines | None, data: dict[str, object] | None) -> dict[str, object]:
    # Entries that did not change stay byte for byte: their derived fields, computed anew from rounded
    # figures, would differ in the last digits.
    written = rounded(changed.to_json())
    assert isinstance(written, dict)
    tests, before = written["tests"], (data or {}).get("tests")
    if stored is not None and isinstance(tests, dict) and isinstance(before, dict):
        kept = {test: before[test] for test, entry in changed.tests.items() if stored.tests.get(test) == entry}
        written["tests"] = {**tests, **kept}
    return written


def _parsed(path: Path, make: Callable[[], T]) -> T:
    try:
        return make()
    except BaselineError:
        raise
    except UnicodeDecodeError as error:
        raise BaselineError(path, f"got bytes that are not UTF-8 ({error}), expected JSON", RESTORE) from error
    except RecursionError as error:
        raise BaselineError(path, "got values nested too deeply, expected baselines", RESTORE) from error
    except FieldError as error:
        raise BaselineError(path, str(error), RESTORE) from error
    except ValueError as error:
        raise BaselineError(path, f"got no valid JSON ({error}), expected JSON", RESTORE) from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r} stands twice in one object")
    return values
