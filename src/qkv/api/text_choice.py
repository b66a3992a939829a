"""What a new language model is and how it learns where nobody says otherwise: chosen by the bytes there are, the budget
and a measured step, and recorded with the run.

A person's first training is on a few megabytes, on a CPU, for minutes. There a model has to be so small that it sees
more tokens than it has weights, and its vocabulary so small that most of the work is not the last matrix.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from qkv.api.choices import DESK, named_sizes
from qkv.api.language import CHOSEN
from qkv.api.runs import parameters_of
from qkv.api.texts import family_of_texts
from qkv.data.packing import LanguageBatch
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.models.unfilled import Unfilled
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import muon
from qkv.train.parallel.world import current_world
from qkv.train.rehearsal import step_speed
from qkv.train.settings import TrainSettings

FAMILY = "qwen3"  # whose queries and keys are normed, so that it learns fast
PLAIN_FAMILY = "gpt2"  # which has custom kernels on a GPU, and goes with every attention and every way of sharing work
HIDDEN = {"gpt2": 4, "llama": 3, "qwen3": 3}  # times the width: of families whose models are chosen by size
# Widths that a model may have, with its layers.
DEPTHS = {64: 4, 96: 4, 128: 4, 192: 5, 256: 6, 384: 8, 512: 10, 768: 12}
TOKENS_FOR_A_WEIGHT = 5.0  # that a model sees of texts, for each weight of its blocks
BYTES_A_TOKEN = 3.0  # about; of English in 1,000 pieces 2.6, in 4,096 3.3
# Powers of 2.
PIECES_FOR_A_ROOT, PIECES_FOR_A_WIDTH = 2.2, 64  # of the bytes of the text; of the width of a model
LEAST_PIECES, MOST_PIECES = 9, 15
READINGS = 10  # of the texts, at most: later ones teach by heart
DROPOUTS = {2.0: 0.0, 5.0: 0.1, math.inf: 0.3}  # of models that read each text so often at most
RATE, RATE_WIDTH = 0.009, 128  # of Muon; it falls with the root of the width
TABLE_RATE = 3.0  # times that, of embeddings in a short run
HOLD, RISE_ON_A_GPU = 0.5, 0.05  # shares of a run in which the rate stays, and in which it rises before
ON_A_GPU = (32, 1024)  # rows and tokens of one, which keep it busy
ON_A_CPU = (16, 128)
PACKED_BYTES = 8_000_000  # of the text that a packer is shown first


@dataclass(frozen=True, kw_only=True)
class TextChoice:
    """A new model and its way of learning."""

    family: str
    sizes: Mapping[str, Any]  # but for the vocabulary and the longest text
    pieces: int
    rows: int
    length: int
    updates: int  # about so many are made
    readings: float  # about so often each text is read by then
    capped: bool  # whether that is as often as it does good, and not all that the budget allows
    rise: float  # share of the updates in which the rate rises
    hold: float  # and in which it stays, before it falls to 0
    beside: float  # times the rate of the matrices, which is that of the rest

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person said of it, or what follows from the rest; None: to be chosen."""

    family: str | None = None
    pieces: int | None = None
    bytes_a_token: float = BYTES_A_TOKEN
    rows: int | None = None
    length: int | None = None


def choose_text_model(text_bytes: int, settings: TrainSettings, asked: Asked, folder: Path | None = None) -> TextChoice:
    """A model for texts of so many bytes and the budget of the settings, on their device.

    It is the largest of its kind that still sees enough tokens for each weight: within the budget, by steps that are
    taken and timed, and of these texts, which are not read too often. A run that is resumed in a `folder` chose before;
    ranks are told what the first one chose.
    """
    world = current_world()
    if world.first:
        found = None if folder is None else recorded(folder)
        found = found or _chosen(text_bytes, settings, asked)
    told = world.from_first(json.dumps(found.record()).encode() if world.first and found else None)
    return TextChoice(**json.loads(told))


def recorded(folder: Path) -> TextChoice | None:
    """What was chosen when the run of a folder began, if anything was."""
    try:
        told = read_json(folder / "run.json")["settings"][CHOSEN]
        return TextChoice(**told) if set(told) == {field.name for field in fields(TextChoice)} else None
    except (QkvError, KeyError, TypeError):  # what is wrong with a run.json is told by who resumes it
        return None


