"""What is shown of long texts, and of texts that come in pieces."""

from functools import reduce
from operator import add

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.ranks.excerpt import HEAD, TAIL, Excerpt


def excerpt(data: bytes) -> Excerpt:
    return Excerpt.cut(len(data), data, data)


def test_what_a_report_can_hold_is_shown_whole() -> None:
    data = b"x" * (HEAD + TAIL - 1) + b"!"
    assert str(excerpt(data)) == data.decode()
    assert str(Excerpt()) == ""


def test_of_what_is_longer_beginning_and_end_are_shown_and_how_much_is_left_out() -> None:
    data = b"a" * HEAD + b"b" * 50_000_000 + b"c" * TAIL
    assert str(excerpt(data)) == (
        "a" * HEAD
        + "\n[gpuperf: 50000000 bytes are left out here; pytest -s shows all that ranks print]\n"
        + "c" * TAIL
    )


@given(st.lists(st.integers(0, HEAD + TAIL + 10), max_size=6))
def test_a_text_that_came_in_pieces_is_shown_as_one_that_came_at_once(sizes: list[int]) -> None:
    pieces = [bytes([ord("a") + index]) * size for index, size in enumerate(sizes)]
    assert reduce(add, map(excerpt, pieces), Excerpt()) == excerpt(b"".join(pieces))


def test_a_character_that_came_in_two_pieces_is_one() -> None:
    first, second = (excerpt(part) for part in (b"caf\xc3", b"\xa9"))
    assert str(first + second) == "café"
