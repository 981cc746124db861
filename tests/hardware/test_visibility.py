"""CUDA_VISIBLE_DEVICES by CUDA's rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.hardware.device import HardwareError
from pytest_gpuperf.hardware.visibility import list_visible_indices

UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        pytest.param(None, (0, 1, 2), id="unset"),
        pytest.param("", (), id="empty"),
        pytest.param("-1", (), id="minus-one"),
        pytest.param("NoDevFiles", (), id="word"),
        pytest.param("2,0", (2, 0), id="order"),
        pytest.param(" 1 , 2 ", (1, 2), id="spaces"),
        pytest.param("1gpu,2", (1, 2), id="strtoul"),
        pytest.param("0,-1,2", (0,), id="minus-one-ends"),
        pytest.param("0,3,1", (0,), id="beyond-the-last-ends"),
        pytest.param("0,,1", (0,), id="gap-ends"),
        pytest.param("0,GPU-bb33", (0,), id="uuid-among-indices-ends"),
        pytest.param("GPU-bb33,GPU-aa11", (2, 0), id="uuids"),
        pytest.param("GPU-b,GPU-aa2", (2, 1), id="prefixes"),
        pytest.param("GPU-bb33,GPU-aa", (2,), id="ambiguous-ends"),
        pytest.param("GPU-zz,GPU-bb33", (), id="unknown-ends"),
        pytest.param("GPU-bb33,0", (2,), id="index-among-uuids-ends"),
        pytest.param("0,-1,MIG-1", (0,), id="mig-after-the-end"),
    ],
)
def test_visible_indices_follow_cudas_rule(visible: str | None, indices: tuple[int, ...]) -> None:
    assert list_visible_indices(visible, UUIDS) == indices


@given(st.text(alphabet="0123-,GPUaMIb ", max_size=20))
def test_any_list_gives_distinct_gpus_or_a_named_error(visible: str) -> None:
    try:
        indices = list_visible_indices(visible, UUIDS)
    except HardwareError as error:
        assert repr(visible) in str(error)  # noqa: PT017
    else:
        assert len(set(indices)) == len(indices)
        assert set(indices) <= {0, 1, 2}


@pytest.mark.parametrize("visible", ["1,1", "GPU-bb33,GPU-b"])
def test_a_gpu_named_twice_is_refused(visible: str) -> None:
    with pytest.raises(HardwareError, match=rf"='{visible}' names GPU \d twice, expected each once .*: remove the"):
        list_visible_indices(visible, UUIDS)


@pytest.mark.parametrize("visible", ["MIG-1", "0,MIG-1"])
def test_a_mig_slice_is_refused(visible: str) -> None:
    with pytest.raises(HardwareError, match=r"names the MIG slice 'MIG-1', expected whole GPUs, .*nvidia-smi -mig 0"):
        list_visible_indices(visible, UUIDS)
