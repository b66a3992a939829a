"""What is read: the kinds of input, how often each is tried, its valid seeds, and how it is read and then used."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from qkv.api.loading import tokenizer_of
from qkv.api.run_summaries import summary
from qkv.cli.config_file import read_config, value_of
from qkv.data.boxes import read_box_table, read_coco
from qkv.data.conll import read_conll
from qkv.data.idx import read_idx
from qkv.data.images import read_image
from qkv.data.letters import read_letters
from qkv.data.preprocessing_files import read_preprocessing
from qkv.data.published_tokenizer import read_tokenizers
from qkv.data.questions import read_questions
from qkv.data.sound import read_sound
from qkv.data.sound_processor import read_sound_processor
from qkv.data.sources import sources_of
from qkv.data.table import read_table
from qkv.data.token_folder import open_tokens
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, read_notes, read_tensors
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.text_model import TextModel
from qkv.train.adapt.lora_files import load_adapter
from qkv.train.checkpoint import Checkpoints
from qkv.train.history import read_history
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import _of_architecture
from qkv.weights.sentence_folder import read_sentence_folder
from tests.fuzz import seeds_of_corpora, seeds_of_data, seeds_of_models, seeds_of_runs, seeds_of_texts
from tests.fuzz.folders import Content, Seed, keep_seeds, kept_seeds

TEXTS = ["The cat, sat: 1984 don't", "Größe ▁ 日本 </s> [MASK] \0 \u202e"]
VERB = "train text-to-text"
SettleAgain = Callable[[MutableMapping[str, Content]], None]


@dataclass(frozen=True)
class Target:
    """A kind of input."""

    name: str
    share: float  # of all inputs, beside the others
    make: Callable[[Path], Iterator[Seed]]
    read: Callable[[Path, Seed], Any]
    settle: SettleAgain | None = None  # lets checksums agree with what was changed, in half of the inputs
    named: bool = False  # whether a person names the very file
    seeds: list[Seed] = field(default_factory=list)


def read_file(folder: Path, seed: Seed) -> Path:
    """Of a folder with one file of interest, that file."""
    return folder / seed.changed[0]


def tensors(folder: Path, seed: Seed) -> None:
    file = read_file(folder, seed)
    found = read_tensors(file)
    held = sum(tensor.numel() * tensor.element_size() for tensor in found.values())
    assert held <= file.stat().st_size, "more tensors than the file has bytes"
    read_notes(file)


def model(folder: Path, seed: Seed) -> None:
    use_model(load_model(folder))


def model_configuration(folder: Path, seed: Seed) -> None:
    """What `load_model` reads before it looks for tensors."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("sizes", {}), dict):
        raise QkvError("That is no configuration of a model.")
    if config.get("model_type") in list(PUBLISHED):
        _of_architecture(PUBLISHED, config["model_type"], config).sizes_of(config)
    elif isinstance(config.get("family"), str):
        find_family(config["family"]).sizes(config.get("sizes", {}))
        if "head" in config:
            HeadChoice.from_config(config["head"])
        if "attention" in config:
            AttentionChoice.from_config(config["attention"])


def single_file(folder: Path, seed: Seed) -> None:
    (file,) = (folder / name for name in seed.files if name.startswith("model."))
    use_tokenizer(tokenizer_of(file))
    use_model(load_model(file))


@torch.no_grad()
def use_model(loaded: Any) -> None:
    """A model that was loaded answers, with as many numbers as it should."""
    if isinstance(loaded, TextModel) and loaded.vocabulary < 10_000:
        loaded(torch.tensor([[1, 2, 0]]))
    elif isinstance(loaded, ImageModel) and loaded.family in ("vit", "deit") and loaded.sizes.image < 100:
        loaded(torch.zeros(1, loaded.sizes.channels, loaded.sizes.image, loaded.sizes.image))
    elif isinstance(loaded, SequenceToSequence) and loaded.source_vocabulary is not None:
        loaded(torch.tensor([[1, 2, 0]]), None, torch.tensor([[1, 2]]))


def adapter(folder: Path, seed: Seed) -> None:
    plain = seeds_of_models.adapted_model()
    load_adapter(plain, folder)
    use_model(plain)


def tokenizer(folder: Path, seed: Seed) -> None:
    for each in read_tokenizers(folder):
        use_tokenizer(each)


def use_tokenizer(found: TextTokenizer) -> None:
    for ids in found.encode(TEXTS, special=True):
        assert all(0 <= number for number in ids)
        found.decode(ids, whole=True)
    found.encodings(TEXTS[:1])


