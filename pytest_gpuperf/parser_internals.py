"""Private names of pytest's command line parser, behind a function with a test that shows what is relied on."""

from __future__ import annotations

import pytest


def list_registered(parser: pytest.Parser) -> dict[str, str]:
    """The names of all options that pytest and plugins have registered so far, with the attribute that each sets.

    Publicly, only a conflict tells: pytest 9 raises when the second option is registered, pytest 8 when it parses.
    """
    groups = [*parser._groups, parser._anonymous]
    return {name: option.dest for group in groups for option in group.options for name in option.names()}
