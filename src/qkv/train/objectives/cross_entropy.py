"""Cross-entropy over a vocabulary, with label smoothing, in little memory.

Shapes: n predictions, r of them at one time, v vocabulary, d width of the stream.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.heads import ENDS_IN_PRODUCT
from qkv.train.objectives.entropy_of_rows import Measures, Targets, differentiate, measure
from qkv.train.objectives.linear_cross_entropy import linear_cross_entropy

# Logits computed at one time, at the precision of training; what is more is computed again on the way back.
COMPUTED_AT_ONCE = 2**29


def check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise QkvError(f"Label smoothing must be at least 0 and less than 1, but is {smoothing}.")


def cross_entropy_of_states(
    head: Callable[[Tensor], Tensor], states: Tensor, wanted: Tensor, real: Tensor, smoothing: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """`smoothed_cross_entropy` of head(states), whose logits never exist all at once where they are many.

    states [n d], wanted [n], real [n]; the head maps [1 r d] to [1 r v]. One that ends in a product with a matrix of
    the vocabulary makes no logit twice; of any other, what is more than can be kept is computed again on the way back.
    """
    if isinstance(head, ENDS_IN_PRODUCT):
        in_eight_bits = head.__dict__.get("in_eight_bits", False)  # by `float8_products`
        return linear_cross_entropy(head.factors(states), wanted, real, smoothing, in_eight_bits)

    def part(states: Tensor, wanted: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return smoothed_cross_entropy(head(states[None]).squeeze(0), wanted, real, smoothing)

    rows = max(1, COMPUTED_AT_ONCE // vocabulary)
    if len(states) <= rows:
        return part(states, wanted, real)
    sums = []
    for these, those, them in zip(states.split(rows), wanted.split(rows), real.split(rows), strict=True):
        if torch.is_grad_enabled():
            sums.append(checkpoint(part, these, those, them, use_reentrant=False, preserve_rng_state=False))
        else:
            sums.append(part(these, those, them))
    return torch.stack([total for total, _ in sums]).sum(), torch.stack([plain for _, plain in sums]).sum()


def smoothed_cross_entropy(logits: Tensor, wanted: Tensor, real: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sums over the real tokens of the smoothed cross-entropy and of the plain negative log-likelihood.

    The smoothed target is (1 - ε) on the wanted token plus ε spread evenly over the vocabulary [szegedy2016 §7].
    The second sum carries no gradient.
    """
    flat = logits.flatten(0, -2), wanted.flatten(), real.flatten()  # [n v], [n], [n]
    return _SmoothedCrossEntropy.apply(*flat, smoothing)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The float32 softmax never exists as a whole.

    Between the two passes one number a row is kept (its log-normaliser) besides the logits, which the model's output
    keeps alive anyhow. torch's own cross-entropy would hold three more float32 copies of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, real: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        measures = Measures.empty(len(logits), logits)
        measure(logits, Targets(wanted, real, logits.shape[-1], smoothing), measures)
        total, likelihood = measures.sums()
        ctx.save_for_backward(logits, wanted, real, measures.normaliser)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, wanted, real, normaliser = ctx.saved_tensors
        slopes = torch.empty_like(logits)  # [n v]
        differentiate(logits, Targets(wanted, real, logits.shape[-1], ctx.smoothing), normaliser, gradient, slopes)
        return slopes, None, None, None
