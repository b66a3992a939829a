"""wav2vec 2.0: speech from samples, learned by telling what hidden frames were. [baevski2020]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from qkv.data.span_hiding import SpanHiding
from qkv.errors import QkvError, nearest_or_all
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.sound_model import SoundModel
from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import TokenHead
from qkv.parts.layers import DroppedStack, SummedStack
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import MeanOfTokens
from qkv.parts.quantise import ProductQuantiser
from qkv.parts.residual import PostNorm, PreNorm
from qkv.parts.sound_heads import ContrastiveHead, ProjectedHead
from qkv.parts.wave import ChannelNorm, ConvolvedPosition, FrameEmbed, FrameLayer, FrameNorm, WaveFrames

HEADS = ("ctc", "pretraining", "states", "classification", "tokens", "embedding")
WIRINGS = {"after": PostNorm, "before": PreNorm}
FRAME_NORMS = ("channel", "frame")


@dataclass(frozen=True, kw_only=True)
class Wav2Vec2Sizes:
    vocabulary: int = 32  # letters that a CTC head tells apart, the blank included
    channels: tuple[int, ...] = (512,) * 7  # of the convolutions over the samples, one after the other
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    frame_norm: str = "channel"  # over time in the first convolution only; or "frame": over channels in each
    frame_bias: bool = False  # of the convolutions
    frame_activation: str = "gelu"  # of the convolutions, those of the positions too
    position_kernel: int = 128
    position_groups: int = 16
    width: int
    hidden: int
    heads: int
    layers: int
    norm: str = "after"  # each sub-layer, or "before"
    activation: str = "gelu"
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds, and of the embeddings
    hidden_dropout: float = 0.1  # of the hidden units of the feed-forward
    attention_dropout: float = 0.1
    frame_dropout: float = 0.0  # of the frames that enter the stream
    quantiser_dropout: float = 0.0  # of those that are quantised
    head_dropout: float = 0.1  # before letters
    layer_dropout: float = 0.1  # of whole layers [fan2020 §3.1]
    augment: bool = True  # whether spans are hidden while a task is learned
    hidden_share: float = 0.05  # of frames, counted without overlaps
    hidden_length: int = 10
    hidden_least: int | None = 2  # spans of a row; None: as it comes
    hidden_channel_share: float = 0.0
    hidden_channel_length: int = 10
    hidden_channel_least: int | None = None
    codebooks: int = 2
    entries: int = 320  # of a codebook
    quantised: int = 256  # width of a quantised frame
    space: int = 256  # width in which frames are compared
    decision_width: int = 256  # in which frames are averaged for a decision
    summed: bool = False  # decisions hear all layers, not only the last

    def __post_init__(self) -> None:
        for name in ("channels", "kernels", "strides"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(type(each) is int and each > 0 for each in given):
                raise QkvError(f"The size {name} of family wav2vec2 must be whole numbers above 0, but is {given!r}.")
            object.__setattr__(self, name, tuple(given))
        if not len(self.channels) == len(self.kernels) == len(self.strides) >= 1:
            raise QkvError("Channels, kernels and strides must name the same convolutions, one at least.")
        for name, known in (("norm", list(WIRINGS)), ("frame_norm", FRAME_NORMS)):
            if getattr(self, name) not in known:
                wrong = str(getattr(self, name))
                raise QkvError(f"The size {name} of family wav2vec2 cannot be {wrong}: {nearest_or_all(wrong, known)}")


# [baevski2020 §4.2]; the last as published for learning from more and other speech, such as LV-60k and XLSR
SIZES = {
    "base": Wav2Vec2Sizes(width=768, hidden=3072, heads=12, layers=12),
    "large": Wav2Vec2Sizes(width=1024, hidden=4096, heads=16, layers=24, quantised=768, space=768),
    "large-prenorm": Wav2Vec2Sizes(
        width=1024, hidden=4096, heads=16, layers=24, quantised=768, space=768, norm="before", frame_norm="frame",
        frame_bias=True,
    ),
}  # fmt: skip


def wav2vec2(sizes: Wav2Vec2Sizes, head: HeadChoice) -> SoundModel:
    width, before = sizes.width, sizes.norm == "before"
    norm = partial(LayerNorm, width, sizes.epsilon)
    wiring = WIRINGS[sizes.norm]

    def block() -> Block:
        attention = Attention(width, sizes.heads, dropout=sizes.attention_dropout)
        feed_forward = MLP(width, sizes.hidden, find_activation(sizes.activation), dropout=sizes.hidden_dropout)
        return Block(
            attention=wiring(norm(), attention, sizes.dropout),
            feed_forward=wiring(norm(), feed_forward, sizes.dropout),
        )

    def contrastive() -> ContrastiveHead:
        quantiser = ProductQuantiser(sizes.channels[-1], sizes.codebooks, sizes.entries, sizes.quantised)
        return ContrastiveHead(width, quantiser, sizes.quantised, sizes.space, sizes.quantiser_dropout)

    activation = find_activation(sizes.frame_activation)
    stack = SummedStack if sizes.summed and head.kind in ("classification", "tokens") else DroppedStack
    model = SoundModel(
        frames=WaveFrames(frame_layers(sizes)),
        embed=FrameEmbed(
            sizes.channels[-1],
            width,
            sizes.epsilon,
            ConvolvedPosition(width, sizes.position_kernel, sizes.position_groups, activation),
            hides=sizes.hidden_share > 0 or sizes.hidden_channel_share > 0,
            norm=None if before else norm(),
            project_dropout=sizes.frame_dropout,
            dropout=sizes.dropout,
        ),
        stack=stack(
            [block() for _ in range(sizes.layers)], norm() if before else None, layer_dropout=sizes.layer_dropout
        ),
        head=make_head(
            head,
            width,
            {
                "ctc": lambda: TokenHead(width, sizes.vocabulary, sizes.head_dropout),
                "pretraining": contrastive,
                "classification": lambda: ProjectedHead(width, sizes.decision_width, len(head.labels)),
            },
            pool=MeanOfTokens,
            kinds=HEADS,
            pools={"mean": MeanOfTokens},
        ),
    )
    initialise(model)
    return model


def frame_layers(sizes: Wav2Vec2Sizes) -> list[FrameLayer]:
    activation = find_activation(sizes.frame_activation)
    layers, before = [], 1
    for number, (channels, kernel, stride) in enumerate(zip(sizes.channels, sizes.kernels, sizes.strides, strict=True)):
        norm: ChannelNorm | FrameNorm | None = None
        if sizes.frame_norm == "frame":
            norm = FrameNorm(channels)
        elif number == 0:
            norm = ChannelNorm(channels)
        convolution = nn.Conv1d(before, channels, kernel, stride, bias=sizes.frame_bias)
        layers.append(FrameLayer(convolution, norm, activation))
        before = channels
    return layers


def initialise(model: SoundModel) -> None:
    """N(0, 0.02) for the matrices of the stack; what chooses between entries begins wide, as published."""
    initialise_normal(model)
    project = model.embed.project
    nn.init.uniform_(project.weight, -(project.in_features**-0.5), project.in_features**-0.5)
    if isinstance(model.head, ContrastiveHead):
        nn.init.normal_(model.head.quantiser.choose.weight)
        nn.init.uniform_(model.head.quantiser.entries)
        for linear in (model.head.predict, model.head.want):
            linear.reset_parameters()


def hiding(sizes: Wav2Vec2Sizes) -> tuple[SpanHiding | None, SpanHiding | None]:
    """How frames and channels are hidden while a task is learned; None: not at all."""
    frames = SpanHiding(sizes.hidden_share, sizes.hidden_length, sizes.hidden_least or 0)
    channels = SpanHiding(sizes.hidden_channel_share, sizes.hidden_channel_length, sizes.hidden_channel_least or 0)
    on = sizes.augment
    return frames if on and frames.share else None, channels if on and channels.share else None


FAMILIES = (
    Family(
        "wav2vec2",
        "speech from samples, learned by telling what hidden frames were",
        Wav2Vec2Sizes,
        wav2vec2,
        SIZES,
        HEADS,
        "sound",
    ),
)
