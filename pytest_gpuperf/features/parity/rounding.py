"""Runs operations with their rounding made random, which shows how far rounding moves a result."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_gpuperf.features.parity.dispatch_internals import OperationsMode, map_nested
from pytest_gpuperf.features.parity.long_sums import MATRIX_PRODUCTS, compute_addend_error, compute_result_error
from pytest_gpuperf.features.parity.products import EXACT, Products

AMPLITUDE = 4.0
"""How many unit roundoffs an operation's result moves at most, unless it is a long sum. It is the safety factor of all
tolerances. It lies inside the perturbation, so that results which are not linear in it (the sign in Adam, a route near
a tie) show it."""

# These only move or choose numbers, so nothing is rounded.
_MOVES = frozenset(
    """abs amax arange argmax argmin bernoulli bernoulli_ cat clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_
    clone constant_pad_nd copy copy_ detach embedding embedding_renorm_ empty empty_like empty_strided exponential_ eye
    fill fill_ flip full full_like gather index index_select isnan lift_fresh masked_fill masked_fill_ max maximum min
    minimum multinomial nan_to_num native_dropout ne neg new_empty new_empty_strided new_full new_ones new_zeros normal
    normal_ one_hot ones ones_like rand rand_like randint randn randn_like random_ randperm relu relu_ repeat resize_
    roll scalar_tensor scatter scatter_ select_backward select_scatter set_ sign slice_backward slice_scatter sort
    stack threshold_backward topk tril triu unbind_copy uniform uniform_ unique_dim where zero_ zeros zeros_like
    _foreach_copy_ _foreach_zero_ _local_scalar_dense _to_copy _unique2 _unsafe_view _reshape_alias""".split()  # noqa: SIM905
)
# These add up many numbers: what cancels inside shows only if their inputs move too.
_SUMS = frozenset(
    """addbmm addmm addmv baddbmm bmm convolution convolution_backward cumsum dot embedding_dense_backward index_add
    linear linear_backward logsumexp mean mm mv native_batch_norm native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward nll_loss_forward scatter_add sum var var_mean
    linalg_vector_norm index_put _efficient_attention_forward _efficient_attention_backward _flash_attention_forward
    _flash_attention_backward _foreach_norm _fused_rms_norm _fused_rms_norm_backward _log_softmax _softmax
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward""".split()  # noqa: SIM905
)
_POOL = 1 << 16  # random factors that are drawn once; each use begins at another place


class RandomRounding(OperationsMode):
    """Multiplies results, and what sums take, by ``1 + AMPLITUDE u xi`` with xi uniform in [-1, 1] for each element.

    Args:
        seed: of the draws.
        unit: the program's unit roundoff, where it is coarser than the reference's; optimizer steps keep their own.
        products: the program's unit roundoffs of products of float32.
        amplitude: in unit roundoffs.
    """

    def __init__(
        self, seed: int, unit: float | None = None, products: Products = EXACT, amplitude: float = AMPLITUDE
    ) -> None:
        super().__init__()
        self._draws = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._unit = unit
        self._products = products
        self._recurs = False
        self._amplitude = amplitude
        self._stepping = False
        self._pools: dict[tuple[torch.dtype, torch.device, float], torch.Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> RandomRounding:
        self._hooks = [
            register_optimizer_step_pre_hook(lambda *_: setattr(self, "_stepping", True)),
            register_optimizer_step_post_hook(lambda *_: setattr(self, "_stepping", False)),
            register_module_forward_pre_hook(self._note_call),
        ]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(kind, error, traceback)

    def operate(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operation, and shakes what it takes and returns."""
        if name in _MOVES or function.is_view:
            return function(*args, **kwargs)
        in_place = name.endswith("_") or "out" in kwargs
        if name in _SUMS and not in_place:
            return self._sum(function, name, args, kwargs)
        out = function(*args, **kwargs)
        if in_place:
            targets = args[0] if args else kwargs.get("out")
            for target in targets if isinstance(targets, list | tuple) else [targets]:
                # A scalar that an optimizer writes is its count of steps.
                if isinstance(target, torch.Tensor) and not (self._stepping and target.dim() == 0):
                    self._shake(target)
        else:
            map_nested(torch.Tensor, self._shake, out)
        return out

    def _note_call(self, module: torch.nn.Module, args: Any) -> None:
        # Recurrent networks are products of matrices here, and a kernel of their own on GPUs.
        self._recurs |= isinstance(module, torch.nn.RNNBase)

    def _choose_unit(self, name: str) -> float:
        """The program's unit roundoff in an operation; 0 if it is the reference's."""
        unit = self._unit or 0.0
        if name in MATRIX_PRODUCTS or "attention" in name:
            return max(unit, self._products.matrices, self._products.recurrent if self._recurs else 0.0)
        return max(unit, self._products.convolutions) if name.startswith("convolution") else unit

    def _sum(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs a sum, and shakes its addends and results, the more the longer it is."""
        unit = self._choose_unit(name)
        fine = not unit  # coarser rounding hides what sums do
        addends = compute_addend_error(name, args) if fine else 0.0
        out = function(*map_nested(torch.Tensor, lambda one: self._make_shaken(one, addends, unit), args), **kwargs)
        map_nested(
            torch.Tensor,
            lambda one: self._shake(one, compute_result_error(name, args, one) if fine else 0.0, unit),
            out,
        )
        return out

    def _draw_factors(self, tensor: torch.Tensor, at_least: float, coarser: float) -> torch.Tensor:
        real = tensor.real.dtype if tensor.is_complex() else tensor.dtype
        unit = torch.finfo(real).eps / 2
        if not self._stepping:
            unit = max(unit, coarser)
        dtype = torch.float64 if real == torch.float64 else torch.float32
        key = dtype, tensor.device, unit
        count = tensor.numel()
        pool = self._pools.get(key)
        if pool is None or len(pool) < count + _POOL // 2:
            size = max(_POOL, count + _POOL // 2)
            drawn = torch.rand(size, generator=self._generator, dtype=torch.float64)
            pool = drawn.mul_(2).sub_(1).mul_(self._amplitude * unit).add_(1).to(tensor.device, dtype)
            self._pools[key] = pool
        begin = self._draws.randrange(len(pool) - count + 1)
        factors = pool[begin : begin + count].view(tensor.shape)
        return factors if at_least <= self._amplitude else (factors - 1) * (at_least / self._amplitude) + 1

    def _takes(self, tensor: torch.Tensor) -> bool:
        wide = tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)
        return wide and bool(tensor.numel()) and tensor.layout == torch.strided

    def _make_shaken(self, tensor: torch.Tensor, at_least: float, unit: float) -> torch.Tensor:
        if not self._takes(tensor):
            return tensor
        # The infinities of a mask stay what they are, since the factors are positive.
        return (tensor * self._draw_factors(tensor, at_least, unit)).to(tensor.dtype)

    def _shake(self, tensor: torch.Tensor, at_least: float = 0.0, unit: float | None = None) -> None:
        if self._takes(tensor):
            tensor.mul_(self._draw_factors(tensor, at_least, (self._unit or 0.0) if unit is None else unit))
