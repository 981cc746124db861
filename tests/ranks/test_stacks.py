"""Stacks as faulthandler prints them."""

import pytest

from pytest_gpuperf.ranks.stacks import (
    NO_STACK,
    Frame,
    cut,
    describe_absent,
    is_library,
    list_frames,
    place,
    roll_call,
    shorten_path,
)

VENV = "/home/me/.venv/lib/python3.11/site-packages"
MAIN = 0x00007FD2F1C3E740

# Of a rank that waits in an all_reduce, with a thread of its own and the harness's two.
DUMP = f"""Thread 0x00007fd2e8ff96c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/test_x.py", line 12 in watch
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fd2e97fa6c0 (most recent call first):
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 249 in recv
  File "{VENV}/pytest_gpuperf/ranks/informant.py", line 36 in _serve
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fd2e9ffb6c0 (most recent call first):
  File "{VENV}/pytest_gpuperf/ranks/closing.py", line 48 in _drop

Current thread 0x00007fd2f1c3e740 (most recent call first):
  File "{VENV}/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{VENV}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/layers.py", line 40 in reduce
  File "/home/me/test_x.py", line 21 in program
  File "{VENV}/pytest_gpuperf/ranks/rank.py", line 131 in _run
  File "{VENV}/pytest_gpuperf/ranks/rank.py", line 82 in <lambda>
  File "<string>", line 1 in <module>
"""
OWN = f"""  File "{VENV}/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{VENV}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/layers.py", line 40 in reduce
  File "/home/me/test_x.py", line 21 in program"""


def test_the_programs_threads_are_kept_without_the_harness_the_main_one_first() -> None:
    assert cut(DUMP, MAIN) == (
        OWN + '\nanother thread:\n  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
        '  File "/home/me/test_x.py", line 12 in watch\n'
        '  File "/usr/lib/python3.11/threading.py", line 982 in run'
    )


def test_without_its_main_thread_a_dump_shows_the_others() -> None:
    assert cut(DUMP, 1).startswith("another thread:\n")


@pytest.mark.parametrize("dump", ["", "\n", "Current thread 0x00007fd2f1c3e740 (most recent call first):\n", "garbage"])
def test_a_dump_without_a_stack_says_so(dump: str) -> None:
    assert cut(dump, MAIN) == NO_STACK == "somewhere (no stack could be had)"


@pytest.mark.parametrize("thread", ["0x00007fd2f1c3e740", "0x00007fd2e8ff96c0"])
def test_a_thread_that_has_not_run_yet_hides_no_stack(thread: str) -> None:
    """Python lists it first, and until it runs under the id of the thread that started it."""
    assert cut(f"Thread {thread} (most recent call first):\n  <no Python frame>\n\n{DUMP}", MAIN) == cut(DUMP, MAIN)


def test_a_rank_that_is_stuck_in_the_harness_shows_that() -> None:
    harness = f'  File "{VENV}/pytest_gpuperf/ranks/groups.py", line 40 in open'
    assert cut(f"Thread 0x00007fd2f1c3e740 (most recent call first):\n{harness}\n", MAIN) == harness


def test_what_the_program_called_of_the_harness_is_part_of_it() -> None:
    of_the_harness = f'"{VENV}/pytest_gpuperf/ranks/context.py", line 50 in barrier'
    barrier = DUMP.replace('"/home/me/layers.py", line 40 in reduce', of_the_harness)
    stack = cut(barrier, MAIN).partition("\nanother thread")[0]
    assert stack.splitlines()[-2:] == [
        f'  File "{VENV}/pytest_gpuperf/ranks/context.py", line 50 in barrier',
        '  File "/home/me/test_x.py", line 21 in program',
    ]
    assert place(stack).endswith("called at /home/me/test_x.py:21 in program")


@pytest.mark.parametrize("file", ["ranks/calls.py", "torch_internals.py"])
def test_what_stands_between_torch_and_its_backend_is_left_out(file: str) -> None:
    """NCCL's first collective of a group blocks in the call itself."""
    innermost = f'  File "{VENV}/torch/distributed/distributed_c10d.py", line 3252 in all_reduce'
    noted = f'  File "/home/me/checkout/pytest_gpuperf/{file}", line 294 in <lambda>\n{innermost}'
    assert cut(DUMP.replace(innermost, noted), MAIN) == cut(DUMP, MAIN)


