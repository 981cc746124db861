"""What the pytest process and the forkserver load, and what they leave alone."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import forkserver_client
from pytest_gpuperf.ranks.forkserver_client import PRELOAD, PRELOAD_IF_USED
from tests.ranks.conftest import Call
from tests.whole_run import environment


@pytest.mark.parametrize("module", ["pytest_gpuperf", "pytest_gpuperf.plugin", "pytest_gpuperf.ranks.forkserver"])
def test_importing_does_not_load_torch(module: str) -> None:
    source = f"import sys, {module}; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_forkserver_knows_no_pytest_of_its_own() -> None:
    source = "import sys, pytest_gpuperf.ranks.forkserver; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_rank_finds_everything_loaded_and_cuda_untouched(call: Call) -> None:
    preload = PRELOAD

    def program(ctx: Context) -> dict[str, Any]:
        return {
            "missing": [name for name in preload if name not in sys.modules],
            "initialised": torch.cuda.is_initialized(),
            "poisoned": torch.cuda._is_in_bad_fork(),
        }

    assert call(program) == [{"missing": [], "initialised": False, "poisoned": False}] * 2


def test_nothing_that_is_loaded_before_a_fork_starts_a_thread_or_cuda() -> None:
    source = (
        f"import importlib, os; [importlib.import_module(name) for name in {[*PRELOAD, *PRELOAD_IF_USED.values()]!r}];"
        "import torch; print(len(os.listdir('/proc/self/task')), torch.cuda.is_initialized(), flush=True);"
        "os.fork() or os._exit(print(torch.cuda._is_in_bad_fork(), flush=True) or 0); os.wait()"
    )
    environ = environment(**forkserver_client._FORKABLE)
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\nFalse\n"
