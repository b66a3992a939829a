from dataclasses import replace

import numpy as np
import pytest
import torch

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.decode import Hypothesis, greedy
from qkv.look.draw import draw_record
from qkv.look.maps import Kind
from qkv.look.page import attention_page
from qkv.look.record import record_attention, record_reading, record_text
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.rnn import RNNSizes, rnn
from qkv.models.transformer import TransformerSizes, transformer
from qkv.parts.context import Ledger

LETTERS = TextTokenizer.train("characters", ["phonetician", "knight"])
PHONEMES = TextTokenizer.train("word", ["F OW N AH T IH SH AH N", "N AY T"])

SIZES = TransformerSizes(
    vocabulary=PHONEMES.size,
    source_vocabulary=LETTERS.size,
    width=16,
    hidden=32,
    heads=4,
    encoder_layers=2,
    decoder_layers=3,
    dropout=0.3,
)


def ids(word, phonemes):
    return [*LETTERS.encode([word])[0], LETTERS.end], [*PHONEMES.encode([phonemes])[0], PHONEMES.end]


@pytest.fixture(scope="module")
def small_transformer():
    torch.manual_seed(0)
    return transformer(SIZES)


@pytest.fixture(scope="module")
def small_rnn():
    torch.manual_seed(0)
    sizes = RNNSizes(
        vocabulary=PHONEMES.size, source_vocabulary=LETTERS.size, embedding=8, width=8, alignment=8, maxout=8
    )
    return rnn(sizes)


# The second pair is as long on both sides, so that lengths alone do not tell self- from cross-attention.
PAIRS = [("knight", "N AY T"), ("night", "N AY T N T"), ("t", "F OW N AH T IH SH AH N")]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_transformer_gives_every_map_with_its_kind_and_labels(small_transformer, pair):
    source, target = ids(*pair)
    record = record_attention(small_transformer, source, target, LETTERS, PHONEMES)
    assert [len(record.of(kind)) for kind in (Kind.ENCODER, Kind.DECODER, Kind.CROSS)] == [2, 3, 3]
    letters, phonemes = (*pair[0], "</s>"), (*pair[1].split(), "</s>")
    for each in record.maps:
        assert each.kind == {"encoder": Kind.ENCODER, "decoder": Kind.DECODER}[each.name.split(".")[0]] or (
            each.kind is Kind.CROSS and ".cross." in each.name
        )
        assert each.heads == 4
        assert each.weights.dtype == np.float32
        np.testing.assert_allclose(each.weights.sum(axis=-1), 1, atol=1e-5)
    for kind, queries, keys in [
        (Kind.CROSS, phonemes, letters),
        (Kind.ENCODER, letters, letters),
        (Kind.DECODER, phonemes, ("<s>", *phonemes[:-1])),
    ]:
        assert {(each.queries, each.keys) for each in record.of(kind)} == {(queries, keys)}
    assert (record.source, record.target) == pair


def test_the_weights_are_those_of_one_plain_pass(small_transformer):
    source, target = ids("night", "N AY T N T")
    record = record_attention(small_transformer, source, target, LETTERS, PHONEMES)
    ledger = Ledger(small_transformer, keep={"weights"})
    small_transformer.eval()
    with torch.no_grad():
        memory = small_transformer.encode(torch.tensor([source]), ledger=ledger)
        small_transformer.decode(torch.tensor([[PHONEMES.start, *target[:-1]]]), memory, ledger=ledger)
    assert {each.name for each in record.maps} == {entry.removesuffix("/weights") for entry in ledger.entries}
    for each in record.maps:
        (weights,) = ledger.entries[f"{each.name}/weights"]
        np.testing.assert_allclose(each.weights, weights[0].numpy(), atol=1e-6)


def test_no_row_of_the_decoder_looks_ahead(small_transformer):
    source, target = ids("knight", "N AY T")
    for each in record_attention(small_transformer, source, target, LETTERS, PHONEMES).of(Kind.DECODER):
        assert np.triu(each.weights, k=1).max() == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_a_recurrent_model_gives_one_map_of_one_head(small_rnn, pair):
    record = record_attention(small_rnn, *ids(*pair), LETTERS, PHONEMES)
    (cross,) = record.maps
    assert cross.kind is Kind.CROSS
    assert cross.weights.shape == (1, len(pair[1].split()) + 1, len(pair[0]) + 1)
    np.testing.assert_allclose(cross.weights.sum(axis=-1), 1, atol=1e-5)
    assert "the only head" in attention_page([record])


