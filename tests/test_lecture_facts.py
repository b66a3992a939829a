"""What the lectures say of the Transformer, checked on qkv's own parts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.models import gpt1, gpt2, gpt3, vit
from qkv.models.catalogue import count_parameters
from qkv.models.transformer import SIZES
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.visibility import Causal, Mask, NotPadding, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.position import Sinusoidal, sinusoids


def test_self_attention_without_positions_does_not_know_the_order() -> None:
    """Permute the words, and the answers are permuted the same way, no more."""
    mixer, x = Attention(16, 4), torch.randn(2, 9, 16)
    order = torch.randperm(9)
    ctx = Context(tokens=Tokens(9))
    torch.testing.assert_close(mixer(x[:, order], ctx), mixer(x, ctx)[:, order], atol=1e-6, rtol=1e-5)


def test_positions_tell_the_order() -> None:
    mixer, embed, ids = Attention(16, 4), Embed(TokenEmbedding(30, 16), Sinusoidal(16)), torch.randperm(30)[None, :9]
    order = torch.randperm(9)
    ctx = Context(tokens=Tokens(9))
    shuffled = mixer(embed(ids[:, order], ctx), ctx)
    assert not torch.allclose(shuffled, mixer(embed(ids, ctx), ctx)[:, order], atol=1e-3)


@pytest.mark.parametrize("width", [16, 64, 256])
def test_a_score_of_unit_variance_vectors_has_variance_d_and_one_after_scaling(width: int) -> None:
    """Var(q·k) = d_k for independent entries of mean 0 and variance 1. [vaswani2017 §3.2.1]

    A variance estimated from n scores has a relative error of about √(2/n), somewhat more here since products have
    heavier tails: √((κ−1)/n) with kurtosis κ = 3 + 6/d. Five such errors are the bound.
    """
    draws = 40_000
    scores = (torch.randn(draws, width) * torch.randn(draws, width)).sum(-1)
    bound = 5 * ((2 + 6 / width) / draws) ** 0.5
    assert scores.var().item() == pytest.approx(width, rel=bound)
    assert (scores * width**-0.5).var().item() == pytest.approx(1.0, rel=bound)
    assert scores.mean().item() == pytest.approx(0.0, abs=5 * (width / draws) ** 0.5)


def test_the_kernel_divides_by_the_root_of_the_width() -> None:
    """Without the scaling, softmax of wide random vectors is nearly a hard choice; with it, it is not."""
    q, k, v = torch.randn(1, 1, 200, 512), torch.randn(1, 1, 20, 512), torch.randn(1, 1, 20, 4)

    def largest(scale: float | None) -> float:
        kept: list[Tensor] = []
        exact(q, k, v, scale=scale, record=kept.append)
        return kept[0].max(-1).values.mean().item()

    assert largest(None) == pytest.approx(largest(512**-0.5))
    assert largest(None) < 0.4
    assert largest(1.0) > 0.9


def test_the_worked_example_of_the_look_ahead_mask() -> None:
    """Scores masked above the diagonal and soft-maxed: query = scores, key = identity and scale 1 give these scores."""
    scores = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.3, 0.6, 0.1], [0.1, 0.3, 0.3, 0.3]])
    kept: list[Tensor] = []
    tokens = Tokens(4)
    identity = torch.eye(4)[None, None]
    o = exact(
        scores[None, None], identity, identity, Mask(Causal(), tokens, tokens, "cpu"), scale=1.0, record=kept.append
    )
    expected = [[1, 0, 0, 0], [0.38, 0.62, 0, 0], [0.26, 0.32, 0.43, 0], [0.21, 0.26, 0.26, 0.26]]
    for rows in (kept[0][0, 0], o[0, 0]):  # the values are the identity, so the output is the weights
        assert [[round(weight, 2) for weight in row] for row in rows.tolist()] == expected


def test_the_counts_of_a_head_of_gpt_3() -> None:
    """12,288 × 128 = 1,572,864 for each of query, key, value down and value up, 96 heads a layer."""
    width, heads, key_width = 12_288, 96, 128
    with torch.device("meta"):
        attention = Attention(width, heads, bias=False, visibility=Causal())
    state = attention.state_dict()
    assert attention.key_width == attention.value_width == key_width
    down_and_up = {
        "query": state["project.query.weight"],
        "key": state["project.key.weight"],
        "value down": state["project.value.weight"],
        "value up": state["out.weight"].T,
    }
    for name, matrix in down_and_up.items():
        (head, *_) = matrix.split(key_width)
        assert head.shape == (key_width, width), name
        assert head.numel() == 1_572_864, name
    assert sum(parameter.numel() for parameter in attention.parameters()) == heads * 4 * 1_572_864 == 603_979_776


@torch.no_grad()
def test_the_value_matrix_of_a_head_is_a_product_of_low_rank() -> None:
    """Down to the head's width and up again: W^V W^O of a head is width × width, of rank at most the head's width."""
    width, heads = 24, 6
    attention = Attention(width, heads, bias=False)
    state = attention.state_dict()
    downs = state["project.value.weight"].split(4)  # [4 24] each
    ups = state["out.weight"].split(4, 1)  # [24 4] each
    values = [up @ down for up, down in zip(ups, downs, strict=True)]
    assert all(value.shape == (width, width) for value in values)
    assert [int(torch.linalg.matrix_rank(value)) for value in values] == [4] * heads

    # These products are all that attention does to a value: weights over tokens, then each head's width × width map.
    x, ledger = torch.randn(1, 5, width), Ledger(attention, keep={"weights"})
    found = attention(x, Context(tokens=Tokens(5), ledger=ledger))
    (weights,) = ledger.entries["/weights"]
    expected = sum(weights[0, head] @ x[0] @ values[head].T for head in range(heads))
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-4)


def test_a_picture_is_worth_196_words_and_a_class_token() -> None:
    """224² in patches of 16² makes 14² = 196, with [CLS] 197 rows of 768, of 86M, 307M and 632M parameters."""
    for size, tokens, width, millions in [("base-16", 197, 768, 86), ("large-16", 197, 1024, 307)]:
        sizes = vit.SIZES[size]
        with torch.device("meta"):
            embed = vit.patch_embed(sizes, vit.PREFIXES["class"])
        images = torch.empty(1, 3, 224, 224, device="meta")
        assert embed(images, Context(tokens=Tokens(tokens))).shape == (1, tokens, width)
        assert count_parameters("vit", sizes) == pytest.approx(millions * 1e6, rel=0.02)
    assert count_parameters("vit", vit.SIZES["huge-14"]) == pytest.approx(632e6, rel=0.002)


def test_the_sinusoid_table() -> None:
    """Width 4: one sine and cosine that turn by a radian a position, and one pair a hundred times slower."""
    table = [[round(entry, 2) + 0.0 for entry in row] for row in sinusoids(4, 4).tolist()]
    assert table == [[0.0, 1.0, 0.0, 1.0], [0.84, 0.54, 0.01, 1.0], [0.91, -0.42, 0.02, 1.0], [0.14, -0.99, 0.03, 1.0]]


@pytest.mark.parametrize("visibility", [None, Causal()])
@torch.no_grad()
def test_rows_of_the_attention_matrix_sum_to_one(visibility: Causal | None) -> None:
    mixer, cross = Attention(16, 4, visibility=visibility), CrossAttention(16, 4)
    tokens = Tokens.padded(torch.tensor([6, 3]), 6)
    for attention in (mixer, cross):
        ledger = Ledger(attention, keep={"weights"})
        x = torch.randn(2, 6, 16)
        attention(x, Context(tokens=tokens, visibility=NotPadding(), memory=x, memory_tokens=tokens, ledger=ledger))
        (weights,) = ledger.entries["/weights"]
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6))
        assert (weights[1, :, :, 3:] == 0).all()  # none of it falls on padding


@pytest.mark.parametrize(
    ("name", "published", "count"), [("base", 65_000_000, 63_082_496), ("big", 213_000_000, 214_245_376)]
)
def test_the_parameters_of_the_transformer(name: str, published: int, count: int) -> None:
    """Within 4% of [vaswani2017 tab.3], which rounds, and whose vocabulary is "about 37000" tokens."""
    assert count_parameters("transformer", SIZES[name]) == count
    assert count == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize(
    ("name", "millions", "layers", "width"),
    [("base", 117, 12, 768), ("medium", 345, 24, 1024), ("large", 762, 36, 1280), ("xl", 1542, 48, 1600)],
)
def test_the_four_sizes_of_gpt_2(name: str, millions: int, layers: int, width: int) -> None:
    """The counts that are told of GPT-2 are those it has with the vocabulary of GPT-1; its own one adds to them."""
    sizes = gpt2.SIZES[name]
    assert (sizes.layers, sizes.width, sizes.width // sizes.heads) == (layers, width, 64)
    with_the_older = replace(sizes, vocabulary=gpt1.SIZES["base"].vocabulary)
    assert round(count_parameters("gpt2", with_the_older) / 1e6) == millions
    assert count_parameters("gpt2", sizes) == pytest.approx(millions * 1e6, rel=0.07)


@pytest.mark.parametrize(
    ("name", "parameters", "layers", "width", "heads", "head_width"),
    [
        ("125m", 125e6, 12, 768, 12, 64),
        ("350m", 350e6, 24, 1024, 16, 64),
        ("760m", 760e6, 24, 1536, 16, 96),
        ("1.3b", 1.3e9, 24, 2048, 24, 128),
        ("2.7b", 2.7e9, 32, 2560, 32, 80),
        ("6.7b", 6.7e9, 32, 4096, 32, 128),
        ("13b", 13e9, 40, 5140, 40, 128),
        ("175b", 175e9, 96, 12288, 96, 128),
    ],
)
def test_the_eight_sizes_of_gpt_3(
    name: str, parameters: float, layers: int, width: int, heads: int, head_width: int
) -> None:
    """Within 2% of [brown2020 tab.2.1], which rounds. Its 24 heads of the 1.3B model would make that one 1.5B."""
    sizes = gpt3.SIZES[name]
    assert (sizes.layers, sizes.width, sizes.head_width) == (layers, width, head_width)
    assert sizes.hidden == 4 * width
    assert sizes.positions == 2048
    assert count_parameters("gpt3", sizes) == pytest.approx(parameters, rel=0.02)
    if name != "1.3b":
        assert sizes.heads == heads
        return
    assert sizes.heads == 16
    assert count_parameters("gpt3", replace(sizes, heads=heads)) == pytest.approx(1.5e9, rel=0.02)
