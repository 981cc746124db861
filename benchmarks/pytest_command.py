"""The command that runs pytest in a benchmark."""

from __future__ import annotations

import sys

# Installed beside the plugin for its tests; they shuffle tests, rerun them or take time.
OTHER_PLUGINS = ("asyncio", "pytest_cov", "randomly", "rerunfailures", "timeout")


def pytest_command(*arguments: str) -> list[str]:
    """Returns the command with these arguments; it loads no plugin that would change what is measured."""
    without = [part for name in OTHER_PLUGINS for part in ("-p", f"no:{name}")]
    return [sys.executable, "-m", "pytest", "-q", *without, *arguments]
