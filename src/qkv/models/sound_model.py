"""What every model of samples offers: a wave becomes frames, and frames are the tokens of a row.

Shapes: b rows, t samples, n frames, c channels, d width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.described import DESCRIBED
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.sound_heads import ContrastiveHead
from qkv.parts.spec import Depends
from qkv.parts.wave import FrameEmbed, WaveFrames


class Heard(NamedTuple):
    """A sound after the stack, before the head."""

    states: Tensor  # [b n d]
    features: Tensor  # [b n c], normed, nothing hidden
    ctx: Context


class SoundModel(nn.Module):
    """samples → frames → stream → stack → head."""

    depends_on = Depends("frames", "embed", "stack", "head", unread=DESCRIBED)

    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any
    head_choice: HeadChoice

    def __init__(self, frames: WaveFrames, embed: FrameEmbed, stack: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.frames, self.embed, self.stack, self.head = frames, embed, stack, head

    def forward(
        self,
        waves: Tensor,
        *,
        lengths: Tensor | None = None,
        hidden_frames: Tensor | None = None,
        hidden_channels: Tensor | None = None,
        ledger: Ledger | None = None,
    ) -> Any:
        """What the head makes of waves [b t]; see `hear` for the rest."""
        heard = self.hear(
            waves, lengths=lengths, hidden_frames=hidden_frames, hidden_channels=hidden_channels, ledger=ledger
        )
        return self.answer(heard)

    def hear(
        self,
        waves: Tensor,
        *,
        lengths: Tensor | None = None,
        hidden_frames: Tensor | None = None,
        hidden_channels: Tensor | None = None,
        ledger: Ledger | None = None,
    ) -> Heard:
        """The stream of waves [b t] of which `lengths` [b] samples are real, the rest padding on the right.

        Frames that are True in `hidden_frames` [b n] are hidden, and so are channels of the stream that are True in
        `hidden_channels` [b d].
        """
        ctx = self.context(waves, lengths=lengths, ledger=ledger)
        lengths = None if lengths is None or ctx.tokens.documents is None else lengths.to(waves.device)
        features = self.embed.features(self.frames(waves, lengths))  # [b n c]
        x = self.embed(features, ctx, hidden_frames, hidden_channels)  # [b n d]
        return Heard(self.stack(x, ctx), features, ctx)

    def answer(self, heard: Heard) -> Any:
        """What the head makes of it."""
        if isinstance(self.head, ContrastiveHead):
            return self.head(heard.states, heard.features)
        return self.head(heard.states, heard.ctx)

    def context(self, waves: Tensor, *, lengths: Tensor | None = None, ledger: Ledger | None = None) -> Context:
        """What stands beside the frames of waves [b t]."""
        shortest, samples = self.frames.shortest, waves.shape[-1]
        least, most = samples, samples
        known = False
        if lengths is not None and lengths.device.type == "cpu" and not torch.compiler.is_compiling() and len(lengths):
            least, most = (int(length) for length in lengths.aminmax())  # on another device looking would make it wait
            known = True
        if min(least, samples) < shortest:
            raise QkvError(f"This model hears sounds of {shortest} samples at least: fill a shorter one with silence.")
        count = self.frames.count(samples)
        if lengths is None or (known and least == most == samples):  # no row has padding
            return Context(tokens=Tokens(count), visibility=NotPadding(), ledger=ledger)
        tokens = Tokens.padded(self.frames.frames_of(lengths), count)
        if tokens.documents is not None and tokens.documents.device != waves.device:
            tokens = replace(tokens, documents=tokens.documents.to(waves.device))
        return Context(tokens=tokens, visibility=NotPadding(), ledger=ledger)
