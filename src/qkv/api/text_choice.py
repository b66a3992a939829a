"""The recipe of a new language model where nobody says otherwise: chosen by the bytes of text, the budget and a timed
step, and recorded with the run.

A person's first training is on a few megabytes, on a CPU, for minutes. Then a model must be so small that it sees
several tokens for each parameter, and its vocabulary so small that the last matrix is not most of the work.
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

# LOG.md has the runs that these numbers come from.
FAMILY = "qwen3"  # normalised queries and keys: it learns faster than a Llama or a GPT-2
PLAIN_FAMILY = "gpt2"  # has custom kernels on a GPU, and goes with every --attention and every --parallel
HIDDEN = {"gpt2": 4, "llama": 3, "qwen3": 3}  # times the width; families that are scaled here, others have one size
LAYERS = {64: 4, 96: 4, 128: 4, 192: 5, 256: 6, 384: 8, 512: 10, 768: 12}  # by width
# Of the blocks: a model that sees fewer tokens for each is too large. Few texts, with dropout, bear a larger one.
TOKENS_PER_PARAMETER, TOKENS_PER_PARAMETER_OF_FEW_TEXTS = 5.0, 1.3
VOCABULARY_PER_ROOT, VOCABULARY_PER_WIDTH = 2.2, 64  # times the root of the bytes; at most so many times the width
LEAST_VOCABULARY, MOST_VOCABULARY = 9, 15  # powers of 2
MOST_EPOCHS = 11
DROPOUTS = {2.0: 0.0, 7.0: 0.1, math.inf: 0.3}  # up to so many epochs
RATE, RATE_WIDTH = 0.009, 128  # of Muon; it falls with the root of the width
ADAMW_FACTOR = 3.0  # times the rate of Muon: for embeddings, in short runs on a CPU
HOLD, WARM_UP_ON_A_GPU = 0.5, 0.05  # shares of a run
ROWS_ON_A_GPU, ROWS_ON_A_CPU = (32, 1024), (16, 128)  # rows of a batch, and tokens of a row
LZMA_BYTES = 8_000_000  # of text that lzma is given first, as many as its dictionary holds


@dataclass(frozen=True, kw_only=True)
class TextChoice:
    """A new model and how it is trained."""

    family: str
    sizes: Mapping[str, Any]  # all but vocabulary and positions
    vocabulary: int
    rows: int
    length: int
    updates: int  # an estimate
    epochs: float | None  # an estimate; None where nobody knows how much text there is
    capped: bool  # whether the budget allows for more epochs than are worth it
    warm_up: float  # share of the updates in which the rate rises
    hold: float  # share in which it stays, before it falls to 0
    adamw_factor: float  # AdamW's rate, as a multiple of Muon's

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a person chose; None: nothing."""

    family: str | None = None
    vocabulary: int | None = None
    bytes_per_token: float | None = None
    rows: int | None = None
    length: int | None = None


def choose_text_model(
    text_bytes: int | None, settings: TrainSettings, given: Given, folder: Path | None = None
) -> TextChoice:
    """A model for so many bytes of text (None: more than it will read) and the budget and device of the settings.

    It is the largest one that sees enough tokens for each parameter, within the budget and within the epochs that are
    worth it. With a budget in minutes a few updates of each size are timed. A run that is resumed from a `folder` keeps
    its choice; all ranks get that of the first.
    """
    world = current_world()
    if world.first:
        choice = None if folder is None else recorded(folder)
        choice = choice or _choose(text_bytes, settings, given)
    sent = world.from_first(json.dumps(choice.record()).encode() if world.first and choice else None)
    return TextChoice(**json.loads(sent))


def recorded(folder: Path) -> TextChoice | None:
    """The choice that the run in a folder began with, if it made one."""
    try:
        found = read_json(folder / "run.json")["settings"][CHOSEN]
        return TextChoice(**found) if set(found) == {field.name for field in fields(TextChoice)} else None
    except (QkvError, KeyError, TypeError):  # who resumes the run reports what is wrong with its run.json
        return None


def _choose(text_bytes: int | None, settings: TrainSettings, given: Given) -> TextChoice:
    on_cpu, ranks = settings.torch_device().type == "cpu", current_world().size
    family = given.family or (FAMILY if on_cpu else PLAIN_FAMILY)
    family_of_texts(family)  # refuses what is no language model
    rows, length = ROWS_ON_A_CPU if on_cpu else ROWS_ON_A_GPU
    rows, length = given.rows or rows, given.length or length
    best: _Candidate | None = None
    epoch = math.inf  # in tokens
    tokens = math.inf  # that the best one sees within the budget
    for sizes in _sizes_of(family):
        vocabulary = given.vocabulary or vocabulary_for(text_bytes, sizes["width"])
        candidate = _Candidate(family, sizes, vocabulary, rows, length)
        if text_bytes is not None:
            epoch = max(1, text_bytes) / (given.bytes_per_token or bytes_per_token(vocabulary))
        enough = min(TOKENS_PER_PARAMETER * candidate.parameters, MOST_EPOCHS * epoch)
        too_few_texts = TOKENS_PER_PARAMETER_OF_FEW_TEXTS * candidate.parameters > MOST_EPOCHS * epoch
        # What is certainly too large is not timed.
        if best is not None and (too_few_texts or enough > tokens * best.work / candidate.work):
            break
        within_budget = candidate.tokens_within(settings)
        if best is not None and enough > within_budget:
            break
        best, tokens = candidate, within_budget
    assert best is not None
    capped = settings.steps is None and tokens > MOST_EPOCHS * epoch
    tokens = MOST_EPOCHS * epoch if capped else tokens
    dropout = next(DROPOUTS[epochs] for epochs in DROPOUTS if tokens <= epochs * epoch)
    return TextChoice(
        family=family,
        sizes={**best.sizes, **_dropouts(family, dropout)},
        vocabulary=best.vocabulary,
        rows=rows,
        length=length,
        updates=max(1, round(tokens / (rows * length * ranks))),
        epochs=None if text_bytes is None else tokens / epoch,
        capped=capped,
        warm_up=0.0 if on_cpu else WARM_UP_ON_A_GPU,
        hold=HOLD,
        adamw_factor=ADAMW_FACTOR if on_cpu else 1.0,
    )


