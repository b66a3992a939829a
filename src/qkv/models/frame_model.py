"""What a model of mel frames offers: every two of them are a token of a row.

Shapes: b rows, m mel bands, n frames, s slots, d width of the stream.
"""

from __future__ import annotations

from torch import Tensor, nn

from qkv.data.patch_hiding import HiddenPatches
from qkv.errors import QkvError
from qkv.models.described import DESCRIBED
from qkv.models.image_model import WHOLE_PICTURE, ImageModel
from qkv.parts.context import Context, Ledger
from qkv.parts.frames import FrameStem
from qkv.parts.spec import Depends


class FrameModel(ImageModel):
    """frames → stream → stack → head: a picture of sound that is read column by column, and not cut into patches."""

    depends_on = Depends("embed", "stack", "head", unread=DESCRIBED)

    embed: FrameStem  # type: ignore[assignment]  # in place of patches

    def __init__(self, embed: FrameStem, stack: nn.Module, head: nn.Module) -> None:
        nn.Module.__init__(self)
        self.embed, self.stack, self.head = embed, stack, head

    def states(self, images: Tensor, ctx: Context, hidden: HiddenPatches | None = None) -> Tensor:
        """The stream of frames [b m n] after the last block and its norm. [b s d]"""
        if hidden is not None:
            raise QkvError("Frames have no patches that could be hidden.")
        x: Tensor = self.stack(self.embed(images, ctx), ctx)
        return x

    def context(self, images: Tensor, *, ledger: Ledger | None = None) -> Context:
        """What stands beside frames [b m n]."""
        return Context(tokens=self.embed.slots(images, None), visibility=WHOLE_PICTURE, ledger=ledger)
