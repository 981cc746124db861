"""nccl-tests' arm: builds the binaries where that is asked for, runs them, and hands their figures over.

One process drives all ranks, with a thread for each (``-t``), so that no MPI is needed. What is reported is the
slowest rank's time (``-a 3``), as the plugin reports it.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nccl_tests.output import Output, OutputError, Row, Versions, parse_json, parse_text, versions
from benchmarks.nccl_tests.plan import OPERATIONS, SHARED_DEFAULTS, ArmError, Figure, Plan, Point, Sweep, Turn

DTYPE = "bfloat16"
# nccl-tests' clock is the host's: so many operations in a row that 50 us to start and to end them weigh little, on
# 2000 of 10 us in 40 graphs (``-G``), and on 100 of 64 MiB, which take 0.15 ms or more.
ITERS = {"latency": 50, "busbw": 100}
REPLAYS = 40
# Operations of each size before the first is timed.
WARMUPS = {"latency": 500, "busbw": 20}
# Times that all sizes are measured; the last counts. On 2 x H200 the first figure of a process was 2 to 5 % below the
# next ones of that size, 0.1 to 0.2 us, and longer warm-ups did not change it.
CYCLES = {"latency": 2, "busbw": 1}
TIMEOUT = 300.0  # seconds for a process of nccl-tests
TAIL = 15  # lines of what a process that failed had printed

# What the plugin's ranks, which are processes of their own with torch's buffers, can never do: reach into one
# another's buffers within a process, and register buffers that a graph uses. Both arms are to do the same work. The
# caller's own settings prevail.
DEFAULTS = {
    "NCCL_P2P_DIRECT_DISABLE": "1",
    "NCCL_GRAPH_REGISTER": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "VERSION",  # releases of nccl-tests that do not say which library they loaded: NCCL does
}


@dataclass(frozen=True, slots=True)
class NcclTests:
    """A folder of nccl-tests that was built."""

    folder: Path
    environ: Mapping[str, str]
    writes_json: bool

    @classmethod
    def found(cls, folder: Path, environ: Mapping[str, str], nccl: Path | None) -> NcclTests:
        """The binaries in a folder.

        Args:
            folder: of nccl-tests' sources.
            environ: the caller's environment.
            nccl: the folder of torch's NCCL, with include and lib; None where torch brings no library of its own.

        Raises:
            ArmError: One is missing, or does not start.
        """
        for operation in OPERATIONS.values():
            path = binary(folder, operation.binary)
            if not path.is_file():
                make = shlex.join(make_command(folder, Path("/path/to/nccl")))
                raise ArmError(
                    f"{path} is missing, so nccl-tests is not built: add --build, or run {make} with the folder of the "
                    "NCCL that torch loads"
                )
        environ = environment(environ, nccl)
        usage = _run([str(binary(folder, "all_reduce_perf")), "-h"], environ)
        if usage.returncode:
            raise ArmError(f"nccl-tests does not start: {_ended(usage)}")
        return cls(folder, environ, "--output_file" in usage.stdout)

    def turn(self, plan: Plan) -> Turn:
        """Measures everything once, with a process for each operation, world size and sweep.

        Raises:
            ArmError: A process failed, or reported something else than what was asked for.
        """
        figures: dict[Point, Figure] = {}
        told = Versions(None, None)
        for ranks in plan.ranks:
            for op in plan.ops:
                for sweep in plan.sweeps:
                    output, told = self._sweep(op, ranks, sweep)
                    rows = {row.nbytes: row for row in output.rows}  # of a size that comes again, the last
                    figures |= {Point(op, ranks, size): _figure(op, size, rows) for size in sweep.sizes}
        if told.nccl is None:
            raise ArmError(
                f"nccl-tests in {self.folder} does not say which NCCL it loaded: use a release from 2.17.4 on"
            )
        return Turn(figures, told.nccl, f"nccl-tests {told.tests or 'of unknown version'}")

    def _sweep(self, op: str, ranks: int, sweep: Sweep) -> tuple[Output, Versions]:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name, "report.json") if self.writes_json else None
            path = binary(self.folder, OPERATIONS[op].binary)
            arguments = command(path, ranks, sweep, file)
            done = _run(arguments, self.environ)
            problem: OutputError | None = None
            try:
                output = parse_json(file.read_text()) if file and file.exists() else parse_text(done.stdout)
            except OutputError as error:
                problem = error
            else:
                if not output.correct:
                    wrong = {f"{row.nbytes} B": row.wrong for row in output.rows if row.wrong}
                    raise ArmError(
                        f"{shlex.join(arguments)} got wrong results, so its speed means nothing: wrong values by size: "
                        f"{wrong or 'not told'}: check GPUs, links and driver"
                    )
            if done.returncode:
                raise ArmError(f"{shlex.join(arguments)} failed: {_ended(done)}")
            if problem is not None:
                raise ArmError(f"{shlex.join(arguments)}: {problem}")
            return output, versions(done.stdout)


def binary(folder: Path, name: str) -> Path:
    """The place where nccl-tests' Makefile puts a binary."""
    return folder / "build" / name


