"""What is pickled and read again, here or in another process, and the source of a module that only this one has."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from types import ModuleType
from typing import Any

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Channel, Parcel
from tests.whole_run import environment

MODULE = """
import enum
from dataclasses import dataclass

import torch

@dataclass
class Point:
    x: int

class Colour(enum.Enum):
    RED = 1

class OddError(ValueError):
    pass

def double(point):
    return Point(2 * point.x), Colour.RED, OddError("odd")

def add_one(tensor):
    return torch.ops.aten.add(tensor, 1).item()
"""


ELSEWHERE = """
import sys
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import Parcel
function, args = payload.loads(Parcel(sys.stdin.buffer.read()))
sys.stdout.buffer.write(payload.dumps(function(*args)).stream)
"""


def copied(obj: Any, *by_value: ModuleType) -> Any:
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        ours.send(None, payload.dumps(obj, by_value))
        return payload.loads(theirs.receive()[1])


def called_elsewhere(function: Callable[..., Any], *args: Any, by_value: ModuleType) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=payload.dumps((function, args), [by_value]).stream,
        env=environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        check=True,
    )
    return payload.loads(Parcel(done.stdout))
