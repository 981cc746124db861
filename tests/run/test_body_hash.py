"""The hash of a perf test's body: the source that counts, and the constants that it uses."""

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.run.body_hash import hash_body, keep_body


def hash_of(tmp_path: Path, source: str) -> str:
    return hash_body(item_of(tmp_path, source))


def item_of(tmp_path: Path, source: str) -> pytest.Function:
    path = tmp_path / f"test_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return cast(pytest.Function, SimpleNamespace(function=module.test_it, stash=pytest.Stash()))


BODY = "def test_it(perf):\n    x = 1\n    perf.check(x)\n"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment above\n" + BODY,
        BODY.replace("    x = 1\n", "    # why\n\n    x = 1   \n"),
        "other = 1\n" + BODY + "other = 2\n",
        "import pytest\n@pytest.mark.depends('gpu')\n@pytest.mark.depends(\n    'pair', 'x'\n)\n" + BODY,
    ],
    ids=["above", "within", "around", "scope"],
)
def test_what_is_not_measured_does_not_change_the_body(tmp_path: Path, same: str) -> None:
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


USES = "\n\ndef test_it(perf):\n    perf.check(VALUE)\n"


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("2048", "4096"),
        ("1", "1.0"),
        ("1", "True"),
        ("None", "False"),
        ("2j", "3j"),
        ("'a'", "'b'"),
        ("'a'", "b'a'"),
        ("(1, 2)", "(2, 1)"),
        ("(1, 2)", "[1, 2]"),
        ("(1, 2)", "('1, 2',)"),
        ("{1, 2}", "{1, 3}"),
        ("frozenset({1})", "{1}"),
        ("{'a': (1, [2])}", "{'a': (1, [3])}"),
        ("float('nan')", "float('inf')"),
    ],
)
def test_a_constant_of_the_module_is_part_of_a_body_that_uses_it(tmp_path: Path, value: str, other: str) -> None:
    here = hash_of(tmp_path, f"VALUE = {value}{USES}")
    assert here == hash_of(tmp_path, f"VALUE = {value}  # said\nUNUSED = 3{USES}")
    assert here != hash_of(tmp_path, f"VALUE = {other}{USES}")


@pytest.mark.parametrize(
    "body",
    [
        "def test_it(perf):\n    perf.measure(lambda: VALUE)\n",
        "def test_it(perf):\n    perf.check([VALUE + n for n in range(2)])\n",
        "def test_it(perf):\n    def program(): return lambda: VALUE\n    perf.measure(program)\n",
        "def test_it(perf):\n    class Sizes:\n        width = VALUE\n    perf.measure(Sizes)\n",
    ],
    ids=["lambda", "comprehension", "function", "class"],
)
def test_code_within_a_body_uses_constants_too(tmp_path: Path, body: str) -> None:
    assert hash_of(tmp_path, f"VALUE = 1\n\n{body}") != hash_of(tmp_path, f"VALUE = 2\n\n{body}")


KINDS = """
import dataclasses, enum

class Op(enum.Enum):
    SUM = NUMBER

@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    name: str = "x"
"""


@pytest.mark.parametrize("value", ["Op.SUM", "Shape(NUMBER)", "{Op.SUM: Shape(3)}"])
def test_members_of_enums_and_frozen_dataclasses_are_constants(tmp_path: Path, value: str) -> None:
    source = f"{KINDS}\nVALUE = {value}{USES}"
    assert hash_of(tmp_path, f"NUMBER = 1{source}") != hash_of(tmp_path, f"NUMBER = 2{source}")


@pytest.mark.parametrize(
    "value",
    [
        "lambda: NUMBER",
        "(1, lambda: NUMBER)",
        "type('It', (), {'number': NUMBER})",
        "__import__('types').SimpleNamespace(number=NUMBER)",
        "__import__('dataclasses').make_dataclass('It', ['number'])(NUMBER)",
        "[NUMBER]\nVALUE.append(VALUE)",
    ],
    ids=["function", "within", "class", "object", "changeable", "circle"],
)
def test_programs_and_what_can_change_are_no_part_of_the_body(tmp_path: Path, value: str) -> None:
    one, other = (hash_of(tmp_path, f"NUMBER = {number}\nVALUE = {value}{USES}") for number in (1, 2))
    assert one == other == hash_of(tmp_path, f"from os import path as VALUE{USES}")


def test_without_constants_the_hash_is_of_the_source_alone(tmp_path: Path) -> None:
    assert hash_of(tmp_path, f"VALUE = print{USES}") == hash_of(tmp_path, USES)


def test_a_name_of_the_body_is_no_constant_of_the_module(tmp_path: Path) -> None:
    attribute = "\n\ndef test_it(perf):\n    width = 1\n    perf.check(perf.height, width)\n"
    assert hash_of(tmp_path, f"width = height = 1{attribute}") == hash_of(tmp_path, f"width = height = 2{attribute}")


def test_a_hash_is_the_same_in_every_process(tmp_path: Path) -> None:
    names = ", ".join(f"'name {number}'" for number in range(20))
    path = tmp_path / "test_it.py"
    path.write_text(f"VALUE = {{{names}}}, {{x: 1 for x in {{{names}}}}}{USES}")
    program = (
        "import pytest, test_it\n"
        "from types import SimpleNamespace\n"
        "from pytest_gpuperf.run.body_hash import hash_body\n"
        "print(hash_body(SimpleNamespace(function=test_it.test_it, stash=pytest.Stash())))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {f"{hash_of(tmp_path, path.read_text())}\n"}


def test_what_a_test_does_to_a_constant_does_not_change_its_hash(tmp_path: Path) -> None:
    item = item_of(tmp_path, f"VALUE = []{USES}")
    before = hash_body(item)
    item.function.__globals__["VALUE"].append(1)
    clone = cast(Any, SimpleNamespace(function=item.function, stash=pytest.Stash()))
    assert hash_body(clone) != before
    clone.stash = pytest.Stash()
    keep_body(clone, of=item)
    assert hash_body(item) == hash_body(clone) == before


def test_a_copy_of_an_item_without_a_hash_has_one_of_its_own(tmp_path: Path) -> None:
    item, clone = item_of(tmp_path, BODY), item_of(tmp_path, BODY.replace("x = 1", "x = 2"))
    keep_body(clone, of=item)
    assert hash_body(clone) != hash_body(item)


@pytest.mark.parametrize("used", ["__file__", "HERE", "[HERE, 1]"])
def test_where_the_file_lies_is_no_part_of_a_body(tmp_path: Path, used: str) -> None:
    source = (
        f"import pathlib\nHERE = str(pathlib.Path(__file__).parent)\n\ndef test_it(perf):\n    perf.check({used})\n"
    )
    hashes = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        hashes.add(hash_of(tmp_path / name, source))
    assert len(hashes) == 1
