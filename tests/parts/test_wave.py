"""From samples to frames, and where frames stand."""

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.feedforward import gelu
from qkv.parts.wave import ChannelNorm, ConvolvedPosition, FrameEmbed, FrameLayer, FrameNorm, WaveFrames


def frames(norm: str = "channel") -> WaveFrames:
    shapes = [(1, 6, 10, 5), (6, 4, 3, 2), (4, 8, 2, 2)]
    layers = []
    for number, (before, after, kernel, stride) in enumerate(shapes):
        own = FrameNorm(after) if norm == "frame" else ChannelNorm(after) if number == 0 else None
        layers.append(FrameLayer(nn.Conv1d(before, after, kernel, stride), own, gelu))
    return WaveFrames(layers)


@pytest.mark.parametrize("samples", [30, 31, 49, 50, 400, 1003])
def test_the_count_of_frames_is_what_comes_out(samples: int) -> None:
    encoder = frames()
    found = encoder(torch.randn(2, samples))
    assert found.shape == (2, encoder.count(samples), 8)
    assert encoder.frames_of(torch.tensor([samples, 30])).tolist() == [encoder.count(samples), 1]


def test_what_one_frame_sees_and_how_far_the_next_is() -> None:
    encoder = frames()
    assert (encoder.shortest, encoder.hop) == (30, 20)
    assert encoder.count(encoder.shortest) == 1
    assert encoder.count(encoder.shortest - 1) == 0
    assert encoder.count(encoder.shortest + 5 * encoder.hop) == 6


@pytest.mark.parametrize("norm", ["channel", "frame"])
def test_frames_of_a_padded_row_are_those_of_the_row_alone(norm: str) -> None:
    encoder, lengths = frames(norm), torch.tensor([400, 30, 233])
    waves = torch.randn(3, 400)
    found = encoder(waves, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = encoder(waves[row : row + 1, :length])[0]
        torch.testing.assert_close(found[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


def test_without_lengths_a_channel_norm_is_a_group_norm() -> None:
    norm, x = ChannelNorm(6), torch.randn(2, 9, 6) + 2
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    reference = nn.GroupNorm(6, 6)
    reference.load_state_dict(norm.state_dict())
    expected = reference(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(norm(x), expected)
    torch.testing.assert_close(norm(x, torch.tensor([9, 9])), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(norm._by_sums(x), expected, atol=1e-5, rtol=1e-4)
    narrow = norm.to(torch.bfloat16)._by_sums(x.bfloat16())
    torch.testing.assert_close(narrow.float(), expected, atol=5e-2, rtol=2e-2)


def test_samples_must_come_in_rows() -> None:
    with pytest.raises(QkvError, match="rows of samples"):
        frames()(torch.zeros(1, 1, 400))


@pytest.mark.parametrize("kernel", [7, 8])
def test_positions_are_a_convolution_with_normed_weights(kernel: int) -> None:
    position = ConvolvedPosition(12, kernel, 3, gelu)
    reference = nn.utils.parametrizations.weight_norm(
        nn.Conv1d(12, 12, kernel, padding=kernel // 2, groups=3), name="weight", dim=2
    )
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        reference.parametrizations.weight.original0.copy_(position.length[None, None])
        reference.parametrizations.weight.original1.copy_(position.direction)
        reference.bias.copy_(position.bias)
    x = torch.randn(2, 11, 12)
    expected = gelu(reference(x.transpose(1, 2)))[..., :11].transpose(1, 2)
    torch.testing.assert_close(position(x), expected, atol=1e-6, rtol=1e-5)


def test_a_new_position_has_the_weights_that_were_drawn() -> None:
    position = ConvolvedPosition(12, 8, 3, gelu)
    norm = torch.linalg.vector_norm(position.direction, dim=(0, 1))
    torch.testing.assert_close(position.length.detach(), norm.detach())
    with pytest.raises(QkvError, match="does not divide into 5 groups"):
        ConvolvedPosition(12, 8, 5, gelu)


def embed(hides: bool = True) -> FrameEmbed:
    return FrameEmbed(8, 12, 1e-5, ConvolvedPosition(12, 4, 3, gelu), hides=hides).eval()


def test_hidden_frames_are_one_vector_and_hidden_channels_are_nothing() -> None:
    module, features, ctx = embed(), torch.randn(2, 5, 8), Context(tokens=Tokens(5))
    seen: list[torch.Tensor] = []
    module.position.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    hidden, channels = torch.zeros(2, 5).bool(), torch.zeros(2, 12).bool()
    hidden[0, 1:3], channels[1, 4] = True, True
    module(features, ctx)
    module(features, ctx, hidden, channels)
    plain, covered = seen
    assert module.hidden is not None
    assert torch.equal(covered[0, 1:3], module.hidden.expand(2, -1))
    assert (covered[1, :, 4] == 0).all()
    kept = ~hidden[..., None] & ~channels[:, None]
    assert torch.equal(covered[kept], plain[kept])


def test_padding_does_not_reach_its_neighbours() -> None:
    module, features = embed(), torch.randn(1, 5, 8)
    padded = Context(tokens=Tokens.padded(torch.tensor([3]), 5))
    alone = module(features[:, :3], Context(tokens=Tokens(3)))
    torch.testing.assert_close(module(features, padded)[:, :3], alone, atol=1e-6, rtol=1e-5)


def test_a_model_without_a_vector_for_hidden_frames_hides_none() -> None:
    with pytest.raises(QkvError, match="no vector for hidden frames"):
        embed(hides=False)(torch.randn(1, 5, 8), Context(tokens=Tokens(5)), torch.ones(1, 5).bool())
