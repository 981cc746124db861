"""Operations of DTensors along several dimensions, or ones counted from the end, with weights, steps and broadcasts."""

from __future__ import annotations

import torch
from torch.nn import functional

from suites.tensor_parallel.programs.wide_operations import Operations, numbers, whole

REDUCED: Operations = {
    "sum of two dimensions": lambda x: x.sum((0, -1)),
    "sum of all, which keep a place": lambda x: x.sum((0, 1, 2), keepdim=True),
    "sum of a sum": lambda x: x.sum().sum(),
    "mean of a mean": lambda x: x.mean().mean(0),
    "mean of two dimensions": lambda x: x.mean((-2, 0), keepdim=True),
    "mean in float64": lambda x: x.float().mean((1, 2), dtype=torch.float64),
    "maximum of two dimensions": lambda x: x.amax((0, 2)),
    "minimum of two dimensions": lambda x: x.amin((-1, -3), keepdim=True),
    "minimum from the end": lambda x: x.min(-1, keepdim=True).values,
    "variance of two dimensions": lambda x: x.var((0, 2), correction=0),
    "variance and mean": lambda x: torch.var_mean(x, (1, 2)),
    "deviation and mean": lambda x: torch.std_mean(x, -1),
    "place of the maximum from the end": lambda x: x.detach().argmax(-1, keepdim=True),
    "place of the minimum from the end": lambda x: x.detach().argmin(-2),
    "0-norm": lambda x: torch.linalg.vector_norm(x.detach().relu(), 0, (0, 2)),
    "0-norm of all": lambda x: torch.linalg.vector_norm(x.detach().relu(), 0),
    "0-norm of columns": lambda x: torch.linalg.vector_norm(x.detach().relu(), 0, -2, keepdim=True),
    "half-norm": lambda x: torch.linalg.vector_norm(x, 0.5, (1, 2)),
    "3-norm of two dimensions": lambda x: x.norm(3, (0, 2)),
    "2-norm that keeps places": lambda x: torch.linalg.vector_norm(x, 2, (0, 2), keepdim=True),
    "minimum norm of two dimensions": lambda x: torch.linalg.vector_norm(x, -torch.inf, (0, 1)),
    "log of exponentials of two dimensions": lambda x: x.logsumexp((0, -1)),
    "softmax from the end": lambda x: x.softmax(-1),
    "log of softmax from the end": lambda x: x.log_softmax(-2),
    "product from the end": lambda x: x.detach().prod(-1, keepdim=True),
    "any of all": lambda x: (x.detach() > 0.98).any(),
    "all from the end": lambda x: (x.detach() > -0.98).all(-1, keepdim=True),
    "any of two dimensions": lambda x: (x.detach() > 0.9).any((0, 2)),
    "smallest two": lambda x: x.topk(2, -1, largest=False).values,
    "sorted downwards": lambda x: x.sort(-2, descending=True).values,
    "places in order from the end": lambda x: x.detach().argsort(-1),
    "median from the end": lambda x: x.median(-1, keepdim=True).values,
    "of two scalars": lambda x: torch.stack([x.sum(), x.mean()]),
}

