"""Faults of the subject host."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

CHASE = "suites.host.programs.chase"
CORES = "suites.host.programs.cores"
MEMORY = "suites.host.programs.memory"
REFERENCE = "suites.host.reference"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a ring that skips a place",
        module=CHASE,
        old="        return cls(memory, order)\n",
        new="        if len(order) > 2:\n"
        "            memory[order[0] * np.uint64(_WORDS)] = memory.ctypes.data + LINE * int(order[2])\n"
        "        return cls(memory, order)\n",
    ),
    Fault(
        name="a ring in the order of the addresses, which a prefetcher guesses",
        module=CHASE,
        old="np.random.default_rng(seed).permutation(places)",
        new="np.arange(places)",
    ),
    Fault(
        name="two places in one line of the cache",
        module=CHASE,
        old="_WORDS = LINE // 8\n",
        new="_WORDS = LINE // 16\n",
    ),
    Fault(
        name="a chase that returns a step early",
        module=CHASE,
        old="return int(self._call(address, steps))",
        new="return int(self._call(address, max(1, steps - 1)))",
    ),
    Fault(
        name="a chase that begins anew with each step",
        module=CORES,
        old="self.at = self.chase(self.at, self.each)",
        new="self.at = self.chase(self.ring.address(0), self.each)",
    ),
    Fault(
        name="a rank's own thread that is pinned, too",
        module=CORES,
        old="    with ThreadPoolExecutor(len(cores)) as threads:\n",
        new="    os.sched_setaffinity(os.getpid(), set(cores))\n    with ThreadPoolExecutor(len(cores)) as threads:\n",
    ),
    Fault(
        name="threads that the system places",
        module=CORES,
        old="        os.sched_setaffinity(0, {core})  # of this thread alone\n",
        new="",
    ),
    Fault(
        name="one core after the other",
        module=CORES,
        old="ThreadPoolExecutor(len(cores))",
        new="ThreadPoolExecutor(1)",
    ),
    Fault(
        name="the cores of another host",
        module=CORES,
        old="cores if platform.node() == host else os.sched_getaffinity(0)",
        new="cores",
    ),
    Fault(
        name="a core that waits in vain is blamed",
        module=CORES,
        old="key=lambda error: isinstance(error, threading.BrokenBarrierError)",
        new="key=lambda error: not isinstance(error, threading.BrokenBarrierError)",
    ),
    Fault(
        name="the step that passes the end is not told",
        module=CORES,
        old="        times.append(now())\n    return times\n",
        new="        times.append(now())\n    return times[:-1]\n",
    ),
    Fault(
        name="every rank keeps the cores busy",
        module=CORES,
        old="    if ctx.rank:\n        return None\n",
        new="",
    ),
    Fault(
        name="a copy that nobody has to make",
        module=MEMORY,
        old="np.full_like(source, np.iinfo(np.uint64).max)",
        new="source.copy()",
    ),
    Fault(
        name="the first chase, which has to wake the core, counts",
        module=MEMORY,
        old="itertools.pairwise(times[1:])",
        new="itertools.pairwise(times[:-1])",
    ),
    Fault(
        name="cores that the process may not use",
        module=MEMORY,
        old='(folder / "cpulist").read_text()) & set(cores)',
        new='(folder / "cpulist").read_text())',
    ),
    Fault(
        name="a range of cores without its last one",
        module=MEMORY,
        old="int(last or first) + 1",
        new="max(int(first) + 1, int(last or first))",
    ),
    Fault(
        name="rows and columns of the latencies change places",
        module=MEMORY,
        old="found[reader].append(seconds)",
        new="found[len([row for row in found if len(row) == len(nodes)])].append(seconds)",
    ),
    Fault(
        name="each node's chase finds what the one before it has left in caches",
        module=MEMORY,
        old="((seconds, at),) = on_cores",
        new="((seconds, _),) = on_cores",
    ),
    Fault(
        name="the share of the slowest core",
        module=REFERENCE,
        old="statistics.fmean(window) / max(window)",
        new="min(window) / max(window)",
    ),
    Fault(
        name="the share beside the usual core, which may be slow as well",
        module=REFERENCE,
        old="statistics.fmean(window) / max(window)",
        new="statistics.fmean(window) / statistics.median(window)",
    ),
    Fault(
        name="a share that a window's fastest core of all the time belittles",
        module=REFERENCE,
        old="/ max(window) for window in zip(*by_core, strict=True)",
        new="/ max(map(max, by_core)) for window in zip(*by_core, strict=True)",
    ),
    Fault(
        name="whole cores by the fastest one of the window, which a quota holds up as well",
        module=REFERENCE,
        old="sum(window) / fastest for",
        new="sum(window) / max(window) for",
    ),
    Fault(
        name="time in which some cores had not begun",
        module=REFERENCE,
        old="max(times[0] for times in cores)",
        new="min(times[0] for times in cores)",
    ),
    Fault(
        name="a copy that counts its reads alone",
        module=REFERENCE,
        old="2 * nbytes * sum(window)",
        new="nbytes * sum(window)",
    ),
    Fault(
        name="the slowest node of each window, whichever it is",
        module=REFERENCE,
        old="[slow / fast for slow, fast in zip(ordered[0], ordered[-1], strict=True)]",
        new="[min(window) / max(window) for window in zip(*by_node, strict=True)]",
    ),
)
