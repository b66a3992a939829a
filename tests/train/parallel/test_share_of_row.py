"""Every slot of a row belongs to one rank, and all ranks have the same to do."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.parallel.share_of_row import ShareOfRow


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("row", [1, 2, 7, 8, 9, 64])
def test_every_slot_belongs_to_one_rank(row: int, ranks: int) -> None:
    shares = [ShareOfRow(rank, ranks).slots(row) for rank in range(ranks)]
    assert len({len(slots) for slots in shares}) == 1, "all hold as many, or their messages would differ in size"
    assert sorted(slot for slots in shares for slot in slots.tolist() if slot < row) == list(range(row))
    gathered = torch.stack(shares)[:, None, None, :, None]  # [ranks 1 1 s 1]
    assert ShareOfRow(0, ranks).in_row_order(gathered, row).flatten().tolist() == list(range(row))


def test_ranks_that_look_back_have_the_same_to_do() -> None:
    ranks, row = 4, 64
    seen = [
        int((ShareOfRow(rank, ranks).slots(row) + 1).sum()) for rank in range(ranks)
    ]  # a token sees those before it
    assert set(seen) == {row * (row + 1) // 2 // ranks}
    consecutive = [int((slots + 1).sum()) for slots in torch.arange(row).chunk(ranks)]
    assert max(consecutive) > 1.7 * seen[0]


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(QkvError, match="shares 0 to 1, not 2"):
        ShareOfRow(2, 2)
