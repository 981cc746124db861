"""Tensors that are pickled arrive as they were, with no more than their own bytes."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.channel import LARGE
from tests.ranks.travelling import copied


def test_what_is_large_stays_where_it_lies() -> None:
    small, large = torch.zeros(LARGE // 4 - 1), torch.zeros(LARGE // 4)
    data = payload.dumps((small, large))
    (buffer,) = data.buffers
    assert isinstance(buffer, pickle.PickleBuffer)
    assert buffer.raw().nbytes == LARGE
    large[0] = 7  # which a copy would not show
    assert payload.loads(data)[1][0] == 7


def test_a_parameter_keeps_what_marks_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.sequence_parallel = True  # type: ignore[attr-defined]
    parameter.hook = lambda: None  # type: ignore[attr-defined]
    found = copied({"weight": parameter})["weight"]
    assert (type(found), found.sequence_parallel) == (torch.nn.Parameter, True)
    assert not hasattr(found, "hook")


def test_a_view_carries_only_its_own_bytes() -> None:
    whole = torch.arange(1_000_000)
    data = payload.dumps(whole[10:14])
    assert len(data.stream) < 10_000
    assert not data.buffers
    assert torch.equal(payload.loads(data), torch.arange(10, 14))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.5], dtype=torch.float16),
        torch.tensor([1.5], dtype=torch.float32).to(torch.float8_e4m3fn),
        torch.tensor([1, 2], dtype=torch.uint16),
        torch.tensor([True, False]),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(1).expand(4),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
    ],
    ids=["bfloat16", "float16", "float8", "uint16", "bool", "scalar", "empty", "transposed", "expanded", "conj", "neg"],
)
def test_a_tensor_arrives_with_dtype_shape_and_values(tensor: torch.Tensor) -> None:
    arrived = copied({"nested": [tensor]})["nested"][0]
    assert arrived.dtype == tensor.dtype
    assert arrived.shape == tensor.shape
    assert arrived.tolist() == tensor.tolist()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch 2.11, whatever the tensor
def test_a_sparse_tensor_arrives() -> None:
    sparse = torch.eye(3).to_sparse()
    arrived = copied(sparse)
    assert arrived.layout == torch.sparse_coo
    assert torch.equal(arrived.to_dense(), torch.eye(3))


def test_one_tensor_named_twice_stays_one_tensor() -> None:
    tensor = torch.ones(2)
    first, second = copied([tensor, tensor])
    assert first is second


def test_a_result_arrives_detached() -> None:
    leaf = torch.ones(2, requires_grad=True)
    arrived = copied(leaf * 2)
    assert arrived.tolist() == [2.0, 2.0]
    assert not arrived.requires_grad
    assert arrived.grad_fn is None


def test_a_leaf_that_asks_for_its_gradient_still_does() -> None:
    arrived = copied(torch.ones(2, requires_grad=True))
    assert arrived.requires_grad
    assert arrived.is_leaf


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_stays_a_parameter(requires_grad: bool) -> None:
    arrived = copied(torch.nn.Parameter(torch.arange(8.0)[2:4], requires_grad=requires_grad))
    assert type(arrived) is torch.nn.Parameter
    assert arrived.requires_grad is requires_grad
    assert arrived.tolist() == [2.0, 3.0]


def test_a_module_keeps_its_parameters() -> None:
    layer = torch.nn.Linear(2, 3)
    arrived = copied(layer)
    assert torch.equal(arrived.weight, layer.weight)
    assert [name for name, _ in arrived.named_parameters()] == ["weight", "bias"]


def test_a_dtensor_cannot_leave_its_process_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = DTensor.from_local(torch.ones(2, 3), init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError) as caught:
            payload.dumps({"out": tensor})
    finally:
        dist.destroy_process_group()
    assert str(caught.value) == (
        "a DTensor of shape (2, 3) belongs to its process group and cannot leave the rank: return .to_local() or "
        ".full_tensor()"
    )
