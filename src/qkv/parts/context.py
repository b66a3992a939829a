"""What travels beside the stream: a small frozen context, and the ledger that keeps what a person asked to see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qkv.parts.attention.cache import Cache
from qkv.parts.attention.visibility import Everything, Mask, Rule, Tokens


class Ledger:
    """Keeps extras (attention weights, balance losses) by the name of the module that wrote them.

    `keep` says which kinds are wanted; a module asks with `wants` before it computes anything only for the ledger.
    """

    def __init__(self, model: nn.Module, keep: Iterable[str]) -> None:
        self.keep = frozenset(keep)
        self.written: list[tuple[nn.Module, str, Tensor]] = []  # by whom, of which kind, what; in order
        self._model = model

    def wants(self, kind: str) -> bool:
        return kind in self.keep

    def write(self, module: nn.Module, kind: str, value: Tensor) -> None:
        if kind in self.keep:
            self.written.append((module, kind, value))

    def empty_page(self) -> Ledger:
        """A ledger that wants the same, and in which nothing is written."""
        return Ledger(self._model, self.keep)

    @property
    def entries(self) -> dict[str, list[Tensor]]:
        """All that was written, by the names of the module and of the kind: `stack.blocks.0.attention.mixer/weights`"""
        names = {module: name for name, module in self._model.named_modules()}
        found: dict[str, list[Tensor]] = {}
        for module, kind, value in self.written:
            found.setdefault(f"{names[module]}/{kind}", []).append(value)
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """Everything a block may know besides its stream x [b s d]."""

    tokens: Tokens  # where the stream's tokens stand in their rows
    visibility: Rule = Everything()  # narrows every attention of this pass: padding, packed documents
    positions: Tensor | None = None  # [b s] or [s]; None: a token's position is its slot
    position_vectors: Tensor | None = None  # [b s d] or [s d], added where queries and keys are made, not to values
    segments: Tensor | None = None  # [b s] number of the text of each token, where a row holds several; None: all 0
    memory: Tensor | None = None  # [m k d], what cross-attention reads
    memory_tokens: Tokens | None = None
    memory_position_vectors: Tensor | None = None  # [m k d], the same for the keys of the memory
    grid: tuple[int, int] | None = None  # rows and columns of the tokens that end the stream, where they are a picture
    cache: Cache | None = None
    bias: Tensor | None = None  # [1 h q k], owned by the stack and added to every score
    wanted: int | None = None  # slots, from a row's first on, that anyone reads of what leaves the stack; None: all
    ledger: Ledger | None = None
    masks: list[Mask] = field(default_factory=list)  # made so far: one table serves all layers

    def mask(self, rule: Rule, query: Tokens, key: Tokens, device: torch.device) -> Mask:
        """The mask of `rule`, narrowed by this pass, between these tokens; made once and shared by all layers."""
        narrowed = rule & self.visibility
        for mask in self.masks:
            same_query = mask.query is query or (not narrowed.reads_query and mask.query.size == query.size)
            if same_query and mask.key is key and mask.rule == narrowed and mask.device == device:
                return mask
        mask = Mask(narrowed, query, key, device)
        self.masks.append(mask)
        return mask

    def position_ids(self, device: torch.device) -> Tensor:
        """The stream's positions. [b s] or [s]"""
        if self.positions is not None:
            return self.positions
        return self.tokens.index(device)

    def longest(self) -> int:
        """No position of the stream is as large as this number, which is known without waiting for a device."""
        return self.tokens.end
