#!/bin/bash
# Slurm's Prolog or HealthCheckProgram: drains this node if it is not fit, and says why in the node's reason.
# A Prolog that fails also makes Slurm requeue the job.
output=$(python -m pytest_gpuperf accept --quick --gpus "${GPUS:-8}" 2>&1) && exit 0
reason=$(grep --max-count=1 --extended-regexp '^(unfit|error:)' <<< "$output" || echo "accept did not end")
scontrol update nodename="$(hostname -s)" state=drain reason="gpuperf: $reason"
exit 1
