"""What a person chooses for a training: how texts are cut, how large the model is, how batches are made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkv.api.pairs import Pair
from qkv.data.plan import Batching, TokenBudget
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, nearest_or_all
from qkv.generate.reader import TOKENIZER_FILE
from qkv.models.catalogue import find_family
from qkv.models.family import Family
from qkv.train.parallel.world import World, current_world

DESK = "desk"
# A size for the data that one person has and the machine on their desk. No paper published it.
_SMALL_TRANSFORMER = {
    "width": 256, "hidden": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1,
}  # fmt: skip
DESK_SIZES: dict[str, dict[str, Any]] = {
    "transformer": _SMALL_TRANSFORMER,
    "transformer-prenorm": _SMALL_TRANSFORMER,
    "transformer-admin": _SMALL_TRANSFORMER,
    "transformer-rezero": _SMALL_TRANSFORMER,
    "transformer-deepnorm": _SMALL_TRANSFORMER,
    "marian": {
        "width": 256, "encoder_hidden": 1024, "decoder_hidden": 1024, "encoder_heads": 4, "decoder_heads": 4,
        "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1,
    },
    "gpt1": {"positions": 256, "width": 256, "heads": 4, "layers": 4},
    "bert": {"positions": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "albert": {"positions": 256, "embedding": 128, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "distilbert": {"positions": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "roformer": {"positions": 256, "embedding": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "longformer": {  # whose tokenizers, made here, have the padding token 0
        "positions": 1024, "first_position": 1, "width": 256, "hidden": 1024, "heads": 4, "layers": 4, "window": 64,
    },
    "big-bird": {
        "positions": 1024, "width": 256, "hidden": 1024, "heads": 4, "layers": 4, "block": 32, "randoms": 2,
    },
    "gpt2": {"positions": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "gpt3": {
        "positions": 256, "width": 256, "hidden": 1024, "heads": 4, "head_width": 64, "layers": 4, "window": 64,
    },
    "gpt-neo": {"positions": 256, "width": 256, "hidden": 1024, "heads": 4, "layers": 4, "window": 64},
    "llama": {
        "positions": 256, "width": 256, "hidden": 768, "heads": 4, "key_value_heads": 2, "layers": 4, "tied": True,
    },
    "qwen3": {
        "positions": 256, "width": 256, "hidden": 768, "heads": 4, "key_value_heads": 2, "head_width": 64, "layers": 4,
        "tied": True,
    },
    "t5": {
        "width": 256, "key_width": 64, "hidden": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3,
    },
    "switch": {
        "width": 192, "key_width": 64, "hidden": 512, "heads": 3, "encoder_layers": 4, "decoder_layers": 4,
        "experts": 8,
    },
    "mixtral": {
        "positions": 256, "width": 256, "hidden": 320, "heads": 4, "key_value_heads": 2, "layers": 4, "tied": True,
    },
    "reformer": {
        "positions": 4096, "lines": 64, "columns": 64, "line_width": 64, "width": 256, "hidden": 1024, "heads": 4,
        "head_width": 64, "layers": 4, "rounds": 2,
    },
    "vit": {"image": 32, "patch": 4, "width": 256, "hidden": 1024, "heads": 4, "layers": 6},
    "deit": {"image": 32, "patch": 4, "width": 256, "hidden": 1024, "heads": 4, "layers": 6},
    "whisper": {
        "mels": 80, "source_positions": 1500, "target_positions": 448, "width": 256, "encoder_hidden": 1024,
        "decoder_hidden": 1024, "encoder_heads": 4, "decoder_heads": 4, "encoder_layers": 3, "decoder_layers": 3,
    },
    "whisper-encoder": {
        "mels": 80, "source_positions": 1500, "width": 256, "hidden": 1024, "heads": 4, "layers": 3,
    },
    "ast": {"bands": 128, "frames": 128, "width": 192, "hidden": 768, "heads": 3, "layers": 6},
    "wav2vec2": {
        "channels": (256,) * 7, "width": 256, "hidden": 1024, "heads": 4, "layers": 6, "position_kernel": 64,
        "entries": 64, "quantised": 128, "space": 128,
    },
    "clip": {
        "projection": 256, "positions": 77, "text_width": 256, "text_hidden": 1024, "text_heads": 4, "text_layers": 4,
        "image": 64, "patch": 8, "image_width": 256, "image_hidden": 1024, "image_heads": 4, "image_layers": 4,
    },
    "clip-text": {"projection": 256, "positions": 77, "width": 256, "hidden": 1024, "heads": 4, "layers": 4},
    "clip-image": {
        "projection": 256, "image": 64, "patch": 8, "width": 256, "hidden": 1024, "heads": 4, "layers": 4,
    },
    "detr": {
        "stem": 32, "stage_widths": (32, 64, 128), "stage_depths": (2, 2, 2), "residual": "basic",
        "map_norm": "batch", "queries": 20, "width": 128, "encoder_hidden": 512, "decoder_hidden": 512,
        "encoder_heads": 4, "decoder_heads": 4, "encoder_layers": 3, "decoder_layers": 3,
    },
    "vitpose": {"image": 128, "image_width": 96, "patch": 16, "width": 192, "hidden": 768, "heads": 3, "layers": 6},
    "rnn": {"embedding": 256, "width": 256, "alignment": 256, "maxout": 256, "dropout": 0.2},
}  # fmt: skip
VOCABULARIES = ("vocabulary", "source_vocabulary")  # sizes that follow from the tokenizers

Sizes = str | Mapping[str, Any]


@dataclass(frozen=True)
class NewTokenizer:
    """A tokenizer that is yet to be trained on the data: its kind, and the most tokens it may have."""

    kind: str = "bpe"
    vocabulary: int | None = None
    lowercase: bool = False

    def train(self, texts: Sequence[str]) -> TextTokenizer:
        """Trained by the first rank alone: of equally good tokens some kinds choose by chance."""
        world, made = current_world(), None
        if world.first:
            made = TextTokenizer.train(self.kind, texts, vocabulary=self.vocabulary, lowercase=self.lowercase)
        return sent_to_all(world, made)


def sent_to_all(world: World, tokenizer: TextTokenizer | None) -> TextTokenizer:
    """The first rank's tokenizer, on every rank."""
    if world.size == 1 and tokenizer is not None:
        return tokenizer
    with TemporaryDirectory() as folder:
        file = Path(folder) / TOKENIZER_FILE
        if tokenizer is not None:
            tokenizer.save(file)
        told = {each.name: each.read_text(encoding="utf-8") for each in Path(folder).iterdir()}
        told = json.loads(world.from_first(json.dumps(told).encode() if tokenizer is not None else None))
        for name, content in told.items():
            (Path(folder) / name).write_text(content, encoding="utf-8", newline="\n")
        return TextTokenizer.load(file)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How pairs become batches."""

    batching: Batching = TokenBudget(2048)  # noqa: RUF009 (frozen)
    max_length: int | None = 256  # tokens a side; a training pair with a longer side is left out
    subword_dropout: float = 0.0  # of BPE merges; the texts are then cut anew each epoch [provilkov2020 §3.1]
    hold_out: float = 0.02  # share of the sources to validate on where no validation pairs are given; 0 for none


def make_tokenizers(
    pairs: Sequence[Pair], source: NewTokenizer | TextTokenizer, target: NewTokenizer | TextTokenizer | None
) -> tuple[TextTokenizer, TextTokenizer]:
    """The tokenizers of both sides; without one for the target, the source's serves (and is trained on) both."""
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    if target is None:
        shared = source.train(sources + targets) if isinstance(source, NewTokenizer) else source
        return shared, shared
    return (
        source.train(sources) if isinstance(source, NewTokenizer) else source,
        target.train(targets) if isinstance(target, NewTokenizer) else target,
    )


