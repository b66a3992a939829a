"""Every family that others publish, by the `model_type` of its `config.json`."""

from __future__ import annotations

from qkv.weights.maps.gpt2 import GPT2
from qkv.weights.maps.marian import MARIAN
from qkv.weights.maps.t5 import T5
from qkv.weights.published import PublishedFamily

PUBLISHED: dict[str, PublishedFamily] = {each.model_type: each for each in (GPT2, MARIAN, T5)}
