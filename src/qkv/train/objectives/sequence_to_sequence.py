"""Cross-entropy over target tokens, with label smoothing.

Shapes: b rows, t target positions, v vocabulary, n = b * t.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.errors import QkvError
from qkv.parts.precision import widened
from qkv.train.objectives.loss import Loss

# Logits widened to float32 at one time: 256 MiB of them, whatever the batch and the vocabulary.
WIDENED_AT_ONCE = 2**26


class Pairs(Protocol):
    """What this objective reads of a batch (`qkv.data.pairs.PairBatch`)."""

    source: Tensor  # [b s]
    source_lengths: Tensor  # [b]
    target: Tensor  # [b t+1] <s> y1 ... yn </s>
    target_lengths: Tensor  # [b] with <s> and </s>
    target_tokens: int


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceLoss:
    """Label-smoothed cross-entropy of every target token given those before it [vaswani2017 §5.4]."""

    smoothing: float = 0.1  # ε of [szegedy2016 §7]; 0 gives the plain negative log-likelihood

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise QkvError(f"Label smoothing must be at least 0 and less than 1, but is {self.smoothing}.")

    def __call__(self, model: nn.Module, batch: Pairs) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: nn.Module, batch: Pairs) -> dict[str, Loss]:
        """The smoothed loss, and the plain negative log-likelihood that perplexity is made of (without gradient)."""
        logits = model(batch.source, batch.source_lengths, batch.target[:, :-1])  # [b t v]
        wanted, real = predicted(batch.target, batch.target_lengths)
        loss, likelihood = smoothed_cross_entropy(logits, wanted, real, self.smoothing)
        return {"loss": Loss(loss, batch.target_tokens), "nll": Loss(likelihood, batch.target_tokens)}


def predicted(target: Tensor, target_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens to predict, all but <s>, and which of them are real. [b t+1] [b] → [b t] [b t]

    Lengths decide what counts: a pad id inside a sentence is a token like any other.
    """
    wanted = target[:, 1:]
    return wanted, torch.arange(wanted.shape[1], device=target.device) < target_lengths[:, None] - 1


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
            evenly = normaliser[rows] - scores.mean(-1)  # cross-entropy with the uniform distribution
            losses[rows] = (1 - smoothing) * likelihoods[rows] + smoothing * evenly  # [szegedy2016 §7]
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
            slopes = (logits[rows].to(normaliser.dtype) - normaliser[rows, None]).exp_()  # [r v]
            slopes -= ctx.smoothing / logits.shape[-1]
            hit = torch.full_like(normaliser[rows, None], ctx.smoothing - 1)  # [r 1]
            slopes.scatter_add_(-1, wanted[rows, None], hit)
            slopes *= gradient
            result[rows] = slopes.masked_fill_(~real[rows, None], 0)
        return result, None, None, None


def _slices(logits: Tensor) -> Iterator[slice]:
    rows = max(1, WIDENED_AT_ONCE // logits.shape[-1])
    for start in range(0, len(logits), rows):
        yield slice(start, start + rows)
