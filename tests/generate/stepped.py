"""Small models whose steps our own programs know."""

import torch

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.models.text_model import TextModel

GPT = {"vocabulary": 101, "positions": 64, "width": 48, "hidden": 96, "heads": 3, "layers": 2}
LLAMA = GPT | {"width": 64, "hidden": 80, "heads": 4, "key_value_heads": 2}


def model_of(kind: str, device: str, **changed: object) -> TextModel:
    """Random weights that are large enough to have opinions."""
    torch.manual_seed(0)
    sizes = GPT2Sizes(**(GPT | changed)) if kind == "gpt2" else LlamaSizes(**(LLAMA | changed))  # type: ignore[arg-type]
    model: TextModel = build(kind, sizes, HeadChoice("language"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.to(device).eval()
