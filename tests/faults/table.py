"""What must become of each fault: the verdict, what its report says, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

TIMEOUT = 4.0  # seconds of a run whose end only the timeout can bring; a stalemate is told well before
GRACE = 1.0  # seconds; the ini key's default is 2
BOTH = ("gloo", "nccl")


@dataclass(frozen=True)
class Fault:
    """One line of the table. Patterns are regular expressions; ``{others}`` are the ranks beside rank 1."""

    name: str
    verdict: str = "failed"
    says: tuple[str, ...] = ()
    """Found in the report of the test."""
    says_of_three: tuple[str, ...] = ()
    """Found where there are three ranks or more."""
    rank: str | None = None
    """The rank that is to blame, as the report's property names it; None where no single one is."""
    cause: str | None = None
    """Found in the property that names the cause."""
    leaves: str | None = None
    """Found in the warning that tells what the test left behind."""
    waits: bool = False
    """Whether only the timeout can tell."""
    backends: tuple[str, ...] = BOTH
    slow: float = 0.0
    """Seconds that the fault itself takes."""


def _died(name: str, how: str, where: str = "$") -> Fault:
    says = rf"(?m)RankDied: rank 1 of \d \(\w+\) in faults\S*:run {how}{where}"
    return Fault(name, says=(says,), rank="1", cause=f"^{how}$")


