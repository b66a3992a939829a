"""A small corpus in tokenised shards."""

from pathlib import Path

import pytest

from qkv.data.sources import sources_of
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from tests.data.corpus_files import TEXTS, jsonl


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train("bpe", TEXTS, vocabulary=300)


@pytest.fixture
def shards(tmp_path: Path, tokenizer: TextTokenizer) -> TokenShards:
    return TokenShards(sources_of(jsonl(tmp_path, TEXTS), shard_bytes=700), tokenizer, tmp_path / "tokens")
