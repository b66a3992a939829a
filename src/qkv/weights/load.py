"""From a folder back to a model. Nothing in the folder is trusted, nothing is skipped: every tensor must fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import checksum_of_json, copy_into, read_json, read_notes, read_tensors
from qkv.models.catalogue import Model, attention_of, build, count_parameters, find_family, head_of
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.models.unfilled import Undrawn
from qkv.parts.low_rank import refuse_updates
from qkv.weights.extent import check_extent
from qkv.weights.hub import local_folder
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.precision import in_precision, settled
from qkv.weights.published import load_published
from qkv.weights.save import CONFIG_FILE, CONFIG_NOTE, TENSOR_FILE, tensors_of
from qkv.weights.sentence_folder import read_sentence_folder

if TYPE_CHECKING:
    from qkv.models.attention_choice import AttentionChoice


def load_model(
    folder: Path | str,
    device: str | torch.device = "cpu",
    head: HeadChoice | None = None,
    *,
    offline: bool | None = None,
    precision: str = "float32",
) -> Any:
    """The model a folder describes, our own or a published one, in evaluation mode; or a GGUF file.

    `folder` may be a model's name on the hub, `owner/name` or `owner/name@revision`; `offline` takes only what was
    fetched before.

    With a `head`, with that one in place of the folder's: what it shares with what the folder holds is kept. Its
    weights are held in `precision`; those of a model that is to be trained are float32.
    """
    place = local_folder(folder, offline=offline)
    precision = settled(precision, place, torch.device(device))
    model = _load(place, fullest=head is not None)
    if head is not None:
        if head_of(model) is None:
            raise QkvError(f"{folder} holds a model that has no choice of heads.")
        model = model if head_of(model) == head else with_head(model, head)
    return in_precision(model.to(device).eval(), precision)


def _load(folder: Path, fullest: bool) -> Model:
    if folder.is_file():
        from qkv.weights.single_file import load_single_file

        return load_single_file(folder)
    if not folder.is_dir():
        raise QkvError(f"There is no model folder {folder}: give the folder that holds its {CONFIG_FILE}.")
    if not (folder / CONFIG_FILE).exists():
        raise QkvError(
            f"The folder {folder} holds no model: it has no {CONFIG_FILE}. Name the folder of a trained model."
        )
    config = read_json(folder / CONFIG_FILE)
    if isinstance(config, dict) and "model_type" in config:
        return load_published(folder, config, PUBLISHED, fullest)
    if isinstance(config, dict) and "format" in config:
        return _load_own(folder, config)
    from qkv.weights.maps.timm import is_timm
    from qkv.weights.timm_folder import load_timm

    return load_timm(folder, config) if is_timm(config) else _load_own(folder, config)


def _load_own(folder: Path, config: Any) -> Model:
    if isinstance(config, dict) and "format" not in config and any(folder.glob("*.bin")):
        raise QkvError(
            f"{folder} is an old published folder that does not say what model it holds: `qkv convert {folder} NEW "
            "--model-type KIND` rewrites it, with a kind such as bert."
        )
    needed, known = {"format", "family", "sizes"}, {"format", "family", "sizes", "head", "attention"}
    if not isinstance(config, dict) or config.get("format") != "qkv-1" or not needed <= config.keys() <= known:
        raise QkvError(
            f'{folder / CONFIG_FILE} must hold exactly "format": "qkv-1", "family" and "sizes", "head" for a text '
            'model and "attention" where it is not the family\'s own; or "model_type", as published folders do.'
        )
    if not isinstance(config["family"], str) or not isinstance(config["sizes"], dict):
        raise QkvError(f'In {folder / CONFIG_FILE}, "family" must be a name and "sizes" an object of named numbers.')
    family = find_family(config["family"])
    sizes = family.sizes(config["sizes"])
    head = HeadChoice.from_config(config["head"]) if "head" in config else None
    attention = _attention_in(config["attention"]) if "attention" in config else None
    tensors = read_tensors(folder / TENSOR_FILE)
    check_extent(sizes, tensors, folder)
    if count_parameters(family.name, sizes, head, attention) > 10 * sum(tensor.numel() for tensor in tensors.values()):
        raise QkvError(
            f"{folder / CONFIG_FILE} describes a far larger model than {TENSOR_FILE} holds: the two do not belong "
            "together."
        )
    with Undrawn():
        model: Model = build(family.name, sizes, head, attention)
    copy_into(tensors_of(model), tensors, folder / TENSOR_FILE)
    _check_config(config, folder)
    return model


def _attention_in(spelled: Any) -> AttentionChoice:
    from qkv.models.attention_choice import AttentionChoice  # hardly any folder needs all the kinds of attention

    return AttentionChoice.from_config(spelled)


def _check_config(config: Any, folder: Path) -> None:
    """What leaves no trace in the shape of any tensor, such as the number of heads, must be what was saved.

    Folders from before this checksum was written have none, and load as they always did.
    """
    saved = read_notes(folder / TENSOR_FILE).get(CONFIG_NOTE)
    if saved is not None and saved != checksum_of_json(config):
        raise QkvError(
            f"{folder / CONFIG_FILE} was changed after {TENSOR_FILE} was saved with it: put back what it said, or save "
            "the model anew."
        )


def load_sentence_model(
    folder: Path | str, device: str | torch.device = "cpu", *, offline: bool | None = None
) -> TextModel:
    """The model of a published folder of sentence embeddings, which gives one vector a text. [reimers2019 §3]"""
    folder = local_folder(folder, offline=offline)
    model: TextModel = load_model(folder, device, read_sentence_folder(folder).head, offline=offline)
    return model


def with_head(model: Any, head: HeadChoice, **changes: Any) -> Any:
    """The same model with another head: what both heads have under one name and shape is kept, the rest is new.

    Sizes may change too: those of the head, such as how many letters it tells apart, and those that no weight knows.
    """
    refuse_updates(model)
    new = build(model.family, replace(model.sizes, **changes), head, attention_of(model))
    old = tensors_of(model)
    fitting = {name: _kept(old, name, tensor) for name, tensor in tensors_of(new).items()}
    copy_into(tensors_of(new), fitting, "The model")
    return new.to(next(model.parameters()).device).train(model.training)


def with_attention(model: Any, attention: AttentionChoice | None) -> Any:
    """The same model with another attention, or with None its family's own; the model itself stays as it is.

    All weights are kept that both have; what the new one learns besides is new. `attention.loses` says what is gone.
    """
    if attention_of(model) == attention:
        return model
    refuse_updates(model)
    new = build(model.family, model.sizes, head_of(model))
    wanted, old = tensors_of(new), tensors_of(model)
    if any(name not in old or old[name].shape != tensor.shape for name, tensor in wanted.items()):
        raise QkvError(
            f"A model with the attention {attention_of(model)} has no longer all that {attention or 'its own'} needs: "
            "begin with the model it was made of."
        )
    copy_into(wanted, {name: old[name] for name in wanted}, "The model")
    new.attention_choice = attention
    if attention is not None:
        attention.put_into(new)
    return new.to(next(model.parameters()).device).train(model.training)


def _kept(old: Mapping[str, Tensor], name: str, new: Tensor) -> Tensor:
    """The old tensor of this name, if there is one; a head for masked tokens may stand inside one for pretraining."""
    for known in (name, name.replace("head.", "head.masked.", 1), name.replace("head.masked.", "head.", 1)):
        if known in old and old[known].shape == new.shape:
            return old[known]
    return new
