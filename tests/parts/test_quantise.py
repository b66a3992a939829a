"""Choices at random with a gradient, and entries of codebooks."""

import math

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import QkvError
from qkv.parts.quantise import ProductQuantiser, gumbel_choice, one_hot, perplexity


def test_a_choice_is_that_of_the_reference_and_has_its_gradient() -> None:
    logits = torch.randn(5, 7, requires_grad=True)
    weights = torch.randn(5, 7)
    found = []
    for choose in (lambda: gumbel_choice(logits, 0.7), lambda: F.gumbel_softmax(logits, 0.7, hard=True)):
        torch.manual_seed(3)
        chosen = choose()
        (gradient,) = torch.autograd.grad((chosen * weights).sum(), logits)
        found.append((chosen, gradient))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_entries_are_chosen_as_often_as_a_softmax_says() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    often = gumbel_choice(logits.expand(20000, -1), 2.0).mean(0)
    torch.testing.assert_close(often, logits.softmax(0), atol=0.02, rtol=0)
    assert one_hot(logits).tolist() == [0, 0, 0, 1]


def test_a_frame_becomes_one_entry_of_each_codebook_side_by_side() -> None:
    quantiser = ProductQuantiser(5, 2, 3, 8).eval()
    features = torch.randn(2, 4, 5)
    vectors, shares = quantiser(features)
    assert (vectors.shape, shares.shape) == ((2, 4, 8), (2, 4, 2, 3))
    entries = quantiser.entries.reshape(2, 3, 4)
    best = quantiser.choose(features).reshape(2, 4, 2, 3).argmax(-1)
    for row in range(2):
        for frame in range(4):
            expected = torch.cat([entries[book, best[row, frame, book]] for book in range(2)])
            assert torch.equal(vectors[row, frame], expected)


def test_learning_reaches_what_chooses_and_what_is_chosen() -> None:
    quantiser = ProductQuantiser(5, 2, 3, 8)
    vectors, shares = quantiser(torch.randn(2, 4, 5))
    (vectors.square().sum() + perplexity(shares)).backward()
    for parameter in quantiser.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 4, 2))
    with pytest.raises(QkvError, match="does not divide into 3 codebooks"):
        ProductQuantiser(5, 3, 3, 8)


def test_perplexity_counts_the_entries_in_use() -> None:
    even = torch.full((1, 6, 2, 4), 0.25)
    assert perplexity(even).item() == pytest.approx(8)
    single = one_hot(even)
    assert perplexity(single).item() == pytest.approx(2)
    mixed = torch.cat((even, single), 1)
    counted = torch.arange(12)[None] >= 6
    assert perplexity(mixed, counted).item() == pytest.approx(2)
    halves = torch.tensor([[[[0.5, 0.5, 0.0]]]])
    assert perplexity(halves).item() == pytest.approx(math.exp(math.log(2)))
