"""A whole training from the front door: what comes out, what can be changed, and how it goes on."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.api.choices import DataSettings, NewTokenizer
from qkv.api.loading import load
from qkv.api.scores import Scores
from qkv.api.training import read_result
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.text import TextToText
from qkv.parts.residual import Admin
from qkv.train.objectives.loss import Loss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adam
from qkv.train.schedules import Constant, Noam
from tests.api.tiny import PAIRS, SIZES, TRAIN, VALID, settings, train_tiny


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in every if record["kind"] == kind]


def same_weights(first: TextToText, second: TextToText) -> bool:
    states = first.model.state_dict(), second.model.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_what_is_trained_is_returned_and_left_in_the_folder(tmp_path: Path) -> None:
    trained = train_tiny(tmp_path / "run")
    loaded = load(tmp_path / "run", device="cpu")
    assert same_weights(trained, loaded)
    assert [result.text for result in trained.run(["cat"])] == [result.text for result in loaded.run(["cat"])]


def test_it_learns(tmp_path: Path) -> None:
    train_tiny(
        tmp_path,
        sizes={**SIZES, "width": 32, "dropout": 0.0},
        valid=TRAIN,
        settings=settings(steps=80, evaluate_every=20),
        optimizer=partial(adam, learning_rate=1e-2),
        schedule=Constant(),
    )
    losses = [record["figures"]["loss"] for record in records(tmp_path, "evaluation")]
    assert losses[-1] < 0.5 * losses[0]


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(tmp_path: Path) -> None:
    first, again, other = (
        train_tiny(tmp_path / str(number), settings=settings(seed=seed)) for number, seed in enumerate((1, 1, 2))
    )
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_the_result_of_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    train_tiny(tmp_path)
    result = read_result(tmp_path)
    assert result.step == 4
    assert result.tokens == sum(record["kind"] == "train" for record in records(tmp_path, "train")) * sum(
        len(target.split()) + 1 for _, target in TRAIN
    )
    assert result.flops > 1000 * result.tokens
    assert set(result.figures) == {"loss", "perplexity"}


def test_an_unfinished_run_has_no_result(tmp_path: Path) -> None:
    train_tiny(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(QkvError, match="not finished"):
        read_result(tmp_path)


def test_a_share_is_held_out_where_no_validation_data_is_given(tmp_path: Path) -> None:
    train_tiny(tmp_path / "held", pairs=PAIRS, valid=None, data=DataSettings(hold_out=0.2))
    assert read_result(tmp_path / "held").figures
    train_tiny(tmp_path / "none", pairs=PAIRS, valid=None, data=DataSettings(hold_out=0))
    assert read_result(tmp_path / "none").figures == {}


def test_every_part_can_be_another(tmp_path: Path) -> None:
    """Objective, optimizer, schedule, batching, evaluation and the count of operations are all passed built."""
    seen = []

    def objective(model: nn.Module, batch: Any) -> Loss:
        seen.append(tuple(batch.source.shape))
        return SequenceToSequenceLoss(smoothing=0.0)(model, batch)

    trained = train_tiny(
        tmp_path,
        objective=objective,
        optimizer=partial(adam, learning_rate=1.0),
        schedule=Noam(width=8, warmup=10),
        data=DataSettings(batching=FixedShapes(max_tokens=60, widths=(5,))),
        evaluate=lambda text_to_text: {"mine": float(len(text_to_text.run(["cat"], beams=1)))},
        flops=lambda model, batch: 7.0,
        settings=settings(watch="mine", better="higher"),
    )
    assert set(seen) == {(10, 5)}
    result = read_result(tmp_path)
    assert result.figures["mine"] == 1.0
    assert result.flops == 7.0 * result.tokens
    assert records(tmp_path, "train")[0]["learning_rate"] == pytest.approx(8**-0.5 * 10**-1.5)
    assert isinstance(trained, TextToText)


def test_scores_are_measured_as_it_trains(tmp_path: Path) -> None:
    train_tiny(tmp_path, evaluate=Scores(VALID, ["per", "ser"]), settings=settings(evaluate_every=2))
    assert [set(record["figures"]) for record in records(tmp_path, "evaluation")] == [
        {"loss", "perplexity", "per", "ser"}
    ] * 2


def test_texts_can_be_cut_anew_each_epoch(tmp_path: Path) -> None:
    """Without dropout every epoch has as many tokens; with it some have more."""
    counts = []
    for rate in (0.0, 0.5):
        folder = tmp_path / str(rate)
        data = DataSettings(batching=TokenBudget(4096), subword_dropout=rate)
        tokenizer = TextTokenizer.train("bpe", [text for pair in PAIRS for text in pair], vocabulary=280)
        train_tiny(folder, tokenizer=tokenizer, target_tokenizer=None, data=data)
        tokens = [record["tokens"] for record in records(folder, "train")]
        counts.append([after - before for before, after in zip([0, *tokens], tokens, strict=False)])
    assert len(set(counts[0])) == 1
    assert min(counts[1]) > counts[0][0] or len(set(counts[1])) > 1


def test_admin_is_profiled_before_it_trains(tmp_path: Path) -> None:
    trained = train_tiny(
        tmp_path, family="transformer-admin", sizes={**SIZES, "encoder_layers": 2}, settings=settings(steps=1)
    )
    omegas = [module.omega.mean().item() for module in trained.model.encoder.modules() if isinstance(module, Admin)]
    assert len(set(omegas)) > 2
    assert omegas[0] == pytest.approx(1.0, abs=0.01)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    through = train_tiny(tmp_path / "through", settings=settings(steps=6))
    train_tiny(tmp_path / "halted", settings=settings(steps=6, minutes=1e-9))  # over after the step that is begun
    halted = read_result(tmp_path / "halted").step
    assert halted < 6
    resumed = train_tiny(tmp_path / "halted", settings=settings(steps=6), resume=True)
    assert read_result(tmp_path / "halted").step == 6
    assert same_weights(through, resumed)


def test_a_resumed_run_keeps_its_tokenizers(tmp_path: Path) -> None:
    """Some kinds are never trained twice to the same vocabulary, so what is in the folder counts."""
    shared = {"tokenizer": NewTokenizer("unigram", 270), "target_tokenizer": None}
    first = train_tiny(tmp_path, **shared)
    second = train_tiny(tmp_path, **shared, resume=True, settings=settings(steps=5))
    assert first.source_tokenizer.fingerprint() == second.source_tokenizer.fingerprint()


def test_tokenizers_of_an_overwritten_run_are_gone(tmp_path: Path) -> None:
    train_tiny(tmp_path, target_tokenizer=None)
    assert (tmp_path / "tokenizer.json").exists()
    trained = train_tiny(tmp_path, overwrite=True)
    loaded = load(tmp_path, device="cpu")
    assert loaded.target_tokenizer.fingerprint() == trained.target_tokenizer.fingerprint()
    assert not (tmp_path / "tokenizer.json").exists()


def test_pairs_that_are_too_long_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny(tmp_path, pairs=[*TRAIN, ("c" * 300, "C")], reporter=None)
    said = " ".join(capsys.readouterr().err.split())
    assert f"{len(TRAIN)} pairs to train on (1 longer than 256 tokens left out), 3 to validate on" in said


def test_a_family_that_reads_one_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="gpt2 does not turn one text into another"):
        train_tiny(tmp_path, family="gpt2", sizes="desk")


def test_no_pairs_are_told(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="no pairs to train on"):
        train_tiny(tmp_path, pairs=[])
