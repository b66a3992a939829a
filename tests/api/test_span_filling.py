"""Pre-training as T5 was, whole, on a little text: gaps are filled, runs go on, the reference opens what is left."""

from functools import partial

import pytest
import torch
import transformers

from qkv.api.choices import NewTokenizer
from qkv.api.loading import load
from qkv.api.span_filling import CuttingOut, pretrain_text_to_text
from qkv.api.training import read_result, train_text_to_text
from qkv.data.plan import RowCount
from qkv.data.sentinels import sentinels_of
from qkv.errors import QkvError
from qkv.train.adapt import LoRA, add_lora
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant, Linear
from qkv.weights.certify import open_reference
from qkv.weights.export import export
from tests.api.corpus import DOCUMENTS
from tests.api.tiny import settings, train_tiny
from tests.api.translators import t5_folder

SIZES = {"width": 16, "key_width": 8, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
HOW = {
    "sizes": SIZES,
    "length": 32,
    "tokenizer": NewTokenizer("bpe", 300),
    "batching": RowCount(4),
    "schedule": Constant(),
    "settings": settings(evaluate_every=2, save_every=2, keep=1),
}


def same_weights(first, second):
    states = first.model.state_dict(), second.model.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_it_trains_validates_and_leaves_a_folder_that_the_reference_opens(tmp_path):
    model = pretrain_text_to_text(DOCUMENTS, tmp_path / "run", valid=DOCUMENTS[:2], **HOW)
    result = read_result(tmp_path / "run")
    assert result.flops > 0
    assert set(result.figures) == {"loss", "perplexity"}
    loaded = load(tmp_path / "run", "cpu")
    assert same_weights(model, loaded)
    assert len(sentinels_of(loaded.source_tokenizer)) == 100
    export(tmp_path / "run", tmp_path / "out")
    opened, keys = open_reference(transformers, "T5ForConditionalGeneration", tmp_path / "out")
    assert not any(keys.values())
    text = "And God <extra_id_0> the light"
    (ids,) = loaded.readers[0].encode([text], special=True)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == ids
    source, target = torch.tensor([ids]), torch.tensor([[loaded.target_tokenizer.start, *ids]])
    with torch.no_grad():
        expected = opened(input_ids=source, decoder_input_ids=target).logits
        torch.testing.assert_close(loaded.model(source, None, target), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_learns_to_fill_gaps_and_names_them(tmp_path):
    """One sentence by heart: whatever is cut out of it comes back, and with it the sentinels around it."""
    texts = ["in the beginning god created the heaven and the earth"] * 8
    how = {
        **HOW,
        "sizes": {**SIZES, "width": 32, "dropout": 0.0},
        "tokenizer": NewTokenizer("word"),
        "settings": settings(steps=200, log_every=100),
        "optimizer": partial(adamw, learning_rate=1e-2),
        "schedule": Linear(warmup=10),
        "batching": RowCount(8),
    }
    model = pretrain_text_to_text(texts, tmp_path, hold_out=0, cutting_out=CuttingOut(0.2, 2.0), **how)
    gapped = "in the beginning <extra_id_0> the heaven and the earth"
    assert model.run([gapped])[0].text == "<extra_id_0> god created <extra_id_1>"
    assert "<extra_id" not in model.run(["in the beginning"])[0].text
    (drawn,) = model.sample([gapped], samples=3, seed=1)
    assert all(one.text.startswith("<extra_id_0>") for one in drawn)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    whole = pretrain_text_to_text(DOCUMENTS, tmp_path / "whole", **HOW)
    half = {**HOW, "settings": settings(steps=2, evaluate_every=2, save_every=2, keep=1)}
    pretrain_text_to_text(DOCUMENTS, tmp_path / "parts", **half)
    parts = pretrain_text_to_text(DOCUMENTS, tmp_path / "parts", resume=True, **HOW)
    assert same_weights(whole, parts)


def test_a_loaded_t5_is_trained_further_and_then_on_pairs(tmp_path):
    published = load(t5_folder(tmp_path / "t5"), "cpu")
    further = {name: value for name, value in HOW.items() if name not in ("sizes", "tokenizer")}
    add_lora(published.model, LoRA(rank=2))
    second = pretrain_text_to_text(DOCUMENTS, tmp_path / "second", model=published, **further)
    loaded = load(tmp_path / "second", "cpu")
    assert same_weights(second, loaded)
    assert loaded.model.target_vocabulary > loaded.target_tokenizer.size
    assert not same_weights(loaded, load(tmp_path / "t5", "cpu"))
    third = train_text_to_text([("a", "b")] * 2, tmp_path / "third", model=loaded, valid=[], settings=settings())
    assert third.source_tokenizer is loaded.source_tokenizer


def test_texts_that_spell_sentinels_stay_text(tmp_path):
    """A corpus may hold anything: only what was cut out leaves a sentinel."""
    tokenizer = load(t5_folder(tmp_path / "t5"), "cpu").source_tokenizer
    rows = CuttingOut().rows_of(["the <extra_id_7> cat sat on the mat"], tokenizer, 32, seed=0)
    assert not set(rows.texts[0]) & set(sentinels_of(tokenizer))


def test_windows_fill_the_length_and_no_more(tmp_path):
    tokenizer = load(t5_folder(tmp_path / "t5"), "cpu").source_tokenizer
    pairs = CuttingOut().rows_of([" ".join(DOCUMENTS)], tokenizer, 32, seed=0)(0)
    assert int(pairs.source.lengths.max()) == 32
    assert len(pairs) > 3


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"cutting_out": CuttingOut(1.5)}, "between 0 and 1"),
        ({"cutting_out": CuttingOut(0.15, 0.5)}, "at least 1"),
        ({"length": 4000, "tokenizer": NewTokenizer("bytes")}, "sentinels"),
        ({"family": "bert"}, "does not turn one text into another"),
        ({"sizes": {"vocabulary": 9}}, "follows from the tokenizer"),
    ],
)
def test_what_cannot_be_cut_out_or_built_is_said(tmp_path, changes, hint):
    with pytest.raises(QkvError, match=hint):
        pretrain_text_to_text([" ".join(DOCUMENTS * 3)] * 2, tmp_path / "run", hold_out=0, **{**HOW, **changes})
    assert not (tmp_path / "run").exists()


def test_no_text_and_no_token_are_said(tmp_path):
    with pytest.raises(QkvError, match="no text to train on"):
        pretrain_text_to_text([], tmp_path)
    tokenizer = load(t5_folder(tmp_path / "t5"), "cpu").source_tokenizer
    with pytest.raises(QkvError, match="no token in the texts"):
        pretrain_text_to_text([" "], tmp_path / "run", hold_out=0, tokenizer=tokenizer.with_roles(start="<pad>"))


def test_a_model_without_sentinels_and_what_would_do_nothing_are_refused(tmp_path):
    model = train_tiny(tmp_path / "tiny")
    with pytest.raises(QkvError, match="a model or sizes, not both"):
        pretrain_text_to_text(DOCUMENTS, tmp_path / "run", model=model, sizes=SIZES)
    with pytest.raises(QkvError, match="no sentinels such as <extra_id_0>"):
        pretrain_text_to_text(DOCUMENTS, tmp_path / "run", model=model)
