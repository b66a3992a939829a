"""Low-rank updates as files of their own, in the layout of the peft library: a folder that either side reads.

`adapter_model.safetensors` holds A and B of each map by the other library's names, and the head if it was trained;
`adapter_config.json` says how they are scaled. Where the other library keeps several of our maps as one matrix, their
updates become one whose rank is the sum of theirs, and B has a block for each; a note beside the tensors tells which.
A family that only qkv has is written by our names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.data.columns import is_number
from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, copy_into, read_json, read_notes, read_tensors, write_json, write_tensors
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.text_model import TextModel
from qkv.parts.low_rank import LowRank
from qkv.train.adapt.lora import Update, attach, places, updates_of
from qkv.weights.module_names import TheirMap, rules_for, their_maps
from qkv.weights.rules import to_ours, to_theirs
from qkv.weights.save import tensors_of

TENSOR_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
JOINED_NOTE = "qkv_joined"  # of each matrix that holds several updates: the maps they belong to
TASKS = {
    "language": "CAUSAL_LM",
    "classification": "SEQ_CLS",
    "tokens": "TOKEN_CLS",
    "spans": "QUESTION_ANS",
    "states": "FEATURE_EXTRACTION",
    "embedding": "FEATURE_EXTRACTION",
}
READ = {"peft_type", "r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern", "use_rslora"}
# What does not change the answer: where it came from, what the tensors tell themselves, and how A and B began.
NOT_READ = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "megatron_core", "modules_to_save", "peft_version",
    "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
}  # fmt: skip
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # those that leave the model's weights alone
# A stranger's expression: groups that are repeated, and many repeats, take exponentially long to fail.
_SLOW, _REPEATS, MOST_REPEATS = re.compile(r"\)[*+?{]|\\[0-9]|\(\?"), re.compile(r"[*+?{]"), 4

Model = TextModel | SequenceToSequence


def save_adapter(model: Model, folder: Path | str) -> None:
    """Write the updates of a model, and its head if that is trained too; the model itself must be had elsewhere."""
    updates = updates_of(model)
    if not updates:
        raise QkvError("The model has no low-rank updates to save: add_lora puts them there.")
    head = _trained_head(model)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    scales: dict[str, float] = {}
    joined: dict[str, list[str]] = {}
    shapes = _shapes(model)
    theirs = their_maps(model, updates)
    for their in theirs:
        one = _joined(their, updates, shapes)
        tensors[f"{PREFIX}{their.name}.lora_A.weight"] = one.a
        tensors[f"{PREFIX}{their.name}.lora_B.weight"] = one.b
        ranks[their.name], scales[their.name] = len(one.a), one.scale
        if len(their.ours) > 1:
            joined[their.name] = [name for name in their.ours if name in updates]
    named = to_theirs(rules_for(model, head), head)
    tensors |= {PREFIX + name: tensor for name, tensor in named.items()}
    (rank, _), *_ = Counter(ranks.values()).most_common(1)
    alphas = {name: scales[name] * ranks[name] for name in ranks}
    alpha = next(alphas[name] for name in ranks if ranks[name] == rank)
    config = {
        "peft_type": "LORA",
        "task_type": TASKS.get(model.head_choice.kind) if isinstance(model, TextModel) else "SEQ_2_SEQ_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": next(iter(updates.values())).dropout.p,
        "target_modules": sorted(ranks),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in named}) or None,
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
        "fan_in_fan_out": any(their.turned for their in theirs),
        "bias": "none",
    }
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / TENSOR_FILE, tensors, {JOINED_NOTE: json.dumps(joined)} if joined else None)
        write_json(folder / CONFIG_FILE, config)
    except WRITE_ERRORS as error:
        raise QkvError(f"Cannot write the updates to {folder}: {error}; make room or name another folder.") from error


def load_adapter(model: Model, folder: Path | str) -> None:
    """Freeze the model and put the updates of a folder beside its maps; a head in the folder replaces the model's."""
    folder = Path(folder)
    config = read_config(folder / CONFIG_FILE)
    tensors = read_tensors(folder / TENSOR_FILE)
    notes = _read_note(folder / TENSOR_FILE)
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    shapes = _shapes(model)
    found: dict[str, LowRankTensors] = {}
    for their in their_maps(model, shapes):
        a = named.pop(f"{their.name}.lora_A.weight", None)
        b = named.pop(f"{their.name}.lora_B.weight", None)
        if (a is None) != (b is None):
            raise QkvError(f"{folder / TENSOR_FILE} holds one half of the update of {their.name}: both are needed.")
        if a is not None and b is not None:
            found |= _taken_apart(their, a, b, config.scale(their.name, len(a)), notes.get(their.name), shapes)
    if not found:
        raise QkvError(f"{folder / TENSOR_FILE} holds no update of a map that this model has.")
    head = {name: tensor for name, tensor in tensors_of(model).items() if name.startswith("head.")}
    # What is left must be the head, all of it.
    rest = to_ours(rules_for(model, head), named, head if named else ())
    if rest:
        copy_into(head, rest, folder / TENSOR_FILE)
    attach(model, {name: Update(len(one.a), one.scale) for name, one in found.items()}, config.dropout)
    for name, lora in updates_of(model).items():
        copy_into({"A": lora.a, "B": lora.b}, {"A": found[name].a, "B": found[name].b}, folder / TENSOR_FILE)
    if rest:
        model.get_submodule("head").requires_grad_(True)


class LowRankTensors(NamedTuple):
    a: Tensor  # [r i]
    b: Tensor  # [o r]
    scale: float