def test_frames_are_those_of_the_main_thread_innermost_first() -> None:
    found = list_frames(cut(DUMP, MAIN))
    assert [frame.function for frame in found] == ["all_reduce", "wrapper", "reduce", "program"]
    assert found[-1] == Frame("/home/me/test_x.py", 21, "program")
    assert list_frames(NO_STACK) == []


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        (OWN, "in all_reduce (torch/distributed/distributed_c10d.py:3252), called at /home/me/layers.py:40 in reduce"),
        ('  File "/home/me/test_x.py", line 3 in <lambda>', "in /home/me/test_x.py:3 in <lambda>"),
        ('  File "/usr/lib/python3.11/threading.py", line 327 in wait', "in threading.py:327 in wait"),
        (NO_STACK, NO_STACK),
        (describe_absent("T"), describe_absent("T")),
        ("another thread:\n" + OWN, NO_STACK),
    ],
    ids=[
        "called from",
        "the program's own line",
        "nothing of the program's",
        "none",
        "stopped",
        "only another thread's",
    ],
)
def test_a_place_is_the_innermost_call_and_the_programs_line_that_led_to_it(stack: str, where: str) -> None:
    assert place(stack) == where


A, B, C = (f'  File "/home/me/test_x.py", line {line} in f' for line in (1, 2, 3))


@pytest.mark.parametrize(
    ("stacks", "lines"),
    [
        ({}, []),
        ({1: A}, ["rank 1 is in /home/me/test_x.py:1 in f"]),
        ({1: NO_STACK}, ["rank 1 is somewhere (no stack could be had)"]),
        ({1: A, 0: A}, ["ranks 0, 1 are in /home/me/test_x.py:1 in f"]),
        (
            {0: A, 1: A, 2: B},
            ["rank 2 alone is in /home/me/test_x.py:2 in f", "ranks 0, 1 are in /home/me/test_x.py:1 in f"],
        ),
        ({0: A, 1: B}, ["rank 0 is in /home/me/test_x.py:1 in f", "rank 1 is in /home/me/test_x.py:2 in f"]),
        (
            {0: A, 1: B, 2: C, 3: C},
            [
                "rank 0 is in /home/me/test_x.py:1 in f",
                "rank 1 is in /home/me/test_x.py:2 in f",
                "ranks 2, 3 are in /home/me/test_x.py:3 in f",
            ],
        ),
        (
            {0: A, 1: A, 2: B, 3: B, 4: B},
            ["ranks 0, 1 are in /home/me/test_x.py:1 in f", "ranks 2, 3, 4 are in /home/me/test_x.py:2 in f"],
        ),
    ],
)
def test_stuck_ranks_are_told_by_place_the_odd_one_out_first(stacks: dict[int, str], lines: list[str]) -> None:
    assert roll_call(stacks) == lines


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (f"{VENV}/torch/nn/linear.py", "torch/nn/linear.py"),
        ("/usr/lib/python3/dist-packages/torch/nn/linear.py", "torch/nn/linear.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_a_librarys_file_is_shown_from_the_package_on(file: str, shown: str) -> None:
    assert is_library(file)
    assert shorten_path(file) == shown


@pytest.mark.parametrize("file", ["/home/me/test_x.py", "/srv/lib/layers.py", "<string>"])
def test_any_other_file_is_the_users_own(file: str) -> None:
    assert not is_library(file)
    assert shorten_path(file) == file


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("T", "stopped by a signal, as by SIGSTOP (no stack could be had)"),
        ("t", "stopped by a debugger (no stack could be had)"),
        ("D", "in the kernel, where no signal reaches it (no stack could be had)"),
        ("S", NO_STACK),
        ("", NO_STACK),
    ],
)
def test_a_stack_that_was_not_written_is_told_by_the_processs_state(state: str, said: str) -> None:
    assert describe_absent(state) == said
    assert list_frames(said) == []
