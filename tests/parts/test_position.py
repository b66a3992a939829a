"""Positions against their formulas, against published values, and against the reference library's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.position import (
    ALiBi,
    Learned,
    Learned2D,
    Pairing,
    RelativeBuckets,
    Resample,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    bicubic,
    bicubic_antialiased,
    halves,
    interleaved,
    interpolated_rates,
    llama3_rates,
    ntk_rates,
    positions_in_documents,
    rotary_rates,
    rotate_halves,
    rotate_neighbours,
    sinusoids,
    yarn_rates,
    yarn_sharpness,
)

# Sinusoids


def test_sinusoids_are_the_formula_entry_by_entry() -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d))"""
    table = sinusoids(60, 10)
    for p in range(60):
        for i in range(5):
            angle = p / 10000 ** (2 * i / 10)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_halves_are_the_same_numbers_in_another_order() -> None:
    mixed, split = sinusoids(20, 6), sinusoids(20, 6, halves)
    assert torch.equal(torch.cat((mixed[:, 0::2], mixed[:, 1::2]), 1), split)


@pytest.mark.parametrize("distance", [1, 7, 100])
def test_a_shift_is_a_linear_map_that_does_not_depend_on_the_position(distance: int) -> None:
    """PE(p+k) = M_k PE(p), M_k turning each pair by an angle of its own [vaswani2017 §3.5]."""
    table = sinusoids(400, 8)
    turns = []
    for i in range(4):
        angle = distance / 10000 ** (2 * i / 8)
        turns.append(torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]))
    shift = torch.block_diag(*turns)
    torch.testing.assert_close(table[: 400 - distance] @ shift.T, table[distance:], atol=1e-6, rtol=0)


def test_the_table_grows_with_the_rows_and_keeps_its_values() -> None:
    position = Sinusoidal(8, length=4)
    assert torch.equal(position(torch.arange(4), 4), sinusoids(4, 8))
    assert torch.equal(position(torch.tensor([[3, 9]]), 10), sinusoids(10, 8)[[3, 9]][None])
    assert torch.equal(position(torch.arange(4), 4), sinusoids(4, 8))


def test_a_table_that_grew_without_gradients_serves_training() -> None:
    position, x = Sinusoidal(8, length=4), torch.randn(9, 8, requires_grad=True)
    with torch.inference_mode():
        position(torch.arange(9), 9)
    (x * position(torch.arange(9), 9)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, sinusoids(9, 8))


def test_sinusoids_are_no_part_of_a_saved_model() -> None:
    assert Sinusoidal(8).state_dict() == {}


def test_an_odd_width_has_no_pairs() -> None:
    with pytest.raises(QkvError, match="even"):
        Sinusoidal(7)


# Learned


def test_learned_positions_are_rows_of_a_matrix() -> None:
    position = Learned(5, 3)
    ids = torch.tensor([[0, 4], [2, 2]])
    assert torch.equal(position(ids, 5), position.weight[ids])


def test_a_row_longer_than_what_was_learned_is_an_error() -> None:
    with pytest.raises(QkvError, match="learned 5 positions and the input needs 6"):
        Learned(5, 3)(torch.arange(6), 6)


def test_a_learned_grid_is_itself_at_its_own_size() -> None:
    grid = Learned2D(3, 4, 6, prefix=1)
    assert torch.equal(grid(3, 4), grid.weight)


@pytest.mark.parametrize("size", [(6, 8), (2, 5), (4, 3)])
def test_a_learned_grid_is_interpolated_bicubically(size: tuple[int, int]) -> None:
    grid = Learned2D(3, 4, 6, prefix=2)
    image = grid.weight[2:].reshape(1, 3, 4, 6).permute(0, 3, 1, 2)  # [1 d r c]
    expected = F.interpolate(image, size, mode="bicubic")[0].permute(1, 2, 0).reshape(-1, 6)
    found = grid(*size)
    assert torch.equal(found[:2], grid.weight[:2])
    torch.testing.assert_close(found[2:], expected)


