"""Launches of perf tests: their order, their identity, and the body that baselines belong to."""

import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.run.launches import LaunchOf, body_hash, launch_of, repeated

TESTS = """
import pytest
@pytest.mark.parametrize("x", [1, 2])
def test_a(x, tmp_path): pass
class TestIt:
    @pytest.mark.timeout_of_another_plugin
    def test_b(self): pass
"""


def collected(pytester: pytest.Pytester) -> list[pytest.Function]:
    pytester.makeini("[pytest]\nmarkers =\n  timeout_of_another_plugin\n  added_by_a_plugin")
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_it=TESTS))
    return cast(list[pytest.Function], items)


def test_one_launch_is_the_tests_themselves(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    assert repeated(items, 1) == items


def test_launches_follow_one_another(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    again = repeated(items, 3)
    identities = [item.nodeid for item in items]
    assert [launch_of(item) for item in again] == [
        LaunchOf(identity, number) for number in (1, 2, 3) for identity in identities
    ]


def test_each_launch_has_a_node_id_of_its_own(pytester: pytest.Pytester) -> None:
    again = repeated(collected(pytester), 3)
    assert len({item.nodeid for item in again}) == len(again) == 9


def test_a_repeated_test_is_the_same_function_with_the_same_parameters_and_marks(pytester: pytest.Pytester) -> None:
    items = collected(pytester)
    items[0].add_marker("added_by_a_plugin")
    for first, again in zip(items, repeated(items, 2)[len(items) :], strict=True):
        assert again.function is first.function
        assert again.fixturenames == first.fixturenames
        assert getattr(again, "callspec", None) == getattr(first, "callspec", None)
        assert [mark.name for mark in again.iter_markers()] == [mark.name for mark in first.iter_markers()]


def test_a_test_that_is_named_otherwise_later_keeps_its_identity(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = collected(pytester)
    identities = [item.nodeid for item in items]
    collected_as: Any = pytest.Function.nodeid
    with monkeypatch.context() as patch:  # this test is an item, too
        # As xdist does for tests of a group, where pytest lets it.
        patch.setattr(pytest.Function, "nodeid", property(lambda item: f"{collected_as.fget(item)}@group"))
        assert items[0].nodeid == f"{identities[0]}@group"
        assert [launch_of(item).identity for item in repeated(items, 2)] == identities * 2


def hash_of(tmp_path: Path, source: str) -> str:
    path = tmp_path / f"test_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return body_hash(cast(Any, SimpleNamespace(function=module.test_it)))


BODY = "def test_it(perf):\n    x = 1\n    perf.check(x)\n"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment above\n" + BODY,
        BODY.replace("    x = 1\n", "    # why\n\n    x = 1   \n"),
        "other = 1\n" + BODY + "other = 2\n",
    ],
    ids=["above", "within", "around"],
)
def test_comments_and_blank_lines_do_not_change_the_body(tmp_path: Path, same: str) -> None:
    assert hash_of(tmp_path, same) == hash_of(tmp_path, BODY)


@pytest.mark.parametrize(
    "other",
    [
        BODY.replace("x = 1", "x = 2"),
        BODY.replace("(perf)", "(perf, tmp_path)"),
        "import functools\n@functools.lru_cache\n" + BODY,
    ],
    ids=["code", "arguments", "decorator"],
)
def test_code_changes_the_body(tmp_path: Path, other: str) -> None:
    assert hash_of(tmp_path, other) != hash_of(tmp_path, BODY)


TEXT = """
def test_it(perf):
    program = PREFIX'''
first

# include
{
perf} \t
last'''
    # a comment
    x = '''one line''' \t

    perf.check(program, x, "continued \\
# within")
"""


@pytest.mark.parametrize("prefix", ["", "r", "f", "rf", "b"])
@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("# include\n", ""),
        ("# include\n", "# include <x>\n"),
        ("first\n\n", "first\n"),
        ("perf} \t\n", "perf}\n"),
        ("# within", "# without"),
    ],
    ids=["line", "rest-of-a-line", "blank-line", "trailing-blanks", "continued"],
)
def test_a_line_of_a_string_is_no_comment(tmp_path: Path, prefix: str, part: str, other: str) -> None:
    body = TEXT.replace("PREFIX", prefix)
    assert body.count(part) == 1
    assert hash_of(tmp_path, body.replace(part, other)) != hash_of(tmp_path, body)


