"""JSON as text: parsed with suspicion, and written to be reviewed."""

import json
import math
from collections import Counter

from pytest_gpuperf.baselines.plain import at, cut, make_mismatch
from pytest_gpuperf.figures.metric import convert_to_finite

DIGITS = 5  # significant digits: 1e-5 is far below any spread, and short numbers make reviewable diffs


def parse(raw: bytes, where: str = "file") -> dict[str, object]:
    """Reads one JSON object strictly: no key twice, no NaN, no number that cannot be written again.

    Raises:
        ValueError: For anything else; a FieldError for JSON that is no such object.
    """
    data = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    if not isinstance(data, dict):
        raise make_mismatch(where, data, "an object")
    _refuse_beyond(data, where)
    return data


def format_json(data: object) -> str:
    """JSON made to be reviewed: sorted, a value a line."""
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def round_floats(value: object) -> object:
    """Floats of five significant digits, at any depth of plain JSON types."""
    if isinstance(value, dict):
        return {key: round_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [round_floats(item) for item in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return short if math.isfinite(short) else value  # the largest of all floats rounds up to infinity


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {cut(key)!r} stands twice in one object")
    return values


def _refuse_beyond(value: object, where: str) -> None:
    """Refuses numbers that are read and could not be written again, wherever they stand."""
    if isinstance(value, (dict, list)):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, (dict, list, float, int)):
                _refuse_beyond(item, at(where, step))
    elif convert_to_finite(value) is None and not isinstance(value, bool):
        raise make_mismatch(where, value, "a finite number, at most 1.8e308")
