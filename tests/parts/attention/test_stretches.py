"""Queries in several stretches read what they would read in a whole row."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.choose import Kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.stretches import Stretches, by_stretches
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, SameDocument, Tokens, Window
from qkv.parts.context import Context, Ledger

ROW, EACH, STARTS = 13, 3, (3, 12)  # the last stretch goes beyond the end of the row
SLOTS = torch.tensor([3, 4, 5, 12])  # of those that are within it
RULES: list[Rule] = [
    Causal(),
    Everything() & NotPadding(),
    Causal() & SameDocument(),
    Causal() & Window(3),
    Window(2) & SameDocument(),
    (Window(2) | ~Causal()) & NotPadding(),
]


def documents() -> torch.Tensor:
    return torch.tensor([[1] * 4 + [2] * 9, [1] * 11 + [0] * 2])


def stretches(of: torch.Tensor | None) -> Stretches:
    mine = None if of is None else torch.cat((of[:, SLOTS], torch.zeros(2, 2, dtype=torch.long)), 1)
    return Stretches.of(STARTS, EACH, ROW, mine)


@pytest.mark.parametrize("kernel", [exact, fused, flash], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "with a bias"])
def test_each_stretch_reads_what_it_reads_in_a_whole_row(rule: Rule, kernel: Kernel, biased: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, ROW, 4) for heads in (4, 2, 2))
    bias = torch.randn(1, 4, ROW, ROW) if biased else None
    row = Tokens(ROW, documents=documents())
    whole = exact(q, k, v, Mask(rule, row, row, "cpu"), bias)
    within = torch.cat((SLOTS, torch.tensor([12, 12])))

    def read(*given: torch.Tensor) -> torch.Tensor:
        *tensors, mask, added, _ = given
        return kernel(*tensors, mask, added)

    mask = Mask(rule, stretches(row.documents), row, "cpu")
    mine = by_stretches(read, q[:, :, within], k, v, mask, None if bias is None else bias[:, :, within], 0.0)  # type: ignore[arg-type]
    torch.testing.assert_close(mine[:, :, :4], whole[:, :, SLOTS])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_table_for_stretches_has_their_rows(rule: Rule) -> None:
    row = Tokens(ROW, documents=documents())
    whole, mine = Mask(rule, row, row, "cpu"), Mask(rule, stretches(row.documents), row, "cpu")
    rows = whole.dense.expand(-1, -1, ROW, -1)[:, :, SLOTS]
    assert torch.equal(mine.dense.expand(-1, -1, 2 * EACH, -1)[:, :, :4], rows)


def test_weights_are_recorded_of_all_stretches_at_once() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, visibility=Causal())
    x, tokens = torch.randn(1, 2 * EACH, 8), stretches(None)
    ledger = Ledger(attention, ["weights"])
    keys = Tokens(2 * EACH)
    q, k, v = attention.projected(x, Context(tokens=tokens, positions=torch.arange(2 * EACH)))
    mask = Mask(Causal(), tokens, keys, "cpu")
    recorded = attention.attend(q, k, v, mask, None, Context(tokens=tokens, ledger=ledger))
    torch.testing.assert_close(recorded, attention.attend(q, k, v, mask, None, Context(tokens=tokens)))
    (weights,) = ledger.entries["/weights"]
    assert weights.shape == (1, 2, 2 * EACH, 2 * EACH)


def test_stretches_end_where_their_row_does_and_are_not_taken_apart() -> None:
    tokens = stretches(None)
    assert (tokens.size, tokens.start, tokens.end) == (6, 3, ROW)
    for take in (lambda: tokens.part(0, 2), lambda: tokens.select(torch.tensor([0]))):
        with pytest.raises(QkvError, match="Stretches of a row"):
            take()
