"""The main of an arm's process: it becomes a pytest run that answers its controller instead of running all tests."""

from __future__ import annotations

import importlib.metadata
import os
import select
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import pytest

from pytest_gpuperf.features.racing.arms.messages import Start
from pytest_gpuperf.features.racing.arms.redirect import put_first
from pytest_gpuperf.ranks.channel import Channel

_PLUGIN = "pytest_gpuperf.plugin"
_QUIET = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
"""pytest would warn that this package was there first, and a project may make errors of warnings."""
_GRACE = 5  # seconds that an arm gets to end in order, once the controller has hung up


@dataclass(frozen=True, slots=True)
class Link:
    """What ties an arm's pytest run to its controller."""

    name: str
    """What messages call the arm."""
    channel: Channel
    repository: str
    """Folder whose code is reported; a real path."""
    log: int
    """Descriptor of the file that it prints to, past pytest's capture."""


LINK = pytest.StashKey[Link]()
"""On the configuration of a pytest run that is an arm."""


def main(fd: int, controller: int) -> NoReturn:
    """Runs pytest until the controller hangs up.

    Args:
        fd: of the channel to the controller.
        controller: its process id.
    """
    channel = Channel.of(fd)
    os.set_inheritable(fd, False)
    log = os.dup(2)
    _end_with(controller, fd)
    start, _ = channel.receive()
    assert isinstance(start, Start)
    sys.path[:0] = [path for path in start.on_path if path not in sys.path]
    plugins = ["-p", __name__] if _is_installed() or _PLUGIN in start.args else ["-p", __name__, "-p", _PLUGIN]
    config = pytest.Config.fromdictargs(start.options, [*_QUIET, *plugins, *start.args])
    config.stash[LINK] = Link(start.name, channel, start.repository, log)
    code = int(config.hook.pytest_cmdline_main(config=config))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # to take torch down in order takes a second, and the controller waits


def pytest_plugin_registered() -> None:
    """Keeps the redirect first: pytest's own finder, which rewrites assertions, was put before it."""
    put_first()


def _is_installed() -> bool:
    """Whether pytest finds the plugin by itself; another interpreter need not have it."""
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return False
    return any(one.value == _PLUGIN for one in importlib.metadata.entry_points(group="pytest11"))


def _end_with(controller: int, fd: int) -> None:
    """Ends this process when the controller has gone, or soon after it has hung up, even in the middle of a test."""
    gone, left = select.poll(), select.poll()
    left.register(fd, 0)  # POLLHUP and POLLERR are reported unasked; messages are none of this thread's business
    with suppress(OSError):  # it has gone already, and the channel says so
        process = os.pidfd_open(controller)
        gone.register(process, select.POLLIN)
        left.register(process, select.POLLIN)  # a process that it forked may hold its end of the channel

    def watch() -> None:
        left.poll()
        gone.poll(_GRACE * 1000)
        os._exit(1)  # the forkserver notices, and ends the ranks

    threading.Thread(target=watch, name="gpuperf arm", daemon=True).start()
