"""Faults of the subject elastic."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.elastic.programs"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a sample that two ranks see",
        module=PROGRAMS,
        old="batch[rank::world_size]",
        new="batch[rank * (len(batch) // world_size) :][: -(-len(batch) // world_size)]",
    ),
    Fault(
        name="a batch that is filled up with samples of its epoch's begin",
        module=PROGRAMS,
        old="        return order[position",
        new="        return (order + order)[position",
    ),
    Fault(
        name="the small batch at an epoch's end is left out",
        module=PROGRAMS,
        old="-(-self.samples // self.batch)",
        new="self.samples // self.batch",
    ),
    Fault(
        name="the same order in each epoch",
        module=PROGRAMS,
        old="self.seed * 16 + epoch",
        new="self.seed * 16",
    ),
    Fault(
        name="the epoch starts anew with each attempt",
        module=PROGRAMS,
        old="range(first, stop)",
        new="range(first // epochs.per_epoch * epochs.per_epoch, stop)",
    ),
    Fault(
        name="the step after a checkpoint is left out",
        module=PROGRAMS,
        old="range(first, stop)",
        new="range(first + bool(first), stop)",
    ),
    Fault(
        name="the mean of the ranks' means",
        module=PROGRAMS,
        old='reduction="sum")\n',
        new='reduction="sum") * len(batch) / (max(len(mine), 1) * world_size)\n',
    ),
    Fault(
        name="gradients that are divided by the rank's samples",
        module=PROGRAMS,
        old="_update(network, velocity, len(batch))",
        new="_update(network, velocity, max(len(mine), 1))",
    ),
    Fault(
        name="a learning rate that grows with the world",
        module=PROGRAMS,
        old="parameter.sub_(LR * moving)",
        new="parameter.sub_(LR * dist.get_world_size() * moving)",
    ),
    Fault(
        name="a new rank with parameters of its own",
        module=PROGRAMS,
        old="    if first:\n",
        new="    if first and rank == 0:\n",
    ),
    Fault(
        name="momentum that is not restored",
        module=PROGRAMS,
        old="        moving.copy_(saved)\n",
        new="        pass\n",
    ),
    Fault(
        name="parameters that are not restored",
        module=PROGRAMS,
        old='    network.load_state_dict(state["network"])  # type: ignore[arg-type]\n',
        new="",
    ),
    Fault(
        name="a checkpoint in float32",
        module=PROGRAMS,
        old='"network": network.state_dict()',
        new='"network": {name: value.float() for name, value in network.state_dict().items()}',
    ),
    Fault(
        name="a checkpoint that is named for the step it has done",
        module=PROGRAMS,
        old="        following = step + 1\n",
        new="        following = step\n",
    ),
    Fault(
        name="momentum that only rank 0 restores",
        module=PROGRAMS,
        old="        moving.copy_(saved)\n",
        new="        if dist.get_rank() == 0:\n            moving.copy_(saved)\n",
    ),
    Fault(
        name="the last, smaller batch of an epoch divided by a full one",
        module="suites.elastic.programs",
        old="_update(network, velocity, len(batch))",
        new="_update(network, velocity, epochs.batch)",
    ),
    Fault(
        name="a checkpoint before its step instead of after it",
        module=PROGRAMS,
        old="following % epochs.interval == 0",
        new="step % epochs.interval == 0",
    ),
    Fault(
        name="a checkpoint every other time",
        module=PROGRAMS,
        old="following % epochs.interval == 0",
        new="following % (2 * epochs.interval) == 0",
    ),
    Fault(
        name="sums in the default group, which waits longer",
        module=PROGRAMS,
        old="dist.all_reduce(flat, group=group)",
        new="dist.all_reduce(flat)",
    ),
    Fault(
        name="samples left over that no rank takes",
        module=PROGRAMS,
        old="        mine = batch[rank::world_size]\n",
        new=("        share = len(batch) // world_size\n        mine = batch[rank * share : (rank + 1) * share]\n"),
    ),
    Fault(
        name="gradients summed in float32",
        module=PROGRAMS,
        old="    flat = torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])\n",
        new=(
            "    flat = torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in "
            "gradients)]).float()\n"
        ),
    ),
)
