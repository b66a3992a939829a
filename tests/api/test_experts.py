"""Models with experts are trained like any other: the loss falls, and the records tell how experts are used."""

import json

import pytest

from qkv.api.choices import NewTokenizer
from qkv.api.language import train_language_model
from qkv.api.loading import load
from qkv.api.span_filling import pretrain_text_to_text
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS, TINY

HOW = {"length": 48, "tokenizer": NewTokenizer("bpe", 300), "batching": RowCount(4), "schedule": Constant()}
SETTINGS = TrainSettings(steps=60, evaluate_every=20, save_every=60, keep=1, log_every=20)
SIZES = {
    "gpt2": {**TINY, "experts": 4},
    "mixtral": {**TINY, "key_value_heads": 1, "experts": 4},
}
SWITCH = {
    "width": 16, "key_width": 8, "hidden": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "experts": 4,
    "capacity_factor": 1.25,
}  # fmt: skip


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_records(folder, drops):
    result, history = read_result(folder), records(folder)
    assert result.flops > 0
    figures = [record["figures"] for record in history if record["kind"] == "evaluation"]
    assert len(figures) == 3
    assert figures[-1]["perplexity"] < figures[0]["perplexity"]
    losses = [record["loss"] for record in history if record["kind"] == "train"]
    assert losses[-1] < losses[0]
    for each in figures:
        assert 0.5 < each["balance"] < 4
        assert 0.25 <= each["busiest_expert"] <= 1
        assert (each["dropped"] > 0) == drops
        assert each["router_z"] >= 0


@pytest.mark.parametrize("family", SIZES)
def test_a_language_model_with_experts_learns(tmp_path, family):
    writer = train_language_model(
        DOCUMENTS, tmp_path, valid=DOCUMENTS[:2], family=family, sizes=SIZES[family], settings=SETTINGS, **HOW
    )
    check_records(tmp_path, drops=False)
    again = load(tmp_path, device="cpu")
    assert again.model.sizes == writer.model.sizes


def test_a_switch_transformer_learns_to_fill_gaps(tmp_path):
    pretrain_text_to_text(
        DOCUMENTS, tmp_path, valid=DOCUMENTS[:2], family="switch", sizes=SWITCH, settings=SETTINGS, **HOW
    )
    check_records(tmp_path, drops=True)


def test_the_weights_can_be_chosen_and_are_recorded(tmp_path):
    quick = TrainSettings(steps=1, evaluate_every=1, save_every=1, keep=1, log_every=1)
    objective = WithExpertLosses(LanguageLoss(), balance=0.5, router_z=0.0)
    train_language_model(DOCUMENTS, tmp_path, sizes=SIZES["gpt2"], settings=quick, objective=objective, **HOW)
    said = json.dumps(json.loads((tmp_path / "run.json").read_text()))
    assert '"name": "WithExpertLosses"' in said
    assert '"balance": 0.5' in said
