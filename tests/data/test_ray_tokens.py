"""Shards made by Ray, where it is installed."""

from pathlib import Path

import pytest

from qkv.data.making_tokens import Made
from qkv.data.ray_tokens import tokenize_with_ray
from qkv.data.token_shards import TokenShards
from qkv.errors import QkvError
from tests.data.corpus_files import TEXTS, contents


def test_ray_makes_the_same_files(shards: TokenShards, tmp_path: Path) -> None:
    made: list[Made] = []
    elsewhere = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "ray")
    try:
        import ray
    except ImportError:
        with pytest.raises(QkvError, match=r"qkv\[ray\]"):
            tokenize_with_ray(elsewhere)
        return
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        tokenize_with_ray(elsewhere, lambda number, one: made.append(one))
    finally:
        ray.shutdown()
    shards.prepare()
    assert contents(elsewhere.folder) == contents(shards.folder)
    assert sum(one.documents for one in made) == len(TEXTS)
