"""The forkserver and its controller: how ranks come up, and what they have."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from pytest_gpuperf.ranks.descent import MARK
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from tests.leases.waiting import until
from tests.ranks.forked_rank import PRELOAD, WAIT, Rank
from tests.ranks.processes import DEADLINE, open_files, survivors


def ended(client: ForkserverClient, source: str) -> tuple[int | None, list[str]]:
    rank = Rank(client, source)
    code = client.exit_code(rank.pid, DEADLINE)
    printed = rank.printed()
    rank.close()
    return code, printed


def test_a_rank_that_comes_to_its_end_exits_with_0(client: ForkserverClient) -> None:
    assert ended(client, "pass")[0] == 0


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("raise ValueError", 1),
    ],
)
def test_the_exit_code_is_reported_and_a_signal_is_negative(client: ForkserverClient, source: str, code: int) -> None:
    assert ended(client, source)[0] == code


def test_an_exit_is_unknown_while_the_rank_lives(client: ForkserverClient) -> None:
    rank = Rank(client, WAIT)
    assert client.exit_code(rank.pid, 0.05) is None
    rank.close()
    assert client.exit_code(rank.pid, DEADLINE) is not None


def test_an_exit_that_was_reported_already_is_told_without_waiting(client: ForkserverClient) -> None:
    first, second = Rank(client, "pass"), Rank(client, "pass")
    assert client.exit_code(first.pid, DEADLINE) == 0
    assert survivors([second.pid]) == []
    assert client.exit_code(second.pid, DEADLINE) == 0
    third = Rank(client, "pass")
    assert survivors([third.pid]) == []
    fourth = Rank(client, "pass")
    assert client.exit_code(fourth.pid, DEADLINE) == 0  # the dead are reaped and reported in the order of their births
    assert client.exit_code(third.pid, 0) == 0
    for rank in (first, second, third, fourth):
        rank.close()


def test_what_a_rank_prints_goes_to_its_own_files(client: ForkserverClient) -> None:
    source = "import os, sys; print('out'); print('err', file=sys.stderr); os.write(stacks_fd, b'stack')"
    assert ended(client, source)[1] == ["out\n", "err\n", "stack"]


def test_an_exception_in_a_rank_is_printed_to_its_stderr(client: ForkserverClient) -> None:
    assert ended(client, "raise ValueError('seen')")[1][1].endswith("ValueError: seen\n")


def test_a_rank_has_the_environment_it_is_given_and_no_other(client: ForkserverClient) -> None:
    rank = Rank(client, "import os; connection.send(dict(os.environ))", {"ONLY": "this", "PATH": "/bin"})
    received = rank.received()
    assert re.fullmatch(r".*/\w{16}", received.pop(MARK))  # by which it is found if nobody is left to end it
    assert received == {"ONLY": "this", "PATH": "/bin"}
    rank.close()


def test_a_rank_works_where_the_controller_works(
    client: ForkserverClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/a/folder/of/modules")
    rank = Rank(client, "import os, sys; connection.send((os.getcwd(), sys.path, sys.argv))")
    cwd, path, argv = rank.received()
    assert (cwd, path, argv) == (str(tmp_path), sys.path, ["rank"])
    rank.close()


def test_a_rank_has_nothing_open_of_the_forkservers(client: ForkserverClient) -> None:
    source = (
        "import os; files = [f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd')]; "
        "connection.send([os.readlink(file) for file in files if os.path.lexists(file)])"
    )
    rank = Rank(client, source)
    kinds = [name.partition(":")[0] for name in rank.received() if not name.startswith("/")]
    rank.close()
    assert kinds == ["socket", "socket"]


def test_a_rank_leads_a_process_group_and_ctrl_c_is_its_own(client: ForkserverClient) -> None:
    rank = Rank(client, "import os, signal; connection.send((os.getpid(), os.getpgrp(), os.getppid()))")
    pid, group, server = rank.received()
    assert pid == group == rank.pid
    assert os.getpgid(server) != os.getpgrp()
    rank.close()


def test_a_forkserver_that_cannot_start_shows_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("raise ValueError('no such driver')")
    monkeypatch.syspath_prepend(tmp_path)
    client = ForkserverClient(("breaks_on_import",))
    with pytest.raises(LaunchError, match=r"(?s)ended unexpectedly; it printed: Traceback.*ValueError: no such driver"):
        client.fork({}, [])


def test_a_forkserver_for_which_there_is_no_process_left_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    exhausted = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    monkeypatch.setattr(subprocess, "Popen", mock.Mock(side_effect=exhausted))
    before = open_files()
    with pytest.raises(BlockingIOError) as caught:
        ForkserverClient(PRELOAD).fork({}, [])
    assert open_files() == before, caught  # whose frames still hold what was made


SCARCE = """
import errno, os, resource
def no_process():
    os.fork = fork
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
fork = os.fork
if {processes}:
    os.fork = no_process
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.mark.parametrize(
    ("processes", "number"), [(True, errno.EAGAIN), (False, errno.EMFILE)], ids=["processes", "files"]
)
def test_what_the_forkserver_lacks_is_said_and_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: bool, number: int
) -> None:
    (tmp_path / "scarce.py").write_text(SCARCE.format(processes=processes))
    monkeypatch.syspath_prepend(tmp_path)
    client = ForkserverClient(("scarce", *PRELOAD))
    try:
        with pytest.raises(OSError, match=re.escape(f"{os.strerror(number)} (in the forkserver)")) as caught:
            Rank(client, "pass")
        assert caught.value.errno == number
        if processes:
            assert ended(client, "pass")[0] == 0
        else:
            with pytest.raises(OSError, match=re.escape(os.strerror(number))):
                Rank(client, "pass")
    finally:
        client.close()


