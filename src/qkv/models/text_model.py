"""What every model of one row of text offers: a GPT, whose tokens look back only, and a BERT, whose look around.

Shapes: b rows, s slots, d width, v vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.described import DESCRIBED
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.attention import MultiHead
from qkv.parts.attention.cache import Cache, PreallocatedCache, WholeRows
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import NotPadding, Rule, SameDocument, Sight, Tokens
from qkv.parts.attention.whole_rows import counts_slots
from qkv.parts.context import Context, Ledger
from qkv.parts.embed import Embed
from qkv.parts.spec import Depends
from qkv.parts.token_wise import reads_in_line
from qkv.parts.wanted import slots_read

if TYPE_CHECKING:
    from qkv.models.attention_choice import AttentionChoice


class TextModel(nn.Module):
    """ids → stream → stack → head. Which token sees which is said by the attentions of the stack."""

    depends_on = Depends("embed", "stack", "head", unread=DESCRIBED)

    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any
    head_choice: HeadChoice
    attention_choice: AttentionChoice | None  # None: the family's own

    def __init__(self, embed: Embed, stack: nn.Module, head: nn.Module, longest: int | None = None) -> None:
        """`longest` is the most slots a row may have; None: any number."""
        super().__init__()
        self.embed, self.stack, self.head, self.longest = embed, stack, head, longest
        self.vocabulary = len(embed.tokens.weight)
        self.look_over()

    def look_over(self) -> None:
        """Note what the attentions of the stack say together; to be done again when they have been changed."""
        attentions = [module for module in self.stack.modules() if isinstance(module, MultiHead)]
        rules = {attention.visibility for attention in attentions}
        self.looks_back = all(_looks_back(rule) for rule in rules)
        self.counts_slots = any(counts_slots(rule) for rule in rules)  # so that padding before a text would change it
        self.keeps = all(attention.keeps for attention in attentions)  # whether a cache saves reading a row anew
        self.heeds_marks = any(attention.heeds_marks for attention in attentions)

    @property
    def in_line(self) -> bool:
        """Whether texts may stand in one row, one behind the other (`InLine`), in place of a row each."""
        return type(self) is TextModel and reads_in_line(self)

    def forward(
        self,
        ids: Tensor,
        *,
        lengths: Tensor | None = None,
        tokens: Tokens | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        visibility: Rule = NotPadding(),  # noqa: B008 (frozen)
        cache: Cache | None = None,
        ledger: Ledger | None = None,
    ) -> Any:
        """What the head makes of ids [b s]; see `context` for the rest."""
        ctx = self.context(
            ids,
            lengths=lengths,
            tokens=tokens,
            segments=segments,
            positions=positions,
            visibility=visibility,
            cache=cache,
            ledger=ledger,
        )
        ctx = replace(ctx, wanted=slots_read(self.head))
        return self.head(self.states(ids, ctx), ctx)

    def states(self, ids: Tensor, ctx: Context) -> Tensor:
        """The stream after the last block (and its norm, where there is one); a cache is carried on. [b s d]"""
        if isinstance(ctx.cache, WholeRows):
            return self._read_anew(ids, ctx, ctx.cache)
        x: Tensor = self.stack(self.embed(ids, ctx), ctx)
        if ctx.cache is not None:
            ctx.cache.advance(ctx.tokens)
        return x

    def _read_anew(self, ids: Tensor, ctx: Context, cache: WholeRows) -> Tensor:
        """Whole rows once more, of which ids [b s] are the last tokens; the stream of those. [b s d]"""
        rows, positions = cache.append(ids, ctx.position_ids(ids.device).expand_as(ids))
        anew = replace(ctx, tokens=cache.keys(ctx.tokens), positions=positions, cache=None, masks=[])
        x: Tensor = self.stack(self.embed(rows, anew), anew)
        cache.advance(ctx.tokens)
        return x[:, -ids.shape[1] :]

    def context(
        self,
        ids: Tensor,
        *,
        lengths: Tensor | None = None,
        tokens: Tokens | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        visibility: Rule = NotPadding(),  # noqa: B008 (frozen)
        cache: Cache | None = None,
        ledger: Ledger | None = None,
    ) -> Context:
        """What stands beside ids [b s].

        `lengths` [b] tell rows padded on the right; `tokens` anything else: padding on the left, packed documents.
        Documents that stand in line (`InLine`) see themselves alone, and their positions begin anew with each.
        With a cache, ids are only those since the last call.
        """
        if cache is not None:
            self._check_looks_back()
        if tokens is None:
            if lengths is not None and cache is not None:
                raise QkvError("A cache is filled from rows that end together: pad them on the left, with tokens.")
            if lengths is not None:
                tokens = Tokens.padded(lengths, ids.shape[1])
            elif cache is not None:
                tokens = Tokens(ids.shape[1], cache.length)
            else:
                tokens, visibility = self.padding(ids, visibility)
        elif lengths is not None:
            raise QkvError("Give lengths or tokens, not both: tokens say where the padding is.")
        if isinstance(tokens, InLine):
            if not self.in_line:
                raise QkvError("Parts of this model look beyond a document: give each text a row of its own.")
            visibility = SameDocument() if visibility == NotPadding() else visibility & SameDocument()
            positions = tokens.positions if positions is None else positions
        if self.longest is not None and tokens.end > self.longest:
            raise QkvError(f"The text has {tokens.end} tokens and this model reads at most {self.longest}.")
        return Context(
            tokens=self.marked(tokens, positions, visibility, ids.device),
            visibility=visibility,
            positions=positions,
            segments=segments,
            cache=cache,
            ledger=ledger,
        )

    def padding(self, ids: Tensor, visibility: Rule) -> tuple[Tokens, Rule]:
        """Where ids [b s] of which nothing is said are padding, and who may then see whom: nowhere, and as asked."""
        return Tokens(ids.shape[1]), visibility

    def marked(self, tokens: Tokens, positions: Tensor | None, visibility: Rule, device: torch.device) -> Tokens:
        """The tokens with those marked that this model treats in a way of their own: as given, or none."""
        if tokens.marks is not None and not self.heeds_marks:
            raise QkvError("This model treats all tokens alike: mark none.")
        return tokens.counted()

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for rows of at most `capacity` tokens, the prompt counted."""
        self._check_looks_back()
        return PreallocatedCache(capacity) if self.keeps else WholeRows()

    def _check_looks_back(self) -> None:
        """What a token was when it was kept in a cache must be what it is beside those that follow it."""
        if not self.looks_back:
            raise QkvError("This model looks both ways, so a text cannot be read token by token: give it whole.")


def _looks_back(rule: Rule) -> bool:
    """Whether the first token of a row sees none of those after it."""
    first, later = torch.zeros(1, 1, 1, dtype=torch.long, device="cpu"), torch.arange(1, 4097, device="cpu")
    return not bool(rule.sees(Sight(first, None), Sight(later[None, None], None)).any())
