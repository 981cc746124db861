"""Under which names pytest has the options, next to those of other plugins, and what their features add."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from pytest_gpuperf.options import INI, OPTIONS

GROUP = "gpuperf"
_PREFIX = "--gpuperf-"
_NEGATIONS = ("--no-strict-baselines",)
NamedOptions = Mapping[str, Mapping[str, Any]]
"""What ``addoption`` takes, by the names of options."""
SHARED = ("--gpus", "--smoke", "--environment")
"""Names that other plugins and ``conftest.py`` files use; such an option has another one, with our prefix.

The short name is registered last, so that others may have it. Until then pytest takes the value for a file, and looks
for the rootdir beside files that exist. So this is for no option whose value is a path.
"""


class ModeAction(argparse.Action):
    """A flag that means ``const``, and the same flag with another mode behind ``=``.

    Each mode has its own option string, because argparse with nargs="?" would read the path in
    ``--update-baselines suites`` as a mode. Any other mode is a usage error that lists these.
    """

    def __init__(self, option_strings: list[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **{**settings, "nargs": 0})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Sets the mode."""
        setattr(namespace, self.dest, str(option_string).partition("=")[2] or self.const)


def collect_options(plugins: pytest.PytestPluginManager) -> NamedOptions:
    """Returns the options of all features that are known so far.

    Raises:
        pytest.UsageError: two features have an option of one name, or a feature has one of the core's.
    """
    found: dict[str, Mapping[str, Any]] = {}
    core = {name for name, _ in OPTIONS}
    for name, settings in (item for some in plugins.hook.pytest_gpuperf_options() for item in some.items()):
        if name in found or name in core:
            raise pytest.UsageError(
                f"pytest_gpuperf_options: {name} is an option of {'the core' if name in core else 'two features'}: "
                "rename it in the plugin that came last, or disable that plugin with -p no:NAME"
            )
        found[name] = settings
    return found


def add_options(parser: pytest.Parser, of_features: NamedOptions) -> None:
    """Registers options and ini keys; without the short names of those options that have another.

    Args:
        parser: takes them.
        of_features: by their short names, what ``addoption`` takes.
    """
    group = parser.getgroup(GROUP, "multi-GPU correctness and performance")
    for name, settings in of_features.items():
        group.addoption(add_prefix(name), **{**settings, "dest": _make_dest(name)})
    for name, settings in OPTIONS:
        group.addoption(add_prefix(name) if name in SHARED else name, **{**settings, "dest": _make_dest(name)})
    for key, default, text in INI:
        parser.addini(key, text, default=default)


def add_late_options(parser: pytest.Parser, taken: Mapping[str, str], of_features: NamedOptions) -> list[str]:
    """Registers options of features that came late, and the short names that nobody else has.

    It is called when all plugins and ``conftest.py`` files have registered theirs, since pytest refuses the second
    option of one name.

    Args:
        parser: takes them.
        taken: names of options that it has already, with the attribute that each sets.
        of_features: by their short names, what ``addoption`` takes.

    Returns:
        The short names that another plugin or a ``conftest.py`` has.
    """
    group = parser.getgroup(GROUP)
    for name, settings in of_features.items():
        if add_prefix(name) not in taken:
            group.addoption(add_prefix(name), **{**settings, "dest": _make_dest(name)})
    for name, settings in _share(of_features).items():
        if name not in taken:
            group.addoption(name, **{**settings, "dest": _make_dest(name), "help": f"short for {add_prefix(name)}"})
    others = []
    for long, attribute in {**taken, **{add_prefix(name): _make_dest(name) for name in of_features}}.items():
        short = long.replace(_PREFIX, "--", 1)
        if long.startswith(_PREFIX) and taken.get(short, attribute) != attribute:
            others.append(short)
    return others


def drop_values(words: Sequence[str], args: Sequence[str], of_features: NamedOptions) -> list[str]:
    """Words that pytest took for files before it knew all options, less those that are values of options.

    Args:
        words: what it took for files.
        args: the whole command line.
        of_features: by their short names, what ``addoption`` takes.
    """
    late = {**_share(of_features), **{add_prefix(name): settings for name, settings in of_features.items()}}
    takes_value = {name for name, settings in late.items() if not settings.keys() & {"nargs", "action"}}
    kept = list(words)
    for name, value in pairwise(args):
        if name in takes_value and value in kept:
            kept.remove(value)
    return kept


def _share(of_features: NamedOptions) -> NamedOptions:
    return {**{name: settings for name, settings in OPTIONS if name in SHARED}, **of_features}


def add_prefix(name: str) -> str:
    """The other name of an option."""
    return name.replace("--", _PREFIX, 1)


def _make_dest(name: str) -> str:
    """The attribute of ``config.option``; prefixed, since other plugins may have an option of the same name."""
    words = name.removeprefix("--").removeprefix("gpuperf-").removeprefix("no-" if name in _NEGATIONS else "")
    return "gpuperf_" + words.replace("-", "_")


def is_given(config: pytest.Config, of_features: NamedOptions) -> bool:
    """Whether the user gave an option of the core, one of these of features, or an ini key of the core."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, settings in (*OPTIONS, *of_features.items()):
        parser.add_argument(name, **{**settings, "dest": _make_dest(name)})
    if any(getattr(config.option, dest) != value for dest, value in vars(parser.parse_args([])).items()):
        return True
    return any(config.getini(key) != default for key, default, _ in INI)
