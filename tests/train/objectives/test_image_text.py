"""The contrastive loss of pictures and texts: that of the reference, and what counts as wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import CLIPConfig

from qkv.models.catalogue import FAMILIES, build
from qkv.train.objectives.image_text import ImageTextLoss, same_texts
from tests.models.small import perturb, shrunk
from tests.parity.published import Case, reference_pair

END = 22


@dataclass(frozen=True)
class Batch:
    images: Tensor
    ids: Tensor
    lengths: Tensor | None = None


def random_batch(pairs: int = 5) -> Batch:
    ids = torch.randint(0, END, (pairs, 7))
    ids[:, -1] = END
    return Batch(torch.randn(pairs, 3, 12, 12), ids)


def small_clip():
    torch.manual_seed(0)
    model = build("clip", shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, end=END))
    perturb(model)
    return model


def test_the_loss_is_the_reference_s(tmp_path) -> None:
    tower = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    config = CLIPConfig(
        text_config={**tower, "vocab_size": 23, "max_position_embeddings": 20, "eos_token_id": END},
        vision_config={**tower, "image_size": 12, "patch_size": 4},
        projection_dim=16,
    )
    pair, batch = reference_pair(Case("CLIPModel", config), tmp_path), random_batch()
    measured = ImageTextLoss().measure(pair.ours, batch)
    expected = pair.reference(batch.ids, batch.images, return_loss=True)
    assert measured["loss"].count == 5
    torch.testing.assert_close(measured["loss"].total / 5, expected.loss)
    found = (expected.logits_per_image.argmax(1) == torch.arange(5)).sum()
    assert measured["image accuracy"].total == found
    assert measured["text accuracy"].total == (expected.logits_per_text.argmax(1) == torch.arange(5)).sum()


def test_the_scale_counts_for_no_more_than_a_hundred() -> None:
    model, batch = small_clip(), random_batch()
    with torch.no_grad():
        model.log_scale.fill_(100.0).log_()
        at_most = ImageTextLoss()(model, batch).total
        model.log_scale += 1
    above = ImageTextLoss()(model, batch).total
    torch.testing.assert_close(above, at_most)
    above.backward()
    assert model.log_scale.grad == 0


def test_the_scale_learns() -> None:
    model = small_clip()
    ImageTextLoss()(model, random_batch()).total.backward()
    assert model.log_scale.grad.abs() > 1e-4


def test_a_text_that_comes_twice_is_no_wrong_answer() -> None:
    model, batch = small_clip(), random_batch(3)
    ids = batch.ids.clone()
    ids[2] = ids[0]
    twice = Batch(batch.images, ids)
    assert same_texts(twice).tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    logits = model(batch.images, ids).logits
    by_hand = [
        torch.nn.functional.cross_entropy(logits[row, others][None], torch.tensor([place]))
        + torch.nn.functional.cross_entropy(logits[others, row][None], torch.tensor([place]))
        for row, others, place in ((0, [0, 1], 0), (1, [0, 1, 2], 1), (2, [1, 2], 1))
    ]
    torch.testing.assert_close(ImageTextLoss()(model, twice).total, torch.stack(by_hand).sum() / 2)


def test_padding_tells_no_texts_apart() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 4]])
    batch = Batch(torch.empty(3, 3, 4, 4), ids, torch.tensor([2, 2, 4]))
    assert same_texts(batch).tolist() == [[False, True, False], [True, False, False], [False, False, False]]


def test_it_learns_to_match() -> None:
    """A handful of pairs are matched after a few steps."""
    torch.manual_seed(0)
    sizes, batch = shrunk(FAMILIES["clip"].published["base-32"], image=12, patch=4, end=END), random_batch(8)
    model = build("clip", sizes)
    optimizer, objective = torch.optim.AdamW(model.parameters(), lr=3e-3), ImageTextLoss()
    for _ in range(60):
        optimizer.zero_grad()
        loss = objective(model, batch)
        (loss.total / loss.count).backward()
        optimizer.step()
    measured = objective.measure(model.eval(), batch)
    assert measured["image accuracy"].total == measured["text accuracy"].total == 8
