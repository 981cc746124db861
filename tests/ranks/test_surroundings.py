"""What a program may leave behind in its process."""

import _thread
import contextlib
import gc
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf.ranks.surroundings import Surroundings, list_left_behind, stays_behind
from pytest_gpuperf.torch_internals import COMPILER

UNUSED = "GPUPERF_TEST_VARIABLE"


def now() -> Surroundings:
    """Without what pytest sets anew for each phase of a test."""
    found = Surroundings.now()
    kept = {name: value for name, value in found.environment.items() if name != "PYTEST_CURRENT_TEST"}
    return replace(found, environment=kept)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    monkeypatch.delenv(UNUSED, raising=False)
    return now()


@contextmanager
def environment() -> Iterator[None]:
    os.environ[UNUSED] = "x"
    try:
        yield
    finally:
        del os.environ[UNUSED]


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def matmul_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def file_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def handler() -> Iterator[None]:
    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, old)


@contextmanager
def thread() -> Iterator[None]:
    over = threading.Event()
    started = threading.Thread(target=over.wait, name="forgotten")
    started.start()
    try:
        yield
    finally:
        over.set()
        started.join()


@contextmanager
def child() -> Iterator[None]:
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@contextmanager
def module_hook() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 1)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


LIMIT = sys.getrecursionlimit()
FOLDER = str(Path(__file__).parent)
SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
CHANGES: list[tuple[Callable[[], contextlib.AbstractContextManager[None]], str]] = [
    (environment, f"environment: {UNUSED} unset -> 'x'"),
    (lambda: contextlib.chdir(FOLDER), f"working directory: {{cwd}} -> {FOLDER}"),
    (default_dtype, "default dtype: torch.float32 -> torch.float64"),
    (default_device, "default device: cpu -> meta"),
    (torch.no_grad, "gradient mode: on -> off"),
    (deterministic, "deterministic algorithms: False -> True"),
    (matmul_precision, "matmul precision: highest -> high"),
    (file_limit, f"resource limits: RLIMIT_NOFILE '({SOFT}, {HARD})' -> '({SOFT - 1}, {HARD})'"),
    (lambda: torch.autograd.set_detect_anomaly(True), "anomaly detection: off -> on"),
    (lambda: torch.autocast("cpu"), "autocast: off -> cpu"),
    (module_hook, "global module hooks: _global_forward_hooks '0' -> '1'"),
    (no_garbage_collection, "garbage collector: on -> off"),
    (recursion_limit, f"recursion limit: {LIMIT} -> {LIMIT + 1}"),
    (handler, "signal handlers: SIGUSR2 '0' -> '1'"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words.partition(":")[0] for _, words in CHANGES])
def test_a_change_is_told_and_its_undoing_is_none(
    before: Surroundings, change: Callable[[], contextlib.AbstractContextManager[None]], words: str
) -> None:
    with change():
        changed = now()
    after = now()
    assert list_left_behind(before, changed) == [words.format(cwd=os.getcwd())]
    assert list_left_behind(before, after) == []


@pytest.mark.parametrize(("compiler", "limit", "told"), [(True, 2000, False), (True, 3000, True), (False, 2000, True)])
def test_the_recursion_limit_may_be_that_of_torchs_compiler(
    before: Surroundings, monkeypatch: pytest.MonkeyPatch, compiler: bool, limit: int, told: bool
) -> None:
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    if compiler:
        monkeypatch.setitem(sys.modules, COMPILER, ModuleType("compile_fx"))
    sys.setrecursionlimit(limit)
    try:
        changed = now()
    finally:
        sys.setrecursionlimit(LIMIT)
    assert list_left_behind(before, changed) == ([f"recursion limit: {LIMIT} -> {limit}"] if told else [])


@pytest.mark.parametrize(("folder", "told"), [("torch/_inductor/compile_worker", False), ("a/pool", True)])
def test_a_worker_of_torchs_compiler_is_no_forgotten_child(
    before: Surroundings, tmp_path: Path, folder: str, told: bool
) -> None:
    """Its folder may stand far behind in the command, and of that a report shows the beginning."""
    script = tmp_path / ("environment" * 10) / folder / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys; print(flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        lines = list_left_behind(before, now())
        process.kill()
    assert len(lines) == told
    assert all(re.fullmatch(r"child processes: .{80} \(pid \d+\)", line) for line in lines)


@pytest.mark.parametrize(("seconds", "left"), [(0.1, 0), (600.0, 1)])
def test_a_thread_that_is_ending_is_given_a_moment(before: Surroundings, seconds: float, left: int) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(seconds,), name="a feeder")
    thread.start()
    try:
        assert sum(text.startswith("threads: a feeder") for text in stays_behind(before)) == left
    finally:
        over.set()
        thread.join()


def test_the_number_of_threads_that_torch_may_use_is_part_of_it(before: Surroundings) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        changed = now()
    finally:
        torch.set_num_threads(threads)
    assert list_left_behind(before, changed) == [f"intra op threads: {threads} -> {threads + 1}"]


def test_a_thread_that_goes_on_is_told_and_one_that_ended_is_not(before: Surroundings) -> None:
    with thread():
        during = now()
    (line,) = list_left_behind(before, during)
    assert line.startswith("threads: forgotten (")
    assert list_left_behind(during, now()) == []


