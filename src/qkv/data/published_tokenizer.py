"""Reading the tokenizer of a published model's folder, in whichever of the usual files it is.

| files                                  | tokenizer                                                        |
|----------------------------------------|------------------------------------------------------------------|
| `tokenizer.json`                       | any, as the tokenizers library saves it                          |
| `vocab.txt`                            | BERT's WordPiece                                                 |
| `vocab.json`, `merges.txt`             | byte-level BPE (GPT-2, RoBERTa, CLIP, Qwen) or of words (GPT-1)  |
| `spiece.model`, `tokenizer.model`      | SentencePiece (T5, ALBERT, Llama)                                |
| `source.spm`, `target.spm`, `vocab.json` | SentencePiece for each side of a Marian translator             |

What stands beside them says which tokens have which roles: `tokenizer_config.json`, and in older folders
`special_tokens_map.json` and `added_tokens.json`; where the files are silent, the kind of tokenizer decides.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from qkv.data.token_roles import PUBLISHED_KEYS, TokenizerNotes, add_special_tokens, added_token, token_text
from qkv.data.tokenizer import TextTokenizer
from qkv.data.tokenizer_files import read_object, read_text, read_tokenizer_file
from qkv.errors import QkvError

SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]
# What each kind of tokenizer takes for granted where its folder does not say otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "model_input_names": SEGMENTS,
    },
    "gpt2": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "gpt1": {"unk_token": "<unk>"},
    "roberta": {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": "<mask>",
    },
    "clip": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>") | {"bos_token": "<|startoftext|>"},
    "qwen": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "t5": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "albert": {
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "model_input_names": SEGMENTS,
    },
    "llama": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "padding_side": "left"},
    "marian": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "other": {},
}
# The names of these kinds in `tokenizer_config.json` (less an ending `Fast`) and, where that is silent, of the models
# in `config.json`.
CLASSES = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), "bert"),
    **dict.fromkeys(("GPT2Tokenizer", "WhisperTokenizer"), "gpt2"),
    "OpenAIGPTTokenizer": "gpt1",
    "RobertaTokenizer": "roberta",
    "CLIPTokenizer": "clip",
    "Qwen2Tokenizer": "qwen",
    "T5Tokenizer": "t5",
    "AlbertTokenizer": "albert",
    "LlamaTokenizer": "llama",
    "MarianTokenizer": "marian",
}
MODELS = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert"), "bert"),
    **dict.fromkeys(("t5", "mt5", "switch_transformers"), "t5"),
    **dict.fromkeys(("gpt2", "whisper"), "gpt2"),
    "openai-gpt": "gpt1",
    "roberta": "roberta",
    "clip": "clip",
    **dict.fromkeys(("qwen2", "qwen3"), "qwen"),
    "albert": "albert",
    "llama": "llama",
    "marian": "marian",
}
KINDS_OF_VALUES: dict[str, type | tuple[type, ...]] = {
    "added_tokens_decoder": dict,
    "extra_special_tokens": (list, dict),
    "additional_special_tokens": (list, dict),
    "model_input_names": list,
    "padding_side": str,
    "model_max_length": (int, float),
    "known_tokens": int,
    "extra_ids": int,
}
FILES = {
    "bert": "vocab.txt",
    **dict.fromkeys(("gpt2", "gpt1", "roberta", "clip", "qwen"), "merges.txt"),
    **dict.fromkeys(("t5", "albert"), "spiece.model"),
    "llama": "tokenizer.model",
    "marian": "source.spm",
}


def builders() -> dict[str, Callable[[Path, dict[str, Any]], Tokenizer]]:
    """How tokenizers are made of other files than `tokenizer.json`: opened where a folder has no such file."""
    from qkv.data.bert_tokenizer import bert_tokenizer
    from qkv.data.bpe_tokenizers import (
        clip_tokenizer,
        gpt1_tokenizer,
        gpt2_tokenizer,
        qwen_tokenizer,
        roberta_tokenizer,
    )
    from qkv.data.piece_tokenizers import albert_tokenizer, llama_tokenizer, t5_tokenizer

    return {
        "bert": bert_tokenizer,
        "gpt2": gpt2_tokenizer,
        "gpt1": gpt1_tokenizer,
        "roberta": roberta_tokenizer,
        "clip": clip_tokenizer,
        "qwen": qwen_tokenizer,
        "t5": t5_tokenizer,
        "albert": albert_tokenizer,
        "llama": llama_tokenizer,
    }


def read_tokenizer(folder: Path | str) -> TextTokenizer:
    """The tokenizer of a published model; of a translator with one for each side, the source's."""
    return read_tokenizers(folder)[0]


