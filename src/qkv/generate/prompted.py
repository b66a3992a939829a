"""Outputs of a model that has read its source already, each after a prompt of its own.

Shapes: m sources, r rows, s slots, t new tokens, d width, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.continuation import Continuation, Standpoint, check_evaluation
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.position import positions_in_documents


class FromMemory(Continuation):
    """Rows that go on from prompts of any lengths, padded on the left so that they end together."""

    model: EncoderDecoder

    def __init__(self, model: EncoderDecoder, memory: Memory, prompts: Sequence[Sequence[int]], *, most: int) -> None:
        """Each row gets at most `most` tokens after its prompt."""
        check_evaluation(model)
        if not all(len(prompt) for prompt in prompts):
            raise QkvError("An empty prompt has nothing to carry on: begin it with a start token.")
        self.model, self.memory = model, memory
        self.vocabulary, self.device = model.target_vocabulary, memory.states.device
        self._prompts = [list(prompt) for prompt in prompts]
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)  # [r] real tokens so far
        self._slots = max(len(prompt) for prompt in prompts)
        self._padded = any(len(prompt) < self._slots for prompt in prompts)
        self._cache = model.new_cache(self._slots + most - 1)
        self._states: Tensor | None = None  # [m s d] of the prompts

    def begin(self) -> Tensor:
        ids = torch.zeros(len(self._prompts), self._slots, dtype=torch.long)
        real = torch.zeros_like(ids)
        for row, prompt in enumerate(self._prompts):
            ids[row, self._slots - len(prompt) :] = torch.tensor(prompt)
            real[row, self._slots - len(prompt) :] = 1
        documents = real.to(self.device) if self._padded else None
        positions = None if documents is None else positions_in_documents(documents)
        self._states = self._read(ids.to(self.device), documents, positions)
        return self.prompt_logits(1)

    def prompt_logits(self, from_end: int) -> Tensor:
        """The logits of the token after the `from_end`-th last of each prompt. [m v]"""
        assert self._states is not None
        logits: Tensor = self.model.head(self._states[:, self._slots - from_end])
        return logits

    def advance(self, tokens: Tensor) -> Tensor:
        documents = positions = None
        if self._padded:
            documents = torch.ones_like(tokens)
            positions = self._lengths[:, None] + torch.arange(tokens.shape[1], device=self.device)
        self._lengths = self._lengths + tokens.shape[1]
        logits: Tensor = self.model.head(self._read(tokens, documents, positions)[:, -1])
        return logits

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self._cache.select(rows, sources)
        self._lengths = self._lengths[rows]
        if sources is not None:
            self.memory = self.memory.select(sources)

    def standpoint(self) -> Standpoint | None:
        return Standpoint.of(self.model, self._cache, self._lengths if self._padded else None, self.memory)

    def _read(self, ids: Tensor, documents: Tensor | None, positions: Tensor | None) -> Tensor:
        tokens = Tokens(ids.shape[1], self._cache.length, documents)
        return self.model.decode_states(ids, self.memory, tokens, NotPadding(), positions, self._cache)
