"""Heads, tied and free."""

import copy

import torch
from torch import nn

from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.embed import TokenEmbedding
from qkv.parts.feedforward import gelu
from qkv.parts.heads import LogitHead, MaskedHead, PooledStatesHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import FirstToken


def test_a_tied_head_multiplies_by_the_embedding() -> None:
    embedding, x = TokenEmbedding(7, 4, scale=3.0), torch.randn(2, 5, 4)
    head = TiedHead(embedding, bias=True)
    nn.init.normal_(head.bias)
    torch.testing.assert_close(head(x), x @ embedding.weight.T + head.bias)
    torch.testing.assert_close(TiedHead(embedding)(x), x @ embedding.weight.T)


def test_a_tied_matrix_is_one_parameter_saved_once_and_learns_from_both_ends() -> None:
    embedding = TokenEmbedding(7, 4)
    model = nn.ModuleDict({"tokens": embedding, "head": TiedHead(embedding)})
    assert list(model.state_dict()) == ["tokens.weight"]
    assert len(list(model.parameters())) == 1
    model["head"](torch.randn(1, 4)).sum().backward()
    assert embedding.weight.grad is not None


def test_a_copied_model_is_tied_to_its_own_embedding() -> None:
    embedding = TokenEmbedding(7, 4)
    twin = copy.deepcopy(nn.ModuleDict({"tokens": embedding, "head": TiedHead(embedding)}))
    with torch.no_grad():
        twin["tokens"].weight.zero_()
    assert (twin["head"](torch.randn(2, 4)) == 0).all()


def test_a_free_head_has_a_matrix_of_its_own() -> None:
    head, x = LogitHead(4, 7, bias=True), torch.randn(2, 4)
    torch.testing.assert_close(head(x), x @ head.weight.T + head.bias)


def test_a_masked_head_is_a_layer_a_norm_and_logits() -> None:
    embedding, norm, x = TokenEmbedding(7, 3), LayerNorm(3), torch.randn(2, 5, 4)
    head = MaskedHead(4, 3, gelu, norm, TiedHead(embedding, bias=True))
    expected = norm(gelu(x @ head.dense.weight.T + head.dense.bias)) @ embedding.weight.T
    torch.testing.assert_close(head(x), expected)


def test_pooled_states_are_the_stream_and_one_vector_a_row() -> None:
    x, ctx = torch.randn(2, 5, 4), Context(tokens=Tokens(5))
    found = PooledStatesHead(FirstToken())(x, ctx)
    assert found.states is x
    assert torch.equal(found.pooled, x[:, 0])