def test_a_text_is_decoded_and_its_output_looked_at(small_transformer):
    record = record_text(small_transformer.train(), "knight", LETTERS, PHONEMES)
    small_transformer.eval()
    source, _ = ids("knight", "N")
    (hypothesis,) = greedy(small_transformer, torch.tensor([source]), start=PHONEMES.start, end=PHONEMES.end)
    shown = PHONEMES.tokens(hypothesis.ids) + ["</s>"] * hypothesis.ended
    assert record.average().queries == tuple(shown)
    assert record.average().keys == (*"knight", "</s>")


def test_rows_that_stand_for_no_token_are_never_written(small_transformer):
    model = transformer(replace(SIZES, vocabulary=PHONEMES.size + 2)).eval()
    with torch.no_grad():
        way = torch.randn(16)
        model.head.weight[-2:] = 100 * torch.stack([way, -way])  # one of the two would always win
    assert record_text(model, "knight", LETTERS, PHONEMES).average().keys == (*"knight", "</s>")


@pytest.mark.parametrize("ended", [True, False])
def test_a_hypothesis_of_the_caller_is_looked_at_as_it_is(small_rnn, ended):
    written = PHONEMES.encode(["N AY T"])[0]
    hypothesis = Hypothesis(written, log_probability=-1.0, score=-1.0, ended=ended)
    record = record_text(small_rnn, "Knight?", LETTERS, PHONEMES, hypothesis)
    assert record.source == "Knight?"  # as it was typed, not as the tokenizer knows it
    assert record.target == "N AY T"
    assert record.average().queries == ("N", "AY", "T", "</s>")[: 3 + ended]


def test_an_output_cut_short_has_no_row_for_the_end(small_transformer):
    source, target = ids("knight", "N AY T")
    record = record_attention(small_transformer, source, target[:-1], LETTERS, PHONEMES)
    assert record.average().queries == ("N", "AY", "T")


def test_a_leading_start_token_makes_no_difference(small_transformer):
    source, target = ids("knight", "N AY T")
    plain = record_attention(small_transformer, source, target, LETTERS, PHONEMES)
    marked = record_attention(small_transformer, source, [PHONEMES.start, *target], LETTERS, PHONEMES)
    for one, other in zip(plain.maps, marked.maps, strict=True):
        assert one.queries == other.queries
        np.testing.assert_array_equal(one.weights, other.weights)


def test_looking_is_done_without_dropout_and_leaves_the_model_as_it_was(small_transformer):
    pair = ids("knight", "N AY T")
    small_transformer.train()
    first, second = (record_attention(small_transformer, *pair, LETTERS, PHONEMES) for _ in range(2))
    assert small_transformer.training
    for one, other in zip(first.maps, second.maps, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
    assert all(parameter.grad is None for parameter in small_transformer.parameters())


def test_a_half_precision_model_is_recorded_in_single_precision(small_transformer):
    model = transformer(small_transformer_sizes()).bfloat16()
    record = record_attention(model, *ids("knight", "N AY T"), LETTERS, PHONEMES)
    assert {each.weights.dtype for each in record.maps} == {np.dtype(np.float32)}
    np.testing.assert_allclose(record.average().weights.sum(axis=-1), 1, atol=2e-2)


def small_transformer_sizes():
    return TransformerSizes(
        vocabulary=PHONEMES.size,
        source_vocabulary=LETTERS.size,
        width=8,
        hidden=8,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
    )


def test_a_record_can_be_drawn(small_transformer):
    record = record_attention(small_transformer, *ids("knight", "N AY T"), LETTERS, PHONEMES)
    assert "knight" in attention_page([record])
    assert "knight" in record._repr_html_()
    assert draw_record(record).width > 300


@pytest.mark.parametrize(
    ("source", "target", "side"), [([], [5], "input"), ([5], [], "output"), ([5], [PHONEMES.start], "output")]
)
def test_nothing_to_look_at_is_a_clear_error(small_transformer, source, target, side):
    with pytest.raises(QkvError, match=f"the {side} has no tokens"):
        record_attention(small_transformer, source, target, LETTERS, PHONEMES)


def test_a_model_with_one_stack_looks_at_its_text() -> None:
    tokenizer = TextTokenizer.train("bpe", ["the cat sat on the mat"], vocabulary=280)
    sizes = GPT2Sizes(vocabulary=tokenizer.size, positions=32, width=16, hidden=32, heads=2, layers=3)
    model = build("gpt2", sizes, HeadChoice("states"))
    record = record_reading(model, "the cat sat", tokenizer)
    assert record.kinds == (Kind.TEXT,)
    assert len(record.maps) == 3
    labels = tuple(tokenizer.tokens(tokenizer.encode(["the cat sat"])[0]))
    for each in record.maps:
        assert each.queries == each.keys == labels
        assert np.allclose(each.weights.sum(-1), 1, atol=1e-5)
        assert not np.triu(each.average(), 1).any()  # it looks back only
    assert model.training
    assert "→" not in attention_page([record]).split("<h2", 1)[1].split("</h2>")[0]
