"""GPT-3, which no one published: the layers and who sees whom in them."""

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.gpt3 import SIZES, GPT3Sizes
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Window
from qkv.parts.context import Ledger
from tests.models.small import perturb

SMALL = GPT3Sizes(vocabulary=23, positions=16, width=12, hidden=20, heads=3, head_width=5, layers=4, window=3)


@torch.no_grad()
def test_every_second_layer_sees_a_band() -> None:
    """Read off the weights of attention: which are above 0."""
    model = build("gpt3", SMALL).eval()
    perturb(model)
    ledger = Ledger(model, keep={"weights"})
    model(torch.randint(0, 23, (2, 9)), ledger=ledger)
    before = torch.arange(9)[:, None] - torch.arange(9)  # how far a key lies before the query [q k]
    dense, banded = before >= 0, (before >= 0) & (before < 3)
    seen = [weights[0] > 0 for weights in ledger.entries.values()]
    assert len(seen) == 4
    for layer, weights in enumerate(seen):
        assert torch.equal(weights, (banded if layer % 2 else dense).expand(2, 3, 9, 9))


@pytest.mark.parametrize("name", SIZES)
def test_the_layers_of_the_published_sizes_alternate(name: str) -> None:
    with torch.device("meta"):
        model = build("gpt3", SIZES[name])
    rules = [module.visibility for module in model.modules() if isinstance(module, Attention)]
    assert rules == [Causal(), Causal() & Window(256)] * (SIZES[name].layers // 2)


def test_heads_need_not_fill_the_width() -> None:
    """As in the 13B model, 5140 wide with 40 heads of 128."""
    assert SIZES["13b"].heads * SIZES["13b"].head_width == 5120 < SIZES["13b"].width
    assert build("gpt3", SMALL)(torch.zeros(1, 4).long()).shape == (1, 4, 23)
