"""Live ranks: what they are sent and give back, how they end, and that nothing of a run is left for the next."""

import ctypes
import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, RankDied, RankError, RankTimeout, ResultError
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks import pool as pool_module
from pytest_gpuperf.ranks import rank as rank_module
from pytest_gpuperf.ranks.failures import LaunchError, RemoteError
from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.messages import Returned
from pytest_gpuperf.ranks.pool import GRACE, Pool, PoolSpec, rank_environ
from tests.ranks.conftest import Call
from tests.ranks.processes import survivors
from tests.whole_run import environment


def rank_of(ctx: Context) -> int:
    return ctx.rank


def pids(call: Call) -> list[int]:
    return call(lambda ctx: os.getpid())


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def test_results_come_in_the_order_of_the_ranks(call: Call) -> None:
    def program(ctx: Context) -> tuple[int, int]:
        if ctx.rank == 0:
            dist.recv(torch.zeros(1), src=1)  # rank 1 answers first
        else:
            dist.send(torch.zeros(1), dst=0)
        return ctx.rank, ctx.world_size

    assert call(program) == [(0, 2), (1, 2)]


def test_the_context_says_where_a_program_runs(call: Call) -> None:
    def program(ctx: Context) -> dict[str, Any]:
        equal = torch.equal(torch.rand(3, generator=ctx.generator()), torch.rand(3, generator=ctx.generator()))
        assert ctx.group is dist.group.WORLD
        return {
            "local_rank": ctx.local_rank,
            "backend": ctx.backend,
            "device": str(ctx.device),
            "seed": ctx.seed,
            "same draws": equal,
            "default draws": torch.rand(2).tolist(),
        }

    first, second = call(program)
    assert first == {**first, "local_rank": 0, "backend": "gloo", "device": "cpu", "seed": 100, "same draws": True}
    assert second == {**second, "local_rank": 1, "seed": 101}
    assert first["default draws"] != second["default draws"]
    assert [first, second] == call(program)