def read_tokenizers(folder: Path | str) -> tuple[TextTokenizer, TextTokenizer]:
    """The tokenizers of a published model for what it reads and what it writes: mostly one for both."""
    folder = Path(folder)
    if not folder.is_dir():
        raise QkvError(f"There is no folder {folder} to read a tokenizer from.")
    config = noted(folder)
    kind = kind_of(folder, config)
    defaults = {key: value for key, value in DEFAULTS[kind].items() if key not in config}
    if (folder / "tokenizer.json").exists():
        tokenizer = read_tokenizer_file(folder / "tokenizer.json")
        known = tokenizer.get_vocab(with_added_tokens=True)
        config |= {key: name for key, name in defaults.items() if not key.endswith("_token") or name in known}
        one = finished(tokenizer, config)
        return one, one
    config |= defaults
    if kind == "marian":
        from qkv.data.piece_tokenizers import marian_tokenizer

        sides = [marian_tokenizer(folder, side, config) for side in ("source", "target")]
        source, target = (finished(tokenizer, {**config, "known_tokens": known}) for tokenizer, known in sides)
        return source, target
    known_kinds = builders()
    if kind not in known_kinds:
        raise QkvError(
            f"The folder {folder} holds no tokenizer that can be read: it should have a tokenizer.json, a vocab.txt, a "
            "vocab.json with merges.txt, a spiece.model, a tokenizer.model, or a source.spm with target.spm."
        )
    one = finished(known_kinds[kind](folder, config), config)
    return one, one


def noted(folder: Path) -> dict[str, Any]:
    """What the folder says about its tokenizer, newer files before older ones."""
    config = read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= read_object(folder / "special_tokens_map.json")
        special = {token_text(config[key]) for key in PUBLISHED_KEYS.values() if config.get(key) is not None}
        config["added_tokens_decoder"] = {
            str(number): {"content": token, "special": token in special, "normalized": token not in special}
            for token, number in read_object(folder / "added_tokens.json").items()
        }
    for key, kinds in KINDS_OF_VALUES.items():
        if config.get(key) is not None and not isinstance(config[key], kinds):
            raise QkvError(f"The tokenizer_config.json in {folder} has {config[key]!r} as {key}, which cannot be.")
    if not all(number.isdecimal() and len(number) < 12 for number in config.get("added_tokens_decoder") or ()):
        raise QkvError(f"The tokenizer_config.json in {folder} should list its added_tokens_decoder by their numbers.")
    template = folder / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = read_text(template)
    return config


def kind_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of tokenizer by the name it is given, or else by the files that are there."""
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if name in CLASSES or (name and (folder / "tokenizer.json").exists()):
        return CLASSES.get(name, "other")
    model = MODELS.get(str(read_object(folder / "config.json").get("model_type", "")))
    # A model may have been trained with the tokenizer of another: an ALBERT with BERT's.
    if model is not None and any((folder / file).exists() for file in ("tokenizer.json", FILES[model])):
        return model
    if (folder / "source.spm").exists():
        return "marian"
    if (folder / "vocab.txt").exists():
        return "bert"
    if (folder / "merges.txt").exists():
        vocabulary = read_object(folder / "vocab.json")
        if any(token.endswith("</w>") for token in vocabulary):
            return "clip" if "<|startoftext|>" in vocabulary else "gpt1"
        return "roberta" if {"<s>", "</s>", "<mask>"} <= vocabulary.keys() else "gpt2"
    if (folder / "spiece.model").exists():
        return "t5"
    return "llama" if (folder / "tokenizer.model").exists() else "other"


def finished(tokenizer: Tokenizer, config: Mapping[str, Any]) -> TextTokenizer:
    """A tokenizer with the tokens that its folder adds to the vocabulary."""
    known = tokenizer.get_added_tokens_decoder()
    added = sorted((int(number), value) for number, value in (config.get("added_tokens_decoder") or {}).items())
    for number, value in added:
        if number not in known:
            token = added_token(value)
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
            if tokenizer.token_to_id(token.content) != number:
                raise QkvError(
                    f"The folder adds the token {token.content!r} as number {number}, but the vocabulary has it as "
                    f"number {tokenizer.token_to_id(token.content)}; one of the files belongs to another model."
                )
    add_special_tokens(tokenizer, config)
    return TextTokenizer(tokenizer, TokenizerNotes.from_published(config))
