"""Rows of several data sets in one batch: in exact proportion, and gone on with from any place."""

import json
from pathlib import Path

import pytest
import torch

from qkv.data.mixing import Ingredient, MixedBatches
from qkv.data.packing import LanguageBatch
from qkv.data.streaming import StreamedRows, Windows
from qkv.data.token_shards import TokenShards
from qkv.errors import QkvError
from tests.data.some_shards import some_shards
from tests.data.test_streaming import PACKED, same

WEIGHTS = {"large": 0.6, "small": 0.1, "middle": 0.3}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenShards]:
    folder = tmp_path_factory.mktemp("corpora")
    sizes = {"large": (5, 12), "small": (1, 1), "middle": (3, 3)}
    return {name: some_shards(folder / name, *size) for name, size in sizes.items()}


def mixed(corpora: dict[str, TokenShards], rows: int = 7, prefetch: int = 3, **more) -> MixedBatches[LanguageBatch]:
    sources = [
        Ingredient(name, StreamedRows(Windows(corpora[name], PACKED, window=2, seed=3)), weight)
        for name, weight in WEIGHTS.items()
    ]
    return MixedBatches(sources, rows, seed=3, prefetch=prefetch, **more)


def some(batches: MixedBatches[LanguageBatch], count: int) -> list[LanguageBatch]:
    return [batch for _, batch in zip(range(count), batches, strict=False)]


def test_rows_come_in_exact_proportion_at_all_times(corpora: dict[str, TokenShards]) -> None:
    told: list[str] = []
    batches = mixed(corpora, say=told.append)
    for number, batch in zip(range(1, 151), batches, strict=False):
        assert len(batch.ids) == len(batch.documents) == 7
        sources = batches.state_dict()["sources"]
        assert sum(source["rows"] for source in sources) == 7 * number
        for source in sources:
            assert abs(source["rows"] - WEIGHTS[source["name"]] * 7 * number) < 1
            assert 0 < source["tokens"] <= 32 * source["rows"]
    assert sources[1]["epoch"] > sources[2]["epoch"] > 0, "small ones repeat"
    read = [f"All of {source['name']} was read" for source in sources]
    for sentence, source in zip(read, sources, strict=True):
        assert sum(each.startswith(sentence) for each in told) == source["epoch"].bit_length()


@pytest.mark.parametrize("parts", [1, 2])
def test_going_on_from_every_place_gives_the_same_batches(corpora: dict[str, TokenShards], parts: int) -> None:
    whole = mixed(corpora)
    whole.in_parts(parts)
    places, expected = [whole.state_dict()], []
    for _, batch in zip(range(24), whole, strict=False):
        expected.append(batch)
        places.append(json.loads(json.dumps(whole.state_dict())))
    for stop in range(0, 24, 3 - parts):
        after = mixed(corpora, prefetch=stop % 3)
        after.load_state_dict(places[stop])
        assert all(map(same, some(after, 24 - stop), expected[stop:]))


def test_parts_and_ranks_together_have_the_rows_of_the_whole(corpora: dict[str, TokenShards]) -> None:
    whole, divided = some(mixed(corpora), 6), mixed(corpora)
    assert divided.in_parts(3)
    parts = some(divided, 18)
    ranks = [mixed(corpora) for _ in range(2)]
    for rank, batches in enumerate(ranks):
        batches.share(rank, 2)
    shares = list(zip(*(some(batches, 6) for batches in ranks), strict=True))
    for number, batch in enumerate(whole):
        assert torch.equal(torch.cat([part.ids for part in parts[3 * number : 3 * number + 3]]), batch.ids)
        assert torch.equal(torch.cat([share.documents for share in shares[number]]), batch.documents)
        assert sum(share.predicted for share in shares[number]) == batch.predicted


def test_a_position_of_another_mixture_is_refused(corpora: dict[str, TokenShards]) -> None:
    state = mixed(corpora).state_dict()
    with pytest.raises(QkvError, match="mixture with rows 7, not 8"):
        mixed(corpora, rows=8).load_state_dict(state)
    state["sources"][0]["weight"] = 0.5
    with pytest.raises(QkvError, match=r"weights \[0\.5"):
        mixed(corpora).load_state_dict(state)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_is_refused(corpora: dict[str, TokenShards], weight: float) -> None:
    rows = StreamedRows(Windows(corpora["small"], PACKED))
    with pytest.raises(QkvError, match="must be a number above 0"):
        MixedBatches([Ingredient("small", rows, weight)], 4)


def test_a_source_without_rows_is_named(tmp_path: Path) -> None:
    shards = some_shards(tmp_path, 1, 1)
    batches = MixedBatches([Ingredient("nothing", StreamedRows(Windows(shards, PACKED, hold_out=1.0)), 1.0)], 4)
    with pytest.raises(QkvError, match="no row to train on in nothing"):
        next(iter(batches))
