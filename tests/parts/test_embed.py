"""How a stream starts."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts import embed
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.embed import FEW, Embed, TokenEmbedding, check_ids
from qkv.parts.in_place import norm_into
from qkv.parts.norm import LayerNorm
from qkv.parts.position import Learned, Sinusoidal, sinusoids


def test_an_embedding_is_a_scaled_row() -> None:
    embedding, ids = TokenEmbedding(7, 4, scale=2.0), torch.tensor([[1, 6], [0, 1]])
    torch.testing.assert_close(embedding(ids), 2 * embedding.weight[ids])


def test_fresh_rows_have_length_one_and_scaled_ones_unit_variance() -> None:
    """Times √width an entry has variance 1, as large as a sinusoid of positions. [vaswani2017 §3.4]"""
    embedding = TokenEmbedding(2000, 64, scale=8.0)
    assert embedding.weight.norm(dim=1).mean().item() == pytest.approx(1.0, rel=0.02)
    assert embedding(torch.arange(2000)).var().item() == pytest.approx(1.0, rel=0.02)


def test_a_stream_is_token_plus_position_from_the_start_of_its_tokens() -> None:
    embed, ids = Embed(TokenEmbedding(7, 4), Sinusoidal(4)), torch.tensor([[1, 2, 3]])
    found = embed(ids, Context(tokens=Tokens(3, start=5)))
    torch.testing.assert_close(found, embed.tokens(ids) + sinusoids(8, 4)[5:])


def test_positions_of_the_context_are_used() -> None:
    embed, ids = Embed(TokenEmbedding(7, 4), Learned(9, 4)), torch.tensor([[1, 2, 3], [1, 2, 3]])
    positions = torch.tensor([[0, 1, 2], [0, 0, 1]])
    found = embed(ids, Context(tokens=Tokens(3), positions=positions))
    torch.testing.assert_close(found, embed.tokens(ids) + embed.position.weight[positions])


def test_dropout_falls_on_the_sum_in_training_alone() -> None:
    embed, ids = Embed(TokenEmbedding(7, 40), Sinusoidal(40), dropout=0.5), torch.tensor([[1, 2, 3]])
    ctx = Context(tokens=Tokens(3))
    calm = embed.eval()(ids, ctx)
    dropped = embed.train()(ids, ctx)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * calm[kept])


@pytest.mark.parametrize("ids", [[0, 7], [-1, 2]])
def test_an_id_out_of_range_is_named(ids: list[int]) -> None:
    with pytest.raises(QkvError, match=f"between {ids[0]} and {ids[1]}, the vocabulary has 7"):
        check_ids(torch.tensor(ids), 7)
    with pytest.raises(QkvError, match=f"between {ids[0]} and {ids[1]}, the vocabulary has 7"):
        check_ids(torch.tensor([ids] * FEW), 7)


def test_ids_in_range_pass() -> None:
    check_ids(torch.tensor([0, 6]), 7)
    check_ids(torch.tensor([0, 6] * FEW), 7)
    check_ids(torch.tensor([], dtype=torch.long), 7)


def test_segments_norm_and_projection_follow_each_other() -> None:
    """BERT has three vectors a token under one norm; ALBERT projects them to a wider stream."""
    norm, project = LayerNorm(4), nn.Linear(4, 6)
    embed = Embed(TokenEmbedding(7, 4), Learned(9, 4), segments=TokenEmbedding(2, 4), norm=norm, project=project)
    ids, segments = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 1]])
    summed = embed.tokens(ids) + embed.segments(segments) + embed.position.weight[:3]
    found = embed(ids, Context(tokens=Tokens(3), segments=segments))
    torch.testing.assert_close(found, project(norm(summed)))
    untold = embed(ids, Context(tokens=Tokens(3)))
    torch.testing.assert_close(untold, embed(ids, Context(tokens=Tokens(3), segments=torch.zeros_like(ids))))


def test_segments_without_a_table_are_refused() -> None:
    embed, ids = Embed(TokenEmbedding(7, 4)), torch.tensor([[1, 2, 3]])
    with pytest.raises(QkvError, match="does not tell segments apart"):
        embed(ids, Context(tokens=Tokens(3), segments=torch.zeros_like(ids)))


@pytest.mark.parametrize("segments", [None, torch.tensor([[0, 1, 1], [0, 0, 1]])])
@pytest.mark.parametrize("positions", [None, torch.tensor([[0, 1, 2], [0, 0, 1]])])
@pytest.mark.parametrize("place", [Learned(9, 4), Sinusoidal(4), None], ids=str)
@torch.no_grad()
def test_all_that_is_added_may_wait_for_the_norm(
    segments: torch.Tensor | None,
    positions: torch.Tensor | None,
    place: nn.Module | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Embed(TokenEmbedding(7, 4), place, segments=TokenEmbedding(2, 4), norm=LayerNorm(4)).eval()
    ids, ctx = torch.randint(0, 7, (2, 3)), Context(tokens=Tokens(3), segments=segments, positions=positions)
    expected, passes = made(ids, ctx), []
    monkeypatch.setattr(embed, "pays", lambda x: True)
    monkeypatch.setattr(embed, "norm_into", lambda *given, **more: passes.append(norm_into(*given, **more)))
    torch.testing.assert_close(made(ids, ctx), expected)
    assert len(passes) == 1
