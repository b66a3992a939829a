"""Training a language model, whole, on a little text."""

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.language import stream, train_language_model
from qkv.api.language_data import TextsInMemory
from qkv.api.loading import load
from qkv.api.texts_on_disk import corpus_of
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.generate.language import Options
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS, TINY

QUICK = TrainSettings(steps=4, evaluate_every=2, save_every=2, keep=1, log_every=1)
HOW = {
    "sizes": {**TINY, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
    "length": 48,
    "tokenizer": NewTokenizer("bpe", 300),
    "batching": RowCount(4),
    "schedule": Constant(),
}


def test_texts_that_trainings_share_are_cut_once():
    shared = TextsInMemory(DOCUMENTS, DOCUMENTS[:2], 0.5)
    assert corpus_of(shared, None, 0.5) is shared
    tokenizer = NewTokenizer("bytes").train(DOCUMENTS)
    to_train, held_out = shared.cut(tokenizer)
    assert (len(to_train), len(held_out)) == (len(DOCUMENTS), 2)
    assert shared.cut(NewTokenizer("bytes").train(DOCUMENTS))[0] is to_train
    assert shared.cut(NewTokenizer("characters").train(DOCUMENTS))[0] is not to_train


@pytest.mark.parametrize("rows", [{}, {"rows": stream}])
def test_it_learns_its_text_by_heart(tmp_path, rows):
    settings = TrainSettings(steps=250, evaluate_every=250, save_every=250, keep=1, log_every=50)
    how = {**HOW, "sizes": {**HOW["sizes"], "width": 32, "hidden": 64}}
    writer = train_language_model(DOCUMENTS, tmp_path, valid=DOCUMENTS, settings=settings, **how, **rows)
    result = read_result(tmp_path)
    assert result.figures["perplexity"] < 10
    assert 0 < result.figures["bits_per_byte"] < 1.5
    assert result.flops > 0
    again = load(tmp_path, device="cpu")
    options = Options(most=12)
    assert again.run(["And God said, Let"], options)[0].ids == writer.run(["And God said, Let"], options)[0].ids


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    whole = train_language_model(DOCUMENTS, tmp_path / "whole", settings=QUICK, **HOW)
    half = TrainSettings(steps=2, evaluate_every=2, save_every=2, keep=1, log_every=1)
    train_language_model(DOCUMENTS, tmp_path / "parts", settings=half, **HOW)
    parts = train_language_model(DOCUMENTS, tmp_path / "parts", settings=QUICK, resume=True, **HOW)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(parts.model.state_dict()[name], tensor), name


def test_a_loaded_model_is_trained_further(tmp_path):
    first = train_language_model(DOCUMENTS, tmp_path / "first", settings=QUICK, **HOW)
    how = {"length": 48, "batching": RowCount(4), "settings": QUICK}
    second = train_language_model(DOCUMENTS, tmp_path / "second", model=first, **how)
    assert second.tokenizer is first.tokenizer
    with pytest.raises(QkvError, match="Rows of 100 tokens are longer than the 48"):
        train_language_model(DOCUMENTS, tmp_path / "third", model=first, length=100, settings=QUICK)