@pytest.mark.parametrize("size", [(6, 8), (2, 2)])
def test_a_grid_may_be_made_coarser_from_all_that_it_covers(size: tuple[int, int]) -> None:
    grid = Learned2D(3, 4, 6, resample=bicubic_antialiased)
    image = grid.weight.reshape(1, 3, 4, 6).permute(0, 3, 1, 2)  # [1 d r c]
    expected = F.interpolate(image, size, mode="bicubic", antialias=True)[0].permute(1, 2, 0).reshape(-1, 6)
    torch.testing.assert_close(grid(*size), expected)
    assert not torch.allclose(grid(*size), F.interpolate(image, size, mode="bicubic")[0].flatten(1).T, atol=1e-3)


@pytest.mark.parametrize("resample", [bicubic, bicubic_antialiased])
def test_a_grid_of_one_vector_stays_that_vector(resample: Resample) -> None:
    """The weights of an interpolation sum to one: nothing is transposed, scaled or lost."""
    grid = Learned2D(3, 4, 6, resample=resample)
    with torch.no_grad():
        grid.weight.copy_(grid.weight[:1].expand(12, 6))
    torch.testing.assert_close(grid(7, 5), grid.weight[:1].expand(35, 6))


# Rotary

PAIRINGS = [rotate_neighbours, rotate_halves]


