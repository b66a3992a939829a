"""Pre-training an encoder, whole, on a little text."""

import pytest
import torch

from qkv.api.choices import NewTokenizer
from qkv.api.encoders import Hiding, pretrain_encoder
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.load import load_model
from tests.api.corpus import DOCUMENTS, TINY

QUICK = TrainSettings(steps=4, evaluate_every=2, save_every=2, keep=1, log_every=1)
HOW = {
    "sizes": TINY,
    "length": 32,
    "tokenizer": NewTokenizer("wordpiece", 200, lowercase=True),
    "batching": RowCount(4),
}


@pytest.mark.parametrize("next_sentence", [True, False])
def test_it_trains_validates_and_leaves_a_folder(tmp_path, next_sentence):
    settings = TrainSettings(steps=40, evaluate_every=20, save_every=40, keep=1, log_every=20)
    filler = pretrain_encoder(
        DOCUMENTS, tmp_path, next_sentence=next_sentence, valid=DOCUMENTS[:2], settings=settings, **HOW
    )
    result = read_result(tmp_path)
    assert result.step == 40
    assert result.flops > 0
    assert result.figures["perplexity"] < filler.model.vocabulary
    assert ("next_sentence_accuracy" in result.figures) == next_sentence
    again = load_model(tmp_path)
    assert again.head_choice == filler.model.head_choice
    for name, tensor in filler.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    (fillings,) = filler.run([f"And God said, Let there be {filler.tokenizer.roles['mask']}."], best=3)
    assert len(fillings) == 3
    assert fillings[0].probability >= fillings[1].probability


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    # Training a wordpiece vocabulary twice may give two; other schedules depend on how long the run is meant to be.
    how = {**HOW, "tokenizer": NewTokenizer("bpe", 300), "schedule": Constant()}
    whole = pretrain_encoder(DOCUMENTS, tmp_path / "whole", settings=QUICK, **how)
    half = TrainSettings(steps=2, evaluate_every=2, save_every=2, keep=1, log_every=1)
    pretrain_encoder(DOCUMENTS, tmp_path / "parts", settings=half, **how)
    parts = pretrain_encoder(DOCUMENTS, tmp_path / "parts", settings=QUICK, resume=True, **how)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(parts.model.state_dict()[name], tensor), name


def test_a_trained_encoder_is_trained_further(tmp_path):
    first = pretrain_encoder(DOCUMENTS, tmp_path / "first", settings=QUICK, **HOW)
    before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    second = pretrain_encoder(
        DOCUMENTS, tmp_path / "second", model=first, settings=QUICK, length=32, batching=RowCount(4)
    )
    assert second.tokenizer is first.tokenizer
    assert any(not torch.equal(second.model.state_dict()[name], tensor) for name, tensor in before.items())
    with pytest.raises(QkvError, match="needs a masked head"):
        pretrain_encoder(DOCUMENTS, tmp_path / "third", model=first, next_sentence=False, settings=QUICK)


def test_whole_words_are_hidden_together(tmp_path):
    filler = pretrain_encoder(DOCUMENTS, tmp_path, settings=QUICK, hiding=Hiding(whole_words=True), **HOW)
    assert filler.tokenizer.has("mask")


def test_no_text_is_said_in_a_sentence(tmp_path):
    with pytest.raises(QkvError, match="no text to train on"):
        pretrain_encoder([], tmp_path)