def test_a_program_that_destroyed_its_group_is_told_so_and_the_next_one_has_a_new_one(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.destroy_process_group()
        assert ctx.group

    with pytest.raises(RuntimeError, match=r"(?m)^rank [01] has no process group: the program destroyed it$"):
        call(program)
    pool.open_group("second", 60)
    assert call(lambda ctx: ctx.group.size()) == [2, 2]


def test_the_environment_of_the_pool_reaches_its_ranks(call: Call) -> None:
    names = ("OF_THE_POOL", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "HOME")
    assert call(lambda ctx: [os.environ.get(name) for name in names]) == [["yes", "lo", "", None]] * 2


def test_a_pool_shows_its_ranks_its_own_gpus_alone() -> None:
    spec = PoolSpec(2, ("GPU-c", "GPU-a"))
    assert rank_environ(spec, {"CUDA_VISIBLE_DEVICES": "0,1,2", "X": "y"}) == {
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "X": "y",
    }


def test_socket_interfaces_that_the_user_chose_stay() -> None:
    chosen = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=bond0"}
    assert rank_environ(PoolSpec(2), chosen) == {**chosen, "CUDA_VISIBLE_DEVICES": ""}


def test_a_pool_of_gpus_speaks_nccl_and_one_without_gloo() -> None:
    assert (PoolSpec(1, ("GPU-a",)).backend, PoolSpec(1).backend) == ("nccl", "gloo")


def test_ranks_share_the_cores(call: Call) -> None:
    assert call(lambda ctx: torch.get_num_threads()) == [max(1, (os.cpu_count() or 1) // 2)] * 2


def test_what_ranks_print_is_kept_by_rank_and_told_once(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        print("out", ctx.rank)
        if ctx.rank == 1:
            os.write(2, b"from C\n")

    call(program)
    assert pool.output() == [(0, "stdout", "out 0\n"), (1, "stdout", "out 1\n"), (1, "stderr", "from C\n")]
    assert pool.output() == []


def connection_of_the_rank() -> "Connection[Any, Any]":
    (connection,) = (obj for obj in gc.get_objects() if type(obj) is Connection and not obj.closed)
    return connection


def test_a_late_reply_to_an_earlier_run_is_dropped(call: Call) -> None:
    def program(ctx: Context) -> str:
        gc.unfreeze()
        connection_of_the_rank().send(Returned(0, b"late"))
        return "this run's"

    assert call(program) == ["this run's"] * 2


def test_a_rank_that_dies_in_the_middle_of_its_reply_has_died(call: Call) -> None:
    def program(ctx: Context) -> None:
        gc.unfreeze()
        if ctx.rank == 1:
            os.write(connection_of_the_rank().fileno(), struct.pack("!i", 1000) + b"only the beginning")
            os._exit(7)

    with pytest.raises(RankDied, match=r"^rank 1 of 2 \(gloo\) in program exited with code 7 before"):
        call(program)


def exit_with_3() -> None:
    os._exit(3)


def segmentation_fault() -> None:
    ctypes.string_at(0)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (exit_with_3, "exited with code 3 before the program returned"),
        (segmentation_fault, "was killed by SIGSEGV"),
        (killed, "was killed by SIGKILL"),
    ],
)
def test_a_death_is_told_with_its_rank_and_its_cause(pool: Pool, call: Call, end: Callable[[], None], how: str) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            end()
        dist.barrier()  # rank 0 loses its peer, which is not what went wrong first

    processes = pids(call)
    with pytest.raises(RankDied) as caught:
        call(program)
    assert str(caught.value) == f"rank 1 of 2 (gloo) in program {how}"
    assert not pool.alive
    assert survivors(processes) == []
    printed = "".join(text for _, _, text in pool.output())
    assert ("Segmentation fault" in printed) == (end is segmentation_fault)


def test_ranks_that_wait_for_a_failed_one_are_not_waited_for(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            raise ValueError("cause")
        wait_for_ever()

    start = time.monotonic()
    with pytest.raises(ValueError, match=r"(?m)^cause$") as caught:
        call(program)
    assert GRACE <= time.monotonic() - start < 30
    assert notes(caught.value)[0] == "raised on rank 1 of 2 (gloo) in program"
    assert notes(caught.value)[1].startswith("rank 0 had not returned when killed, and was here:\n")
    assert "wait_for_ever" in notes(caught.value)[1]
    assert not pool.alive


def wait_for_ever() -> None:
    threading.Event().wait()


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(600)  # PyDLL, unlike CDLL, keeps the GIL


@pytest.mark.parametrize("stuck", [wait_for_ever, hold_the_interpreter])
def test_a_timeout_shows_where_each_stuck_rank_was(pool: Pool, call: Call, stuck: Callable[[], None]) -> None:
    def program(ctx: Context) -> None:
        if ctx.rank == 1:
            stuck()

    processes = pids(call)
    with pytest.raises(RankTimeout) as caught:
        call(program, timeout=0.5)
    assert str(caught.value) == (
        "rank 1 of 2 (gloo) did not return from program within 0.5 s; give it longer with "
        "@pytest.mark.ranks(..., timeout=SECONDS)"
    )
    returned, stack = notes(caught.value)
    assert returned == "rank 0 returned"
    assert stack.startswith("rank 1 was here:\n")
    assert stuck.__name__ in stack
    assert "pytest_gpuperf/ranks/rank.py" not in stack
    assert not pool.alive
    assert survivors(processes) == []


def test_a_rank_that_ignores_every_polite_signal_is_ended_all_the_same(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=threading.Event().wait).start()  # its interpreter does not come to its end
        return os.getpid()

    processes = call(program)
    pool.close()
    assert survivors(processes) == []


def test_ctrl_c_in_the_controller_ends_the_ranks(pool: Pool, call: Call) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    processes = pids(call)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            call(lambda ctx: wait_for_ever())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not pool.alive
    assert survivors(processes) == []


def test_an_exception_leaves_the_processes_and_renews_the_group(pool: Pool, call: Call) -> None:
    def fail(ctx: Context) -> None:
        raise ValueError(ctx.rank)

    processes = pids(call)
    with pytest.raises(ValueError, match=r"(?m)^[01]$"):
        call(fail)
    assert pool.alive
    pool.open_group("first", 60)  # the same name: what the ranks disagreed in is not trusted
    assert pids(call) == processes

    def total(ctx: Context) -> float:
        x = torch.ones(1)
        dist.all_reduce(x)
        return float(x)

    assert call(total) == [2.0, 2.0]


def test_a_group_of_the_same_name_is_kept(pool: Pool, call: Call) -> None:
    def name(ctx: Context) -> str:
        return ctx.group.group_name

    before = call(name)
    pool.open_group("first", 60)
    assert call(name) == before
    pool.open_group("second", 60)
    assert call(lambda ctx: dist.get_world_size()) == [2, 2]


def test_sys_exit_on_a_rank_is_its_failure(call: Call) -> None:
    with pytest.raises(RemoteError, match=r"(?s)^rank 0 of 2 \(gloo\) in \S+ raised SystemExit: 4\nTraceback"):
        call(lambda ctx: sys.exit(4) if ctx.rank == 0 else None)


def test_an_exception_that_cannot_be_pickled_keeps_its_text(call: Call) -> None:
    def program(ctx: Context) -> None:
        raise ValueError("holds", threading.Lock())

    with pytest.raises(RemoteError, match=r"(?s)raised ValueError: \('holds', .*in program\n.*raise ValueError\("):
        call(program)


def test_a_result_that_cannot_be_pickled_names_its_rank_and_type(pool: Pool, call: Call) -> None:
    with pytest.raises(ResultError) as caught:
        call(lambda ctx: threading.Lock() if ctx.rank == 1 else None)
    assert str(caught.value) == (
        "rank 1 of 2 (gloo) in <lambda>: the program returned a lock that cannot be pickled (TypeError: cannot "
        "pickle '_thread.lock' object): return tensors, numbers, strings or containers of them"
    )
    assert isinstance(caught.value, RankError)
    assert pool.alive


def test_a_large_result_arrives(call: Call) -> None:
    first, second = call(lambda ctx: torch.full((3_000_000,), float(ctx.rank)))
    assert (float(first.sum()), float(second.sum())) == (0.0, 3_000_000.0)


def test_a_rank_that_cannot_start_says_why(torch_launcher: Launcher) -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU of no other machine would do here")
    with pytest.raises(LaunchError) as caught:
        Pool(torch_launcher, PoolSpec(1, ("GPU-not-there",)), {})
    assert str(caught.value).startswith("rank 0 of 1 (nccl) ended while it started; it printed: Traceback")
    assert "CUDA" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "timeout", "message"),
    [
        ("connection.recv()", 0.1, "did not start within 0.1 s; it printed: nothing"),
        ("import sys; print('no memory', file=sys.stderr)", 60.0, "ended while it started; it printed: no memory"),
    ],
)
def test_ranks_that_do_not_come_up_are_a_launch_error_and_are_ended(
    monkeypatch: pytest.MonkeyPatch, source: str, timeout: float, message: str
) -> None:
    monkeypatch.setattr(pool_module, "Start", lambda *args: source)  # a light rank does what it is sent
    monkeypatch.setattr(pool_module, "START_TIMEOUT", timeout)
    launcher = Launcher(("tests.ranks.light_rank",))
    before = open_files()
    try:
        with pytest.raises(LaunchError) as caught:
            Pool(launcher, PoolSpec(2), {})
        assert str(caught.value) == f"rank 0 of 2 (gloo) {message}"
    finally:
        launcher.close()
    assert open_files() == before


def test_a_request_that_no_rank_understands_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^a rank was sent 'hello', which no rank understands$"):
        rank_module._Rank.answer(cast(Any, None), cast(Any, "hello"))


def test_ranks_die_with_the_forkserver_and_the_run_says_that_they_died() -> None:
    launcher = Launcher(("tests.ranks.light_rank",))
    pool = Pool(launcher, PoolSpec(2), {})
    try:
        processes = [int(answer) for answer in pool.run(b"", program="p", seed=0, timeout=60)]
        server = int(Path(f"/proc/{processes[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        assert survivors(processes) == []
        with pytest.raises(RankDied, match=r"in p died, and its exit code was not reported"):
            pool.run(b"", program="p", seed=0, timeout=60)
        assert not pool.alive
    finally:
        pool.close()
        launcher.close()


OWNER = """
import sys
from pytest_gpuperf.ranks.launcher import Launcher
from pytest_gpuperf.ranks.pool import Pool, PoolSpec
pool = Pool(Launcher(("tests.ranks.light_rank",)), PoolSpec(3), {})
print(*(pid.decode() for pid in pool.run(b"", program="p", seed=0, timeout=60)), flush=True)
sys.stdin.read()
"""


def test_ranks_die_with_a_killed_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 3
        owner.kill()
        assert survivors(processes) == []


def test_a_short_timeout_is_the_programs_and_not_the_groups(pool: Pool, call: Call) -> None:
    pool.open_group("second", 0.001)
    assert call(lambda ctx: ctx.group.size()) == [2, 2]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_file_is_left_open_by_runs_groups_and_pools(torch_launcher: Launcher) -> None:
    def program(ctx: Context) -> int:
        dist.barrier()
        gc.collect()
        return open_files()

    def exercise(pool: Pool, groups: range, runs: int) -> list[int]:
        task = payload.dumps((program, (), {}), [sys.modules[__name__]])
        counts = []
        for number in groups:
            pool.open_group(f"group {number}", 60)
            for _ in range(runs):
                counts = [payload.loads(data) for data in pool.run(task, program="p", seed=1, timeout=60)]
        return counts

    before = open_files()
    for attempt in range(2):
        pool = Pool(torch_launcher, PoolSpec(2), {})
        few = exercise(pool, range(2), 3)
        in_use = open_files()
        assert exercise(pool, range(2, 7), 6) == few
        assert open_files() == in_use
        pool.close()
        assert open_files() == before, attempt