def permuted(x: Tensor) -> Tensor:
    """Dimensions 0 1 2 3 … → 0 2 4 … 1 3 5 …: what neighbours pair, halves pair afterwards."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_score_depends_on_the_distance_alone(pairing: Pairing) -> None:
    rotary, q, k = Rotary(rotary_rates(8), pairing), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(query: int, key: int) -> float:
        return (rotary(q, torch.tensor([query])) * rotary(k, torch.tensor([key]))).sum().item()

    assert score(5, 2) == pytest.approx(score(905, 902), abs=1e-5)
    assert score(5, 5) == pytest.approx((q * k).sum().item(), abs=1e-5)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_turn_keeps_the_length(pairing: Pairing) -> None:
    x = torch.randn(2, 3, 50, 8)
    torch.testing.assert_close(Rotary(rotary_rates(8), pairing)(x, torch.arange(50)).norm(dim=-1), x.norm(dim=-1))


def test_both_pairings_are_one_rotation_with_the_dimensions_in_another_order() -> None:
    x, positions, rates = torch.randn(2, 3, 20, 8), torch.arange(20), rotary_rates(8)
    by_neighbours = Rotary(rates, rotate_neighbours)(x, positions)
    by_halves = Rotary(rates, rotate_halves)(permuted(x), positions)
    torch.testing.assert_close(permuted(by_neighbours), by_halves)


def test_halves_are_the_rotary_positions_of_llama() -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=512)
    q, k = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8)
    positions = torch.randint(0, 512, (2, 300))
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(q, positions)
    expected = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    rotary = Rotary(rotary_rates(8), rotate_halves)
    for found, oracle in zip((rotary(q, positions), rotary(k, positions)), expected, strict=True):
        torch.testing.assert_close(found, oracle, atol=2e-4, rtol=1e-4)  # the oracle's angles are float32


def test_neighbours_are_the_rotary_positions_of_gpt_j() -> None:
    x, positions = torch.randn(2, 4, 60, 8), torch.arange(60)
    sin, cos = modeling_gptj.create_sinusoidal_positions(60, 8)[None].chunk(2, -1)
    expected = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
    torch.testing.assert_close(Rotary(rotary_rates(8))(x, positions), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_partial_rotation_leaves_the_rest_of_the_head(pairing: Pairing) -> None:
    x, positions = torch.randn(1, 2, 9, 12), torch.arange(9)
    rotary = Rotary(rotary_rates(4), pairing)
    found = rotary(x, positions)
    assert torch.equal(found[..., 4:], x[..., 4:])
    assert torch.equal(found[..., :4], rotary(x[..., :4], positions))


def test_positions_may_differ_from_row_to_row() -> None:
    x, rotary = torch.randn(2, 3, 5, 8), Rotary(rotary_rates(8))
    positions = torch.stack((torch.arange(5), torch.arange(5) + 7))
    found = rotary(x, positions)
    for row in range(2):
        assert torch.equal(found[row], rotary(x[row : row + 1], positions[row])[0])


def test_interpolated_rates_squeeze_every_position() -> None:
    """Position 40 squeezed by 4 is position 10. [chen2023 eq.4]"""
    x = torch.randn(1, 1, 1, 8)
    squeezed = Rotary(interpolated_rates(rotary_rates(8), 4.0))(x, torch.tensor([40]))
    torch.testing.assert_close(squeezed, Rotary(rotary_rates(8))(x, torch.tensor([10])))


def test_ntk_rates_squeeze_the_slowest_pair_by_the_factor_and_the_fastest_not() -> None:
    rates, stretched = rotary_rates(16, 500.0), ntk_rates(16, 500.0, 4.0)
    assert stretched[0] == rates[0] == 1.0
    assert (rates[-1] / stretched[-1]).item() == pytest.approx(4.0)
    ratios = rates / stretched
    assert (ratios.diff() > 0).all()


def reference_rates(width: int, base: float, **rope: object) -> tuple[Tensor, float]:
    config = LlamaConfig(head_dim=width, rope_parameters={"rope_theta": base, **rope})
    rates, sharpness = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    return rates.double(), sharpness


@pytest.mark.parametrize("base", [500.0, 10000.0, 500000.0])
@pytest.mark.parametrize(("slow", "fast"), [(1.0, 4.0), (0.5, 20.0)])
def test_llama3_rates_keep_fast_pairs_and_squeeze_slow_ones(base: float, slow: float, fast: float) -> None:
    rates = rotary_rates(64, base)
    found = llama3_rates(rates, 8.0, 1000, slow, fast)
    expected, _ = reference_rates(
        64,
        base,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=slow,
        high_freq_factor=fast,
        original_max_position_embeddings=1000,
    )
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)
    turns, squeeze = 1000 * rates / (2 * math.pi), rates / found
    assert squeeze[turns > fast].tolist() == [1.0] * int((turns > fast).sum())
    torch.testing.assert_close(squeeze[turns < slow], torch.full_like(squeeze[turns < slow], 8.0))
    assert ((squeeze >= 1) & (squeeze <= 8.0001)).all()


@pytest.mark.parametrize("base", [500.0, 10000.0, 500000.0])
@pytest.mark.parametrize("trained", [20, 1000, 8192])
@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
def test_yarn_rates_keep_fast_pairs_and_squeeze_slow_ones(base: float, trained: int, factor: float) -> None:
    found = yarn_rates(64, base, factor, trained)
    expected, sharpness = reference_rates(
        64, base, rope_type="yarn", factor=factor, original_max_position_embeddings=trained
    )
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)
    assert yarn_sharpness(factor) == pytest.approx(sharpness)
    squeeze = rotary_rates(64, base) / found
    assert squeeze[0] == 1.0
    assert (squeeze.diff() >= -1e-9).all()
    assert (squeeze <= factor + 1e-9).all()


def test_rates_stay_exact_in_a_model_of_half_precision() -> None:
    """A rate rounded to bfloat16 is off by 0.2%, at position 1000 by a radian or more."""
    x, positions = torch.randn(1, 2, 1, 8), torch.tensor([1003])
    expected = Rotary(rotary_rates(8))(x, positions)
    model = Attention(16, 2, rotary=Rotary(rotary_rates(8))).to(torch.bfloat16)
    assert model.rotary is not None
    torch.testing.assert_close(model.rotary(x, positions), expected)
    assert model.rotary(x.bfloat16(), positions).dtype == torch.bfloat16
    assert model.half().float().rotary.rates.dtype == torch.float64


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_double_precision_is_turned_in_double_precision(pairing: Pairing) -> None:
    """A turn there and back again gives what was turned, to the last digits."""
    x, rotary = torch.randn(1, 2, 3, 8, dtype=torch.float64), Rotary(rotary_rates(8), pairing)
    positions = torch.tensor([5, 60, 700])
    torch.testing.assert_close(rotary(rotary(x, positions), -positions), x, rtol=1e-14, atol=1e-14)


def test_attention_turns_queries_and_keys_by_the_positions_of_the_context() -> None:
    """Shifted positions change nothing, stretched ones do."""
    mixer, x = Attention(16, 2, rotary=Rotary(rotary_rates(8))), torch.randn(1, 5, 16)

    def at(positions: Tensor | None) -> Tensor:
        return mixer(x, Context(tokens=Tokens(5), positions=positions))

    torch.testing.assert_close(at(None), at(torch.arange(5)[None] + 100), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(at(None), at(torch.arange(5)[None] * 3), atol=1e-3)


# Relative buckets


@pytest.mark.parametrize("looks_ahead", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (16, 50)])
def test_buckets_are_those_of_t5(looks_ahead: bool, buckets: int, farthest: int) -> None:
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(
        distance, bidirectional=looks_ahead, num_buckets=buckets, max_distance=farthest
    )
    bias = RelativeBuckets(2, buckets, farthest, looks_ahead=looks_ahead)
    assert torch.equal(bias.bucket(distance), expected)


def test_the_bias_of_a_pair_is_that_of_its_bucket() -> None:
    bias = RelativeBuckets(3, looks_ahead=True)
    found = bias(Tokens(4, start=6), Tokens(10))
    assert found.shape == (1, 3, 4, 10)
    for query in range(4):
        for key in range(10):
            bucket = bias.bucket(torch.tensor(key - (query + 6)))
            assert torch.equal(found[0, :, query, key], bias.weight[bucket])


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 0, 1), (1, 8, 9), (5, 4, 9), (9, 0, 4), (150, 0, 150)])
def test_a_bucket_learns_from_all_its_pairs(queries: int, start: int, keys: int) -> None:
    """As if each pair had looked its number up."""
    bias = RelativeBuckets(2, looks_ahead=True)
    found = bias(Tokens(queries, start=start), Tokens(keys))
    assert found.is_contiguous()  # a last stride other than 1 would leave attention to the slowest kernel
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    (learned,) = torch.autograd.grad(found, bias.weight, pull)
    distances = torch.arange(keys)[None] - torch.arange(start, start + queries)[:, None]
    looked_up = bias.weight[bias.bucket(distances)].permute(2, 0, 1)[None]
    assert torch.equal(found, looked_up)
    torch.testing.assert_close(learned, *torch.autograd.grad(looked_up, bias.weight, pull), rtol=1e-4, atol=1e-4)


def test_under_autocast_the_bias_is_as_narrow_as_the_queries() -> None:
    bias = RelativeBuckets(2, looks_ahead=True)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = bias(Tokens(9), Tokens(9))
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, bias(Tokens(9), Tokens(9)).bfloat16(), rtol=0, atol=0)
    narrow.sum().backward()
    assert bias.weight.grad is not None
    assert bias.weight.grad.dtype == torch.float32


# ALiBi


def test_the_slopes_of_eight_heads_are_those_of_the_paper() -> None:
    """1/2, 1/4, …, 1/256 [press2022 §3]"""
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(16)[:2].tolist() == pytest.approx([2**-0.5, 2**-1])


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    """BLOOM adds slope · key index, which differs from −slope · distance by a constant of each query alone."""
    size = 9
    bloom = build_alibi_tensor(torch.ones(1, size), heads, torch.float32)  # [h 1 k]
    torch.testing.assert_close(bloom[:, 0, 1], alibi_slopes(heads))
    bias = ALiBi(heads)(Tokens(size), Tokens(size))[0]  # [h q k]
    past = torch.ones(size, size, dtype=torch.bool).tril()

    def weights(scores: Tensor) -> Tensor:
        return torch.softmax(scores.expand(heads, size, size).masked_fill(~past, -torch.inf), -1)

    torch.testing.assert_close(weights(bias), weights(bloom))


def test_the_bias_falls_with_the_distance_to_either_side() -> None:
    found = ALiBi(2)(Tokens(1, start=2), Tokens(5))
    slopes = alibi_slopes(2)
    expected = -slopes[:, None] * torch.tensor([2.0, 1.0, 0.0, 1.0, 2.0])
    assert torch.equal(found[0, :, 0], expected)


# Documents


def test_positions_start_again_with_each_document() -> None:
    documents = torch.tensor([[1, 1, 1, 2, 2, 3, 0, 0], [0, 0, 1, 1, 1, 2, 2, 2], [0] * 8])
    assert positions_in_documents(documents).tolist() == [
        [0, 1, 2, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 2, 0, 1, 2],
        [0] * 8,
    ]


def test_interleaved_is_the_default_order() -> None:
    assert torch.equal(sinusoids(3, 4), sinusoids(3, 4, interleaved))


def test_a_table_that_grew_while_decoding_serves_training() -> None:
    positions = Sinusoidal(4, length=2)
    with torch.inference_mode():
        positions(torch.arange(3), 3)
    assert not positions.table.is_inference()
