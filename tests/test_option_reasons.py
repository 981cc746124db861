"""Each option, ini key and marker keyword has the reason why it stays on a page of docs/adr."""

import re

import pytest

from pytest_gpuperf.__main__ import _make_parser
from pytest_gpuperf.markers import MARKERS
from tests.whole_run import ROOT

REASONS = (ROOT / "docs" / "adr" / "15-options.md").read_text()
OTHER_NAMES = re.compile(r"^--gpuperf-(?!json)")


def test_every_option_and_ini_key_has_a_reason(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    ours = re.search(r"^gpuperf:\n(.*?)\n(?=\S)", text, re.DOTALL | re.MULTILINE)
    assert ours is not None
    # An option's names are what its lines begin with; pytest breaks a long list of names.
    options = {name for name in re.findall(r"^ +(--[a-z-]+)", ours[1], re.MULTILINE) if not OTHER_NAMES.match(name)}
    assert {"--gpus", "--explain", "--adopt-classes", "--mutate", "--gpuperf-json"} <= options
    keys = set(re.findall(r"^ +(gpuperf_\w+) \(", text, re.MULTILINE))
    assert "gpuperf_timeout" in keys
    assert {name for name in options | keys if not re.search(rf"`{name}[`\[ ]", REASONS)} == set()


def test_every_keyword_of_the_marker_has_a_reason() -> None:
    keywords = set(re.findall(r"(\w+)=", MARKERS[0].partition("):")[0]))
    assert "launcher_env" in keywords
    assert {keyword for keyword in keywords if f"`{keyword}`" not in REASONS} == set()


def test_every_option_of_a_command_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    parser = _make_parser()
    offered = re.search(r"\{(.*?)\}|^ +(\w+(?: \| \w+)+)", parser.format_help(), re.MULTILINE)
    assert offered is not None
    commands = re.split(r" \| |,", offered[1] or offered[2])
    assert "doctor" in commands
    for command in commands:
        with pytest.raises(SystemExit):
            parser.parse_args([command, "--help"])
        for option in set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)) - {"--help"}:
            rows = [row for row in REASONS.splitlines() if row.startswith("|") and f"`{command} " in row]
            assert any(re.search(rf"`(?:{command} )?{option}`", row) for row in rows), (command, option)
