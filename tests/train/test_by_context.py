"""Bits per byte by context: the mean over all stretches is the loss itself, and each is that of its tokens alone."""

import math

import pytest
import torch
import torch.nn.functional as F

from qkv.data.packing import LanguageBatch
from qkv.errors import QkvError
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.train.by_context import bits_by_context, context_edges
from qkv.train.objectives.language import LanguageLoss

SIZES = {"vocabulary": 20, "positions": 64, "width": 16, "hidden": 32, "heads": 2, "layers": 1}


def model() -> TextModel:
    torch.manual_seed(0)
    made: TextModel = build("gpt2", find_family("gpt2").sizes(SIZES), HeadChoice("language"))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def batch(documents: torch.Tensor, bytes_each: int) -> LanguageBatch:
    ids = torch.randint(20, documents.shape, generator=torch.Generator().manual_seed(1))
    going_on = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
    count = int(going_on.sum())
    return LanguageBatch(
        ids=ids, documents=documents, packed=bool(documents.max() > 1), predicted=count, bytes=bytes_each * count
    )


@pytest.mark.parametrize(
    ("length", "edges"),
    [
        (4096, [0, 64, 128, 256, 512, 1024, 2048, 4096]),
        (600, [0, 64, 128, 256, 512, 600]),
        (32, [0, 4, 8, 16, 32]),
        (1, [0, 1]),
    ],
)
def test_each_stretch_is_as_long_as_all_before_it(length: int, edges: list[int]) -> None:
    assert context_edges(length) == edges


@torch.no_grad()
def test_stretches_hold_the_losses_of_their_own_tokens() -> None:
    network, rows = model(), batch(torch.ones(3, 33, dtype=torch.long), bytes_each=1)
    found = bits_by_context(network, [rows], 32)
    logits = network(rows.ids[:, :-1])  # [3 32 v]
    bits = F.cross_entropy(logits.transpose(1, 2), rows.ids[:, 1:], reduction="none") / math.log(2)  # [3 32]
    assert [(part.least, part.most, part.tokens) for part in found] == [
        (1, 4, 12),
        (5, 8, 12),
        (9, 16, 24),
        (17, 32, 48),
    ]
    for part in found:
        assert part.bits_per_byte == pytest.approx(bits[:, part.least - 1 : part.most].mean().item(), rel=1e-5)


@torch.no_grad()
def test_the_whole_is_what_validation_says_with_documents_that_begin_anew_and_padding() -> None:
    documents = torch.tensor([[1] * 10 + [2] * 20 + [0] * 3, [1] * 33])
    network, rows = model(), batch(documents, bytes_each=3)
    found = bits_by_context(network, [rows, rows], 32)
    assert sum(part.tokens for part in found) == 2 * rows.predicted
    measured = LanguageLoss().measure(network, rows)["bits_per_byte"]
    whole = sum(part.bits_per_byte * part.tokens for part in found) / (2 * rows.predicted)
    assert whole == pytest.approx(float(measured.total) / measured.count, rel=1e-5)
    # The second document of the first row has 19 tokens to predict, whose contexts are 1 to 19 and not 11 to 29.
    assert found[-1].tokens == 2 * (16 + 3)


def test_no_text_is_told() -> None:
    with pytest.raises(QkvError, match="no text to measure on"):
        bits_by_context(model(), [], 8)
