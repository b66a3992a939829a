"""The errors of random features are those that the papers state: without bias, as large as said, less if orthogonal."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.linformer import RowProjection
from qkv.parts.attention.kernels.random_features import (
    PositiveFeatures,
    RandomDirections,
    RandomFeatureKernel,
    WaveFeatures,
    orthogonal_directions,
)

WIDTH, DRAWS, COUNT = 8, 1500, 32
Draw = Callable[[int, int], Tensor]


def vectors(kind: str) -> tuple[Tensor, Tensor]:
    """A query and a key, of length 0.8 each, that point almost the same way or almost against each other."""
    torch.manual_seed(0)
    one, other = torch.randn(2, WIDTH)
    one = 0.8 * one / one.norm()
    other = 0.8 * (other - (other @ one) / 0.64 * one) / (other - (other @ one) / 0.64 * one).norm()
    return one, (0.8 if kind == "alike" else -0.8) * one + 0.6 * other


def estimates(features: RandomDirections, draw: Draw, q: Tensor, k: Tensor, count: int = COUNT) -> Tensor:
    """φ(q)·φ(k) by so many draws of the directions. [draws]"""
    found = []
    for _ in range(DRAWS):
        features.directions.copy_(draw(count, WIDTH).view(features.directions.shape))
        made = []
        for x in (q, k):
            phi, size = features(x.view(1, 1, 1, -1), 1.0)
            made.append((phi if size is None else phi * size.exp()).detach().flatten())
        found.append(made[0] @ made[1])
    return torch.stack(found).double()


def assert_without_bias(found: Tensor, expected: float) -> None:
    assert abs(float(found.mean()) - expected) < 5 * float(found.std()) / DRAWS**0.5 + 1e-6


@pytest.mark.parametrize("kind", ["alike", "opposed"])
def test_positive_features_have_the_mean_and_the_error_of_the_paper(kind: str) -> None:
    """[choromanski2021 lemma 2]: MSE = exp(|q+k|²) exp(q·k)² (1 - exp(-|q+k|²)) / m; less if orthogonal [theorem 2]."""
    q, k = vectors(kind)
    score, together = math.exp(float(q @ k)), float((q + k).square().sum())
    expected = math.exp(together) * score**2 * (1 - math.exp(-together)) / COUNT
    features = PositiveFeatures(COUNT, WIDTH)
    independent = estimates(features, torch.randn, q, k)
    assert_without_bias(independent, score)
    error = float((independent - score).square().mean())
    assert 0.7 < error / expected < 1.4
    orthogonal = estimates(features, orthogonal_directions, q, k)
    assert_without_bias(orthogonal, score)
    assert float((orthogonal - score).square().mean()) < error


@pytest.mark.parametrize("kind", ["alike", "opposed"])
def test_waves_have_the_mean_and_the_error_of_the_paper(kind: str) -> None:
    """[choromanski2021 lemma 2], but for exp(|q|²+|k|²): MSE = (1 - exp(-|q-k|²))² / 2m of m pairs of waves."""
    q, k = (x / x.norm() for x in vectors(kind))  # [peng2021 §3.1]: of unit vectors
    apart = float((q - k).square().sum())
    score, expected = math.exp(-apart / 2), (1 - math.exp(-apart)) ** 2 / (2 * COUNT)
    features = WaveFeatures(2 * COUNT, WIDTH, 1)
    independent = estimates(features, torch.randn, q, k)
    assert_without_bias(independent, score)
    error = float((independent - score).square().mean())
    assert 0.8 < error / expected < 1.25
    orthogonal = estimates(features, orthogonal_directions, q, k)
    assert_without_bias(orthogonal, score)
    assert float((orthogonal - score).square().mean()) < error


def test_small_scores_are_for_positive_features_and_large_ones_for_waves() -> None:
    """[choromanski2021 §2.3]: as exp(q·k) goes to 0 so does the error of positive features; that of waves does not."""
    better = {}
    for kind in ("alike", "opposed"):
        q, k = vectors(kind)
        score, sizes = math.exp(float(q @ k)), math.exp(float(q @ q + k @ k) / 2)
        positive = estimates(PositiveFeatures(COUNT, WIDTH), torch.randn, q, k)
        w = torch.randn(DRAWS, COUNT, WIDTH)
        waves = (w @ (q - k)).cos().mean(1) * sizes
        better[kind] = float((positive - score).square().mean()) < float((waves - score).square().mean())
    assert better == {"alike": False, "opposed": True}


def test_the_error_of_attention_falls_with_the_root_of_the_number_of_features() -> None:
    torch.manual_seed(0)
    q, k, v = (0.25 * torch.randn(1, 4, 64, WIDTH) for _ in range(3))
    expected, misses = exact(q, k, v, scale=1.0), []
    for count in (64, 1024):
        found = [RandomFeatureKernel(PositiveFeatures(count, WIDTH))(q, k, v, scale=1.0) for _ in range(20)]
        misses.append(torch.stack([(o - expected).norm() for o in found]).square().mean().sqrt())
    assert 3 < float(misses[0] / misses[1]) < 5.5  # √16 is 4


def test_the_error_of_a_table_falls_with_the_root_of_the_rank() -> None:
    """[wang2020 theorem 1]: P Rᵀ R V comes as near to P V as R of rank r keeps products, by errors of 1/√r."""
    torch.manual_seed(0)
    table, v = torch.softmax(2 * torch.randn(64, 128), -1), torch.randn(128, 8)
    misses = []
    for rank in (16, 1024):
        drawn = [RowProjection(128, rank).weight[0].detach() for _ in range(40)]
        misses.append(torch.stack([(table @ r.T @ (r @ v) - table @ v).norm() for r in drawn]).square().mean().sqrt())
    assert 6 < float(misses[0] / misses[1]) < 10.5  # √64 is 8