def choose_sizes(family: str, sizes: Sizes, source: TextTokenizer, target: TextTokenizer) -> Any:
    """The family's sizes: a named size, or changes to the desk size; the vocabularies are the tokenizers'."""
    chosen = find_family(family)
    if chosen.reads != "text":
        raise QkvError(f"Family {family} reads {chosen.reads}, not text.")
    known = {field.name for field in fields(chosen.sizes_type)}
    values = named_sizes(chosen, sizes) if isinstance(sizes, str) else {**named_sizes(chosen, DESK), **sizes}
    given = [name for name in VOCABULARIES if not isinstance(sizes, str) and name in sizes]
    if given:
        raise QkvError(f"The size {given[0]} follows from the tokenizer: give the tokenizer its vocabulary instead.")
    values["vocabulary"] = target.size
    if source is not target:
        if "source_vocabulary" not in known:
            raise QkvError(f"Family {family} has one vocabulary for both sides: give one tokenizer that serves both.")
        values["source_vocabulary"] = source.size
    return chosen.sizes(values)


def named_sizes(family: Family, name: str) -> dict[str, Any]:
    """`desk` or a size published with the family, without its vocabularies."""
    if name == DESK:
        return dict(DESK_SIZES[family.name])
    if name not in family.published:
        names = [DESK, *family.published]
        raise QkvError(f"Family {family.name} has no size called {name}: {nearest_or_all(name, names)}")
    return {key: value for key, value in asdict(family.published[name]).items() if key not in VOCABULARIES}