def _chosen(text_bytes: int, settings: TrainSettings, asked: Asked) -> TextChoice:
    device, there = settings.torch_device(), text_bytes / asked.bytes_a_token
    family = asked.family or (FAMILY if device.type == "cpu" else PLAIN_FAMILY)
    family_of_texts(family)  # or it is refused
    rows, length = ON_A_CPU if device.type == "cpu" else ON_A_GPU
    rows, length = asked.rows or rows, asked.length or length
    best: _Candidate | None = None
    seen = math.inf  # tokens that the best one is trained on within the budget
    for sizes in _sizes_of(family):
        pieces = asked.pieces or pieces_for(text_bytes, sizes["width"])
        larger = _Candidate(family, sizes, pieces, rows, length)
        enough = TOKENS_FOR_A_WEIGHT * larger.weights
        if best is not None and enough > min(READINGS * there, seen * best.work / larger.work):
            break
        trained_on = larger.tokens_within(settings)
        if best is not None and enough > trained_on:
            break
        best, seen = larger, trained_on
    assert best is not None
    capped = settings.steps is None and seen > READINGS * there
    seen = READINGS * there if capped else seen
    dropout = next(DROPOUTS[most] for most in DROPOUTS if seen <= most * there)
    return TextChoice(
        family=family,
        sizes={**best.sizes, **dict.fromkeys(_dropouts(family), dropout)},
        pieces=best.pieces,
        rows=rows,
        length=length,
        updates=max(1, round(seen / (rows * length * current_world().size))),
        readings=seen / there,
        capped=capped,
        rise=0.0 if device.type == "cpu" else RISE_ON_A_GPU,
        hold=HOLD,
        beside=TABLE_RATE if device.type == "cpu" else 1.0,
    )


@dataclass(frozen=True)
class _Candidate:
    family: str
    sizes: Mapping[str, Any]
    pieces: int
    rows: int
    length: int

    @cached_property
    def weights(self) -> int:
        """Of the blocks, where a model computes."""
        with torch.device("meta"), Unfilled():
            return parameters_of(self._built().stack)

    @property
    def work(self) -> int:
        """What a token takes, up to a factor."""
        return self.weights + int(self.sizes["width"]) * self.pieces

    def tokens_within(self, settings: TrainSettings) -> float:
        """That all ranks train on; by the time that updates take on tokens drawn at random, if minutes count."""
        ranks, steps = current_world().size, settings.steps
        most = math.inf if steps is None else float(steps * self.rows * self.length * ranks)
        if settings.minutes is None:
            return most
        model = self._built().to(settings.torch_device())
        ids = torch.randint(self.pieces, (self.rows, self.length + 1))
        count = self.rows * self.length
        batch = LanguageBatch(ids, torch.ones_like(ids), packed=False, predicted=count, bytes=count)
        speed = step_speed(model, LanguageLoss(), batch, settings, muon(model)).tokens_per_second
        return min(most, 60 * settings.minutes * speed * ranks)

    def _built(self) -> TextModel:
        sizes = find_family(self.family).sizes({**self.sizes, "vocabulary": self.pieces, "positions": self.length})
        model: TextModel = build(self.family, sizes, HeadChoice("language"))
        return model


def _sizes_of(family: str) -> Iterator[dict[str, Any]]:
    """Ever larger models; of some families only one."""
    if family not in HIDDEN:
        yield {name: value for name, value in named_sizes(find_family(family), DESK).items() if name != "positions"}
        return
    for width, layers in DEPTHS.items():
        yield {**proportions(family, width), "layers": layers}


def proportions(family: str, width: int, heads: int | None = None) -> dict[str, Any]:
    """The sizes that follow from a width, in a family whose models are chosen by size."""
    heads = heads or max(1, width // (32 if width <= 256 else 64))
    values = {
        "width": width,
        "hidden": HIDDEN[family] * width,
        "heads": heads,
        "key_value_heads": heads,
        "head_width": width // heads,
        "tied": True,
    }
    known = {field.name for field in fields(find_family(family).sizes_type)}
    return {name: value for name, value in values.items() if name in known}


def rate_for(width: int) -> float:
    """Of Muon."""
    return RATE * math.sqrt(RATE_WIDTH / width)


def _dropouts(family: str) -> list[str]:
    """The sizes that say how much drops out, but for that of heads, which language models do not have."""
    names = [field.name for field in fields(find_family(family).sizes_type)]
    return [name for name in names if "dropout" in name and name != "head_dropout"]


def pieces_for(text_bytes: int, width: int) -> int:
    """Of a vocabulary: the more text the more, but no matrix of them that outweighs the blocks of a narrow model."""
    suits = round(math.log2(PIECES_FOR_A_ROOT * math.sqrt(max(1, text_bytes))))
    most = math.floor(math.log2(PIECES_FOR_A_WIDTH * width))
    return int(2 ** max(LEAST_PIECES, min(suits, most, MOST_PIECES)))


def packed_bits_per_byte(shown: Sequence[str], asked: Sequence[str]) -> float:
    """What `lzma` makes of the texts `asked` once it has packed those that are `shown`: bits for each of their bytes.

    Of both no more than it takes a few seconds to pack.
    """
    before, behind = _ending(shown, PACKED_BYTES), _ending(asked, PACKED_BYTES // 4)
    more = len(lzma.compress(before + behind)) - len(lzma.compress(before))
    return 8 * more / max(1, len(behind))


def _ending(texts: Sequence[str], most: int) -> bytes:
    """The last so many bytes of texts with blank lines between them."""
    found, left = list[bytes](), most
    for text in reversed(texts):
        if left <= 0:
            break
        found.append(text.encode() + b"\n\n")
        left -= len(found[-1])
    return b"".join(reversed(found))[-most:]