@pytest.mark.parametrize(
    ("module", "told"), [("suite", True), ("torch._inductor.pool", False), ("pytest_gpuperf.ranks.context", True)]
)
def test_a_daemon_thread_may_go_on_if_it_is_torchs(before: Surroundings, module: str, told: bool) -> None:
    over = threading.Event()

    def wait() -> None:
        over.wait()

    wait.__module__ = module
    daemon = threading.Thread(target=wait, daemon=True)
    daemon.start()
    try:
        assert len(list_left_behind(before, now())) == told
    finally:
        over.set()
        daemon.join()


def _threads(before: Surroundings) -> list[str]:
    return [text for text in list_left_behind(before, Surroundings.now()) if text.startswith("threads: ")]


@pytest.mark.parametrize(
    ("module", "daemon", "told"), [("tqdm._monitor", True, False), ("tqdm._monitor", False, True), ("mine", True, True)]
)
def test_the_monitor_that_tqdm_keeps_is_nobodys(before: Surroundings, module: str, daemon: bool, told: bool) -> None:
    over = threading.Event()

    class TMonitor(threading.Thread):
        def run(self) -> None:
            over.wait()

    TMonitor.__module__ = module
    monitor = TMonitor(daemon=daemon)
    monitor.start()
    try:
        assert bool(_threads(before)) is told
    finally:
        over.set()
        monitor.join()


def test_tqdms_own_monitor_is_no_leak(before: Surroundings) -> None:
    tqdm = pytest.importorskip("tqdm")
    with open(os.devnull, "w") as nowhere:
        for _ in tqdm.tqdm(range(3), file=nowhere):
            pass
        assert any("TMonitor" in type(thread).__name__ for thread in threading.enumerate())
        try:
            assert _threads(before) == []
        finally:
            tqdm.tqdm.monitor.exit()
            tqdm.tqdm.monitor = None


def test_a_thread_of_c_that_ran_python_is_nobodys(before: Surroundings) -> None:
    running, over = threading.Event(), threading.Event()

    def as_autograd_does() -> None:
        threading.current_thread()  # Python takes note of it
        running.set()
        over.wait()

    _thread.start_new_thread(as_autograd_does, ())
    running.wait()
    try:
        assert list_left_behind(before, now()) == []
    finally:
        over.set()


def test_a_function_that_is_replaced_in_torch_distributed_is_told(
    before: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mine() -> None: ...

    monkeypatch.setattr(dist, "all_reduce", mine)
    (line,) = list_left_behind(before, now())
    what, then, replaced = re.split(" '|' -> '", line)
    assert what == "functions of torch distributed: all_reduce"
    assert then.startswith("torch.distributed.distributed_c10d.all_reduce at ")
    assert replaced == f"{__name__}.{mine.__qualname__} at {id(mine):#x}'"


def test_standard_output_that_is_replaced_or_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", theirs)
    monkeypatch.setattr(sys, "stdout", theirs)
    before = now()
    assert before.standard_streams["stdout"] == "open"
    with contextlib.redirect_stdout(io.StringIO()):
        assert list_left_behind(before, now()) == ["standard streams: stdout 'open' -> 'a StringIO'"]
    theirs.close()
    assert list_left_behind(before, now()) == ["standard streams: stdout 'open' -> 'closed'"]


def test_a_child_process_that_goes_on_is_told_and_one_that_ended_is_not(before: Surroundings) -> None:
    with child():
        during = now()
    (line,) = list_left_behind(before, during)
    assert line.startswith(f"child processes: {sys.executable} -c import sys")
    assert " (pid " in line
    assert list_left_behind(during, now()) == []


def test_a_child_of_another_thread_is_found_too(before: Surroundings) -> None:
    started, seen = threading.Event(), threading.Event()

    def start() -> None:
        with child():
            started.set()
            seen.wait()

    other = threading.Thread(target=start, daemon=True)
    other.start()
    started.wait()
    try:
        line = next(line for line in list_left_behind(before, now()) if not line.startswith("threads: "))
    finally:
        seen.set()
        other.join()
    assert line.startswith("child processes: ")


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "KINETO_X", "CUDA_MODULE_LOADING"])
def test_what_torch_sets_by_itself_is_nobodys(before: Surroundings, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "changed")
    assert list_left_behind(before, now()) == []


def test_a_folder_that_was_removed_is_told(
    before: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert list_left_behind(before, now()) == [f"working directory: {before.working_directory} -> removed"]
    finally:
        monkeypatch.undo()


def test_a_variable_that_was_unset_is_told(before: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNUSED, "x")
    assert list_left_behind(now(), before) == [f"environment: {UNUSED} 'x' -> unset"]


def test_everything_is_compared() -> None:
    told = {words.partition(":")[0].replace(" ", "_") for _, words in CHANGES}
    elsewhere = {"intra_op_threads", "threads", "child_processes", "current_cuda_device"}
    elsewhere |= {"functions_of_torch_distributed", "standard_streams"}
    assert {field.name for field in fields(Surroundings)} == told | elsewhere