def checkpoint(folder: Path, seed: Seed) -> None:
    found = Checkpoints(folder)
    for step in found.steps():
        checkpoint = found.read(step)
        for stored in (checkpoint.model, checkpoint.optimizer):
            for name in stored:
                stored[name]


def run(folder: Path, seed: Seed) -> None:
    history = read_history(folder)
    summary(history)
    history.curve("train/loss", "step")


def configuration(folder: Path, seed: Seed) -> None:
    """By the names that such a file gives, each as the option that it is."""
    file = read_file(folder, seed)
    groups = {name: inner for name, inner in tomllib.loads(seed.files[file.name].decode()).items() if inner != VERB}
    known = {name: value for inner in groups.values() for name, value in inner.items()}
    for name, value in read_config(file, VERB, groups, list(known)).items():
        value_of(file, name, value, isinstance(known[name], bool), name == "data")


def table(folder: Path, seed: Seed) -> None:
    read_table(read_file(folder, seed), ["source", "target"])


def corpus(folder: Path, seed: Seed) -> None:
    for source in sources_of(read_file(folder, seed), shard_bytes=150, blank_lines_divide=True):
        for _ in source.read():
            pass


def token_shards(folder: Path, seed: Seed) -> None:
    """Every shard whose file is there and good; of ids that are used, none is beyond the vocabulary."""
    shards = open_tokens(folder)
    for number in range(len(shards)):
        documents = shards.documents(number)
        assert not len(documents.tokens.ids) or documents.tokens.ids.max() < shards.tokenizer.size


def annotation(folder: Path, seed: Seed) -> None:
    file = read_file(folder, seed)
    readers = {"coco.json": read_coco, "boxes.jsonl": read_box_table, "squad.json": read_questions}
    readers.get(file.name, read_conll)(file)


def picture(folder: Path, seed: Seed) -> None:
    image = read_image(read_file(folder, seed), most_pixels=2**20)
    assert image.mode == "RGB"


def sound(folder: Path, seed: Seed) -> None:
    read_sound(read_file(folder, seed), 16_000)


TARGETS = [
    Target("tensors", 45, seeds_of_models.tensor_files, tensors),
    Target("model configurations", 15, seeds_of_models.configurations, model_configuration),
    Target("published models", 3, seeds_of_models.published_models, model),
    Target("own models", 2, seeds_of_models.own_models, model),
    Target("shards", 2, seeds_of_models.sharded_models, model),
    Target("gguf", 1.5, seeds_of_models.single_files, single_file),
    Target("adapters", 0.3, seeds_of_models.adapters, adapter),
    Target("tokenizers", 7, seeds_of_texts.tokenizers, tokenizer),
    Target("picture processors", 3, seeds_of_texts.picture_processors, lambda f, seed: read_preprocessing(f)),
    Target("sound processors", 3, seeds_of_texts.sound_processors, lambda f, seed: read_sound_processor(f)),
    Target("letters", 2, seeds_of_texts.letters, lambda f, seed: read_letters(f)),
    Target("sentence folders", 2, seeds_of_texts.sentence_folders, lambda f, seed: read_sentence_folder(f)),
    Target("checkpoints", 2, seeds_of_runs.checkpoints, checkpoint, seeds_of_runs.mend_checksums),
    Target("run folders", 3, seeds_of_runs.run_folders, run),
    Target("train.toml", 2, seeds_of_runs.configurations, configuration, named=True),
    Target("token shards", 5, seeds_of_corpora.token_shards, token_shards, seeds_of_corpora.mend_tokens),
    Target("corpora", 4, seeds_of_corpora.corpora, corpus, named=True),
    Target("tables", 5, seeds_of_data.tables, table, named=True),
    Target("parquet", 2, seeds_of_data.parquet_tables, table, named=True),
    Target("annotations", 3, seeds_of_data.annotations, annotation, named=True),
    Target("pictures", 3, seeds_of_data.pictures, picture, named=True),
    Target("sounds", 2, seeds_of_data.sounds, sound, named=True),
    Target("idx", 1, seeds_of_data.idx_arrays, lambda f, seed: read_idx(read_file(f, seed)), named=True),
]


def make_seeds(folder: Path, targets: list[Target]) -> None:
    """The seeds of these kinds, made once and kept in a folder: some tell the time at which they were made."""
    for target in targets:
        kept = folder / target.name.replace(" ", "-")
        if not kept.exists():
            with TemporaryDirectory() as passing:
                torch.manual_seed(0)
                keep_seeds(kept, target.make(Path(passing)))
        target.seeds[:] = kept_seeds(kept)
