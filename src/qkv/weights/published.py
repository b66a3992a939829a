"""Model folders as they are published: `config.json` and safetensors by another library's names, read and written.

What a folder says must be understood whole: every key of the configuration and every tensor is used, or is known not to
matter, or stops the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, copy_into, write_json
from qkv.models.catalogue import Model, build, find_family, head_of
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.models.text_model import TextModel
from qkv.models.unfilled import Undrawn, Unfilled
from qkv.weights.config_map import ConfigMap
from qkv.weights.extent import check_extent
from qkv.weights.read_back import check_parts, check_read_back
from qkv.weights.rules import Map, Spelling, as_it_is, check_kinds, to_ours, to_theirs
from qkv.weights.save import CONFIG_FILE, tensors_of
from qkv.weights.sentence_folder import write_sentence_folder
from qkv.weights.shards import SHARD_BYTES, read_shards, write_shards

Rules = Callable[[Any, HeadChoice | None], Map]
SEVERAL_LABELS = "multi_label_classification"
FOR_A_TASK = (*WITH_LABELS, "spans")  # heads that stand on what a model has learned before


@dataclass(frozen=True)
class PublishedFamily:
    """How a family is written by others: its configuration, its tensors, and the names of its models by head."""

    model_type: str
    family: str
    config: ConfigMap
    architectures: Mapping[str, str]  # kind of head (seq2seq: "") -> the name that config.json gives such a model
    rules: Rules  # for these sizes and this head
    settle: Callable[[Any, Mapping[str, Tensor]], Any] = lambda sizes, tensors: sizes  # what only the tensors tell
    base: str = ""  # how the names of the model without its head begin, and do not where it is published alone
    other_bases: tuple[str, ...] = ()  # how they begin under some heads, for which `rules` has them so
    untold: tuple[str, ...] = ()  # sizes of which this form knows one value, all of which answer alike as it is written
    fits: Callable[[Any], bool] = lambda sizes: True  # whether models of these sizes can be written this way
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # kind of head -> tensors by which it is known
    older: Mapping[str, str] = field(default_factory=dict)  # how names ended once -> how they end now

    def sizes_of(self, config: Mapping[str, Any]) -> Any:
        """Our sizes from their configuration."""
        return find_family(self.family).sizes(self.config.read(config))

    def renamed(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file by the names that `rules` know: today's, and those of a model with a head."""
        named: dict[str, Tensor] = {}
        for name, tensor in theirs.items():
            for old, new in self.older.items():
                name = name.removesuffix(old) + new if name.endswith(old) else name
            if name in named:
                raise QkvError(f"The weights hold {name} twice, by its old name and by its new one.")
            named[name] = tensor
        if self._alone(named):
            return {self.base + name: tensor for name, tensor in named.items()}
        return named

    def spelling(self, theirs: Collection[str]) -> Spelling:
        """How a file with these names spells a name that `rules` know, also one that it should have and has not."""
        old = {new: old for old, new in self.older.items() if any(name.endswith(old) for name in theirs)}
        alone = self._alone(theirs)

        def spelled(name: str) -> str:
            if alone:
                name = name.removeprefix(self.base)
            if name in theirs:
                return name
            return next((name.removesuffix(new) + old[new] for new in old if name.endswith(new)), name)

        return spelled

    def _alone(self, names: Collection[str]) -> bool:
        """Whether these are the names of a model without its head."""
        return bool(self.base) and not any(name.startswith((self.base, *self.other_bases)) for name in names)

    def head_of(
        self, config: Mapping[str, Any], folder: Path, tensors: Collection[str], fullest: bool = False
    ) -> HeadChoice | None:
        """The head that the folder says it has; None for a family without a choice.

        Where it says nothing, or several kinds of head go by one name, the tensors tell. The `fullest` head is the one
        that loses least of them: a model called one for masked tokens may hold what it learned about sentences too.
        """
        names = config.get("architectures") or []
        if not isinstance(names, list):
            raise QkvError(f'In {folder / CONFIG_FILE}, "architectures" must be a list of names, not {names!r}.')
        kinds = [kind for kind, name in self.architectures.items() if not names or name == names[0]]
        if len(names) > 1 or not kinds:
            known = ", ".join(dict.fromkeys(self.architectures.values()))
            raise QkvError(f"{folder} holds a {', '.join(map(str, names))}; of this family qkv knows {known}.")
        if fullest and kinds[0] not in FOR_A_TASK:
            kinds = [kind for kind in self.architectures if kind not in FOR_A_TASK]
        kinds = [kind for kind in kinds if set(self.marks.get(kind, ())) <= set(tensors)] or kinds
        if not kinds[0]:
            return None
        if kinds[0] == "classification" and config.get("problem_type") == SEVERAL_LABELS and not fullest:
            raise QkvError(
                f"{folder / CONFIG_FILE} describes a model that may give a text several labels ({SEVERAL_LABELS}); qkv "
                "reads those that give one."
            )
        if kinds[0] in WITH_LABELS:
            return HeadChoice(kinds[0], labels=_labels(config, folder))
        return HeadChoice(kinds[0])


