"""Cross-entropy over a vocabulary, with label smoothing, in little memory.

Shapes: n predictions, r of them at one time, v vocabulary, d width of the stream.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.precision import widened

# Logits widened to float32 at one time: 256 MiB of them, whatever the batch and the vocabulary.
WIDENED_AT_ONCE = 2**26
# Logits computed at one time, at the precision of training; what is more is computed again on the way back.
COMPUTED_AT_ONCE = 2**29


def check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise QkvError(f"Label smoothing must be at least 0 and less than 1, but is {smoothing}.")


def cross_entropy_of_states(
    head: Callable[[Tensor], Tensor], states: Tensor, wanted: Tensor, real: Tensor, smoothing: float, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """`smoothed_cross_entropy` of head(states), whose logits never exist all at once where they are many.

    states [n d], wanted [n], real [n]; the head maps [1 r d] to [1 r v].
    """

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
    """The float32 softmax never exists as a whole: rows are widened in slices, once forward and once backward.

    Between the two passes one number a row is kept (its log-normaliser) besides the logits, which the model's output
    keeps alive anyhow. torch's own cross-entropy would hold three more float32 copies of the logits.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, real: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        normaliser = widened(logits.new_empty(len(logits)))  # [n] log Σ exp
        losses, likelihoods = torch.empty_like(normaliser), torch.empty_like(normaliser)  # [n]
        for rows in _slices(logits):
            scores = widened(logits[rows])  # [r v]
            normaliser[rows] = scores.logsumexp(-1)
            likelihoods[rows] = normaliser[rows] - scores.gather(-1, wanted[rows, None]).squeeze(-1)
            losses[rows] = likelihoods[rows]
            if smoothing:
                evenly = normaliser[rows] - scores.mean(-1)  # cross-entropy with the uniform distribution
                losses[rows].mul_(1 - smoothing).add_(evenly, alpha=smoothing)  # [szegedy2016 §7]
        # Filled, not multiplied: a padded row may hold anything, even NaN, and must still count as nothing.
        total = losses.masked_fill_(~real, 0).sum()
        likelihood = likelihoods.masked_fill_(~real, 0).sum()
        ctx.save_for_backward(logits, wanted, real, normaliser)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, wanted, real, normaliser = ctx.saved_tensors
        result = torch.empty_like(logits)  # [n v]
        for rows in _slices(logits):
            # ∂loss/∂logits = softmax - smoothed target
            slopes = (logits[rows] - normaliser[rows, None]).exp_()  # [r v], as wide as the normaliser
            if ctx.smoothing:
                slopes -= ctx.smoothing / logits.shape[-1]
            hit = torch.full_like(normaliser[rows, None], ctx.smoothing - 1)  # [r 1]
            slopes.scatter_add_(-1, wanted[rows, None], hit)
            torch.mul(slopes, gradient, out=result[rows])
        result.masked_fill_(~real[:, None], 0)
        return result, None, None, None


def _slices(logits: Tensor) -> Iterator[slice]:
    rows = max(1, WIDENED_AT_ONCE // logits.shape[-1])
    for start in range(0, len(logits), rows):
        yield slice(start, start + rows)
