"""What every model of one picture offers: its patches are the tokens of a row.

Shapes: b pictures, c channels, h height, w width, s tokens, d width of the stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from qkv.data.patch_hiding import HiddenPatches
from qkv.models.described import DESCRIBED
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Everything, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.patches import PatchEmbed
from qkv.parts.spec import Depends
from qkv.parts.wanted import slots_read

WHOLE_PICTURE = Everything()


class ImageModel(nn.Module):
    """picture → stream → stack → head. A spectrogram is a picture too."""

    depends_on = Depends("embed", "stack", "head", unread=DESCRIBED)

    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any
    head_choice: HeadChoice

    def __init__(self, embed: PatchEmbed, stack: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.stack, self.head = embed, stack, head

    def forward(self, images: Tensor, *, hidden: HiddenPatches | None = None, ledger: Ledger | None = None) -> Any:
        """What the head makes of pictures [b c h w], some of whose patches may be hidden."""
        ctx = replace(self.context(images, ledger=ledger), wanted=slots_read(self.head))
        return self.head(self.states(images, ctx, hidden), ctx)

    def states(self, images: Tensor, ctx: Context, hidden: HiddenPatches | None = None) -> Tensor:
        """The stream after the last block (and its norm, where there is one). [b s d]"""
        x: Tensor = self.stack(self.embed(images, ctx, hidden), ctx)
        return x

    def context(self, images: Tensor, *, ledger: Ledger | None = None) -> Context:
        """What stands beside pictures [b c h w]."""
        return Context(tokens=Tokens(self.embed.count(images)), visibility=WHOLE_PICTURE, ledger=ledger)
