"""Small valid folders of tokenizers of every kind, and of how pictures, sounds and letters are prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from qkv.data.letters import Letters, write_letters
from qkv.data.sentencepiece import read_sentencepiece
from qkv.data.sound_features import FilterBank, LogMel, WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.data.tokenizer import TextTokenizer
from qkv.models.head_choice import HeadChoice
from qkv.weights.sentence_folder import write_sentence_folder
from tests.data.published_folders import (
    BERT_SPECIALS,
    CORPUS,
    ROBERTA_SPECIALS,
    byte_level_folder,
    marked_words_folder,
    sentencepiece_bytes,
    write,
)
from tests.fuzz.folders import Seed, seed_of

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokenizers(folder: Path) -> Iterator[Seed]:
    """As `tokenizer.json`, and in the files that each published kind has."""
    for kind, vocabulary in {"characters": None, "symbols": None, "bpe": 300, "unigram": 300}.items():
        place = _new(folder, kind)
        TextTokenizer.train(kind, CORPUS[:6], vocabulary=vocabulary).save(place / "tokenizer.json")
        (place / "chat_template.jinja").write_text(TEMPLATE)
        yield seed_of(place, kind)
    yield seed_of(_bert(_new(folder, "bert")), "bert")
    yield seed_of(
        byte_level_folder(_new(folder, "gpt2"), "gpt2", ["<|endoftext|>"], tokenizer_class="GPT2Tokenizer"), "gpt2"
    )
    yield seed_of(byte_level_folder(_new(folder, "roberta"), "roberta", ROBERTA_SPECIALS), "roberta")
    yield seed_of(marked_words_folder(_new(folder, "gpt1"), "openai-gpt", ["<unk>"]), "gpt1")
    specials = ["<|startoftext|>", "<|endoftext|>"]
    yield seed_of(marked_words_folder(_new(folder, "clip"), "clip", specials), "clip")
    yield from _pieces(folder)


def _bert(folder: Path) -> Path:
    letters = sorted({letter for text in CORPUS for letter in text.lower() if letter.isalpha()})
    words = [*BERT_SPECIALS, *letters, *(f"##{letter}" for letter in letters), "the", "cat", "##ed", "and", ".", ","]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    write(folder, "config.json", {"model_type": "bert"})
    write(folder, "special_tokens_map.json", {"mask_token": {"content": "[MASK]", "lstrip": True}})
    write(folder, "added_tokens.json", {"[NEW]": len(words)})
    return folder


def _pieces(folder: Path) -> Iterator[Seed]:
    unigram = sentencepiece_bytes("unigram", 120)
    for name, file, config in (
        ("t5", "spiece.model", {"model_type": "t5"}),
        ("llama", "tokenizer.model", {"model_type": "llama"}),
        ("albert", "spiece.model", {"model_type": "albert"}),
    ):
        place = _new(folder, name)
        kinds = {
            "t5": lambda: sentencepiece_bytes("unigram", 120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
            "llama": lambda: sentencepiece_bytes("bpe", 400, byte_fallback=True),
            "albert": lambda: sentencepiece_bytes(
                "unigram", 120, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]
            ),
        }
        (place / file).write_bytes(kinds[name]())
        write(place, "config.json", config)
        write(place, "tokenizer_config.json", {"add_bos_token": True} if name == "llama" else {})
        yield seed_of(place, name)
    place = _new(folder, "marian")
    for side in ("source", "target"):
        (place / f"{side}.spm").write_bytes(unigram)
    pieces = [piece.text for piece in read_sentencepiece(place / "source.spm").pieces]
    names = list(dict.fromkeys(["</s>", "<unk>", *pieces, ">>fr<<", "<pad>"]))
    write(place, "vocab.json", {name: number for number, name in enumerate(names)})
    write(place, "config.json", {"model_type": "marian"})
    yield seed_of(place, "marian")


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


PICTURES = {
    "vit": {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 16, "width": 16},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    },
    "clip": {
        "feature_extractor_type": "CLIPFeatureExtractor", "do_resize": True, "size": 16, "resample": 3,
        "do_center_crop": True, "crop_size": 16, "do_normalize": True, "image_mean": [0.48, 0.45, 0.4],
        "image_std": [0.26, 0.26, 0.27],
    },
    "detr": {
        "feature_extractor_type": "DetrFeatureExtractor", "do_resize": True, "size": 24, "max_size": 40,
        "do_normalize": True, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
        "format": "coco_detection",
    },
}  # fmt: skip
TIMM = {
    "architecture": "vit_tiny_patch16_224", "num_classes": 3,
    "pretrained_cfg": {
        "input_size": [3, 16, 16], "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "num_classes": 3,
    },
}  # fmt: skip


def picture_processors(folder: Path) -> Iterator[Seed]:
    for name, config in PICTURES.items():
        place = _new(folder, name)
        write(place, "preprocessor_config.json", config)
        yield seed_of(place, name)
    place = _new(folder, "nested")
    write(place, "processor_config.json", {"image_processor": PICTURES["vit"]})
    yield seed_of(place, "nested")
    place = _new(folder, "timm")
    write(place, "config.json", TIMM)
    yield seed_of(place, "timm")


def sound_processors(folder: Path) -> Iterator[Seed]:
    for features in (WaveFeatures(), FilterBank(bands=8, frames=16), LogMel(bands=8)):
        place = _new(folder, type(features).__name__)
        write_sound_processor(place, features)
        yield seed_of(place, place.name)


def letters(folder: Path) -> Iterator[Seed]:
    place = _new(folder, "letters")
    tokens = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFG")
    write_letters(place, Letters(tokens, blank=0, space=4, unknown=3))
    yield seed_of(place, "letters")


def sentence_folders(folder: Path) -> Iterator[Seed]:
    place = _new(folder, "mean")
    write_sentence_folder(place, HeadChoice("embedding", pooling="mean", unit_length=True), 16, 32)
    (place / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}, "default_prompt_name": None}))
    yield seed_of(place, "mean")
