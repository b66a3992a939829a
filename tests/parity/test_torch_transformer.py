"""The stacks of the 2017 Transformer against torch.nn.Transformer, norms before and after the sub-layers."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from qkv.files import copy_into
from qkv.models.transformer import TransformerSizes, prenorm_transformer, transformer
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import PostNorm
from qkv.weights.maps.torch_transformer import RULES
from qkv.weights.rules import to_ours
from qkv.weights.save import tensors_of

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # a remark of torch on its own settings

WIDTH = 16
SIZES = TransformerSizes(vocabulary=9, width=WIDTH, hidden=24, heads=2, encoder_layers=2, decoder_layers=3, dropout=0.0)
BUILDERS = {True: prenorm_transformer, False: partial(transformer, wiring=PostNorm, final_norm=LayerNorm)}
LENGTHS = [(1, 1), (2, 1), (9, 7), (64, 33), (257, 128)]


def stacks(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors_of(model).items() if name.startswith(("encoder.", "decoder."))}


@pytest.fixture(params=[True, False], ids=["norm before", "norm after"])
def pair(request):
    """torch's Transformer and our stacks with the same weights; both train, without dropout: torch's evaluation mode
    takes another path that writes zeros over padded rows."""
    peer = nn.Transformer(WIDTH, 2, 2, 3, 24, dropout=0.0, batch_first=True, norm_first=request.param)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    ours = BUILDERS[request.param](SIZES)
    named = stacks(ours)
    copy_into(named, to_ours(RULES, peer.state_dict(), named), "torch.nn.Transformer")
    return peer, ours


def run(model: nn.Module, source: torch.Tensor, lengths: torch.Tensor | None, target: torch.Tensor) -> torch.Tensor:
    """Our two stacks on streams that are already embedded."""
    tokens = Tokens(source.shape[1]) if lengths is None else Tokens.padded(lengths, source.shape[1])
    memory = model.encoder(source, Context(tokens=tokens, visibility=NotPadding()))
    ctx = Context(tokens=Tokens(target.shape[1]), visibility=NotPadding(), memory=memory, memory_tokens=tokens)
    return model.decoder(target, ctx)


def run_peer(peer: nn.Module, source: torch.Tensor, lengths: torch.Tensor | None, target: torch.Tensor) -> torch.Tensor:
    hidden = None if lengths is None else torch.arange(source.shape[1]) >= lengths[:, None]  # True: may not be seen
    causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    return peer(
        source,
        target,
        tgt_mask=causal,
        tgt_is_causal=True,
        src_key_padding_mask=None if hidden is None else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf),
        memory_key_padding_mask=None if hidden is None else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf),
    )


@pytest.mark.parametrize(("source_length", "target_length"), LENGTHS)
def test_outputs_and_gradients_are_torch_s(pair, source_length, target_length):
    compare(pair, source_length, None, target_length)


@pytest.mark.parametrize(("source_length", "target_length"), LENGTHS[1:])
def test_with_padding_outputs_and_gradients_are_torch_s(pair, source_length, target_length):
    lengths = torch.tensor([source_length, 1, (source_length + 1) // 2])
    compare(pair, source_length, lengths, target_length)


def compare(pair, source_length: int, lengths: torch.Tensor | None, target_length: int) -> None:
    peer, ours = deepcopy(pair)
    source = torch.randn(3, source_length, WIDTH, requires_grad=True)
    target = torch.randn(3, target_length, WIDTH, requires_grad=True)
    weights = torch.randn(3, target_length, WIDTH)
    mine, theirs = run(ours, source, lengths, target), run_peer(peer, source, lengths, target)
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)
    gradients = []
    for answer, model in ((mine, ours), (theirs, peer)):
        source.grad = target.grad = None
        (answer * weights).sum().backward()
        gradients.append((source.grad, target.grad))
        with torch.no_grad():  # the gradients in place of the parameters: then they have the names that are saved
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.copy_(parameter.grad)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-3)
    expected = to_ours(RULES, peer.state_dict(), stacks(ours))
    torch.testing.assert_close(stacks(ours), expected, atol=2e-3, rtol=1e-3)


def test_a_row_is_the_same_alone(pair):
    _, ours = pair
    source, target, lengths = torch.randn(3, 9, WIDTH), torch.randn(3, 5, WIDTH), torch.tensor([9, 1, 4])
    together = run(ours, source, lengths, target)
    for row, length in enumerate(lengths.tolist()):
        alone = run(ours, source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=2e-5, rtol=1e-4)
