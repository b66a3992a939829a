"""Small models whose steps our own programs know."""

from typing import Any

import pytest
import torch

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.t5 import T5Sizes
from qkv.models.text_model import TextModel
from qkv.models.whisper import WhisperSizes

GPT = {"vocabulary": 101, "positions": 64, "width": 48, "hidden": 96, "heads": 3, "layers": 2}
LLAMA = GPT | {"width": 64, "hidden": 80, "heads": 4, "key_value_heads": 2}
T5 = {
    "vocabulary": 101, "width": 40, "key_width": 16, "hidden": 72, "heads": 3, "encoder_layers": 1, "decoder_layers": 2,
    "farthest": 20, "buckets": 8,
}  # fmt: skip


def make_steps_small(monkeypatch: pytest.MonkeyPatch, **of_maps: int) -> None:
    """So that small models have several tiles and shares, and rows by a library too."""
    from qkv.generate import step_maps_triton, step_triton

    monkeypatch.setattr(step_triton, "TILE", 32)
    monkeypatch.setattr(step_triton, "shares_of", lambda lines, capacity, step: 4)
    monkeypatch.setattr(step_triton, "AT_A_TIME", 64)
    for name, small in {"FEW": 3, "ENOUGH": 4, "AT_ONCE": 128, **of_maps}.items():
        monkeypatch.setattr(step_maps_triton, name, small)


def model_of(kind: str, device: str, **changed: object) -> TextModel:
    """Random weights that are large enough to have opinions."""
    torch.manual_seed(0)
    sizes = GPT2Sizes(**(GPT | changed)) if kind == "gpt2" else LlamaSizes(**(LLAMA | changed))  # type: ignore[arg-type]
    model: TextModel = build(kind, sizes, HeadChoice("language"))
    return _with_opinions(model).to(device)


def reader_of(device: str, **changed: object) -> EncoderDecoder:
    """A T5, of the same kind."""
    torch.manual_seed(0)
    model: EncoderDecoder = build("t5", T5Sizes(**(T5 | changed)))  # type: ignore[arg-type]
    return _with_opinions(model).to(device)


def hearer(device: str) -> EncoderDecoder:
    """A Whisper: with positions and biases, of which keys have none."""
    torch.manual_seed(0)
    sizes = WhisperSizes(
        vocabulary=101, mels=8, source_positions=20, target_positions=64, width=48, encoder_hidden=32,
        decoder_hidden=72, encoder_heads=3, decoder_heads=3, encoder_layers=1, decoder_layers=2,
    )  # fmt: skip
    model: EncoderDecoder = build("whisper", sizes)
    return _with_opinions(model).to(device)


def _with_opinions(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()
