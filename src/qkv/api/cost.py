"""What a training or a pass of a model will take, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from qkv.api.choices import DESK, Sizes, named_sizes
from qkv.api.families import DESK_VOCABULARY
from qkv.data.image_rows import ImageBatch
from qkv.data.labelled import ClassBatch
from qkv.data.masking import MaskedBatch
from qkv.data.next_sentence import PretrainingBatch
from qkv.data.packing import LanguageBatch
from qkv.data.pairs import PairBatch
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError, nearest_or_all
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.models.image_model import ImageModel
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.text_model import TextModel
from qkv.models.unfilled import Unfilled
from qkv.train.cost.prediction import Cost, predict
from qkv.train.cost.profile import DeviceProfile, find_profile, known_devices
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.images import ImageClassificationLoss
from qkv.train.objectives.labels import ClassificationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.objectives.masked import MaskedLoss, PretrainingLoss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.recordable import why_plain
from qkv.train.settings import TrainSettings

HIDDEN = 0.15  # of the tokens, where hidden ones are learned from [devlin2019 §3.1]
CLASSES = 1000  # of a head that needs labels, where nobody says which
BYTES_A_TOKEN = 4

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def cost(
    model: nn.Module | str,
    sizes: Sizes = DESK,
    *,
    rows: int = 8,
    length: int | None = None,
    target_length: int | None = None,
    head: HeadChoice | None = None,
    attention: AttentionChoice | str | None = None,
    precision: str = "auto",
    device: str | DeviceProfile = "auto",
    steps: int | None = None,
    accumulate: int = 1,
    recompute: bool = False,
    record: bool | None = None,
    forward_only: bool = False,
    optimizer: MakeOptimizer = partial(adamw, weight_decay=0.1),  # noqa: B008 (never changed)
) -> Cost:
    """Parameters, operations, memory and time of a step on `rows` rows of `length` tokens, or on so many pictures.

    The model is one that exists, or a family with a named size or changes to its desk size; it is never allocated.
    `device` is a device that was measured, such as `h200`, or `cpu`, `cuda` or `auto` for this machine's own; where
    none was measured, times are None. Steps are recorded or not as a training has it (`record`). With `forward_only`
    nothing is learned: a pass as in an evaluation.
    """
    if forward_only and recompute:
        raise QkvError("A pass that learns nothing keeps nothing for the way back: leave out recompute.")
    if forward_only and record:
        raise QkvError("Only steps that learn are recorded: leave out record, or forward_only.")
    network = priced_model(model, sizes, head, attention, length)
    place, profile, name = find_device(device)
    objective, batch = typical_step(network, rows, length, target_length)
    settings = replace(settings_of(steps, precision, accumulate, recompute, place), record=record)
    objective = with_expert_losses(network, objective)
    if record and (why_not := why_plain(network, objective, settings, place)) is not None:
        raise QkvError(f"Steps are not recorded where {why_not}: leave out record.")
    return predict(
        network,
        objective,
        batch,
        settings,
        place=place,
        profile=profile,
        optimizer=None if forward_only else optimizer,
        device=name,
    )


def priced_model(
    model: nn.Module | str,
    sizes: Sizes,
    head: HeadChoice | None,
    attention: AttentionChoice | str | None,
    length: int | None,
) -> nn.Module:
    """The model that exists, or one of a family without numbers."""
    if isinstance(model, str):
        with torch.device("meta"), Unfilled():
            return new_model(model, sizes, head, attention, length)
    if head is not None or attention is not None or sizes != DESK:
        raise QkvError("A model that exists is what it is: give a model, or a family with sizes, head and attention.")
    return model


def settings_of(
    steps: int | None, precision: str, accumulate: int, recompute: bool, place: torch.device
) -> TrainSettings:
    return TrainSettings(
        steps=steps or 1, precision=precision, device="cpu", accumulate=accumulate, recompute=recompute  # type: ignore
    ).on(place)  # fmt: skip


def find_device(device: str | DeviceProfile) -> tuple[torch.device, DeviceProfile | None, str]:
    """Where tensors would lie, what was measured there, and its name."""
    if isinstance(device, DeviceProfile):
        profile: DeviceProfile | None = device
        return _place(device.kind), device, device.name
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda", *known_devices()):
        names = ["auto", "cpu", "cuda", *known_devices()]
        raise QkvError(f"There is no measured device called {device}: {nearest_or_all(device, names)}")
    profile = find_profile(device)
    if profile is None:
        return _place(device), None, device
    return _place(profile.kind), profile, profile.name


def _place(kind: str) -> torch.device:
    return torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")


def new_model(
    family: str, sizes: Sizes, head: HeadChoice | None, attention: AttentionChoice | str | None, length: int | None
) -> nn.Module:
    """A model of a family, long enough for the rows where positions are numbered, with a head that can be priced."""
    chosen = find_family(family)
    if isinstance(attention, str):
        attention = AttentionChoice.parse(attention)
    known = {field.name for field in fields(chosen.sizes_type)}
    if isinstance(sizes, str) and sizes in chosen.published:
        values = {field.name: getattr(chosen.published[sizes], field.name) for field in fields(chosen.sizes_type)}
    else:
        values = named_sizes(chosen, sizes if isinstance(sizes, str) else DESK)
        values |= {"vocabulary": DESK_VOCABULARY} if "vocabulary" in known else {}
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    values |= changes
    grid = values.get("lines") is not None  # of positions, which cannot grow in one direction
    if length is not None and "positions" in values and "positions" not in changes and not grid:
        values["positions"] = max(length, values["positions"] or 0)
    if head is None and chosen.heads:
        kind = next((kind for kind in chosen.heads if kind in (*_OF_TEXT, "distilled")), chosen.heads[0])
        head = head_for(kind)
    network: nn.Module = build(family, chosen.sizes(values), head, attention)
    return network


def head_for(kind: str) -> HeadChoice:
    """A head of a kind; one with labels has a thousand of them."""
    return HeadChoice(kind, tuple(str(number) for number in range(CLASSES)) if kind in WITH_LABELS else ())


def typical_step(model: nn.Module, rows: int, length: int | None, target_length: int | None) -> tuple[Objective, Batch]:
    """What a model of its kind is usually trained to do, and a batch of it."""
    if rows < 1:
        raise QkvError(f"A batch has at least 1 row, but {rows} were asked for.")
    if isinstance(model, ImageModel):
        if length is not None:
            raise QkvError("A model of pictures reads as many patches as a picture has: leave the length out.")
        return _pictures(model, rows)
    length = 256 if length is None else length
    longest = getattr(model, "longest", None)
    if length < 1 or (longest is not None and length > longest):
        raise QkvError(f"Rows of {length} tokens are none that the model reads: give 1 to {longest or 'any number'}.")
    if isinstance(model, SequenceToSequence):
        if hasattr(model.sizes, "mels"):
            raise QkvError("What a model that reads sound takes cannot be told yet.")
        return _pairs(rows, length, target_length or length)
    if target_length is not None:
        raise QkvError("Only models that turn one text into another have targets: leave their length out.")
    if isinstance(model, TextModel):
        kind = model.head_choice.kind
        if kind not in _OF_TEXT:
            raise QkvError(f"What the head {kind} takes cannot be told: choose one of {', '.join(_OF_TEXT)}.")
        return _OF_TEXT[kind](rows, length)
    raise QkvError(f"What a {type(model).__name__} takes cannot be told yet: only models of text and of pictures.")


def _language(rows: int, length: int) -> tuple[Objective, Batch]:
    ids = torch.ones(rows, length + 1, dtype=torch.long)
    return LanguageLoss(), LanguageBatch(ids, torch.ones_like(ids), False, rows * length, rows * length * BYTES_A_TOKEN)


def _texts(rows: int, length: int) -> dict[str, Any]:
    lengths = torch.full((rows,), length)
    return {"ids": torch.ones(rows, length, dtype=torch.long), "lengths": lengths, "segments": None}


def _hidden(rows: int, length: int) -> dict[str, Any]:
    places = torch.arange(max(1, round(HIDDEN * rows * length)))
    return {**_texts(rows, length), "places": places, "wanted": torch.ones_like(places)}


def _masked(rows: int, length: int) -> tuple[Objective, Batch]:
    return MaskedLoss(), MaskedBatch(**_hidden(rows, length))


def _pretraining(rows: int, length: int) -> tuple[Objective, Batch]:
    batch = PretrainingBatch(**_hidden(rows, length), elsewhere=torch.zeros(rows, dtype=torch.long), asked=rows)
    return PretrainingLoss(), batch


def _classes(rows: int, length: int) -> tuple[Objective, Batch]:
    batch = ClassBatch(**_texts(rows, length), labels=torch.zeros(rows, dtype=torch.long), labelled=rows)
    return ClassificationLoss(), batch


def _pairs(rows: int, length: int, target_length: int) -> tuple[Objective, Batch]:
    source, target = torch.ones(rows, length, dtype=torch.long), torch.ones(rows, target_length + 1, dtype=torch.long)
    lengths, target_lengths = torch.full((rows,), length), torch.full((rows,), target_length + 1)
    return SequenceToSequenceLoss(), PairBatch(source, lengths, target, target_lengths, padded=True)


def _pictures(model: ImageModel, rows: int) -> tuple[Objective, Batch]:
    if model.head_choice.kind not in WITH_LABELS:
        raise QkvError(f"What the head {model.head_choice.kind} takes cannot be told: choose one with classes.")
    sizes = model.sizes
    if not hasattr(sizes, "image"):
        raise QkvError(f"What a model of the family {model.family} takes cannot be told yet.")
    pixels = torch.empty(1, 3, 1, 1, dtype=torch.uint8).expand(rows, 3, sizes.image, sizes.image)
    batch = ImageBatch(pixels, torch.zeros(rows, dtype=torch.long), rows)
    return ImageClassificationLoss(normalise=Normalise()), batch


_OF_TEXT: Mapping[str, Callable[[int, int], tuple[Objective, Batch]]] = {
    "language": _language,
    "masked": _masked,
    "pretraining": _pretraining,
    "classification": _classes,
}
