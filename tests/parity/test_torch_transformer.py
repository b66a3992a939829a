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


def run(model: nn.Module, source: torch.Tensor, real: torch.Tensor | None, target: torch.Tensor) -> torch.Tensor:
    """Our two stacks on streams that are already embedded; `real` [b s] marks the source slots that are no padding."""
    tokens = Tokens(source.shape[1], documents=None if real is None else real.long())
    memory = model.encoder(source, Context(tokens=tokens, visibility=NotPadding()))
    ctx = Context(tokens=Tokens(target.shape[1]), visibility=NotPadding(), memory=memory, memory_tokens=tokens)
    return model.decoder(target, ctx)


def run_peer(peer: nn.Module, source: torch.Tensor, real: torch.Tensor | None, target: torch.Tensor) -> torch.Tensor:
    hidden = None if real is None else torch.zeros(real.shape).masked_fill(~real, -torch.inf)
    causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    return peer(
        source,
        target,
        tgt_mask=causal,
        tgt_is_causal=True,
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )


@pytest.mark.parametrize(("source_length", "target_length"), LENGTHS)
def test_outputs_and_gradients_are_torch_s(pair, source_length, target_length):
    compare(pair, source_length, None, target_length)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("source_length", "target_length"), LENGTHS[1:])
def test_with_padding_outputs_and_gradients_are_torch_s(pair, source_length, target_length, side):
    lengths = torch.tensor([source_length, 1, (source_length + 1) // 2])
    real = torch.arange(source_length) < lengths[:, None]
    compare(pair, source_length, real.flip(1) if side == "left" else real, target_length)


def compare(pair, source_length: int, real: torch.Tensor | None, target_length: int) -> None:
    peer, ours = deepcopy(pair)
    source = torch.randn(3, source_length, WIDTH, requires_grad=True)
    target = torch.randn(3, target_length, WIDTH, requires_grad=True)
    weights = torch.randn(3, target_length, WIDTH)
    mine, theirs = run(ours, source, real, target), run_peer(peer, source, real, target)
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
    together = run(ours, source, torch.arange(9) < lengths[:, None], target)
    for row, length in enumerate(lengths.tolist()):
        alone = run(ours, source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("source_length", "target_length"), LENGTHS)
@torch.no_grad()
def test_step_by_step_with_a_cache_is_torch_s_all_at_once(pair, source_length, target_length):
    peer, ours = pair
    source, target = torch.randn(2, source_length, WIDTH), torch.randn(2, target_length, WIDTH)
    memory, memory_tokens = ours.encoder(source, Context(tokens=Tokens(source_length))), Tokens(source_length)
    cache, steps = ours.new_cache(target_length), []
    for slot in range(target_length):
        tokens = Tokens(1, start=slot)
        ctx = Context(tokens=tokens, memory=memory, memory_tokens=memory_tokens, cache=cache)
        steps.append(ours.decoder(target[:, slot : slot + 1], ctx))
        cache.advance(tokens)
    torch.testing.assert_close(torch.cat(steps, 1), run_peer(peer, source, None, target), atol=2e-5, rtol=1e-4)
