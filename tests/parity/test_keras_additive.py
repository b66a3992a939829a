"""Additive attention against Keras' (a golden file; `fixtures/make_keras_additive.py` wrote it)."""

import json
from pathlib import Path

import torch

from qkv.parts.attention.recurrent import AdditiveAttention
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context, Ledger

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "keras_additive.json").read_text(encoding="utf-8"))


def golden(name: str) -> torch.Tensor:
    return torch.tensor(FIXTURE[name])


def test_context_and_weights_are_those_of_keras() -> None:
    queries, memory = golden("queries"), golden("memory")
    attention = AdditiveAttention(queries.shape[-1], memory.shape[-1], len(golden("score")))
    attention.load_state_dict(
        {
            "query.weight": golden("query.weight").T,
            "key.weight": golden("key.weight").T,
            "key.bias": golden("key.bias"),
            "score": golden("score"),
        }
    )
    ledger = Ledger(attention, keep={"weights"})
    ctx = Context(
        tokens=Tokens(queries.shape[1]),
        visibility=NotPadding(),
        memory=memory,
        memory_tokens=Tokens.padded(golden("lengths"), memory.shape[1]),
        ledger=ledger,
    )
    context = attention(queries, ctx)
    torch.testing.assert_close(context, golden("context"), atol=1e-6, rtol=0)
    torch.testing.assert_close(ledger.entries["/weights"][0], golden("weights")[:, None], atol=1e-6, rtol=0)
