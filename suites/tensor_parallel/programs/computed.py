"""Operations of DTensors that compute: orders, products of matrices, norms, losses and lists of tensors."""

from __future__ import annotations

import torch
from torch.nn import functional

from suites.tensor_parallel.programs.wide_operations import Operations, numbers, whole

ORDERED: Operations = {
    "running maximum": lambda x: x.detach().cummax(1).values,
    "running minimum": lambda x: x.detach().cummin(0).values,
    "running product": lambda x: x.detach().cumprod(2),
    "second smallest": lambda x: x.kthvalue(2, 1).values,
    "median": lambda x: x.median(0).values,
    "median of all": lambda x: x.median(),
    "maximum": lambda x: x.max(1).values,
    "place of the minimum": lambda x: x.detach().min(0).indices,
    "place of the maximum of all": lambda x: x.detach().argmax(),
    "place of the minimum of all": lambda x: x.detach().argmin(keepdim=True),
    "maximum of all": lambda x: x.max(),
    "stable sort": lambda x: x.sort(stable=True, dim=1).values,
    "places in order": lambda x: x.detach().sort(dim=2, descending=True).indices,
    "places of the largest": lambda x: x.detach().topk(2, 1).indices,
    "product": lambda x: x.detach().prod(1),
    "all": lambda x: (x.detach() > -9).all(),
    "any": lambda x: (x.detach() > 0.9).any(2),
    "equal": lambda x: whole(x, [int(torch.equal(x, x * 1)), int(torch.equal(x, x.clamp(max=0.97)))]),
    "count": lambda x: (x.detach() > 0.2).sum(),
    "mean of all": lambda x: x.mean(),
    "variance of all": lambda x: x.var(),
    "sum of numbers": lambda x: x.nansum(1),
    "bucketize": lambda x: torch.bucketize(x.detach(), whole(x, [-0.5, 0.0, 0.5])),
    "histogram": lambda x: torch.histc(x.detach(), 5, -1, 1),
    "a class in a row of zeros": lambda x: functional.one_hot(x.detach().argmax(1), 6),
}

MULTIPLIED: Operations = {
    "einsum over two dimensions": lambda x: torch.einsum("abc,abd->cd", x, x),
    "einsum with a matrix": lambda x: torch.einsum("abc,cd->abd", x, numbers(x, 5, 2).double()),
    "bmm": lambda x: x.bmm(x.transpose(1, 2)),
    "baddbmm": lambda x: torch.baddbmm(x[..., :1], x, x.transpose(1, 2), beta=2.0, alpha=0.5),
    "addmm": lambda x: torch.addmm(x[0, 0], x[0], x[1].T @ x[2], beta=2.0, alpha=0.5),
    "mm": lambda x: x[0].mm(x[1].T),
    "dot": lambda x: x[0, 0].dot(x[1, 0]),
    "mv": lambda x: x[0].mv(x[1, 0]),
    "outer": lambda x: torch.outer(x[0, 0], x[1, 0]),
    "linear": lambda x: functional.linear(x, numbers(x, 3, 5).double(), numbers(x, 3).double()),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 3:], dim=1),
    "inverse": lambda x: torch.linalg.inv(x[:, :5] + 3 * _unit(x, 5)),
    "solve": lambda x: torch.linalg.solve(x[:, :5] + 3 * _unit(x, 5), x[:, 5:].transpose(1, 2)),
    "cholesky": lambda x: torch.linalg.cholesky(x.bmm(x.transpose(1, 2)) + 3 * _unit(x, 6)),
    "singular values": lambda x: torch.linalg.svdvals(x.detach()),
    "pseudoinverse": lambda x: torch.linalg.pinv(x.detach()),
}

NORMED: Operations = {
    "norm of all": lambda x: x.norm(),
    "norm of matrices": lambda x: torch.linalg.matrix_norm(x),
    "distance": lambda x: torch.dist(x, x * 2, 3),
    "root mean square norm": lambda x: functional.rms_norm(x, (5,), 1 + numbers(x, 5).double()),
    "layer norm of matrices": lambda x: functional.layer_norm(x, (6, 5)),
    "layer norm": lambda x: functional.layer_norm(x, (5,), 1 + numbers(x, 5).double(), numbers(x, 5).double()),
    "group norm": lambda x: functional.group_norm(x.detach(), 3, 1 + numbers(x, 6).double(), numbers(x, 6).double()),
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "instance norm": lambda x: functional.instance_norm(x),
    "mean of neighbours": lambda x: functional.avg_pool1d(x.detach(), 2),
    "maximum of neighbours": lambda x: functional.max_pool1d(x.detach(), 2),
    "linear interpolation": lambda x: functional.interpolate(x, 10, mode="linear"),
    "loss of classes": lambda x: functional.nll_loss(x[..., :4].log_softmax(1), numbers(x, 4, 4) % 6),
    "loss of each": lambda x: functional.nll_loss(
        x[..., :4].log_softmax(1), numbers(x, 4, 4) % 6, reduction="none", ignore_index=2
    ),
    "smoothed loss": lambda x: functional.cross_entropy(
        x[..., :4], numbers(x, 4, 4) % 6, reduction="sum", label_smoothing=0.1
    ),
}

ELEMENTWISE: Operations = {
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "lerp": lambda x: x.lerp(x * x, 0.3),
    "addcmul": lambda x: x.addcmul(x, x, value=2.0),
    "addcdiv": lambda x: x.addcdiv(x, x.abs() + 1, value=2.0),
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": lambda x: functional.silu(x),
    "gated": lambda x: functional.glu(x, 1),
    "another precision": lambda x: x.to(torch.float32) / 4,
    "filled as": lambda x: torch.full_like(x.detach(), 2.0) + x,
    "norms of a list": lambda x: torch.stack(torch._foreach_norm([x, x * 2])),
    "3-norms of a list": lambda x: torch.stack(torch._foreach_norm([x, x * 2], 3)),
    "maxima of a list": lambda x: torch.stack(torch._foreach_max([x.detach(), x.detach() * 2])),
    "products of a list": lambda x: torch._foreach_mul([x, x * 2], 3.0),
    "Fourier transform": lambda x: torch.view_as_real(torch.fft.rfft(x, dim=2)),
    "Fourier transform of columns": lambda x: torch.fft.fft(x, dim=1).real,
    "complex numbers": lambda x: torch.view_as_complex(x[..., :2].contiguous()).abs(),
}

OPERATIONS: Operations = ORDERED | MULTIPLIED | NORMED | ELEMENTWISE


def _unit(x: torch.Tensor, size: int) -> torch.Tensor:
    return whole(x, torch.eye(size).tolist())
