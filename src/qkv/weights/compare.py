"""Two models that should be one: ours and another library's, asked the same at many settings, their answers compared.

Both are run at short, middling and greatest length, padded on either side, alone and in batches. Ours is run with a
cache too, whose answers must be those that the other gives without one. Only answers of real tokens count.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.models.catalogue import Model, find_family
from qkv.models.clip import ClipText
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.text_model import TextModel
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.pool import FirstToken
from qkv.parts.position import positions_in_documents
from qkv.parts.routing import Router
from qkv.weights.compare_images import picture_answers, picture_sizes, sees_pictures, with_end
from qkv.weights.compare_scenes import scene_answers, scene_sizes, sees_scenes
from qkv.weights.compare_sounds import hears_sounds, sound_answers, sound_lengths

LENGTHS = (1, 2, 9, 64)  # and the greatest
ROWS = (1, 8)
PADDINGS = ("none", "right", "left")
PER_ROW = frozenset({"label", "next sentence", "pooled", "vector"})  # answers about a whole row, not about each token


@dataclass(frozen=True, order=True)
class Setting:
    length: int
    rows: int
    padding: str = "none"
    cached: bool = False
    width: int | None = None  # of pictures, whose height is the length; None where a row is no picture


def settings_for(
    model: Model, longest: int, lengths: Sequence[int] = LENGTHS, rows: Sequence[int] = ROWS
) -> list[Setting]:
    """Every length up to `longest`, padded in every way, at every number of rows; cached where a model looks back.

    What hears frames has no padding: its windows are full, and the lengths are those of what it writes. Pictures have
    none either: `longest` is the longest side. Of sounds, lengths are frames.
    """
    if hears_sounds(model):
        return [
            Setting(length, count, padding)
            for length in sound_lengths(model, longest, lengths)
            for count in rows
            for padding in (PADDINGS[:1] if isinstance(model, ImageModel) else PADDINGS[:2])
        ]
    if sees_pictures(model):
        sizes = picture_sizes(model, longest)
        return [Setting(height, count, width=width) for height, width in sizes for count in rows]
    if sees_scenes(model):
        return [
            Setting(height, count, padding, width=width)
            for height, width in scene_sizes(model, longest)
            for count in rows
            for padding in (PADDINGS[:1] if isinstance(model, ImageModel) else PADDINGS[:2])
        ]
    paddings = PADDINGS[:1] if hears(model) else PADDINGS
    found = []
    for length in sorted({each for each in lengths if each <= longest} | {longest}):
        for count in rows:
            for cached in (False, True) if looks_back(model) else (False,):
                for padding in paddings if length > 1 else PADDINGS[:1]:
                    if padding != "left" or not fills_experts(model, length):
                        found.append(Setting(length, count, padding, cached))
    return found


def fills_experts(model: Model, length: int) -> bool:
    """Whether a row of this length can fill an expert. In the other library padding takes places too, so that a text
    with padding before it loses tokens that it keeps here."""
    capacities = [module.capacity for module in model.modules() if isinstance(module, Router)]
    return any(each is not None and (each.tokens is None or each.tokens < length) for each in capacities)


def looks_back(model: Model) -> bool:
    """Whether a model's tokens see only those before them, so that it can go on from a cache."""
    return isinstance(model, EncoderDecoder) or find_family(model.family).heads[0] == "language"


def hears(model: Model) -> bool:
    """Whether a model's source are frames of sound, of which a full window is needed."""
    return isinstance(model, EncoderDecoder) and model.source_vocabulary is None


@dataclass(frozen=True, eq=False)
class Batch:
    """What both models are given. `documents` is 1 where a token is real. All are [b s]."""

    ids: Tensor  # or frames [b f t]
    documents: Tensor
    segments: Tensor | None
    target: Tensor | None  # of a model that writes


