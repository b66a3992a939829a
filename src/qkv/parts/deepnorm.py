"""DeepNorm's constants, which depend on depth alone, and its start. [wang2022 fig.2]"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from qkv.parts.attention.attention import MultiHead
from qkv.parts.feedforward import MLP
from qkv.parts.linear import JoinedLinear


@dataclass(frozen=True)
class DeepNormConstants:
    """What the stream is multiplied by, and what shrinks the matrices that mixers write with."""

    alpha: float
    beta: float


def constants_alone(layers: int) -> DeepNormConstants:
    """For an encoder alone or a decoder alone. [wang2022 fig.2]"""
    return DeepNormConstants((2 * layers) ** 0.25, (8 * layers) ** -0.25)


def constants_of_encoder(encoder_layers: int, decoder_layers: int) -> DeepNormConstants:
    """For the encoder of an encoder-decoder, which depends a little on the decoder too. [wang2022 fig.2]"""
    root = (encoder_layers**4 * decoder_layers) ** (1 / 16)
    return DeepNormConstants(0.81 * root, 0.87 / root)


def constants_of_decoder(decoder_layers: int) -> DeepNormConstants:
    """For the decoder of an encoder-decoder: three mixers a layer. [wang2022 fig.2]"""
    return DeepNormConstants((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25)


@torch.no_grad()
def start_deepnorm(stack: nn.Module, beta: float) -> None:
    """Multiply by β the matrices of values, of attention's output and of feed-forwards; not queries and keys.

    DIFFERS [wang2022 fig.2]: the matrices are uniform and not normal, with the same variance. [glorot2010 eq.16]
    """
    for module in stack.modules():
        if isinstance(module, MultiHead):
            module.out.weight.mul_(beta)
            project = module.project
            assert isinstance(project, JoinedLinear)
            rows = dict(zip(project.outputs, project.parts(project.weight), strict=True))
            rows["value"].mul_(beta)
        elif isinstance(module, MLP):
            module.inner.weight.mul_(beta)
            module.outer.weight.mul_(beta)
