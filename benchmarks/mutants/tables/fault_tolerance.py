"""Faults of the subject fault_tolerance."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

TRAINING = "suites.fault_tolerance.programs.training"
LOST_TIME = "suites.fault_tolerance.programs.lost_time"
GOODPUT = "suites.fault_tolerance.programs.goodput"
FOLDERS = "suites.shared.step_folders"
LOG = "suites.shared.job_log"
AGENT = "torch.distributed.elastic.agent.server.api"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="parameters that are not restored",
        module=TRAINING,
        old='    network.load_state_dict(state["network"])\n',
        new="",
    ),
    Fault(
        name="momentum that is not restored",
        module=TRAINING,
        old="        moving.copy_(saved)\n",
        new="        pass\n",
    ),
    Fault(
        name="random numbers that are not restored",
        module=TRAINING,
        old='        _set_random(checkpoints.read(first, f"rank-{rank}.pt")["random"], device)\n',
        new="",
    ),
    Fault(
        name="the random numbers of rank 0 for all ranks",
        module=TRAINING,
        old='checkpoints.read(first, f"rank-{rank}.pt")["random"]',
        new='checkpoints.read(first, "rank-0.pt")["random"]',
    ),
    Fault(
        name="the step after a checkpoint is left out",
        module=TRAINING,
        old="range(first, training.steps)",
        new="range(first + bool(first), training.steps)",
    ),
    Fault(
        name="the step before a checkpoint is done again",
        module=TRAINING,
        old="range(first, training.steps)",
        new="range(first - bool(first), training.steps)",
    ),
    Fault(
        name="a learning rate that starts anew",
        module=TRAINING,
        old="LR / (1 + step)",
        new="LR / (1 + step - first)",
    ),
    Fault(
        name="batches that start anew",
        module=TRAINING,
        old="course.batch(rank, step)",
        new="course.batch(rank, step - first)",
    ),
    Fault(
        name="a checkpoint in float32",
        module=TRAINING,
        old='"network": network.state_dict()',
        new='"network": {name: value.float() for name, value in network.state_dict().items()}',
    ),
    Fault(
        name="a checkpoint that is named for the step it has done",
        module=TRAINING,
        old="            following = step + 1\n",
        new="            following = step\n",
    ),
    Fault(
        name="a checkpoint is valid before all ranks have written it",
        module=TRAINING,
        old="                _wait_for_all(device)\n                if rank == 0:\n",
        new="                if rank == 0:\n",
    ),
    Fault(
        name="a checkpoint one step late",
        module=TRAINING,
        old="following % training.interval == 0",
        new="step % training.interval == 0",
    ),
    Fault(
        name="a rank's own loss in the log",
        module=TRAINING,
        old="log.stepped(step, mean)",
        new="log.stepped(step, loss)",
    ),
    Fault(
        name="a collective without the short timeout",
        module=TRAINING,
        old="    dist.all_reduce(flat, group=group)\n",
        new="    dist.all_reduce(flat)\n",
    ),
    Fault(
        name="a checkpoint that is written in place",
        module=FOLDERS,
        old='f"{_PREFIX}{step}{_PARTIAL}"',
        new='f"{_PREFIX}{step}"',
    ),
    Fault(
        name="the oldest checkpoint is loaded",
        module=FOLDERS,
        old="max(self.steps(), default=0)",
        new="min(self.steps(), default=0)",
    ),
    Fault(
        name="the last checkpoint by the alphabet",
        module=FOLDERS,
        old="max(self.steps(), default=0)",
        new="max(self.steps(), key=str, default=0)",
    ),
    Fault(
        name="old checkpoints are removed before the new one is whole",
        module=FOLDERS,
        old="        partial = self._partial(step)\n",
        new="        for old in self.steps():\n"
        "            shutil.rmtree(self._whole(old), ignore_errors=True)\n"
        "        partial = self._partial(step)\n",
    ),
    Fault(
        name="one restart more than is allowed",
        module=AGENT,
        old="                if self._remaining_restarts > 0:\n",
        new="                if self._remaining_restarts >= 0:\n",
    ),
    Fault(
        name="steps of an earlier attempt count twice",
        module=LOG,
        old="if step < first}",
        new="if step <= first}",
    ),
    Fault(
        name="detection that takes in the restart",
        module=LOST_TIME,
        old="detection=started - mishap.at",
        new="detection=resumed - mishap.at",
    ),
    Fault(
        name="a restart that ends with the first rank",
        module=LOST_TIME,
        old="resumed = max(entry.at for entry in began)",
        new="resumed = min(entry.at for entry in began)",
    ),
    Fault(
        name="all later steps are taken for repeated ones",
        module=LOST_TIME,
        old=" and entry.step in done]",
        new="]",
    ),
    Fault(
        name="goodput that counts steps again",
        module=LOST_TIME,
        old="for done in surviving(log).values() for entry in done if entry.rank == 0)",
        new='for entry in log if entry.event == "stepped" and entry.rank == 0)',
    ),
    Fault(
        name="goodput without the checkpoints' time",
        module=GOODPUT,
        old="math.expm1((interval + self.save) / m)",
        new="math.expm1(interval / m)",
    ),
    Fault(
        name="goodput without the restarts' time",
        module=GOODPUT,
        old="m * math.exp(self.restart / m) * math",
        new="m * math",
    ),
    Fault(
        name="an interval that takes in the checkpoint",
        module=GOODPUT,
        old=" * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save\n",
        new=" * (1 + math.sqrt(ratio) / 3 + ratio / 9)\n",
    ),
    Fault(
        name="Young's interval without the factor 2",
        module=GOODPUT,
        old="math.sqrt(2 * self.save * self.between_failures)",
        new="math.sqrt(self.save * self.between_failures)",
    ),
    Fault(
        name="no failure while the job restarts",
        module=GOODPUT,
        old="                failure += random",
        new="                failure += self.restart + random",
    ),
    Fault(
        name="Daly's interval without its last term",
        module=GOODPUT,
        old="(1 + math.sqrt(ratio) / 3 + ratio / 9)",
        new="(1 + math.sqrt(ratio) / 3)",
    ),
    Fault(
        name="a checkpoint that may still be in memory",
        module=FOLDERS,
        old="            os.fsync(file.fileno())\n",
        new="",
    ),
    Fault(
        name="names in a checkpoint that are not on the disk",
        module=FOLDERS,
        old="        _sync(self._partial(step))  # the names of its files\n",
        new="",
    ),
    Fault(
        name="checkpoints sorted as text, so that step 12 is older than 9",
        module="suites.shared.step_folders",
        old="return sorted(int(step) for step in found if step.isdigit())",
        new="return [int(step) for step in sorted(found) if step.isdigit()]",
    ),
    Fault(
        name="a job's time counted from the first line, without the start of its processes",
        module="suites.fault_tolerance.programs.lost_time",
        old="begun = min(entry.since for entry in log)",
        new="begun = min(entry.at for entry in log)",
    ),
    Fault(
        name="repeated steps only if the attempt right before had done them",
        module=LOST_TIME,
        old="        done |= {entry.step",
        new="        done = {entry.step",
    ),
    Fault(
        name="the job's first mishap for every restart",
        module=LOST_TIME,
        old="next((entry for entry in before if entry.mishap), None)",
        new="next((entry for entry in log if entry.mishap), None)",
    ),
    Fault(
        name="nothing to repeat, counted from the clock's zero",
        module=LOST_TIME,
        old="max(again, default=resumed) - resumed",
        new="max(again, default=0.0) - resumed",
    ),
    Fault(
        name="goodput over what a job does after its last step",
        module=LOST_TIME,
        old='max(entry.at for entry in log if entry.event == "stepped")',
        new="max(entry.at for entry in log)",
    ),
    Fault(
        name="checkpoints that are never removed",
        module=FOLDERS,
        old="        for old in self.steps()[:-_KEPT]:\n            shutil.rmtree(self._whole(old))\n",
        new="",
    ),
    Fault(
        name="the last checkpoint alone is kept",
        module=FOLDERS,
        old="_KEPT = 2",
        new="_KEPT = 1",
    ),
    Fault(
        name="one mask of dropout for all ranks",
        module=TRAINING,
        old="torch.manual_seed(16 * training.seed + rank)",
        new="torch.manual_seed(16 * training.seed)",
    ),
    Fault(
        name="the loss is averaged, and gradients are summed",
        module=TRAINING,
        old="    flat /= dist.get_world_size(group)\n",
        new="    flat[0] /= dist.get_world_size(group)\n",
    ),
    Fault(
        name="momentum that dampens the gradient",
        module=TRAINING,
        old="moving.mul_(MOMENTUM).add_(gradient_of(parameter))",
        new="moving.lerp_(gradient_of(parameter), 1 - MOMENTUM)",
    ),
    Fault(
        name="a process's start read from the field before it",
        module=LOG,
        old="int(fields[19]) / os",
        new="int(fields[18]) / os",
    ),
    Fault(
        name="what a rank does counted from its process's start",
        module=LOG,
        old="        os.fsync(self._file)\n        self._since = since_boot()\n",
        new="        os.fsync(self._file)\n",
    ),
    Fault(
        name="a learning rate that begins anew after a restart",
        module=TRAINING,
        old="_update(network, velocity, LR / (1 + step))",
        new="_update(network, velocity, LR / (1 + step - first))",
    ),
    Fault(
        name="repeated steps of the last attempt alone",
        module=LOST_TIME,
        old='        done |= {entry.step for entry in before if entry.rank == 0 and entry.event == "stepped"}\n',
        new='        done = {entry.step for entry in before if entry.rank == 0 and entry.event == "stepped"}\n',
    ),
    Fault(
        name="a goodput that counts steps that were lost",
        module=LOST_TIME,
        old=(
            "    useful = sum(entry.at - entry.since for done in surviving(log).values() for entry in "
            "done if entry.rank == 0)\n"
        ),
        new=(
            '    useful = sum(entry.at - entry.since for entry in log if entry.event == "stepped" and '
            "entry.rank == 0)\n"
        ),
    ),
)