@pytest.mark.parametrize("prefix", ["", "f"])
@pytest.mark.parametrize(
    ("part", "same"),
    [
        ("    # a comment\n", ""),
        ("one line''' \t\n\n", "one line'''\n"),
        ("last'''\n", "last''' \n \n#\n"),
    ],
    ids=["comment", "blank-line", "behind-the-string"],
)
def test_beside_strings_comments_and_blanks_do_not_count(tmp_path: Path, prefix: str, part: str, same: str) -> None:
    body = TEXT.replace("PREFIX", prefix)
    assert body.count(part) == 1
    assert hash_of(tmp_path, body.replace(part, same)) == hash_of(tmp_path, body)


def test_a_method_has_a_body_of_its_own(tmp_path: Path) -> None:
    method = "class It:\n    def test_it(self):\n        return '''\n# 1\n'''\n\ntest_it = It.test_it\n"
    assert hash_of(tmp_path, method) != hash_of(tmp_path, method.replace("# 1", "# 2"))
    assert hash_of(tmp_path, method) == hash_of(tmp_path, method.replace("        return", "  # why\n        return"))


def test_a_body_that_is_cut_from_its_statement_has_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "lambda perf: perf.check('''\n# 1\n''', (\n    # why\n"  # as of a lambda in the middle of one
    whole = hash_of(tmp_path, BODY)

    def hash_of_cut(source: str) -> str:
        monkeypatch.setattr(inspect, "getsource", lambda function: source)
        return hash_of(tmp_path, BODY)

    assert hash_of_cut(body) != whole
    assert hash_of_cut(body) == hash_of_cut(body.replace("# why", "# what"))
    assert hash_of_cut(body) != hash_of_cut(body.replace("# 1", "# 2"))
    assert hash_of_cut("    lambda perf: 1,\n  2\n") != hash_of_cut("    lambda perf: 1,\n  3\n")  # no indentation
    assert hash_of_cut("'a' '''b\n") != hash_of_cut("'a' '''c\n")  # after the last token


DOCSTRING = """\
    # why

    '''Says what.

    # And more.
    '''  # said

"""


STATEMENTS = """
def test_it(perf):
    x = 1
    '''After a statement.

    # And more.
    '''
    if perf:
        x = 2

    '''After a block.
    # And more.
    '''
    perf.check(x)

    # why

    '''After a blank line.
    # And more.
    '''
    return x
"""


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (BODY, "bf76f3da2231757a"),
        (BODY.replace("    x = 1\n", f"{DOCSTRING}\n    x = 1  # here\n"), "016391df34811a15"),
        (STATEMENTS, "88c4d1db7208352c"),
    ],
)
def test_hashes_in_files_are_still_those_of_their_bodies(tmp_path: Path, body: str, stored: str) -> None:
    assert hash_of(tmp_path, body) == stored


def test_a_string_that_begins_a_statement_is_not_always_all_of_it(tmp_path: Path) -> None:
    body = "\ndef test_it(perf):\n    '''\n# 1\n'''.join(perf)\n"
    assert hash_of(tmp_path, body) != hash_of(tmp_path, body.replace("# 1", "# 2"))


@pytest.mark.parametrize("end", ["\x0c", "\x85", "\u2028"])
def test_only_a_line_break_ends_a_line(tmp_path: Path, end: str) -> None:
    body = f"\ndef test_it(perf):\n    x = 'a{end}b{end}c'\n    y = '''\n# 1\n'''\n    # why\n    perf.check(x, y)\n"
    assert hash_of(tmp_path, body) != hash_of(tmp_path, body.replace("# 1", "# 2"))
    assert hash_of(tmp_path, body) == hash_of(tmp_path, body.replace("# why", "# what"))


def test_a_wrapped_test_is_known_by_its_own_source(tmp_path: Path) -> None:
    wrapper = (
        "import functools\n"
        "def wrap(function):\n"
        "    @functools.wraps(function)\n"
        "    def inner(*args): return function(*args)\n"
        "    return inner\n"
        "@wrap\n"
    )
    assert hash_of(tmp_path, wrapper + BODY) != hash_of(tmp_path, wrapper + BODY.replace("x = 1", "x = 2"))
