"""Small random Llamas of the reference library, which the readers of other formats must bring back."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def random_llama(**changes: Any) -> LlamaForCausalLM:
    sizes = {
        "vocab_size": 50, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 3, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def llama_of(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """The reference model with what a reader gave: every tensor must fit, and none may be missing."""
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    if config["tie_word_embeddings"]:
        assert "lm_head.weight" not in tensors
        tensors = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    model.load_state_dict(tensors, strict=True)
    return model


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    ids = torch.randint(model.config.vocab_size, (2, 13), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(ids).logits


def greedy(model: LlamaForCausalLM, ids: list[int], count: int) -> list[int]:
    with torch.no_grad():
        return model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False)[0, len(ids) :].tolist()


def to_neighbours(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Row i and row i + half of each head become neighbours: written out, to judge the reader's way back."""
    width = len(rows) // heads
    order = [
        head * width + half * (width // 2) + i for head in range(heads) for i in range(width // 2) for half in (0, 1)
    ]
    return rows[order]
