"""Counts false alarms of the parity fixture over right programs.

    pytest benchmarks/parity/sweep.py -q                      # every configuration with 2 seeds
    PARITY_SEEDS=0:13 PARITY_RESULTS=out.jsonl pytest ...     # seeds 0 to 12; a line of JSON for each run

    pytest benchmarks/parity/sweep.py --gpus 2 -q             # those on 2 ranks, and those that need GPUs

A test fails if the right program is accused. The lines have the slack and the seconds of each run.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.parity.models import Setup, reference
from benchmarks.parity.programs import program
from pytest_gpuperf import Parity

_FIRST, _, _LAST = os.environ.get("PARITY_SEEDS", "0:2").partition(":")
SEEDS = range(int(_FIRST), int(_LAST))

_MLP, _LM = Setup(), Setup(model="language")
SETUPS: dict[str, Setup] = {
    "ddp mlp sgd 1": replace(_MLP, steps=1),
    "ddp mlp sgd 10": replace(_MLP, steps=10),
    "ddp mlp momentum 5": replace(_MLP, steps=5, optimizer="momentum"),
    "ddp mlp adamw 10": replace(_MLP, steps=10, optimizer="adamw"),
    "ddp mlp adam 3, float64": replace(_MLP, steps=3, optimizer="adam", dtype=torch.float64),
    "ddp conv sgd 3": replace(_MLP, model="conv", steps=3),
    "ddp conv adamw 3": replace(_MLP, model="conv", steps=3, optimizer="adamw"),
    "ddp language sgd 3": replace(_LM, steps=3),
    "ddp language adamw 5": replace(_LM, steps=5, optimizer="adamw"),
    "ddp language adamw 3, 4 ranks": replace(_LM, steps=3, optimizer="adamw", world=4),
    "ddp accumulate 4 mlp adamw 3": replace(_MLP, steps=3, optimizer="adamw", microbatches=4),
    "ddp accumulate 2 language sgd 2": replace(_LM, microbatches=2),
    "ddp clip mlp adamw 3": replace(_MLP, steps=3, optimizer="adamw", clip=0.1),
    "ddp clip language sgd 2": replace(_LM, clip=0.5),
    "ddp bf16 mlp sgd 3": replace(_MLP, steps=3, dtype=torch.bfloat16),
    "ddp bf16 language adamw 2": replace(_LM, optimizer="adamw", dtype=torch.bfloat16),
    "ddp autocast mlp sgd 3": replace(_MLP, steps=3, autocast=True),
    "ddp autocast language adamw 2": replace(_LM, optimizer="adamw", autocast=True),
    "ddp checkpointed mlp sgd 2": replace(_MLP, checkpointed=True),
    "ddp compiled mlp adamw 2": replace(_MLP, optimizer="adamw", compiled=True),
    "ddp other sums mlp sgd 3": replace(_MLP, steps=3, split_sums=True),
    "ddp other sums language adamw 3": replace(_LM, steps=3, optimizer="adamw", split_sums=True),
    "ddp uneven mlp sgd 3": replace(_MLP, steps=3, uneven=True),
    "ddp uneven padded language adamw 2": replace(_LM, optimizer="adamw", uneven=True, padded=True),
    "ddp padded mlp sgd 3": replace(_MLP, steps=3, padded=True),
    "zero mlp adamw 3": replace(_MLP, parallel="zero", steps=3, optimizer="adamw"),
    "fsdp mlp sgd 3": replace(_MLP, parallel="fsdp", steps=3),
    "fsdp language adamw 3": replace(_LM, parallel="fsdp", steps=3, optimizer="adamw"),
    "fsdp accumulate 2 language sgd 2": replace(_LM, parallel="fsdp", microbatches=2),
    "fsdp mixed mlp adamw 2": replace(_MLP, parallel="fsdp", optimizer="adamw", mixed=True),
    "fsdp mixed language sgd 2": replace(_LM, parallel="fsdp", mixed=True),
    "fsdp clip language adamw 2": replace(_LM, parallel="fsdp", optimizer="adamw", clip=0.5),
    "hsdp 2x2 mlp adamw 3": replace(_MLP, parallel="hsdp", steps=3, optimizer="adamw", world=4),
    "hsdp 2x2 padded language sgd 2": replace(_LM, parallel="hsdp", world=4, padded=True),
    "tp mlp adamw 3": replace(_MLP, parallel="tp", steps=3, optimizer="adamw"),
    "tp language sgd 3": replace(_LM, parallel="tp", steps=3),
    "tp language adamw 4": replace(_LM, parallel="tp", steps=4, optimizer="adamw"),
    "sp language adamw 3": replace(_LM, parallel="sp", steps=3, optimizer="adamw"),
    "fsdp x tp language adamw 3": replace(_LM, parallel="fsdp_tp", steps=3, optimizer="adamw", world=4),
    "fsdp x tp mlp sgd 3": replace(_MLP, parallel="fsdp_tp", steps=3, world=4),
    "by hand mlp sgd 5": replace(_MLP, parallel="hand", steps=5),
    "by hand mlp adamw 3, 4 ranks": replace(_MLP, parallel="hand", steps=3, optimizer="adamw", world=4),
    "ring language sgd 2": replace(_LM, parallel="ring"),
    "ring padded language adamw 3, 4 ranks": replace(
        _LM, parallel="ring", steps=3, optimizer="adamw", world=4, padded=True
    ),
    "pipeline 1f1b language sgd 3": replace(_LM, parallel="pipeline", steps=3, microbatches=4),
    "pipeline gpipe language adamw 2": replace(_LM, parallel="pipeline", optimizer="adamw", microbatches=2, clip=-1),
    "names ddp mlp adamw 5": replace(_MLP, steps=5, optimizer="adamw", by_names=True),
    "names ddp padded language sgd 3": replace(_LM, steps=3, padded=True, by_names=True),
    "names fsdp language adamw 2": replace(_LM, parallel="fsdp", optimizer="adamw", by_names=True),
    "names by hand mlp sgd 3": replace(_MLP, parallel="hand", steps=3, by_names=True),
    # Models and optimizers that no tolerance was tuned on.
    "ddp vision sgd 3": replace(_MLP, model="vision", steps=3),
    "ddp vision rmsprop 3": replace(_MLP, model="vision", steps=3, optimizer="rmsprop"),
    "ddp recurrent sgd 3": replace(_MLP, model="recurrent", steps=3),
    "ddp recurrent padded nadam 3": replace(_MLP, model="recurrent", steps=3, optimizer="nadam", padded=True),
    "ddp mixture adamw 3": replace(_MLP, model="mixture", steps=3, optimizer="adamw"),
    "ddp mixture momentum 3, 4 ranks": replace(_MLP, model="mixture", steps=3, optimizer="momentum", world=4),
    "ddp deep adamax 3": replace(_MLP, model="deep", steps=3, optimizer="adamax"),
    "ddp deep accumulate 2 adagrad 3": replace(_MLP, model="deep", steps=3, optimizer="adagrad", microbatches=2),
    "ddp deep bf16 sgd 2": replace(_MLP, model="deep", dtype=torch.bfloat16),
    "ddp recurrent autocast adamw 2": replace(_MLP, model="recurrent", optimizer="adamw", autocast=True),
    "fsdp vision amsgrad 3": replace(_MLP, model="vision", parallel="fsdp", steps=3, optimizer="amsgrad"),
    "fsdp deep adamw 3": replace(_MLP, model="deep", parallel="fsdp", steps=3, optimizer="adamw"),
    "fsdp mixture rmsprop 2": replace(_MLP, model="mixture", parallel="fsdp", optimizer="rmsprop"),
    "fsdp mixed deep adamw 2": replace(_MLP, model="deep", parallel="fsdp", optimizer="adamw", mixed=True),
    "hsdp 2x2 deep nadam 2": replace(_MLP, model="deep", parallel="hsdp", optimizer="nadam", world=4),
    "tp mlp rmsprop 3": replace(_MLP, parallel="tp", steps=3, optimizer="rmsprop"),
    "fsdp x tp language adamax 2": replace(_LM, parallel="fsdp_tp", optimizer="adamax", world=4),
    "names ddp vision adagrad 3": replace(_MLP, model="vision", steps=3, optimizer="adagrad", by_names=True),
    "names ddp deep nadam 3": replace(_MLP, model="deep", steps=3, optimizer="nadam", by_names=True),
    "zero deep adamw 2": replace(_MLP, model="deep", parallel="zero", optimizer="adamw"),
}

# Precisions and kernels that only GPUs have.
ON_GPUS: dict[str, Setup] = {
    "ddp tf32 mlp sgd 3": replace(_MLP, steps=3, tf32=True),
    "ddp tf32 language adamw 3": replace(_LM, steps=3, optimizer="adamw", tf32=True),
    "ddp tf32 conv momentum 3": replace(_MLP, model="conv", steps=3, optimizer="momentum", tf32=True),
    "fsdp tf32 deep adamw 3": replace(_MLP, model="deep", parallel="fsdp", steps=3, optimizer="adamw", tf32=True),
    "tp tf32 language sgd 3": replace(_LM, parallel="tp", steps=3, tf32=True),
    "ddp flash bf16 language sgd 3": replace(_LM, steps=3, dtype=torch.bfloat16, flash=True),
    "ddp flash bf16 language adamw 2": replace(_LM, optimizer="adamw", dtype=torch.bfloat16, flash=True),
    "ddp flash autocast language adamw 3": replace(_LM, steps=3, optimizer="adamw", autocast=True, flash=True),
    "fsdp flash mixed language adamw 3": replace(
        _LM, parallel="fsdp", steps=3, optimizer="adamw", mixed=True, flash=True
    ),
    "fsdp flash mixed language sgd 2": replace(_LM, parallel="fsdp", mixed=True, flash=True),
    "tp flash bf16 language adamw 2": replace(_LM, parallel="tp", optimizer="adamw", dtype=torch.bfloat16, flash=True),
    "sp flash bf16 language sgd 2": replace(_LM, parallel="sp", dtype=torch.bfloat16, flash=True),
}


def _check(parity: Parity, name: str, seed: int) -> None:
    asked = {**SETUPS, **ON_GPUS}[name]
    setup = replace(asked, clip=max(0.0, asked.clip))
    report = parity.report(lambda: reference(setup, seed), program, asked, seed, microbatches=setup.microbatches)
    if results := os.environ.get("PARITY_RESULTS"):
        line = {
            "setup": name,
            "seed": seed,
            "ok": report.ok,
            "slack": report.slack,
            "strain": report.strain,
            "undecided": len(report.verdict.undecided),
            "tensors": len(report.verdict.judged),
            "seconds": report.seconds,
            "text": str(report),
        }
        with Path(results).open("a") as file:
            file.write(json.dumps(line) + "\n")
    assert report.ok, str(report)


@pytest.mark.ranks(2, timeout=120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, setup in SETUPS.items() if setup.world == 2])
def test_right_on_2_ranks(parity: Parity, name: str, seed: int) -> None:
    """No tensor of a right program on 2 ranks is accused."""
    _check(parity, name, seed)


@pytest.mark.ranks(4, timeout=120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name, setup in SETUPS.items() if setup.world == 4])
def test_right_on_4_ranks(parity: Parity, name: str, seed: int) -> None:
    """No tensor of a right program on 4 ranks is accused."""
    _check(parity, name, seed)


@pytest.mark.ranks(2, device="cuda", timeout=120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ON_GPUS)
def test_right_on_gpus(parity: Parity, name: str, seed: int) -> None:
    """No tensor of a right program that uses what only GPUs have is accused."""
    _check(parity, name, seed)