SHAPED: Operations = {
    "squeeze": lambda x: x[:, :1].squeeze() * 2,
    "squeeze of the first": lambda x: x[:1].squeeze() * 2,
    "squeeze of all": lambda x: x[:1, :1, :1].squeeze() * 2,
    "squeeze of what ranks have one of": lambda x: x.unflatten(1, (2, 3)).squeeze(1) * 2,
    "squeeze of all that ranks have one of": lambda x: x.unflatten(1, (2, 3)).squeeze() * 2,
    "squeeze of two": lambda x: x[:1, :, :1].squeeze((0, 2)) * 2,
    "squeeze from the end": lambda x: x.unsqueeze(-2).squeeze(-2) * 2,
    "unsqueeze from the end": lambda x: x.unsqueeze(-3) * 2,
    "a matrix of a scalar": lambda x: x.sum().view(1, 1) * 2,
    "a scalar of a matrix": lambda x: x.sum((1, 2), keepdim=True)[:1].view(()) * 2,
    "transpose of a vector": lambda x: x[0, 0].t() * 2,
    "transpose of a scalar": lambda x: x.sum().t() * 2,
    "transpose from the end": lambda x: x.transpose(-1, -3) * 2,
    "permute from the end": lambda x: x.permute(-1, 0, -2) * 2,
    "movedim of two": lambda x: x.movedim((0, 1), (-1, 0)) * 2,
    "expand as another": lambda x: x[:, :1].expand_as(x) * x,
    "expand along a new dimension": lambda x: x.expand(2, 4, 6, 5) * 2,
    "flip": lambda x: x.flip(0, -1),
    "off the diagonal": lambda x: x.diagonal(1, -2, -1) * 2,
    "in three": lambda x: x.tensor_split(3, -1),
    "at places": lambda x: x.tensor_split([1, 3], 1),
    "chunk from the end": lambda x: x.chunk(3, -2),
    "split from the end": lambda x: x.split([2, 3], -1),
    "unevenly split": lambda x: x.split(4, -2),
    "stack from the end": lambda x: torch.stack([x, x * 2], -1),
    "stack with a whole one": lambda x: torch.stack([numbers(x, 4, 6, 5).double(), x], 1),
    "cat with a whole one": lambda x: torch.cat([x, numbers(x, 4, 6, 5).double()], 1),
    "cat of a whole one with it": lambda x: torch.cat([numbers(x, 4, 6, 2).double(), x], -1),
    "cat with sums": lambda x: torch.cat([x.sum(0, keepdim=True), x, x.sum(0, keepdim=True) * 2], 0),
    "rows from the end": lambda x: x[-3:-1] * 2,
    "columns up to the end": lambda x: x[:, :-1] * 2,
    "each second column from the end": lambda x: x[:, -5::2] * 2,
    "more columns than there are": lambda x: x[:, 2:100] * 2,
    "each third": lambda x: x[..., 1::3] * 2,
    "no column": lambda x: x[:, 3:2] * 2,
    "a slice without a beginning": lambda x: torch.ops.aten.slice.Tensor(x, 1, None, 4) * 2,
    "a slice without an end": lambda x: torch.ops.aten.slice.Tensor(x, -1, None, None, 2) * 2,
    "two numbers": lambda x: x[1, ..., -1] * 2,
    "padding that cuts": lambda x: functional.pad(x, (-1, 1)),
    "padding of all": lambda x: functional.pad(x, (1, 0, 0, 1, 1, 1)),
}

INDEXED: Operations = {
    "gather from the end": lambda x: x.gather(-2, numbers(x, 4, 2, 5) % 6),
    "gather of one": lambda x: x.gather(1, numbers(x, 4, 1, 5) % 6) * 2,
    "gather of one from the end": lambda x: x.gather(-1, numbers(x, 4, 6, 1) % 5) * 2,
    "embedding of rows": lambda x: functional.embedding(numbers(x, 2, 3), x.detach()[0]) * 2,
    "gather of a vector": lambda x: x[0, 0].gather(0, numbers(x, 3) % 5),
    "index_select from the end": lambda x: x.index_select(-1, whole(x, [4, 0, 1, 1])),
    "indices from the end": lambda x: x[..., whole(x, [-1, 0, 2])],
    "a matrix of indices": lambda x: x[whole(x, [[2, 0], [1, 1]])],
    "a matrix of indices within": lambda x: x[:, whole(x, [[2, 0, 5]])],
    "indices that broadcast": lambda x: x[whole(x, [[2], [0]]), whole(x, [1, 3, 5])],
    "neighbouring indices": lambda x: x[:, whole(x, [1, 3]), whole(x, [0, 4])],
    "first and last indices": lambda x: x[whole(x, [1, 3]), :, whole(x, [0, 4])],
    "three indices": lambda x: x[whole(x, [1, 3]), whole(x, [0, 5]), whole(x, [0, 4])],
    "indices after a new dimension": lambda x: x[None, whole(x, [1, 3])],
    "scatter of numbers": lambda x: x.scatter(1, numbers(x, 4, 2, 5) % 2, numbers(x, 4, 2, 5).double()),
    "scatter of the first of more numbers": lambda x: x.scatter(
        1, numbers(x, 4, 2, 5) % 2, numbers(x, 6, 2, 7).double()
    ),
    "scatter_add from the end": lambda x: x.scatter_add(-1, numbers(x, 4, 6, 3) % 5, numbers(x, 4, 6, 3).double()),
    "index_put of one number": lambda x: x.detach().index_put((whole(x, [2, 0]),), whole(x, 7.0)),
    "index_put of one row": lambda x: x.detach().index_put((whole(x, [2, 0]),), numbers(x, 5).double()),
    "index_put of a column": lambda x: x.detach().index_put((whole(x, [2, 0]),), numbers(x, 1, 6, 1).double()),
    "index_put at two": lambda x: x.detach().index_put((whole(x, [0, 1]), whole(x, [2, 0])), numbers(x, 2, 5).double()),
    "a mask that broadcasts": lambda x: x.masked_fill(numbers(x, 6, 1) % 3 == 0, 3.0),
    "a mask of the last dimension": lambda x: x.masked_fill(numbers(x, 5) % 3 == 0, whole(x, 3.0)),
    "where of a number": lambda x: torch.where(numbers(x, 4, 1, 5) % 3 == 0, x, 2.0),
    "where of one column": lambda x: torch.where(x[:, :1] > 0, x, numbers(x, 6, 1).double()),
    "index_add with a factor": lambda x: x.index_add(-1, whole(x, [2, 0]), numbers(x, 4, 6, 2).double(), alpha=2.0),
    "select_scatter from the end": lambda x: x.detach().select_scatter(x.detach().select(-1, 0) * 2, -1, -2),
    "slice_scatter with steps": lambda x: x.detach().slice_scatter(x.detach()[:, :2] * 2, 1, 1, 5, 2),
    "slice_scatter to the end": lambda x: x.detach().slice_scatter(x.detach()[..., :2] * 2, -1, -2, None),
}

