"""What an arm takes over from the run that races it."""

import enum
import os
import sys
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.blueprint import Blueprint
from pytest_gpuperf.options import Options

NOISY = [
    *("--gpus=2", "-x", "--pdb", "--lf", "-k", "speed", "-m", "perf", "--deselect=a", "-s", "-vv", "--junitxml=a.xml"),
    *(
        "--basetemp=here",
        "--gpuperf-json=a.json",
        "--profile=traces",
        "--log-file=a.log",
        "--strict-markers",
        "--benchmark-only",
        "-n2",
    ),
]


def of(config: pytest.Config) -> Blueprint:
    return Blueprint.of(config, Options.from_config(config))


def test_what_must_not_happen_twice_is_neutral_and_the_rest_is_taken_over(pytester: pytest.Pytester) -> None:
    options = of(pytester.parseconfig(*NOISY, "--tb=short")).options
    changed = (
        "maxfail",
        "usepdb",
        "lf",
        "keyword",
        "markexpr",
        "deselect",
        "capture",
        "verbose",
        "xmlpath",
        "basetemp",
    )
    assert [options[name] for name in changed] == [0, False, False, "", "", None, "fd", 0, None, None]
    assert options["gpuperf_json"] is None
    assert options["gpuperf_profile"] is None
    assert options["log_file"] == os.devnull
    assert not options["strict_markers"]
    assert not options["benchmark_only"]
    assert (options["numprocesses"], options["dist"], options["tx"]) == (None, "no", [])
    assert (options["gpuperf_gpus"], options["tbstyle"]) == ("2", "short")


def test_only_plain_values_travel_since_a_class_may_be_of_the_present_code(pytester: pytest.Pytester) -> None:
    class Mode(enum.Enum):
        FAST = "fast"

    config = pytester.parseconfig()
    values = {"a": [Path("x"), ("y", 1.0)], "b": {"c": None}, "d": Mode.FAST, "e": {"f": [Mode.FAST]}, "g": b"h"}
    vars(config.option).update(values)
    options = of(config).options
    assert {name: options[name] for name in values if name in options} == {
        name: values[name] for name in ("a", "b", "g")
    }


def test_places_plugins_and_settings_are_the_runs(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpuperf_leases = .leases\ngpuperf_lease_timeout = 7")
    config = pytester.parseconfig("-p", "no:faulthandler", "-o", "console_output_style=classic")
    blueprint = of(config)
    assert (blueprint.rootdir, blueprint.inipath) == (pytester.path, pytester.path / "tox.ini")
    assert blueprint.directory == pytester.path
    assert "no:faulthandler" in blueprint.plugins
    assert blueprint.ini == (
        "console_output_style=classic",
        f"gpuperf_leases={pytester.path}/.leases",
        "gpuperf_lease_timeout=7.0",
    )


def test_it_is_told_whether_modules_are_found_where_pytest_was_invoked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(pytester.path))])
    assert not of(pytester.parseconfig()).directory_on_path
    monkeypatch.syspath_prepend(pytester.path)
    assert of(pytester.parseconfig()).directory_on_path
