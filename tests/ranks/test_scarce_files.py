"""Ranks that cannot be started for want of file descriptors: one error that says so, and nothing that leaks."""

import contextlib
import errno
import gc
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.pools import Pools
from pytest_gpuperf.ranks.process import FILES, RankProcess
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.forked_rank import ENVIRON, PRELOAD
from tests.ranks.processes import open_files
from tests.whole_run import environment

SCARCE = re.compile(
    r"^8 ranks \(gloo\) cannot be started: too many open files\. This process may have (\d+) open at once, has (\d+) "
    r"open without these ranks, and needs about 48 more for them: raise the limit \(ulimit -n 1024(; the hard limit is "
    r"\d+: a new shell may have a higher one, or root can set it)?\)$"
)


@contextmanager
def limited(files: int) -> Iterator[None]:
    """Leaves this process so many files to open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + 64, limits[1]))
    fillers = []
    with contextlib.suppress(OSError):
        while True:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
    try:
        for _ in range(files):
            os.close(fillers.pop())
        yield
    finally:
        for fd in fillers:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def refused(files: int, needed: int) -> contextlib.AbstractContextManager[object]:
    """Expects what fewer files than are needed lead to."""
    too_many = re.escape(os.strerror(errno.EMFILE))
    return pytest.raises(OSError, match=too_many) if files < needed else contextlib.nullcontext()


@pytest.mark.parametrize("files", range(10))
def test_a_rank_that_lacks_a_file_leaves_none_open(own_client: ForkserverClient, files: int) -> None:
    RankProcess.fork(own_client, ENVIRON).close()  # so that there is a forkserver
    before = open_files()
    # The other ends of two connections, and the request, are open for a moment.
    with limited(files), refused(files, FILES + 3):
        RankProcess.fork(own_client, ENVIRON).close()
    gc.collect()  # a socket that nobody closed is a warning, and warnings are errors here
    assert open_files() == before


@pytest.mark.parametrize("files", range(10))
def test_a_forkserver_that_lacks_a_file_leaves_none_open(files: int) -> None:
    client = ForkserverClient(PRELOAD)
    before = open_files()
    with limited(files), refused(files, 6):
        client.start()
    gc.collect()
    client.close()
    assert open_files() == before


@pytest.mark.parametrize("files", [0, 1, 6, 13, 30, 41])
def test_a_pool_that_lacks_a_file_says_so_in_one_error(own_client: ForkserverClient, files: int) -> None:
    Pool(LocalNode(own_client), PoolSpec(1), {}).close()
    before = open_files()
    with limited(files):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with pytest.raises(LaunchError) as caught:
            Pool(LocalNode(own_client), PoolSpec(8), {})
        gc.collect()
    found = SCARCE.match(str(caught.value))
    assert found is not None, str(caught.value)
    assert int(found[1]) == limit
    assert open_files() == before
    Pool(LocalNode(own_client), PoolSpec(2), {}).close()  # with a higher limit there is nothing in the way


def test_what_else_the_system_refuses_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(side_effect=BlockingIOError(errno.EAGAIN, "Try again")))
    message = r"^1 rank \(gloo\) cannot be started: got BlockingIOError\(11, 'Try again'\)$"
    with pytest.raises(LaunchError, match=message):
        Pool(LocalNode(ForkserverClient(PRELOAD)), PoolSpec(1), {})


def test_a_hard_limit_below_what_is_needed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 50))
    monkeypatch.setattr(socket, "socketpair", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(LaunchError) as caught:
        Pool(LocalNode(ForkserverClient(PRELOAD)), PoolSpec(8), {})
    assert str(caught.value).endswith(
        "raise the limit (ulimit -n 1024; the hard limit is 50: a new shell may have a higher one, or root can set it)"
    )


def test_a_forkserver_that_is_to_be_warmed_up_and_cannot_is_left_to_the_first_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    pools = Pools(LocalNode(ForkserverClient(PRELOAD)))
    before = open_files()
    pools.warm_up()
    assert open_files() == before


TESTS = """
import os
import pytest

def program(ctx):
    return ctx.rank

def test_that_is_skipped():
    pytest.skip("as it is")

@pytest.mark.ranks(2)
def test_on_two(ranks):
    assert ranks.run(program) == [0, 1]

@pytest.mark.ranks(24)
def test_on_many(ranks):
    ranks.run(program)

def test_that_is_skipped_behind_it():
    pytest.skip("as it is")
"""


@pytest.mark.parametrize("limit", [20, 33, 64])
def test_a_whole_run_with_few_files_has_one_clear_error_and_no_warning(pytester: pytest.Pytester, limit: int) -> None:
    pytester.makepyfile(TESTS)
    shell = f'ulimit -n {limit} && exec "$0" -m pytest -v -W error -p no:cacheprovider -o gpuperf_leases=leases'
    done = subprocess.run(["bash", "-c", shell, sys.executable], env=environment(), capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert "ResourceWarning" not in done.stdout
    assert "unraisable" not in done.stdout
    skipped = [line for line in lines if "SKIPPED" in line]
    assert len(skipped) == 2, done.stdout
    errors = [line for line in lines if line.startswith("E ") and "LaunchError" in line]
    assert all("cannot be started: too many open files. This process may have" in line for line in errors)
    assert 1 <= len(errors) <= 2, done.stdout
    assert f"may have {limit} open at once" in errors[-1]
    assert "24 ranks (gloo) cannot be started" in errors[-1]
    assert "ulimit -n 1024" in errors[-1]