def test_a_module_that_is_not_there_does_not_keep_the_forkserver_from_starting() -> None:
    client = ForkserverClient(("a_module_that_only_newer_versions_have", *PRELOAD))
    try:
        assert ended(client, "pass")[0] == 0
    finally:
        client.close()


def test_a_client_that_never_forked_closes_quietly() -> None:
    ForkserverClient().close()


def test_a_large_environment_reaches_the_rank(client: ForkserverClient) -> None:
    environ = {f"LARGE_{index}": "x" * 100_000 for index in range(4)}  # the kernel allows 2 MB in all
    rank = Rank(client, "import os; connection.send(dict(os.environ))", environ)
    assert rank.received().items() >= environ.items()
    rank.close()


def test_a_forkserver_that_was_told_to_start_is_the_one_that_forks(own_client: ForkserverClient) -> None:
    own_client.start()
    own_client.start()
    assert own_client._process is not None
    forkserver = own_client._process.pid
    rank = Rank(own_client, "import os; connection.send(os.getppid())")
    try:
        assert rank.received() == forkserver
    finally:
        rank.close()
    assert own_client._process.pid == forkserver


def test_a_forkserver_that_never_forks_ends_too() -> None:
    client = ForkserverClient(PRELOAD)
    client.start()
    assert client._process is not None
    forkserver = client._process.pid
    with mock.patch.object(client._process, "wait", wraps=client._process.wait) as waits:
        client.close()
    assert waits.call_args_list[0] == mock.call(timeout=0)  # it has no ranks yet that it would have to end
    assert survivors([forkserver]) == []


def test_what_the_tests_have_imported_is_there_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ForkserverClient(PRELOAD, {"loaded_by_the_tests": "json.tool", "loaded_by_nobody": "json.encoder"})
    monkeypatch.setitem(sys.modules, "loaded_by_the_tests", ModuleType("loaded_by_the_tests"))
    rank = Rank(client, "connection.send(None)")
    try:
        rank.received()
        assert client._process is not None
        command = Path(f"/proc/{client._process.pid}/cmdline").read_text()
    finally:
        rank.close()
        client.close()
    assert '"json.tool"]' in command
    assert "json.encoder" not in command


def test_what_tests_import_after_its_start_is_imported_before_the_first_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text("import os; open(os.environ['IMPORTED'], 'w').write(str(os.getpid()))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("IMPORTED", str(imported := tmp_path / "imported"))
    client = ForkserverClient(PRELOAD, {"imported_later": "slow_module"})
    try:
        client.warm_up()
        monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
        client.warm_up()
        client.warm_up()
        forkserver = client._process
        assert forkserver is not None
        until(lambda: imported.exists() and imported.read_text() == str(forkserver.pid))
        rank = Rank(client, "import sys; connection.send('slow_module' in sys.modules)")
        assert rank.received()
        rank.close()
    finally:
        client.close()


def test_a_forkserver_that_lacks_files_for_an_import_goes_on_and_refuses_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy_module.py").write_text("import errno; raise OSError(errno.EMFILE, 'too many')\n")
    monkeypatch.syspath_prepend(tmp_path)
    client = ForkserverClient(PRELOAD, {"imported_later": "greedy_module"})
    try:
        client.warm_up()
        monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
        client.warm_up()
        with pytest.raises(OSError, match=r"\(in the forkserver\)$"):
            Rank(client, "connection.send(None)")
    finally:
        client.close()


def test_what_an_earlier_rank_had_imported_is_there_before_the_next_fork() -> None:
    client = ForkserverClient(PRELOAD, {"used_by_a_rank": "wave", "used_by_nobody": "cgitb"})
    assert client.would_preload == ("used_by_a_rank", "used_by_nobody")
    loaded = "connection.send([name in sys.modules for name in ('wave', 'cgitb')])"
    ranks = []
    try:
        for _ in range(2):
            ranks.append(Rank(client, f"import sys; {loaded}"))
            client.note_used(["used_by_a_rank"])
        assert [rank.received() for rank in ranks] == [[False, False], [True, False]]
    finally:
        for rank in ranks:
            rank.close()
        client.close()


def test_what_is_no_text_on_the_path_is_left_out(client: ForkserverClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/no/text")])
    rank = Rank(client, "import sys; connection.send(sys.path)")
    assert rank.received() == sys.path[:-1]
    rank.close()


def test_a_process_with_many_open_files_starts_ranks(own_client: ForkserverClient) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2000, hard)), hard))
    files = [os.dup(0) for _ in range(1100)]  # select() takes numbers below 1024
    try:
        rank = Rank(own_client, "connection.send('here')")
        assert rank.received() == "here"
        rank.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
