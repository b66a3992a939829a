"""Text models at a size that a test can afford, with noise on every parameter, and texts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qkv.data.plan import PlannedBatch
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.models.bert import BertSizes
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from tests.models.small import perturb

VOCABULARY = 31
PAD, CLS, SEP, MASK = 0, 1, 2, 3


def small_gpt(kind: str = "language", seed: int = 0, **head: Any) -> TextModel:
    sizes = GPT2Sizes(vocabulary=VOCABULARY, positions=64, width=12, hidden=16, heads=2, layers=2, dropout=0.0)
    return _build("gpt2", sizes, HeadChoice(kind, **head), seed)


def small_bert(kind: str = "masked", seed: int = 0, *, layers: int = 2, width: int = 12, **head: Any) -> TextModel:
    sizes = BertSizes(
        vocabulary=VOCABULARY, positions=64, width=width, hidden=16, heads=2, layers=layers, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    return _build("bert", sizes, HeadChoice(kind, **head), seed)


def _build(family: str, sizes: Any, head: HeadChoice, seed: int) -> TextModel:
    torch.manual_seed(seed)
    model: TextModel = build(family, sizes, head)
    perturb(model)
    return model.eval()


def some_texts(count: int = 6, seed: int = 0, longest: int = 12) -> TextRows:
    generator = np.random.default_rng(seed)
    rows = [[CLS, *generator.integers(4, VOCABULARY, generator.integers(1, longest)), SEP] for _ in range(count)]
    return TextRows(TokenRows.from_lists(rows, PAD), None, np.arange(count))


def all_of(rows: Any, *, wider: int = 0, filler: int = 0) -> Any:
    """One batch of all rows, padded further than they need."""
    source, _ = rows.sizes
    return rows.batch(PlannedBatch(np.arange(len(source)), int(source.max()) + wider, 1, filler))