MULTIPLIED: Operations = {
    "matrices times a matrix": lambda x: x @ numbers(x, 5, 2).double(),
    "a matrix times matrices": lambda x: x[0] @ x.mT,
    "matrices times a vector": lambda x: x @ numbers(x, 5).double(),
    "a vector times matrices": lambda x: numbers(x, 6).double() @ x,
    "matrices that broadcast": lambda x: x[:, None] @ x.mT[None, :1],
    "addmm with a column": lambda x: torch.addmm(x[0, :, :1], x[1], x[2].T, beta=2.0),
    "addmm with one number": lambda x: torch.addmm(x[0, :1, :1], x[1], x[2].T),
    "addmm with a scalar": lambda x: torch.addmm(x.sum(), x[1], x[2].T),
    "addmv": lambda x: torch.addmv(x[0, :, 0], x[1], x[2, 0], beta=3.0),
    "baddbmm with one number": lambda x: torch.baddbmm(x[:1, :1, :1], x, x.mT),
    "einsum of all": lambda x: torch.einsum("abc,abc->", x, x * 2),
    "einsum without a sum": lambda x: torch.einsum("abc,d->abdc", x, numbers(x, 2).double()),
    "einsum of numbers one by one": lambda x: torch.einsum("abc,abc->abc", x, x * 2),
    "solution of a factored system": lambda x: torch.cholesky_solve(
        x.detach()[..., :2], torch.linalg.cholesky(x.detach().bmm(x.detach().mT) + 3 * whole(x, torch.eye(6).tolist()))
    ),
    "tensordot": lambda x: torch.tensordot(x, x, ([0, 2], [0, 2])),
    "linear of a vector": lambda x: functional.linear(x[0, 0], numbers(x, 3, 5).double(), numbers(x, 3).double()),
}

