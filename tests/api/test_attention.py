"""Another attention in a model, and what training and a teacher make of it."""

from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qkv.api.attention import with_attention
from qkv.api.choices import NewTokenizer
from qkv.api.distilling import Distillation, student_of
from qkv.api.encoders import pretrain_encoder
from qkv.api.language import pack, train_language_model
from qkv.api.loading import load
from qkv.api.span_filling import pretrain_text_to_text
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.generate.language import Options, TextWriter
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import DOCUMENTS, TINY
from tests.api.tiny import train_tiny

SIZES = {**TINY, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
QUIET = Reporter(Console(quiet=True))
CHOICES = ["window:4", "window:4:2+global:2", "strided:4", "fixed:8:2", "performer:32", "rfa:32", "lsh:2:16"]


def settings(steps: int) -> TrainSettings:
    return TrainSettings(steps=steps, evaluate_every=1000, save_every=1000, keep=1, device="cpu")


def teach(folder: Path, steps: int = 20, rate: float = 3e-3, **more: object) -> TextWriter:
    """A language model of a few thousand parameters, validated on what it is trained on."""
    return train_language_model(
        DOCUMENTS,
        folder,
        valid=DOCUMENTS,
        tokenizer=NewTokenizer("bpe", 300),
        length=192,
        batching=RowCount(2),
        settings=settings(steps),
        optimizer=partial(adamw, learning_rate=rate),
        schedule=Constant(),
        reporter=QUIET,
        **{"sizes": SIZES, **more},  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    teach(folder, steps=100)
    return folder


def loss_of(writer: TextWriter) -> float:
    scores = writer.score(DOCUMENTS)
    return -sum(score.log_probability for score in scores) / sum(len(score.ids) for score in scores)


@pytest.mark.parametrize("spelled", CHOICES)
def test_a_swapped_model_learns_back_from_what_it_was(spelled: str, teacher: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    known = load(teacher, "cpu")
    swapped = with_attention(known, spelled, say=lambda line: None)
    before = loss_of(swapped)
    assert before > loss_of(known)
    writer = teach(tmp_path / "run", model=swapped, distil=Distillation(known, temperature=1.0))
    assert loss_of(writer) < before
    again = load(tmp_path / "run", "cpu")
    assert str(again.model.attention_choice) == spelled
    assert read_json(tmp_path / "run" / "run.json")["settings"]["attention"] == spelled
    assert "DistillationLoss" in (tmp_path / "run" / "run.json").read_text()
    texts, few = ["And God said", "And the evening and", "In"], Options(most=4)  # padding before them changes nothing
    assert [each.ids for each in again.run(texts, few)] == [again.run([text], few)[0].ids for text in texts]


@pytest.mark.parametrize("spelled", ["window:4", "performer:16", "rfa:16", "lsh:2:16"])
def test_a_new_model_has_the_attention_that_was_asked_for(spelled: str, tmp_path: Path) -> None:
    writer = teach(tmp_path / "run", attention=spelled)
    assert str(writer.model.attention_choice) == spelled
    assert read_result(tmp_path / "run").figures["perplexity"] < 200  # of 300 tokens


def test_documents_share_rows_only_where_they_are_told_apart(tmp_path: Path) -> None:
    teach(tmp_path / "near", steps=1, attention="window:4")
    teach(tmp_path / "far", steps=1, attention="performer:8")
    rows = [read_json(tmp_path / name / "run.json")["settings"]["data"]["rows"] for name in ("near", "far")]
    assert ["pack" in rows[0], "stream" in rows[1]] == [True, True]
    with pytest.raises(QkvError, match="give rows=stream"):
        teach(tmp_path / "wrong", steps=1, attention="performer:8", rows=pack)


def test_a_run_goes_on_with_its_attention_only(tmp_path: Path) -> None:
    teach(tmp_path, steps=2, attention="window:4")
    with pytest.raises(QkvError, match="attention"):
        teach(tmp_path, steps=4, attention="window:5", resume=True)
    teach(tmp_path, steps=4, attention="window:4", resume=True)
    assert read_result(tmp_path).step == 4


def test_what_is_lost_is_said_once(teacher: Path) -> None:
    said: list[str] = []
    known = load(teacher, "cpu")
    with_attention(known, "lsh:2:16", say=said.append)
    with_attention(known, "window:4", say=said.append)
    assert len(said) == 1
    assert "keys are gone" in said[0]
    assert with_attention(known, None) is known


def test_a_swap_keeps_how_a_model_is_used(teacher: Path) -> None:
    known = load(teacher, "cpu")
    writer = TextWriter(known.model, known.tokenizer, more_ends=[7])
    assert with_attention(writer, "window:4").ends() == writer.ends() > known.ends()
    assert str(student_of(with_attention(known, "window:4"), 1).model.attention_choice) == "window:4"


@pytest.mark.parametrize("spelled", ["window:4", "linformer:8", "big_bird:2:1", "performer:16", "lsh:2:16"])
def test_an_encoder_is_pretrained_and_swapped(spelled: str, tmp_path: Path) -> None:
    train = partial(
        pretrain_encoder,
        DOCUMENTS,
        next_sentence=False,
        hold_out=0.0,
        tokenizer=NewTokenizer("wordpiece", 200),
        sizes=TINY,
        length=48,
        batching=RowCount(3),
        settings=settings(2),
        reporter=QUIET,
    )
    filler = train(tmp_path / "new", attention=spelled)
    assert str(load(tmp_path / "new", "cpu").model.attention_choice) == spelled
    own = train(tmp_path / "own")
    taught = train(tmp_path / "swapped", model=own, attention=spelled, distil=Distillation(own))
    assert str(taught.model.attention_choice) == spelled
    assert filler.run([f"And God saw the {filler.tokenizer.roles['mask']}"], best=1)


def test_an_encoder_decoder_takes_a_rule(tmp_path: Path) -> None:
    sizes = {"width": 16, "key_width": 8, "hidden": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    train = partial(
        pretrain_text_to_text,
        DOCUMENTS,
        hold_out=0.0,
        length=32,
        batching=RowCount(3),
        settings=settings(2),
        reporter=QUIET,
    )
    own = train(tmp_path / "own", tokenizer=NewTokenizer("bpe", 300), sizes=sizes)
    swapped = train(tmp_path / "swapped", model=own, attention="window:4")
    assert str(swapped.model.attention_choice) == "window:4"
    assert str(load(tmp_path / "swapped", "cpu").model.attention_choice) == "window:4"
    with pytest.raises(QkvError, match="adds a bias to every score"):
        train(tmp_path / "no", model=own, attention="performer:8")
    translator = train_tiny(tmp_path / "pairs", attention="performer:8")
    assert translator.run(["cat"])[0].text == load(tmp_path / "pairs", "cpu").run(["cat"])[0].text
