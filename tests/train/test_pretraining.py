"""From a corpus to a trained model by the one loop, for each way of pre-training; resumed, it gives the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches, ordered_batches
from qkv.data.documents import Documents
from qkv.data.masking import Masking
from qkv.data.next_sentence import SegmentPairs, Sentences, Special
from qkv.data.packing import pack
from qkv.data.plan import RowCount, TokenBudget
from qkv.data.span_corruption import SpanCorruption
from qkv.data.token_rows import TokenRows
from qkv.train.evaluation import ValidationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import PretrainingLoss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from tests.models.small import small_model
from tests.train.objectives.small import CLS, MASK, PAD, SEP, VOCABULARY, small_bert, small_gpt
from tests.train.tiny import train_tiny


def corpus(documents: int = 30, longest: int = 40, vocabulary: int = VOCABULARY) -> TokenRows:
    """Documents that count upwards in steps of their own, which is easy to predict."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(documents):
        first, step, length = generator.integers(0, 20), generator.integers(1, 4), generator.integers(8, longest)
        rows.append([4 + int(first + step * i) % (vocabulary - 4) for i in range(length)])
    return TokenRows.from_lists(rows, PAD)


def language() -> tuple[Any, Any, Batches[Any], Any]:
    documents = Documents(corpus(), corpus().lengths)
    rows = pack(documents, 48, end=SEP, start=CLS)
    batches = Batches(lambda epoch: pack(documents, 48, end=SEP, start=CLS, seed=epoch), RowCount(4))
    return small_gpt(), LanguageLoss(), batches, rows


def pretraining() -> tuple[Any, Any, Batches[Any], Any]:
    sentences = [row[i : i + 6] for row in map(corpus().__getitem__, range(30)) for i in range(0, len(row), 6)]
    sizes = -(-corpus().lengths // 6)
    pairs = SegmentPairs(
        Sentences.from_rows(TokenRows.from_lists(sentences, PAD), sizes),
        32,
        Special(CLS, SEP, PAD),
        Masking(mask=MASK, vocabulary=VOCABULARY, special=[PAD, CLS, SEP]),
    )
    return small_bert("pretraining"), PretrainingLoss(), Batches(pairs, TokenBudget(256)), pairs(1000)


def corruption() -> tuple[Any, Any, Batches[Any], Any]:
    spans = SpanCorruption(corpus(vocabulary=16), [18, 17, 16], end=SEP, start=PAD)
    model = small_model("transformer-prenorm")
    return model, SequenceToSequenceLoss(), Batches(spans, TokenBudget(256)), spans(1000)


@pytest.mark.parametrize("way", [language, pretraining, corruption])
def test_the_loss_falls_and_a_resumed_run_is_the_same(way: Callable[..., Any], tmp_path: Path) -> None:
    def run(folder: str, steps: int, **options: Any) -> Any:
        torch.manual_seed(0)
        model, objective, batches, held_out = way()
        evaluate = ValidationLoss(objective, [batch for _, batch in ordered_batches(held_out, 512)])
        return train_tiny(
            tmp_path / folder, model=model, objective=objective, batches=batches, evaluate=evaluate, steps=steps,
            **options,
        )  # fmt: skip

    model, objective, _, held_out = way()
    with torch.no_grad():
        before = ValidationLoss(objective, [batch for _, batch in ordered_batches(held_out, 512)])(model.eval())
    result, whole, _ = run("whole", 30)
    assert result.figures["loss"] < 0.9 * before["loss"]
    assert result.figures["perplexity"] < before["perplexity"]
    run("parts", 17)
    _, resumed, _ = run("parts", 30, run={"resume": True})
    for (name, mine), theirs in zip(resumed.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
