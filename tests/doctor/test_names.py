"""Names of variables: those that exist are known, those that nearly do are found."""

import re
from pathlib import Path

import pytest
import torch

from pytest_gpuperf.features.doctor import names


@pytest.mark.parametrize(
    "name", ["NCCL_ALGO", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_HOME"]
)
def test_real_names_exist(name: str) -> None:
    assert names.exists(name)


@pytest.mark.parametrize(
    "name", ["NCCL_VERSION", "NCCL_TESTS_SPLIT", "CUDA_CUDART_VERSION", "NCCL_INSPECTOR_ENABLE", "HOME"]
)
def test_names_of_others_are_left_alone(name: str) -> None:
    assert names.exists(name)


@pytest.mark.parametrize(
    ("wrong", "real"),
    [
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_MAX_CHANNELS", "NCCL_MAX_NCHANNELS"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_QUITE_ANOTHER_THING_AT_ALL", ""),
    ],
)
def test_the_nearest_name(wrong: str, real: str) -> None:
    assert names.find_nearest(wrong) == real
    assert wrong.islower() or not names.exists(wrong)


def test_what_took_an_old_names_place_exists() -> None:
    assert set(names.RETIRED.values()) <= names.KNOWN


def test_every_name_that_the_installed_torch_declares_is_known() -> None:
    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    text = "".join(path.read_text() for path in (*folder.glob("*NCCL*.hpp"), *folder.glob("FlightRecorder*.hpp")))
    declared = set(re.findall(r'"((?:TORCH_NCCL|TORCH_FR)_[A-Z0-9_]+)"', text))
    assert len(declared) > 20
    assert declared - names.KNOWN == set()