class Config(NamedTuple):
    """What `adapter_config.json` says of the updates."""

    alpha: float
    alphas: Mapping[str, float]  # of some maps
    dropout: float
    by_root: bool  # scaled by α/√r in place of α/r

    def scale(self, name: str, rank: int) -> float:
        # A key is a regular expression for the end of a name, and the first that fits counts.
        alpha = next((alpha for end, alpha in self.alphas.items() if _fits(end, name)), self.alpha)
        return alpha / (rank**0.5 if self.by_root else rank)


def read_config(file: Path) -> Config:
    """A key that is not known must say nothing: null, false or empty."""
    config = read_json(file)
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise QkvError(f'{file} does not describe low-rank updates: it should say "peft_type": "LORA".')
    if config.get("init_lora_weights", True) not in PLAIN_STARTS:
        raise QkvError(f'{file} has "init_lora_weights": such updates belong to weights that were changed beforehand.')
    said = config.keys() - READ - NOT_READ - {"init_lora_weights"}
    unknown = sorted(key for key in said if config[key] and (key, config[key]) != ("bias", "none"))
    if unknown:
        raise QkvError(f"{file} asks for {', '.join(unknown)}, which plain low-rank updates do not have.")
    numbers = {"lora_alpha": config.get("lora_alpha"), "lora_dropout": config.get("lora_dropout", 0.0)}
    patterns = config.get("alpha_pattern") or {}
    for key, value in [*numbers.items(), *(patterns.items() if isinstance(patterns, dict) else [("", None)])]:
        if not is_number(value):
            raise QkvError(f'In {file}, "{key or "alpha_pattern"}" must be a number, not {value!r}.')
    if not 0 <= numbers["lora_dropout"] < 1:
        raise QkvError(f'In {file}, "lora_dropout" must be at least 0 and below 1, not {numbers["lora_dropout"]!r}.')
    return Config(numbers["lora_alpha"], patterns, numbers["lora_dropout"], bool(config.get("use_rslora")))


def _fits(end: str, name: str) -> bool:
    if _SLOW.search(end) or len(_REPEATS.findall(end)) > MOST_REPEATS:
        raise QkvError(f'"alpha_pattern" has {end!r}, which repeats what repeats: such an expression may never end.')
    try:
        return re.match(rf"(.*\.)?({end})$", name) is not None
    except re.error as error:
        raise QkvError(f'"alpha_pattern" has {end!r}, which is no regular expression ({error}).') from error


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Outputs and inputs of each map."""
    return {one.name: one.weight.shape for place in places(model) for one in place.maps()}


def _read_note(file: Path) -> dict[str, list[str]]:
    try:
        note = json.loads(read_notes(file).get(JOINED_NOTE, "{}"))
    except json.JSONDecodeError:
        note = None
    if not isinstance(note, dict) or not all(isinstance(names, list) for names in note.values()):
        raise QkvError(f"The note {JOINED_NOTE} in {file} is not what qkv writes: the file was edited.")
    return note


def _joined(their: TheirMap, updates: Mapping[str, LowRank], shapes: Mapping[str, torch.Size]) -> LowRankTensors:
    """Their one update for ours: A below A, and B with a block for each, zero elsewhere."""
    own = [(name, updates[name]) for name in their.ours if name in updates]
    (scale, *others) = {lora.scale for _, lora in own}
    if others:
        raise QkvError(f"The updates of {their.name} have several scales, and the file has one for all of them.")
    a = torch.cat([lora.a.detach() for _, lora in own])  # [Σr i]
    rows, columns = [], 0
    for name in their.ours:
        lora = updates.get(name)
        block = a.new_zeros(shapes[name][0], len(a))
        if lora is not None:
            block[:, columns : columns + lora.rank] = lora.b.detach()
            columns += lora.rank
        rows.append(block)
    return LowRankTensors(a, torch.cat(rows), scale)


def _taken_apart(
    their: TheirMap, a: Tensor, b: Tensor, scale: float, parts: list[str] | None, shapes: Mapping[str, torch.Size]
) -> dict[str, LowRankTensors]:
    """Our updates for their one. Without a note that tells blocks apart, each of ours gets all of A."""
    sizes = [shapes[name][0] for name in their.ours]
    inputs = shapes[their.ours[0]][1]
    if list(b.shape) != [sum(sizes), len(a)] or list(a.shape) != [len(a), inputs]:
        raise QkvError(f"The update of {their.name} has shapes {list(a.shape)} and {list(b.shape)}: they do not fit.")
    rows = dict(zip(their.ours, b.split(sizes), strict=True))
    if parts is None or len(their.ours) == 1:
        return {name: LowRankTensors(a, rows[name], scale) for name in their.ours}
    if not parts or not set(parts) <= set(their.ours) or len(a) % len(parts):
        raise QkvError(f"The note beside the update of {their.name} does not fit it: the file was edited.")
    rank = len(a) // len(parts)
    return {
        name: LowRankTensors(a[first : first + rank], rows[name][:, first : first + rank], scale)
        for first, name in zip(range(0, len(a), rank), parts, strict=True)
    }


def _trained_head(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a head that is trained; whatever else is trained has no place in such a file."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = {name for name in trained if ".lora." not in name and not name.startswith("head.")}
    if others:
        raise QkvError(f"Besides updates and head this model trains {min(others)}: save the whole model, merged.")
    if not any(name.startswith("head.") for name in trained):
        return {}
    return {name: tensor for name, tensor in tensors_of(model).items() if name.startswith("head.")}