def command(path: Path, ranks: int, sweep: Sweep, file: Path | None) -> list[str]:
    """The command line of one process.

    Args:
        path: of the binary.
        ranks: on as many GPUs.
        sweep: the sizes.
        file: for its report as JSON; None where it can write none.
    """
    options = {
        "-t": ranks,
        "-g": 1,
        "-b": sweep.smallest,
        "-e": sweep.largest,
        "-f": sweep.factor,
        "-d": DTYPE,
        "-o": "sum",
        "-n": ITERS[sweep.quantity],
        "-w": WARMUPS[sweep.quantity],
        "-N": CYCLES[sweep.quantity],
        "-c": 1,
        "-a": 3,
        **({"-G": REPLAYS} if sweep.cuda_graph else {}),
        **({"-J": file} if file is not None else {}),
    }
    return [str(path), *(str(word) for option in options.items() for word in option)]


def environment(environ: Mapping[str, str], nccl: Path | None) -> dict[str, str]:
    """The caller's environment, in which torch's NCCL is found before any other."""
    first = [] if nccl is None else [str(nccl / "lib")]
    last = [str(path.parent) for path in _site("nvidia/cu*/lib/libcudart.so.*")]
    path = [*first, *filter(None, [environ.get("LD_LIBRARY_PATH")]), *last]
    return {**DEFAULTS, **SHARED_DEFAULTS, **environ, **({"LD_LIBRARY_PATH": os.pathsep.join(path)} if path else {})}


def torchs_nccl() -> Path | None:
    """The folder of the NCCL that torch loads, from NVIDIA's wheel; None where there is no such wheel."""
    return next((path.parents[1] for path in _site("nvidia/nccl/lib/libnccl.so.2")), None)


def build(folder: Path, nccl: Path | None, capability: tuple[int, int]) -> None:
    """Builds the binaries against torch's NCCL, for one kind of GPU.

    Args:
        folder: of nccl-tests' sources.
        nccl: as torchs_nccl gives it.
        capability: the GPUs' compute capability.

    Raises:
        ArmError: There are no sources, no NCCL wheel or no compiler; or make failed.
    """
    if not (folder / "Makefile").is_file():
        raise ArmError(f"{folder / 'Makefile'} is missing: --nccl-tests names the folder of nccl-tests' sources")
    if nccl is None:
        raise ArmError(
            "torch's NCCL was not found, expected NVIDIA's wheel (nvidia/nccl/lib/libnccl.so.2 beside torch): build "
            "nccl-tests against the NCCL that torch uses, and leave out --build"
        )
    nvcc = cuda_home() / "bin" / "nvcc"
    if not nvcc.exists():
        raise ArmError(f"{nvcc} is missing, and nccl-tests is built with it: set CUDA_HOME to the CUDA toolkit")
    # The wheel has the library by its run time name alone; the linker asks for libnccl.so.
    home = folder / "build" / "nccl"
    (home / "lib").mkdir(parents=True, exist_ok=True)
    links = {
        "include": nccl / "include",
        "lib/libnccl.so": nccl / "lib/libnccl.so.2",
        "lib/libnccl.so.2": nccl / "lib/libnccl.so.2",
    }
    for name, target in links.items():
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target.resolve())
    major, minor = capability
    arch = f"NVCC_GENCODE=-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}"
    words = [*make_command(folder, home), f"-j{os.cpu_count() or 1}", arch]
    done = subprocess.run(words, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ArmError(f"{shlex.join(words)} ended with exit status {done.returncode}: its messages are above")


def make_command(folder: Path, nccl_home: Path) -> list[str]:
    """What builds the binaries that are used here, and no others."""
    names = " ".join(operation.binary.removesuffix("_perf") for operation in OPERATIONS.values())
    return ["make", "-C", str(folder), f"BIN_FILES_LIST={names}", f"NCCL_HOME={nccl_home}", f"CUDA_HOME={cuda_home()}"]


def cuda_home() -> Path:
    """The CUDA toolkit's folder: CUDA_HOME, the usual place, or where nvcc is."""
    usual = Path("/usr/local/cuda")
    if home := os.environ.get("CUDA_HOME"):
        return Path(home)
    found = shutil.which("nvcc")
    return usual if found is None or (usual / "bin" / "nvcc").exists() else Path(found).resolve().parents[1]


def _figure(op: str, nbytes: int, rows: Mapping[int, Row]) -> Figure:
    where = f"nccl-tests' {OPERATIONS[op].binary}"
    if nbytes not in rows:
        raise ArmError(
            f"{where} measured {sorted(rows)} B and not {nbytes} B: it takes smaller sizes where a GPU's memory is too "
            "small"
        )
    row = rows[nbytes]
    if row.dtype != DTYPE:
        raise ArmError(
            f"{where} measured {row.dtype}, expected {DTYPE}: build it with a CUDA toolkit that has the type"
        )
    column, timed = ("in-place", row.in_place) if OPERATIONS[op].in_place else ("out-of-place", row.out_of_place)
    if timed is None:
        raise ArmError(f"{where} measured nothing {column} of {nbytes} B, which is what is compared with {op}")
    return Figure(timed.seconds, timed.busbw)


def _run(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise ArmError(
            f"{shlex.join(words)} did not end within {TIMEOUT:g} s: look for a process that hangs"
        ) from error
    except OSError as error:
        raise ArmError(f"{words[0]} cannot be run: {error.strerror}: build nccl-tests for this machine") from error


def _ended(done: subprocess.CompletedProcess[str]) -> str:
    # Most of nccl-tests' own errors go to the standard output.
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return "\n  ".join([f"exit status {done.returncode}, its last lines:", *lines[-TAIL:]])


def _site(pattern: str) -> list[Path]:
    torch = importlib.util.find_spec("torch")
    sites = list(torch.submodule_search_locations or ()) if torch is not None else []
    return sorted(path for site in sites for path in Path(site).parent.glob(pattern))
