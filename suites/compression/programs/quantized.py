"""A communication hook of DistributedDataParallel that sends one byte for each float32, hand-written: torch has none.

R ranks, blocks of B elements. ``torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks`` gathers every
rank's whole gradient, (R - 1) N bytes a rank; this one sends 2 (R - 1) / R N, a quarter of what float32 takes.
"""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

BLOCK = 256  # elements that share a scale, which adds 4 bytes to 256: 1.6 %
# DistributedDataParallel arranges its buckets anew after the first step, and what a hook remembers of a bucket no
# longer fits it: errors are fed back from the third step on. PowerSGDState insists on this, too.
START = 2

FLOAT32_ROUNDOFF = torch.finfo(torch.float32).eps / 2


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Rounds blocks of float32 to 8 bits, each block scaled so that its largest magnitude is the format's largest."""

    dtype: torch.dtype
    largest: float
    relative: float
    """The largest error of rounding a number x is the larger one of ``relative`` * x ..."""
    absolute: float
    """... and this, in units of the scale."""

    def quantize(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes, and a float32 scale for each row of ``blocks``."""
        return _quantized(blocks, self.dtype, self.largest)

    def dequantize(self, quantized: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Back to float32. A block with a value that is not finite comes back without a finite one."""
        return _dequantized(quantized, scales, self.dtype)


def _quantized(blocks: torch.Tensor, dtype: torch.dtype, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    magnitude = blocks.abs().amax(dim=1, keepdim=True)
    # By a tensor: CUDA multiplies by the reciprocal of a number, which is another scale by a roundoff.
    scales = magnitude / magnitude.new_full((), largest)
    # Zeros have none, nor have numbers of which the largest is so small that its scale is rounded to zero.
    scales = torch.where(scales == 0, 1.0, scales)
    scaled = (blocks / scales).clamp(-largest, largest)
    rounded = scaled if dtype.is_floating_point else scaled.round()
    # As bytes: not every backend knows every format.
    return rounded.to(dtype).view(torch.uint8), scales


def _dequantized(quantized: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return quantized.view(dtype).float() * scales


def _mean(parts: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, ranks: int) -> torch.Tensor:
    return _dequantized(parts, scales, dtype).view(ranks, -1, parts.shape[1]).mean(dim=0)


INT8 = Quantizer(torch.int8, 127.0, 0.0, 0.5)
# 4 bits of significand: relative 2**-4. Below 2**-6 subnormal numbers lie 2**-9 apart: absolute 2**-10.
FLOAT8 = Quantizer(torch.float8_e4m3fn, 448.0, 2.0**-4, 2.0**-10)


@dataclass(slots=True)
class Quantized:
    """State of ``quantized_hook``."""

    quantizer: Quantizer
    block: int = BLOCK
    feedback: bool = False
    """Add to each step's gradients what the step before lost of its own (Seide et al., Interspeech 2014)."""
    start: int = START
    """The first step that feeds back; may be 0 where the buckets never change, as with a single parameter."""
    errors: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """What each bucket has lost: of the rank's own gradient, and of the mean of the elements that it adds up."""
    steps: int = 0

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block must have 1 element or more, got {self.block}")


def quantized_hook(state: Quantized, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket, each element of which crosses the links as one byte.

    Reduce-scatter and all-gather, as an all_reduce is made; but the first by an all_to_all, since no sum may
    be taken of bytes with different scales (Wang et al., ZeRO++, arXiv 2306.10209, qgZ).
    """
    buffer = bucket.buffer()
    if buffer.dtype != torch.float32:
        raise ValueError(f"the scales are made for float32 gradients, got {buffer.dtype}")
    index, feedback = bucket.index(), state.feedback and state.steps >= state.start
    if bucket.is_last():
        state.steps += 1
    own = _in_blocks(buffer, dist.get_world_size() * state.block, state.block)
    if feedback and index in state.errors:
        own += state.errors[index][0]
    shard_error = state.errors[index][1] if feedback and index in state.errors else None
    mean, errors = quantized_mean(own, state.quantizer, shard_error, feedback=feedback)
    if errors is not None:
        own_error, shard_error = errors
        # A step that overflowed is skipped by whoever scales the loss, and must not haunt all later ones.
        state.errors[index] = own_error.nan_to_num_(0, 0, 0), shard_error.nan_to_num_(0, 0, 0)
    # Collectives in the order of the buckets, on the stream of backward: nothing is left to wait for.
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.device.type == "cuda" else None
    )
    done.set_result(buffer.copy_(mean.view(-1)[: buffer.numel()]))
    return done


def _in_blocks(flat: torch.Tensor, multiple: int, block: int) -> torch.Tensor:
    padding = -flat.numel() % multiple
    return nn.functional.pad(flat, (0, padding)).view(-1, block)


def quantized_mean(
    own: torch.Tensor,
    quantizer: Quantizer,
    shard_error: torch.Tensor | None = None,
    *,
    feedback: bool = True,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """The mean over the ranks of ``own``, whose rows R divides; with feedback, also what both roundings have lost."""
    dtype, ranks = quantizer.dtype, dist.get_world_size()
    quantized, scales = quantizer.quantize(own)
    received, their_scales = torch.empty_like(quantized), torch.empty_like(scales)
    dist.all_to_all_single(received, quantized)
    dist.all_to_all_single(their_scales, scales)
    shard = _mean(received, their_scales, dtype, ranks)
    if shard_error is not None:
        shard += shard_error

    rounded, shard_scales = quantizer.quantize(shard)
    gathered, all_scales = torch.empty_like(quantized), torch.empty_like(scales)
    dist.all_gather_into_tensor(gathered, rounded)
    dist.all_gather_into_tensor(all_scales, shard_scales)
    all_means = quantizer.dequantize(gathered, all_scales)
    if not feedback:
        return all_means, None
    return all_means, (
        own - quantizer.dequantize(quantized, scales),
        shard - quantizer.dequantize(rounded, shard_scales),
    )


def quantization_error(quantizer: Quantizer, gradients: torch.Tensor, block: int) -> torch.Tensor:
    """How far each element of the ranks' mean may be off without feedback. ``gradients`` is R x N, float64.

    Rounding x in a block of magnitude M, scaled by M / largest, is off by at most e(x, M) = relative * |x| +
    absolute * M / largest. Of the R ranks' x_r the mean |x| is A, the mean of M_r in the block M. The mean of the
    rounded ones is off by e1 = e(A, M), hence at most A + e1; in a block where the largest of these is M', it is
    rounded again, and off by e2 = e(A + e1, M') more. The bound is e1 + e2.

    Besides, float32 rounds (u = 2**-24): the quotients and products of both roundings, 4u, and the mean, R u, of
    numbers no larger than M (1 + relative), and of two more in between: (R + 6) u * 1.25 M covers them.
    """
    world_size, numel = gradients.shape
    blocks = nn.functional.pad(gradients.abs(), (0, -numel % block)).view(world_size, -1, block)
    average, largest = blocks.mean(dim=0), blocks.amax(dim=2, keepdim=True).mean(dim=0)

    def rounding(value: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
        return quantizer.relative * value + quantizer.absolute * magnitude / quantizer.largest

    first = rounding(average, largest)
    second = rounding(average + first, (average + first).amax(dim=1, keepdim=True))
    float32 = (world_size + 6) * FLOAT32_ROUNDOFF * 1.25 * largest
    return (first + second + float32).view(-1)[:numel]


def feedback_error(quantizer: Quantizer, gradients: torch.Tensor, block: int) -> torch.Tensor:
    """How far each element of the sum of any number of steps may be off with feedback, of the same ``gradients``.

    What a step loses the next one is given again, so that the sum lacks no more than what the last one lost
    (Karimireddy et al., arXiv 1901.09847). With c = relative + absolute / largest, rounding a block of
    magnitude M loses at most c M of an element. The gradient and what is fed back, E1, lose
    c (M + E1) <= E1 = M c / (1 - c). Their rounded mean is at most M + 2 E1, since it is off by E1 again, and it
    loses E2 = (M + 2 E1) c / (1 - c) alike.
    """
    world_size, numel = gradients.shape
    blocks = nn.functional.pad(gradients.abs(), (0, -numel % block)).view(world_size, -1, block)
    largest = blocks.amax(dim=2, keepdim=True).mean(dim=0).expand(blocks.shape[1:])
    c = quantizer.relative + quantizer.absolute / quantizer.largest
    first = largest * c / (1 - c)
    return (first + (largest + 2 * first) * c / (1 - c)).reshape(-1)[:numel]
