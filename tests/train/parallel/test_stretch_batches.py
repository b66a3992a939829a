"""What ranks are asked of a batch is, together, what one process is asked."""

import pytest
import torch

from qkv.data.text_rows import TextBatch
from qkv.errors import QkvError
from qkv.train.parallel.share_of_row import ShareOfRow
from qkv.train.parallel.stretch_batches import LanguageStretch, MaskedStretch, batch_for
from tests.train.parallel.shared_rows import Case, language_batch, masked_batch

CASES = [Case("gpt2", length, documents) for length in (1, 2, 9, 24) for documents in (0, 1, 3)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.length} tokens, {case.documents} documents")
def test_every_token_is_predicted_and_counted_once(case: Case) -> None:
    batch, ranks = language_batch(case, seed=3), 2
    parts = [batch_for(batch, rank, ranks) for rank in range(ranks)]
    wanted, real = batch.wanted
    for part in parts:
        assert isinstance(part, LanguageStretch)
        assert part.predicted == int(part.wanted[1].sum())
    assert sum(part.predicted for part in parts) == batch.predicted  # type: ignore[attr-defined]
    assert sum(part.bytes for part in parts) == batch.bytes  # type: ignore[attr-defined]
    for whole, number in ((wanted, 0), (real, 1)):
        pieces = torch.stack([part.wanted[number] for part in parts])  # type: ignore[attr-defined]
        ordered = ShareOfRow(0, ranks).in_row_order(pieces[:, :, None, :, None], case.length).squeeze(1).squeeze(-1)
        assert torch.equal(ordered, whole)


@pytest.mark.parametrize("length", [1, 2, 13])
def test_every_hidden_token_is_asked_for_once(length: int) -> None:
    batch, ranks = masked_batch(length, seed=4), 4
    asked = []
    for rank in range(ranks):
        part, slots = batch_for(batch, rank, ranks), ShareOfRow(rank, ranks).slots(length)
        assert isinstance(part, MaskedStretch)
        for place, wanted in zip(part.places.tolist(), part.wanted.tolist(), strict=True):
            row, slot = place // len(slots), int(slots[place % len(slots)])
            asked.append((row * length + slot, wanted))
    assert sorted(asked) == list(zip(batch.places.tolist(), batch.wanted.tolist(), strict=True))


def test_a_batch_of_another_task_is_refused() -> None:
    with pytest.raises(QkvError, match="A TextBatch cannot be shared out"):
        batch_for(TextBatch(torch.ones(1, 4).long(), torch.tensor([4]), None), 0, 2)
