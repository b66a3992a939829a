"""The 2017 Transformer: its published size, its wirings, and rows padded on the left or packed."""

import pytest
import torch
from torch import nn

from qkv.models.catalogue import count_parameters
from qkv.models.transformer import SIZES, TransformerSizes, transformer
from qkv.parts.attention.visibility import NotPadding, SameDocument, Tokens
from qkv.parts.norm import LayerNorm
from qkv.parts.position import positions_in_documents
from qkv.parts.residual import Admin, DeepNorm, PostNorm, PreNorm, ReZero
from tests.models.small import small_model


def closed_form(sizes: TransformerSizes) -> int:
    """Counted on paper: d² for each of query, key, value and output, two maps to and from the hidden units."""
    d, f = sizes.width, sizes.hidden
    attention = 4 * (d * d + d)
    feed_forward = d * f + f + f * d + d
    norm = 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return sizes.vocabulary * d + sizes.encoder_layers * encoder_layer + sizes.decoder_layers * decoder_layer


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_those_of_the_closed_form(name: str) -> None:
    sizes = SIZES[name]
    assert count_parameters("transformer", sizes) == closed_form(sizes)
    assert count_parameters("transformer-prenorm", sizes) == closed_form(sizes) + 2 * 2 * sizes.width
    steps = 2 * sizes.encoder_layers + 3 * sizes.decoder_layers
    assert count_parameters("transformer-admin", sizes) == closed_form(sizes) + steps * sizes.width
    assert count_parameters("transformer-deepnorm", sizes) == closed_form(sizes)
    assert count_parameters("transformer-rezero", sizes) == closed_form(sizes) - steps * 2 * sizes.width + steps


def kinds(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize(
    ("family", "wiring", "norms"),
    [
        ("transformer", PostNorm, 10),
        ("transformer-prenorm", PreNorm, 12),
        ("transformer-admin", Admin, 10),
        ("transformer-rezero", ReZero, 0),
        ("transformer-deepnorm", DeepNorm, 10),
    ],
)
def test_each_family_has_its_wiring(family: str, wiring: type[nn.Module], norms: int) -> None:
    """Two layers each: 2·2 steps in the encoder, 2·3 in the decoder; pre-norm has a last norm on each stack."""
    model = small_model(family)
    assert kinds(model, wiring) == 10
    assert sum(kinds(model, each) for each in (PostNorm, PreNorm, Admin, ReZero, DeepNorm)) == 10
    assert kinds(model, LayerNorm) == norms


def test_one_matrix_serves_source_target_and_output() -> None:
    model = small_model("transformer")
    matrices = [name for name, parameter in model.named_parameters() if len(parameter) == model.target_vocabulary]
    assert len(matrices) == 1
    assert small_model("transformer, two vocabularies").source_vocabulary == 19


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """On every mixer's answer and on both embeddings, at the published rate. [vaswani2017 §5.4]"""
    model = transformer(small_model("transformer").sizes)
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    active = {name for name, rate in rates.items() if rate}
    steps = {f"encoder.blocks.{i}.{step}.dropout" for i in range(2) for step in ("attention", "feed_forward")}
    steps |= {f"decoder.blocks.{i}.{step}.dropout" for i in range(2) for step in ("attention", "cross", "feed_forward")}
    assert active == {"source.dropout", "target.dropout"} | steps
    assert {rates[name] for name in active} == {0.1}


@torch.no_grad()
def test_rows_padded_on_the_left_answer_as_rows_padded_on_the_right() -> None:
    model = small_model("transformer-prenorm")
    source, target = torch.randint(0, 23, (1, 4)), torch.randint(0, 23, (1, 3))
    expected = model(source, None, target)

    def padded(ids: torch.Tensor, before: int) -> tuple[torch.Tensor, Tokens, torch.Tensor]:
        wide = torch.cat((torch.zeros(1, before, dtype=torch.long), ids), 1)
        numbers = torch.cat((torch.zeros(1, before, dtype=torch.long), torch.ones_like(ids)), 1)
        return wide, Tokens(wide.shape[1], documents=numbers), positions_in_documents(numbers)

    ids, tokens, positions = padded(source, 3)
    memory = model.encode_tokens(ids, tokens, NotPadding(), positions)
    ids, tokens, positions = padded(target, 2)
    found = model.decode_tokens(ids, memory, tokens, NotPadding(), positions)
    torch.testing.assert_close(found[:, 2:], expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_two_pairs_packed_into_one_row_answer_as_two_rows() -> None:
    model = small_model("transformer")
    sources = [torch.randint(0, 23, (1, size)) for size in (4, 2)]
    targets = [torch.randint(0, 23, (1, size)) for size in (3, 5)]

    def packed(parts: list[torch.Tensor]) -> tuple[torch.Tensor, Tokens, torch.Tensor]:
        numbers = torch.cat([torch.full_like(part, i + 1) for i, part in enumerate(parts)], 1)
        return torch.cat(parts, 1), Tokens(numbers.shape[1], documents=numbers), positions_in_documents(numbers)

    ids, tokens, positions = packed(sources)
    memory = model.encode_tokens(ids, tokens, SameDocument(), positions)
    ids, tokens, positions = packed(targets)
    found = model.decode_tokens(ids, memory, tokens, SameDocument(), positions).split((3, 5), 1)
    for source, target, logits in zip(sources, targets, found, strict=True):
        torch.testing.assert_close(logits, model(source, None, target), atol=1e-5, rtol=1e-4)
