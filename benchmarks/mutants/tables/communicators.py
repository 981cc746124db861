"""Faults of the subject communicators."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.communicators.programs"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="the next use is the first one's sum, and sends nothing",
        module=PROGRAMS,
        old="            dist.all_reduce(x, group=group)\n",
        new="            if stage == 'first use':\n                dist.all_reduce(x, group=group)\n",
    ),
    Fault(
        name="a group that leaves out the last rank",
        module=PROGRAMS,
        old="    group: dist.ProcessGroup = dist.new_group(list(range(ctx.world_size)))\n    return group\n",
        new="    members = list(range(max(1, ctx.world_size - 1)))\n    group = dist.new_group(members)\n"
        "    return group if ctx.rank in members else dist.new_group([ctx.rank], use_local_synchronization=True)\n",
    ),
    Fault(
        name="a sum in bfloat16",
        module=PROGRAMS,
        old="            dist.all_reduce(x, group=group)\n",
        new="            half = x.bfloat16()\n            dist.all_reduce(half, group=group)\n"
        "            x.copy_(half)\n",
    ),
    Fault(
        name="every communicator sums what the first one did",
        module=PROGRAMS,
        old="given(ctx.rank, seed + life)",
        new="given(ctx.rank, seed)",
    ),
    Fault(
        name="groups that nobody takes down",
        module=PROGRAMS,
        old="        dist.destroy_process_group(group)\n",
        new="        ctx._meshes.setdefault('kept', []).append(group)\n",
    ),
    Fault(
        name="the first communicator is counted twice",
        module=PROGRAMS,
        old="        for name, taken in clock.seconds.items():",
        new="        for name, taken in [*clock.seconds.items()] * (2 if life == 0 else 1):",
    ),
    Fault(
        name="one stage is not timed in the last life",
        module=PROGRAMS,
        old='        clock.ended("make")\n',
        new='        if life < number - 1 or number == 1:\n            clock.ended("make")\n',
    ),
    Fault(
        name="a second use that is of the default group",
        module=PROGRAMS,
        old="dist.all_reduce(x, group=group)",
        new='dist.all_reduce(x, group=group if stage == "first use" else ctx.group)',
    ),
    Fault(
        name="a stage's clock that starts before all ranks are there",
        module="suites.communicators.programs",
        old="""        self._ctx.barrier()
        self._wait()
        self._start = time.perf_counter()""",
        new="""        self._wait()
        self._start = time.perf_counter()""",
    ),
    Fault(
        name="destroying is timed from the last use on",
        module="suites.communicators.programs",
        old="        clock.began()\n        dist.destroy_process_group(group)\n",
        new="        dist.destroy_process_group(group)\n",
    ),
    Fault(
        name="what is summed is alike on all ranks",
        module="suites.communicators.programs",
        old="manual_seed(1000 * seed + rank)",
        new="manual_seed(1000 * seed)",
    ),
    Fault(
        name="a use is charged with the drawing of what it sums",
        module="suites.communicators.programs",
        old="            x = given(ctx.rank, seed + life).to(ctx.device)\n            clock.began()\n",
        new="            clock.began()\n            x = given(ctx.rank, seed + life).to(ctx.device)\n",
    ),
    Fault(
        name="a stage that ends when the last rank is done with it",
        module="suites.communicators.programs",
        old="        self._wait()\n        self.seconds[stage]",
        new="        self._wait()\n        self._ctx.barrier()\n        self.seconds[stage]",
    ),
    Fault(
        name="a stage as long as it takes the fastest rank",
        module="suites.communicators.programs",
        old="[max(taken) for taken in zip(",
        new="[min(taken) for taken in zip(",
    ),
    Fault(
        name="a next use that begins with the first one",
        module=PROGRAMS,
        old=(
            '        for stage in ("first use", "next use"):\n'
            "            x = given(ctx.rank, seed + life).to(ctx.device)\n"
            "            clock.began()\n"
        ),
        new=(
            "        clock.began()\n"
            '        for stage in ("first use", "next use"):\n'
            "            x = given(ctx.rank, seed + life).to(ctx.device)\n"
        ),
    ),
    Fault(
        name="sums in the default group instead of the new one",
        module=PROGRAMS,
        old="            dist.all_reduce(x, group=group)\n",
        new="            dist.all_reduce(x)\n",
    ),
    Fault(
        name="the clock starts when the communicator is made",
        module=PROGRAMS,
        old=("        clock = _Stages(ctx)\n        group = making(ctx)\n"),
        new=("        group = making(ctx)\n        clock = _Stages(ctx)\n"),
    ),
    Fault(
        name="the second use sums what the first has left",
        module=PROGRAMS,
        old=(
            '        for stage in ("first use", "next use"):\n'
            "            x = given(ctx.rank, seed + life).to(ctx.device)\n"
        ),
        new=(
            '        x = given(ctx.rank, seed + life).to(ctx.device)\n        for stage in ("first use", "next use"):\n'
        ),
    ),
)
