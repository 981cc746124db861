"""Which variables a run may put back, and which it never touches."""

import pytest

from pytest_gpuperf.features.explaining.variables import KEPT, split_undoable


def test_variables_can_be_undone_and_versions_cannot() -> None:
    differs = {"driver": ("570.1", "580.1"), "CUBLAS_WORKSPACE_CONFIG": ("", ":8:8"), "NCCL_ALGO": ("Ring", "Tree")}
    tried, untried = split_undoable(differs)
    assert list(tried.items()) == [("NCCL_ALGO", ("Ring", "Tree")), ("CUBLAS_WORKSPACE_CONFIG", ("", ":8:8"))]
    assert untried == {}


@pytest.mark.parametrize("name", ["NCCL_NVLS_ENABLE", "NVSHMEM_DISABLE_NVLS", "TORCH_SYMM_MEM_DISABLE_MULTICAST"])
def test_what_keeps_multicast_off_stays(name: str) -> None:
    tried, untried = split_undoable({name: ("", "0"), "NCCL_ALGO": ("", "Tree")})
    assert list(tried) == ["NCCL_ALGO"]
    assert untried == {name: "it may keep NVLink multicast off on purpose, and on shared machines that is a policy"}


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "PATH"])
def test_what_the_driver_is_found_by_stays(name: str) -> None:
    tried, untried = split_undoable({name: ("/a", "/b")})
    assert tried == {}
    assert untried == {name: KEPT[name]}