FAULTS = (
    Fault(
        "raises",
        says=("ValueError: cause", r"raised on rank 1 of \d", "{others} returned"),
        rank="1",
        cause="ValueError: cause",
    ),
    Fault(
        "raises_while_others_wait",
        says=(
            "ValueError: cause",
            r"raised on rank 1 of \d",
            "{others} had not returned when killed",
            # NCCL's all_reduce returns at once; what waits for it is the synchronisation after the program.
            r"called at \S+programs.py:\d+ in all_reduce|in synchronize",
            r"rank 1 never issued all_reduce Float\[4\] \(collective 1 of the program\), which {others} did",
        ),
        rank="1",
        cause="ValueError: cause",
    ),
    Fault(
        "raises_differently",
        says=("ValueError: of rank 1", "rank 0 raised KeyError: 'of rank 0', at"),
        says_of_three=("rank 2 raised TypeError: of rank 2",),
        rank="1",
        cause="ValueError: of rank 1",
    ),
    Fault(
        "raises_everywhere_after_they_met",
        says=("ValueError: after they met", r"ranks? [^:]+ raised the same"),
        cause="ValueError: after they met",
    ),
    Fault(
        "raises_what_cannot_be_pickled",
        says=(r"RemoteError: rank 1 of \d .* raised ValueError: \('holds'", "Traceback"),
        rank="1",
        cause=r"ValueError: \('holds'",
    ),
    Fault("sys_exit", says=(r"RemoteError: rank 1 of \d .* raised SystemExit: 0",), rank="1", cause="SystemExit: 0"),
    _died("os_exit", "exited with code 3 before it returned"),
    _died("sigkill", "was killed by SIGKILL"),
    _died("sigsegv", "was killed by SIGSEGV", r" in string_at \(ctypes\S+\), called at \S+programs.py:\d+ in sigsegv$"),
    _died("sigabrt", "was killed by SIGABRT", r" in \S+programs.py:\d+ in sigabrt$"),
    Fault(
        "out_of_host_memory",
        says=("MemoryError", r"raised on rank 1 of \d"),
        rank="1",
        cause="MemoryError",
        leaves="rank 1: resource limits: RLIMIT_AS",
    ),
    Fault(
        "out_of_device_memory",
        says=("OutOfMemoryError", r"raised on rank 1 of \d"),
        rank="1",
        cause="OutOfMemoryError",
        backends=("nccl",),
    ),
    Fault(
        "device_side_assert",
        # Either the program raises it, or NCCL's watchdog sees it first and ends the process.
        says=("device-side assert triggered", r"rank 1 of \d"),
        rank="1",
        cause="device-side assert",
        backends=("nccl",),
    ),
    Fault(
        "illegal_address",
        says=("illegal memory access", r"rank 1 of \d"),
        rank="1",
        cause="illegal memory access",
        backends=("nccl",),
    ),
    Fault(
        "returns_what_cannot_be_pickled",
        says=(r"ResultError: rank 1 of \d .* the program returned a lock that cannot be pickled",),
        rank="1",
        cause="lock that cannot be pickled",
    ),
    Fault("returns_2_gib", verdict="passed", slow=120.0),
    Fault(
        "skips_on_one_rank",
        says=(r"rank 1 of \d \(\w+\) skipped in", "no such thing here", "{others} returned"),
        rank="1",
    ),
    Fault("skips_on_all_ranks", verdict="skipped", says=("no such thing here",)),
    Fault(
        "another_operation",
        says=(
            r"CollectiveMismatch: .* rank 1 issued broadcast Float\[4\] in its place",
            r"the ranks part at collective 1 of the program: .*rank 1 issued broadcast Float\[4\]",
            "{others} issued all_reduce",
        ),
        cause="mismatched collectives",
        backends=("gloo",),
    ),
    Fault(
        "another_operation",
        says=(
            r"CollectiveMismatch: .* unlike arguments to all_reduce and broadcast, .*; rank 1 passed broadcast",
            r"rank 1 issued it at \S+ in another_operation",
        ),
        cause="mismatched collectives",
        backends=("nccl",),
    ),
    Fault(
        "another_order",
        says=(
            r"CollectiveMismatch: .* rank 1 issued broadcast Float\[4\] in its place",
            r"the ranks part at collective 1 of the program: .*rank 1 issued broadcast Float\[4\]",
        ),
        cause="mismatched collectives",
        backends=("gloo",),
    ),
    Fault(
        "another_order",
        says=(
            r"CollectiveMismatch: .* unlike arguments to all_reduce and broadcast, .*; rank 1 passed broadcast",
            r"rank 1 issued it at \S+ in another_order",
        ),
        cause="mismatched collectives",
        backends=("nccl",),
    ),
    # gloo's receiver aborts, and says why on its standard error.
    Fault(
        "another_size",
        says=(r"RankDied: rank \d of \d .* was killed by SIGABRT.*: \[.*Is there a distributed collective mismatch",),
        cause=r"was killed by SIGABRT: \[enforce fail at .*Is there a distributed collective mismatch",
        backends=("gloo",),
    ),
    Fault(
        "another_size",
        says=(
            r"CollectiveMismatch: .* unlike arguments to all_reduce, .* rank 1 passed Float\[1048576\]",
            r"issued it at \S+ in all_reduce",
        ),
        cause="mismatched collectives",
        backends=("nccl",),
    ),
    Fault(
        "never_calls",
        says=(
            r"CollectiveMismatch: .* {others} waits? in all_reduce Float\[4\]; rank 1 returned without it",
            "rank 1 returned",
            r"rank 1 never issued all_reduce Float\[4\] \(collective 2 of the program\), which {others} did",
        ),
        cause="mismatched collectives",
    ),
    Fault(
        "nobody_waits",
        says=(r"CollectiveMismatch: all ranks returned", r"{others} issued 0; rank 1 issued 1"),
        cause="mismatched collectives",
        backends=("gloo",),
    ),
    Fault(
        "nobody_waits",
        says=(r"CollectiveMismatch: .* rank 1 waits in all_reduce", r"{others} never issued all_reduce Float\[4\]"),
        cause="mismatched collectives",
        backends=("nccl",),
    ),
    Fault(
        "hangs_in_python",
        says=(
            r"RankTimeout: ranks [\d, ]+ of \d",
            r"rank 1 (alone )?is in wait .*, called at \S+programs.py:\d+ in wait_for_ever",
            r"{others} (is|are) in \S+ .*, called at \S+programs.py:\d+ in",
            r"rank 1 never issued all_reduce Float\[4\] \(collective 2 of the program\), which {others} did",
            r"last collective of {others}: all_reduce Float\[4\], its collective 2",
        ),
        says_of_three=("rank 1 alone is in",),
        cause="timeout",
        waits=True,
    ),
    Fault(
        "hangs_with_the_gil",
        says=(
            r"RankTimeout: rank 1 of \d",
            r"rank 1 is in \S+programs.py:\d+ in hangs_with_the_gil",
            "{others} returned",
        ),
        cause="timeout",
        waits=True,
    ),
    Fault(
        "hangs_in_a_kernel",
        says=(r"RankTimeout: rank 1 of \d", r"rank 1 is in \S+ in synchronize", "{others} returned"),
        cause="timeout",
        waits=True,
        backends=("nccl",),
    ),
    Fault("ignores_sigterm", says=(r"RankTimeout: rank 1 of \d", "in wait_for_ever"), cause="timeout", waits=True),
    Fault("leaves_children", verdict="passed", leaves="rank 1: child processes: sleep 600"),
    Fault("leaves_a_thread", verdict="passed", leaves="rank 1: threads: left"),
    Fault("leaks_a_group", verdict="passed"),
    Fault("closes_all_groups", verdict="passed"),
    Fault("leaves_a_mesh_behind", verdict="passed", slow=60.0),  # it imports DTensor
    Fault("changes_the_environment", verdict="passed", leaves="rank 1: environment: OF_A_FAULT unset -> '1'"),
    Fault(
        "changes_the_default_dtype", verdict="passed", leaves="rank 1: default dtype: torch.float32 -> torch.float64"
    ),
    Fault("changes_the_default_device", verdict="passed", leaves="rank 1: default device: cpu -> meta"),
)
