"""Ranks without GPUs have one arena of memory, unless the environment says how many."""

import ctypes
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import malloc
from tests.ranks.conftest import Call

SHARED = (
    "from pytest_gpuperf.ranks import malloc; from tests.ranks.test_malloc import arenas; "
    "malloc.share_arena(); print(arenas())"
)


def arenas() -> int:
    """How many arenas malloc has once five threads have allocated: malloc_info(3) lists them as heaps."""
    allocated, over = threading.Barrier(5), threading.Event()

    def allocate() -> None:
        block = ctypes.create_string_buffer(100_000)
        allocated.wait()
        over.wait()
        del block

    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    allocated.wait()
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    read, write = os.pipe()
    file = ctypes.c_void_p(libc.fdopen(write, b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    over.set()
    for thread in threads:
        thread.join()
    with open(read) as told:
        return told.read().count("<heap nr=")


@pytest.mark.parametrize(
    ("asked", "found"),
    [({}, 1), ({"MALLOC_ARENA_MAX": "3"}, 3), ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=3"}, 3)],
    ids=["default", "asked", "asked as a tunable"],
)
def test_threads_share_the_main_arena_unless_the_environment_says_otherwise(
    asked: dict[str, str], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", SHARED], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == f"{found}\n"


def test_a_c_library_without_any_of_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.setattr(malloc, "ctypes", SimpleNamespace(CDLL=lambda name: SimpleNamespace()))
    malloc.share_arena()
    malloc.trim()


def test_a_rank_without_a_gpu_has_one_arena(call: Call) -> None:
    def counted(ctx: Context) -> int:
        return arenas()

    assert call(counted) == [1, 1]
