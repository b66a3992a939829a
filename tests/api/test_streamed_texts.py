"""Training a language model on texts that stay on disk."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from qkv.api.choices import NewTokenizer
from qkv.api.language import train_language_model
from qkv.api.streamed_texts import StreamedTexts, stream_texts
from qkv.api.texts_on_disk import amount
from qkv.api.training import read_result
from qkv.data.plan import RowCount, TokenBudget
from qkv.data.sources import sources_of
from qkv.data.token_folder import write_list
from qkv.data.token_shards import TokenShards
from qkv.errors import QkvError
from qkv.train.reporter import Reporter
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.api.corpus import TINY
from tests.data.some_shards import GUIDES, byte_tokenizer, paragraphs, write_corpus

HOW = {
    "sizes": TINY,
    "length": 48,
    "tokenizer": NewTokenizer("bpe", 300),
    "batching": RowCount(4),
    "hold_out": 0.1,
    "schedule": Constant(),
}


def settings(steps: int) -> TrainSettings:
    return TrainSettings(steps=steps, evaluate_every=3, save_every=3, keep=1, log_every=1, device="cpu")


def corpus(folder: Path, **more) -> StreamedTexts:
    texts = folder / "texts"
    return stream_texts(texts if texts.exists() else write_corpus(texts), cache=folder / "tokens", window=2, **more)


def mixture(folder: Path) -> StreamedTexts:
    for name, (files, each) in {"large": (4, 9), "small": (1, 2)}.items():
        if not (folder / name).exists():
            write_corpus(folder / name, files, each)
    weights = {str(folder / "large"): 3.0, str(folder / "small"): 1.0}
    return stream_texts(weights, cache=folder / "tokens", window=2)


@pytest.mark.parametrize("texts", [corpus, mixture])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path, texts) -> None:
    """In the middle of a window, with dropout, on tokens that are in the cache by then."""
    whole = train_language_model(texts(tmp_path), tmp_path / "whole", settings=settings(9), **HOW)
    train_language_model(texts(tmp_path), tmp_path / "parts", settings=settings(6), **HOW)
    parts = train_language_model(texts(tmp_path), tmp_path / "parts", settings=settings(9), resume=True, **HOW)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(parts.model.state_dict()[name], tensor), name
    assert read_result(tmp_path / "parts").figures == read_result(tmp_path / "whole").figures
    assert read_result(tmp_path / "whole").figures["perplexity"] > 1


def test_what_was_read_of_each_corpus_is_recorded(tmp_path: Path) -> None:
    train_language_model(mixture(tmp_path), tmp_path / "run", settings=settings(8), **HOW)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "train"][-1]
    assert list(last["read"]) == [str(tmp_path / "large"), str(tmp_path / "small")]
    assert sum(last["read"].values()) >= last["tokens"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["data"]["weights"] == {
        str(tmp_path / "large"): 3.0,
        str(tmp_path / "small"): 1.0,
    }


def test_a_new_tokenizer_learns_from_the_first_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(Console(width=300, stderr=True))
    train_language_model(corpus(tmp_path), tmp_path / "run", settings=settings(1), reporter=reporter, **HOW)
    said = capsys.readouterr().err
    assert "A new tokenizer learns from the first 60 documents" in said
    assert "5 shards of" in said
    assert "read from disk 2 at a time" in said


def test_texts_to_validate_on_may_be_given(tmp_path: Path) -> None:
    valid = paragraphs("getting-started.md")[:3]
    train_language_model(corpus(tmp_path), tmp_path / "run", valid=valid, settings=settings(2), **HOW)
    assert read_result(tmp_path / "run").figures["loss"] > 0


def test_tokens_made_before_bring_their_tokenizer(tmp_path: Path) -> None:
    """And train the very model that their texts do."""
    texts, tokenizer = write_corpus(tmp_path / "texts"), byte_tokenizer()
    shards = TokenShards(sources_of(texts), tokenizer, tmp_path / "made")
    write_list(shards)
    shards.prepare()
    made = stream_texts(tmp_path / "made", window=2)
    assert made.first == paragraphs(GUIDES[0])[0]
    how = {**HOW, "settings": settings(3), "tokenizer": None}
    there = train_language_model(made, tmp_path / "there", **how)
    assert there.tokenizer.size == tokenizer.size
    here = train_language_model(corpus(tmp_path), tmp_path / "here", **{**how, "tokenizer": tokenizer})
    for name, tensor in here.model.state_dict().items():
        assert torch.equal(there.model.state_dict()[name], tensor), name
    with pytest.raises(QkvError, match="need no new tokenizer"):
        train_language_model(made, tmp_path / "no", **{**how, "tokenizer": NewTokenizer("bpe", 300)})
    other = NewTokenizer("bpe", 300).train(paragraphs(GUIDES[1]))
    with pytest.raises(QkvError, match="tokens of another tokenizer"):
        train_language_model(made, tmp_path / "no", **{**how, "tokenizer": other})
    with pytest.raises(QkvError, match="no column, format or cache"):
        stream_texts(tmp_path / "made", cache=tmp_path / "tokens")


def test_a_share_that_holds_out_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="None of the documents of the first shards is held out by a share of 1e-06"):
        train_language_model(corpus(tmp_path), tmp_path / "run", settings=settings(1), **{**HOW, "hold_out": 1e-6})


def test_other_data_is_not_gone_on_with(tmp_path: Path) -> None:
    train_language_model(corpus(tmp_path), tmp_path / "run", settings=settings(3), **HOW)
    (tmp_path / "texts" / "9-more.jsonl").write_text('{"text": "one more"}\n')
    with pytest.raises(QkvError, match="data"):
        train_language_model(corpus(tmp_path), tmp_path / "run", settings=settings(6), resume=True, **HOW)


def test_a_mixture_wants_weights_and_rows(tmp_path: Path) -> None:
    write_corpus(tmp_path / "texts", 1, 2)
    with pytest.raises(QkvError, match="above 0, not 0"):
        stream_texts({str(tmp_path / "texts"): 0.0})
    with pytest.raises(QkvError, match="at least one"):
        stream_texts({})
    how = {**HOW, "batching": TokenBudget(400)}
    with pytest.raises(QkvError, match="mixed row by row"):
        train_language_model(mixture(tmp_path), tmp_path / "run", settings=settings(1), **how)


@pytest.mark.parametrize(("size", "said"), [(1, "1 byte"), (5_300, "5.3 kB"), (12_345_678, "12.3 MB"), (2e9, "2 GB")])
def test_amounts(size: int, said: str) -> None:
    assert amount(size) == said