def draw(model: Model, setting: Setting, pad: int, seed: int) -> Batch:
    """Random tokens, but never the padding token, by which some libraries find where a row ends."""
    random = torch.Generator().manual_seed(seed)
    rows, length = setting.rows, setting.length
    vocabulary = model.vocabulary if isinstance(model, TextModel) else cast(EncoderDecoder, model).target_vocabulary

    def tokens() -> Tensor:
        ids = torch.randint(0, vocabulary - 1, (rows, length), generator=random)
        return ids + (ids >= pad)

    ids, target = tokens(), tokens() if isinstance(model, EncoderDecoder) else None
    real = torch.ones(rows, length, dtype=torch.long)
    if setting.padding != "none":
        usual = torch.tensor([(length + 1) // 2, length, length - 1, 1])
        lengths = usual.repeat(rows // len(usual) + 1)[:rows]
        real = (torch.arange(length) < lengths[:, None]).long()
        real = real.flip(1) if setting.padding == "left" else real
    segments = None
    if isinstance(model, TextModel) and model.embed.tells_segments and rows > 1:  # a single row goes without
        segments = (torch.arange(length) >= length // 2).long().expand(rows, length)
    device = next(model.parameters()).device
    if isinstance(model, ClipText):
        ids = with_end(ids, real, model.end, model.vocabulary)
    given = ids.where(real > 0, pad)
    if hears(model):
        given = torch.randn(rows, model.sizes.mels, 2 * model.sizes.source_positions, generator=random)
    return Batch(
        given.to(device),
        real.to(device),
        None if segments is None else segments.to(device),
        None if target is None else target.to(device),
    )


def compared(
    model: Model, reference: Any, setting: Setting, pad: int, seed: int = 0
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """For each kind of answer: its name, ours, and the reference's."""
    if hears_sounds(model):
        yield from sound_answers(model, reference, setting.length, setting.rows, setting.padding == "right", seed)
        return
    if sees_pictures(model):
        assert setting.width is not None
        yield from picture_answers(model, reference, setting.length, setting.width, setting.rows, seed)
        return
    if sees_scenes(model):
        assert setting.width is not None
        padded = setting.padding == "right"
        yield from scene_answers(model, reference, setting.length, setting.width, setting.rows, padded, seed)
        return
    batch = draw(model, setting, pad, seed)
    told = takes(reference, "position_ids")
    ours, theirs = our_answers(model, batch, setting, told), their_answers(model, reference, batch, setting, told)
    for name, expected in theirs.items():
        found = ours[name]
        if name not in PER_ROW:
            real = batch.documents > 0 if batch.target is None else torch.ones_like(batch.target, dtype=torch.bool)
            found, expected = found[real], expected[real]
        yield name, found, expected


def takes(reference: Any, name: str) -> bool:
    return name in inspect.signature(reference.forward).parameters


def our_answers(model: Model, batch: Batch, setting: Setting, told: bool) -> dict[str, Tensor]:
    """Ours, by the names of the answers; `told` is whether the reference can be told positions, or counts slots."""
    if isinstance(model, EncoderDecoder):
        return {"logits": _written(model, batch, setting)}
    assert isinstance(model, TextModel)
    padded = setting.padding != "none"
    positions = positions_in_documents(batch.documents) if told and setting.padding == "left" else None
    cache = model.new_cache(setting.length) if setting.cached else None
    parts = []
    for start, end in pieces(setting):
        tokens = Tokens(end - start, start, batch.documents[:, start:end] if padded else None)
        beside = {"positions": positions, "segments": batch.segments}
        beside = {name: None if each is None else each[:, start:end] for name, each in beside.items()}
        answer = model(batch.ids[:, start:end], tokens=tokens, cache=cache, **beside)
        parts.append(named_answers(model.head_choice, answer))
    return {name: _joined(name, [part[name] for part in parts]) for name in parts[0]}


def pieces(setting: Setting) -> list[tuple[int, int]]:
    """All at once; or with a cache half of a row, then token by token, then the rest."""
    if not setting.cached:
        return [(0, setting.length)]
    half = (setting.length + 1) // 2
    ends = sorted({half, *(min(half + more, setting.length) for more in range(1, 4)), setting.length})
    return list(zip([0, *ends], ends, strict=False))


def _joined(name: str, parts: list[Tensor]) -> Tensor:
    """An answer about each token, whole; of those about a row the last, which has seen the whole row."""
    return parts[-1] if name in PER_ROW else torch.cat(parts, 1)


def _written(model: EncoderDecoder, batch: Batch, setting: Setting) -> Tensor:
    assert batch.target is not None
    documents = batch.documents if setting.padding != "none" else None
    slots = model.source.slots(batch.ids, None).size
    frames = batch.ids.to(next(model.parameters()).dtype) if batch.ids.is_floating_point() else batch.ids
    memory = model.encode_tokens(frames, Tokens(slots, documents=documents), NotPadding())
    cache = model.new_cache(setting.length) if setting.cached else None
    parts = [model.decode(batch.target[:, start:end], memory, cache) for start, end in pieces(setting)]
    return torch.cat(parts, 1)


def named_answers(head: HeadChoice, answer: Any) -> dict[str, Tensor]:
    """What one of our heads gives, by the names of the answers."""
    if head.kind == "pretraining":
        return {"logits": answer.masked, "next sentence": answer.next_sentence}
    if head.kind == "pooled":
        return {"states": answer.states, "pooled": answer.pooled}
    names = {"states": "states", "classification": "label", "embedding": "vector", "projection": "vector"}
    return {names.get(head.kind, "logits"): answer}


def their_answers(
    model: Model, reference: Any, batch: Batch, setting: Setting, told: bool = False
) -> dict[str, Tensor]:
    """The reference's, by the same names and in our shapes; those that it reads from padding are left out."""
    given: dict[str, Any] = {"input_ids": batch.ids}
    if hears(model):
        given = {"input_features": batch.ids.to(next(reference.parameters()).dtype)}
    if setting.padding != "none":
        given["attention_mask"] = batch.documents
    if told and setting.padding == "left":
        first = getattr(model.sizes, "first_position", 0)  # the line of its table where positions begin
        given["position_ids"] = positions_in_documents(batch.documents) + first
    if batch.segments is not None:
        given["token_type_ids"] = batch.segments
    if batch.target is not None:
        return {"logits": reference(**given, decoder_input_ids=batch.target).logits}
    assert isinstance(model, TextModel)
    _made_sparse(reference)
    answers = _named(model.head_choice, reference(**given), batch.documents)
    reads_first = model.head_choice.kind != "embedding" and any(isinstance(m, FirstToken) for m in model.head.modules())
    if (setting.padding == "left" and reads_first) or (setting.padding == "right" and setting.cached):
        # The reference takes the first slot for the first token; and of rows that end apart, ours at the last step.
        answers = {name: answer for name, answer in answers.items() if name not in PER_ROW}
    return answers


def _made_sparse(reference: Any) -> None:
    """BigBird as its configuration says: there, a row too short for blocks makes it see all tokens from then on."""
    base = getattr(reference, getattr(reference, "base_model_prefix", ""), reference)
    if hasattr(base, "set_attention_type"):
        base.set_attention_type(reference.config.attention_type)


def _named(head: HeadChoice, output: Any, documents: Tensor) -> dict[str, Tensor]:
    if head.kind == "pretraining":
        order = getattr(output, "seq_relationship_logits", None)
        return {"logits": output.prediction_logits, "next sentence": output.sop_logits if order is None else order}
    if head.kind == "pooled":
        return {"states": output.last_hidden_state, "pooled": output.pooler_output}
    if head.kind == "states":
        return {"states": output.last_hidden_state}
    if head.kind == "projection":
        return {"vector": output.text_embeds}
    if head.kind == "spans":
        return {"logits": torch.stack((output.start_logits, output.end_logits), -1)}
    if head.kind == "embedding":
        return {"vector": _vector(head, output.last_hidden_state, documents)}
    return {"label" if head.kind == "classification" else "logits": output.logits}


def _vector(head: HeadChoice, states: Tensor, documents: Tensor) -> Tensor:
    """The embedding of each row by its definition, from the reference's states."""
    vectors = []
    for row, real in zip(states, documents > 0, strict=True):
        kept = row[real]
        vectors.append({"mean": kept.mean(0), "first": kept[0], "last": kept[-1]}[str(head.pooling)])
    stacked = torch.stack(vectors)
    return F.normalize(stacked, dim=-1) if head.unit_length else stacked