@dataclass(frozen=True)
class _Candidate:
    family: str
    sizes: Mapping[str, Any]
    vocabulary: int
    rows: int
    length: int

    @cached_property
    def parameters(self) -> int:
        """Of the blocks."""
        with torch.device("meta"), Unfilled():
            return parameters_of(self._build().stack)

    @property
    def work(self) -> int:
        """Proportional to the operations of a token."""
        return self.parameters + int(self.sizes["width"]) * self.vocabulary

    def tokens_within(self, settings: TrainSettings) -> float:
        """Tokens that all ranks train on. With a budget in minutes a few updates are timed, on random tokens."""
        ranks, steps = current_world().size, settings.steps
        most = math.inf if steps is None else float(steps * self.rows * self.length * ranks)
        if settings.minutes is None:
            return most
        model = self._build().to(settings.torch_device())
        ids = torch.randint(self.vocabulary, (self.rows, self.length + 1))
        count = self.rows * self.length
        batch = LanguageBatch(ids, torch.ones_like(ids), packed=False, predicted=count, bytes=count)
        try:
            speed = step_speed(model, LanguageLoss(), batch, settings, muon(model)).tokens_per_second
        except torch.OutOfMemoryError:  # the smallest one is trained in parts of a batch
            speed = 0.0
        return min(most, 60 * settings.minutes * speed * ranks)

    def _build(self) -> TextModel:
        sizes = find_family(self.family).sizes({**self.sizes, "vocabulary": self.vocabulary, "positions": self.length})
        model: TextModel = build(self.family, sizes, HeadChoice("language"))
        return model


def _sizes_of(family: str) -> Iterator[dict[str, Any]]:
    """Ever larger sizes of a family that is scaled here; the one that others have."""
    if family not in HIDDEN:
        yield {name: value for name, value in named_sizes(find_family(family), DESK).items() if name != "positions"}
        return
    for width, layers in LAYERS.items():
        yield {**proportions(family, width), "layers": layers}


def proportions(family: str, width: int, heads: int | None = None) -> dict[str, Any]:
    """The sizes that follow from a width, in a family that is scaled here."""
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


def muon_rate(width: int) -> float:
    return RATE * math.sqrt(RATE_WIDTH / width)


def _dropouts(family: str, share: float) -> dict[str, float]:
    """The dropouts of a family. Attention weights have none, as in the runs that these numbers come from."""
    values = {"dropout": share, "embedding_dropout": share, "attention_dropout": 0.0}
    known = {field.name for field in fields(find_family(family).sizes_type)}
    return {name: value for name, value in values.items() if name in known}


def vocabulary_for(text_bytes: int | None, width: int) -> int:
    """A larger vocabulary for more text, but not for a narrow model, whose last matrix would be most of the work."""
    most = min(MOST_VOCABULARY, math.floor(math.log2(VOCABULARY_PER_WIDTH * width)))
    if text_bytes is None:
        return 2**most
    power = round(math.log2(VOCABULARY_PER_ROOT * math.sqrt(max(1, text_bytes))))
    return int(2 ** max(LEAST_VOCABULARY, min(power, most)))


def bytes_per_token(vocabulary: int) -> float:
    """Of English, about: 2.6 with a vocabulary of 1,024, 3.3 with 4,096."""
    return max(1.0, 0.35 * math.log2(vocabulary) - 0.9)


def lzma_bits_per_byte(given: Sequence[str], held_out: Sequence[str]) -> float:
    """Bits that `lzma` needs for each byte of the held-out texts, after it has compressed the given ones.

    It takes a few seconds: of long texts the last megabytes are compressed.
    """
    before, after = _last_bytes(given, LZMA_BYTES), _last_bytes(held_out, LZMA_BYTES // 4)
    more = len(lzma.compress(before + after)) - len(lzma.compress(before))
    return 8 * more / max(1, len(after))


def _last_bytes(texts: Sequence[str], most: int) -> bytes:
    """The end of texts with blank lines between them."""
    found, left = list[bytes](), most
    for text in reversed(texts):
        if left <= 0:
            break
        found.append(text.encode() + b"\n\n")
        left -= len(found[-1])
    return b"".join(reversed(found))[-most:]
