"""The text in which baselines are stored, whatever keeps it: refusals with place and cure, and what stays as it was."""

from collections.abc import Callable
from typing import TypeVar

from pytest_gpuperf.baselines.json_text import round_floats
from pytest_gpuperf.baselines.plain import FieldError
from pytest_gpuperf.baselines.schema import RESTORE, BaselineError, Baselines

T = TypeVar("T")


def make_stored_data(changed: Baselines, stored: Baselines | None, data: dict[str, object] | None) -> dict[str, object]:
    """What is written, in plain JSON types.

    Args:
        changed: The new baselines.
        stored: The old ones; None if there are none.
        data: What the old ones were read from.
    """
    # Entries that did not change stay byte for byte: their derived fields, computed anew from rounded
    # metrics, would differ in the last digits.
    written = round_floats(changed.to_json())
    assert isinstance(written, dict)
    tests, before = written["tests"], (data or {}).get("tests")
    if stored is not None and isinstance(tests, dict) and isinstance(before, dict):
        kept = {test: before[test] for test, entry in changed.tests.items() if stored.tests.get(test) == entry}
        written["tests"] = {**tests, **kept}
    return written


def parse_text(where: object, make: Callable[[], T]) -> T:
    """What the function makes of a stored text; its refusals become errors that name the place and the cure.

    Raises:
        BaselineError: The function refuses the text.
    """
    try:
        return make()
    except BaselineError:
        raise
    except UnicodeDecodeError as error:
        raise BaselineError(where, f"got bytes that are not UTF-8 ({error}), expected JSON", RESTORE) from error
    except RecursionError as error:
        raise BaselineError(where, "got values nested too deeply, expected baselines", RESTORE) from error
    except FieldError as error:
        raise BaselineError(where, str(error), RESTORE) from error
    except ValueError as error:
        raise BaselineError(where, f"got no valid JSON ({error}), expected JSON", RESTORE) from error