WEIGHED: Operations = {
    "norm without a weight": lambda x: functional.rms_norm(x, (5,)),
    "layer norm with weights of columns": lambda x: functional.layer_norm(x, (6, 5), 1 + numbers(x, 6, 5).double()),
    "layer norm with a bias": lambda x: functional.layer_norm(x, (5,), None, numbers(x, 5).double(), eps=0.5),
    "layer norm with its own weights": lambda x: functional.layer_norm(x, (5,), x[0, 0], x[1, 0]),
    "batch norm with weights": lambda x: functional.batch_norm(
        x, None, None, 1 + numbers(x, 6).double(), numbers(x, 6).double(), training=True
    ),
    "batch norm of statistics": lambda x: functional.batch_norm(
        x, numbers(x, 6).double() / 9, 1 + numbers(x, 6).double(), training=False
    ),
    "weighed loss": lambda x: functional.nll_loss(
        x.log_softmax(1), numbers(x, 4, 5) % 6, 1 + numbers(x, 6).double(), reduction="sum", ignore_index=2
    ),
    "weighed loss of each": lambda x: functional.nll_loss(
        x.log_softmax(1), numbers(x, 4, 5) % 6, 1 + numbers(x, 6).double(), reduction="none", ignore_index=2
    ),
    "weighed loss of matrices": lambda x: functional.cross_entropy(
        x.unsqueeze(-1), numbers(x, 4, 5, 1) % 6, 1 + numbers(x, 6).double(), reduction="sum"
    ),
    "loss of a token": lambda x: functional.cross_entropy(x[0, 0], whole(x, 3), 1 + numbers(x, 5).double()),
    "minus the mean": lambda x: x - x.mean(0),
    "at least the mean": lambda x: torch.maximum(x, x.mean(-1, keepdim=True)),
    "times its first column": lambda x: x * x[:, :1],
    "plus its last numbers": lambda x: torch.add(x, x[..., -1:], alpha=3.0),
    "times its sum": lambda x: x * x.sum(),
    "clamp by tensors": lambda x: x.clamp(x * 0 - 0.3, numbers(x, 5).double() / 9),
    "times what is sliced": lambda x: torch.cat([x, x], 1).softmax(1)[:, 3:9] * x,
    "times what is selected": lambda x: torch.stack([x, x * 2], 1).softmax(2)[:, 1] * x,
    "sums that are equal": lambda x: whole(x, [int(torch.equal(*(_counts(y).sum((1, 2)) for y in (x, x.flip(1, 2)))))]),
    "equal scalars": lambda x: whole(
        x, [int(torch.equal(_counts(x).sum(), _counts(x.flip(1, 2)).sum() + n)) for n in (0, 1)]
    ),
    "mean of neighbours without a batch": lambda x: functional.avg_pool2d(x.detach(), 2),
    "maximum of neighbours without a batch": lambda x: functional.max_pool2d(x.detach(), 2),
    "list with another list": lambda x: torch._foreach_add([x, x[:1]], [x * 3, x[1:2] * 4], alpha=2),
    "list with quotients": lambda x: torch._foreach_addcmul([x, x], [x, x * 2], [x + 3, x + 4], 0.5),
    "list of 0-norms": lambda x: torch.stack(torch._foreach_norm([x.detach(), x.detach() * 2], 0)),
    "norm of a list": lambda x: torch.nn.utils.get_total_norm([x, x[0] * 2], 3.0),
    "maximum norm of a list": lambda x: torch.nn.utils.get_total_norm([x, x[0] * 2], torch.inf),
}


def _counts(x: torch.Tensor) -> torch.Tensor:
    """Whole numbers, whose sums are exact: another order of them is the same."""
    return (x.detach() * 60).round()


def _in_place(x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that are changed in place, some by a tensor that broadcasts or that all ranks have."""
    made = [x.detach().clone() for _ in range(6)]
    made[0].add_(x.detach(), alpha=2).mul_(x.detach()[:1]).clamp_(max=0.5)
    made[1].copy_(numbers(x, 4, 6, 5)).lerp_(x.detach(), 0.25)
    made[2].copy_(x.detach()[..., 2:3]).addcdiv_(x.detach(), x.detach() + 3, value=0.5)
    made[3].masked_fill_(numbers(x, 6, 1) % 3 == 0, 3.0).sub_(x.detach().mean(0))
    torch._foreach_mul_(made[4:], 3.0)
    torch._foreach_lerp_(made[4:], [x.detach(), x.detach() * 2], 0.25)
    return made


def _into(x: torch.Tensor) -> list[torch.Tensor]:
    """Results that are written into tensors which are there already."""
    own, some = x.detach(), [torch.empty_like(x.detach()) for _ in range(2)]
    torch.add(own, own * 2, out=some[0])
    torch.mul(own, own[:1], out=some[1])
    columns = own[:, 0] * 1
    torch.sum(own, 1, out=columns)
    products = own.new_zeros(4, 6, 6)
    torch.bmm(own, own.mT, out=products)
    return [*some, columns, products]


OPERATIONS: Operations = {
    **REDUCED,
    **SHAPED,
    **INDEXED,
    **MULTIPLIED,
    **WEIGHED,
    "in place": _in_place,
    "into what is there": _into,
}
