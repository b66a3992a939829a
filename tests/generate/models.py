"""Small models for the tests of decoding: random weights that are large enough to have opinions."""

import torch
from torch import Tensor

from qkv.models.catalogue import build
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.transformer import TransformerSizes

START, END = 1, 2


def small_model(vocabulary: int = 23, seed: int = 0) -> SequenceToSequence:
    torch.manual_seed(seed)
    sizes = TransformerSizes(
        vocabulary=vocabulary, width=16, hidden=32, heads=2, encoder_layers=1, decoder_layers=2, dropout=0.1
    )
    model = build("transformer", sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def sources(lengths: list[int], vocabulary: int = 23, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sentences of these lengths, right-padded with 0."""
    torch.manual_seed(seed)
    source = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        source[row, :length] = torch.randint(3, vocabulary, (length,))
    return source, torch.tensor(lengths)


def log_probabilities(model: SequenceToSequence, source: Tensor, written: list[int]) -> Tensor:
    """Of the token after `written`, for one unpadded source [s], computed without a cache. [v]"""
    with torch.inference_mode():
        logits = model(source[None], None, torch.tensor([[START, *written]]))
    return logits[0, -1].float().log_softmax(-1)