def _labels(config: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """The names of the classes, in the order of the logits; two nameless ones where the folder says nothing.

    Old folders may give the number of classes beside the two nameless ones that it replaces.
    """
    named, count = config.get("id2label"), config.get("num_labels", 2)
    if named is None or (named == {"0": "LABEL_0", "1": "LABEL_1"} and count != 2):
        if type(count) is not int or count < 1:
            raise QkvError(f'In {folder / CONFIG_FILE}, "num_labels" must be a whole number above 0, not {count!r}.')
        return tuple(f"LABEL_{number}" for number in range(count))
    try:
        labels = {int(number): str(label) for number, label in named.items()}
    except (AttributeError, ValueError):
        labels = {}
    if not labels or sorted(labels) != list(range(len(labels))):
        raise QkvError(f'In {folder / CONFIG_FILE}, "id2label" must name the classes 0, 1, … by their numbers.')
    return tuple(labels[number] for number in range(len(labels)))


def load_published(
    folder: Path, config: Mapping[str, Any], families: Mapping[str, PublishedFamily], fullest: bool = False
) -> Model:
    """The model a published folder describes, in evaluation mode and single precision.

    With `fullest`, under the head that keeps most of what the folder holds: for those who put on another head.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in families:
        raise QkvError(
            f"{folder / CONFIG_FILE} describes a model of type {model_type!r}; qkv reads {', '.join(sorted(families))}."
        )
    published = _of_architecture(families, model_type, config)
    sizes = published.sizes_of(config)
    held = read_shards(folder)
    tensors = published.renamed(held)
    head = published.head_of(config, folder, tensors, fullest)
    check_extent(sizes, tensors, folder)
    sizes = published.settle(sizes, tensors)
    rules = published.rules(sizes, head)
    return fill_family(published.family, rules, sizes, head, tensors, folder, published.spelling(held))


def _of_architecture(
    families: Mapping[str, PublishedFamily], model_type: str, config: Mapping[str, Any]
) -> PublishedFamily:
    """The family of a type; where one type is several of ours, the one that has the architecture which is named."""
    names, usual = config.get("architectures"), families[model_type]
    if not isinstance(names, list) or not names or names[0] in usual.architectures.values():
        return usual  # no file of another family is opened
    same = (each for each in families.values() if each.model_type == model_type)
    return next((each for each in same if names[0] in each.architectures.values()), usual)


def fill_family(
    family: str,
    rules: Map,
    sizes: Any,
    head: HeadChoice | None,
    theirs: Mapping[str, Tensor],
    origin: Path,
    spelled: Spelling = as_it_is,
) -> Model:
    """A model of these sizes with these weights; what does not fit is told by the names of the file."""
    with torch.device("meta"), Unfilled():  # no memory is taken before all fits
        model: Model = build(family, sizes, head)
        wanted = tensors_of(model)
        check_kinds(rules, theirs, wanted, origin, spelled)
    ours = to_ours(rules, theirs, wanted, spelled)
    with Undrawn():
        model = build(family, sizes, head)
    copy_into(tensors_of(model), ours, origin)
    return model.eval()


def published_config(model: Model, families: Mapping[str, PublishedFamily]) -> dict[str, Any]:
    """The `config.json` that the other library reads, without special tokens, which the tokenizer knows."""
    from qkv.models.attention_choice import must_be_own  # with all kinds of attention, which reading does not need

    must_be_own(model)
    check_parts(model)
    published = family_of(model, families)
    head = head_of(model)
    kind = "" if head is None else head.kind
    if kind == "embedding" and isinstance(model, TextModel):
        kind = "states"  # how vectors are pooled is said beside the model
    if kind not in published.architectures:
        raise QkvError(f"The other library has no {kind} head for the family {model.family}.")
    config = {**published.config.write(model.sizes), "architectures": [published.architectures[kind]]}
    if head is not None and head.labels:
        config["id2label"] = {str(number): label for number, label in enumerate(head.labels)}
        config["label2id"] = {label: number for number, label in enumerate(head.labels)}
        if head.kind == "classification" and len(head.labels) == 1:
            config["problem_type"] = "regression"
    return config


def save_published(
    model: Model,
    folder: Path,
    families: Mapping[str, PublishedFamily],
    more: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that the other library opens; `more` is added to its configuration (special tokens)."""
    published = family_of(model, families)
    config = _with_more(published, published_config(model, families), more or {})
    head = head_of(model)
    theirs = to_theirs(published.rules(model.sizes, head), tensors_of(model))
    if config["architectures"] == [published.architectures.get("states")]:  # without a head, so without a prefix
        theirs = {name.removeprefix(published.base): tensor for name, tensor in theirs.items()}
    check_read_back(model, published, config, theirs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_shards(folder, theirs, shard_bytes)
        write_json(folder / CONFIG_FILE, config)
        if head is not None and head.kind == "embedding":
            write_sentence_folder(folder, head, model.sizes.width, cast(TextModel, model).longest)
    except WRITE_ERRORS as error:
        raise QkvError(f"Cannot write the model to {folder}: {error}; make room or name another folder.") from error


def _with_more(published: PublishedFamily, config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens that say sizes of the model must agree with them; where they are unknown, the sizes tell them."""
    sizes = {size.theirs for size in published.config.sizes}.union(*(keys.theirs for keys in published.config.together))
    for key, value in more.items():
        if key in sizes and value is not None and value != config.get(key):
            raise QkvError(
                f"The other library would read this model another way: by its sizes {key} is {config.get(key)!r}, by "
                f"its tokenizer {value!r}."
            )
    return {**config, **{key: value for key, value in more.items() if key not in sizes}}


def family_of(model: Model, families: Mapping[str, PublishedFamily]) -> PublishedFamily:
    same = [published for published in families.values() if published.family == model.family]
    for published in same:
        if published.fits(model.sizes):
            return published
    if same:
        types = ", ".join(published.model_type for published in same)
        raise QkvError(f"None of the published forms of the family {model.family} has such sizes: {types}.")
    known = ", ".join(sorted({each.family for each in families.values()}))
    raise QkvError(f"The family {model.family} has no published form: these have one: {known}.")
