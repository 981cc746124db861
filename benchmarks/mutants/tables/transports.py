"""Faults of the subject transports."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

SENDING = "suites.transports.programs.sending"
RING = "suites.shared.ring"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a ring that sends to the rank before",
        module=RING,
        old="dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, before)",
        new="dist.P2POp(dist.isend, sent, before), dist.P2POp(dist.irecv, received, following)",
    ),
    Fault(
        name="messages that end before the last byte",
        module=RING,
        old="sent, received = source[:nbytes], destination[:nbytes].zero_()",
        new="sent, received = source[: nbytes - 1], destination[:nbytes].zero_()[: nbytes - 1]",
    ),
    Fault(
        name="a ring whose later steps send nothing",
        module=RING,
        old="            for work in dist.batch_isend_irecv(operations):\n                work.wait()\n",
        new="            if not step.__dict__.setdefault('sent', False):\n"
        "                for work in dist.batch_isend_irecv(operations):\n                    work.wait()\n"
        "            step.__dict__['sent'] = True\n",
    ),
    Fault(
        name="a sum in bfloat16",
        module=SENDING,
        old="            dist.all_reduce(x)\n",
        new="            half = x.bfloat16()\n            dist.all_reduce(half)\n            x.copy_(half)\n",
    ),
    Fault(
        name="a sum that leaves out what lies beyond 2^16 elements",
        module=SENDING,
        old="            dist.all_reduce(x)\n",
        new="            dist.all_reduce(x[: 1 << 16])\n",
    ),
    Fault(
        name="messages are received where they were sent from",
        module=RING,
        old="destination = torch.empty_like(source)",
        new="destination = source",
    ),
    Fault(
        name="a batch of messages that nobody waits for",
        module=RING,
        old="                work.wait()\n",
        new="                del work\n",
    ),
    Fault(
        name="a message that is waited for where it is sent",
        module=RING,
        old="for work in dist.batch_isend_irecv(operations):",
        new="for work in dist.batch_isend_irecv(operations)[:1]:",
    ),
    Fault(
        name="a sum of one rank's share of the bytes",
        module="suites.transports.programs.sending",
        old="count = nbytes // ADDENDS.itemsize",
        new="count = nbytes // ADDENDS.itemsize // ctx.world_size",
    ),
    Fault(
        name="a way that some ranks have taken",
        module="suites.shared.ways",
        old="if not all(log.over(self.proof) for log in logs):",
        new="if not any(log.over(self.proof) for log in logs):",
    ),
    Fault(
        name="addends that are alike on all ranks",
        module="suites.shared.places",
        old="stream=rank, device=out.device)",
        new="stream=0, device=out.device)",
    ),
    Fault(
        name="pieces of a tensor that are all filled with the first one's bits",
        module="suites.shared.bits",
        old="part.copy_(random_bits(at, at + len(part), stream",
        new="part.copy_(random_bits(0, len(part), stream",
    ),
    Fault(
        name="wrong bits of the last piece alone",
        module="suites.shared.bits",
        old="wrong += int((part != expected).sum())",
        new="wrong = int((part != expected).sum())",
    ),
    Fault(
        name="pieces of addends that all begin anew",
        module="suites.shared.places",
        old="bits = random_bits(start + at, start + end, stream",
        new="bits = random_bits(start, start + end - at, stream",
    ),
    Fault(
        name="a sum whose pieces are all compared with the first one's",
        module="suites.shared.places",
        old=("                len(part), dtype=got.dtype, rank=rank, ranks=ranks, device=part.device, start=start\n"),
        new="                len(part), dtype=got.dtype, rank=rank, ranks=ranks, device=part.device\n",
    ),
    Fault(
        name="addends of a size that hold the last size's sums",
        module=SENDING,
        old=(
            "    def step_of(nbytes: int) -> Step[torch.Tensor]:\n"
            "        count = nbytes // ADDENDS.itemsize\n"
            "        x = addends(count, dtype=ADDENDS, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)\n"
        ),
        new=(
            "    most = sizes[-1] // ADDENDS.itemsize\n"
            "    whole = addends(most, dtype=ADDENDS, rank=ctx.rank, ranks=ctx.world_size, device=ctx.device)\n"
            "\n"
            "    def step_of(nbytes: int) -> Step[torch.Tensor]:\n"
            "        x = whole[: nbytes // ADDENDS.itemsize]\n"
        ),
    ),
    Fault(
        name="messages of the largest size at every size",
        module=RING,
        old=(
            "            operations = [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, "
            "received, before)]\n"
        ),
        new=(
            "            operations = [dist.P2POp(dist.isend, source, following), "
            "dist.P2POp(dist.irecv, destination, before)]\n"
        ),
    ),
)
