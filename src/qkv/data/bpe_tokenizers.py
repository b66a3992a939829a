"""Published byte-pair encodings in a `vocab.json` with a `merges.txt`: GPT-1, GPT-2, RoBERTa, CLIP and Qwen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from qkv.data.gguf_tokenizer import QWEN2, split_by
from qkv.data.token_roles import TokenizerNotes, frame, number_of, token_text
from qkv.data.tokenizer_files import LibraryErrors, check_merges, read_ids, read_merges
from qkv.errors import QkvError

END_OF_WORD = "</w>"
CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def gpt2_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Bytes merged within words, punctuation and numbers [radford2019 §2.2]; nothing stands around a text."""
    tokenizer = byte_level(folder, config)
    starts, ends = bool(config.get("add_bos_token", False)), bool(config.get("add_eos_token", False))
    frame(tokenizer, TokenizerNotes.from_published(config).roles, starts, ends)
    return tokenizer


def roberta_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The same with `<s> … </s>` around a text, and `<s> … </s></s> … </s>` around two."""
    tokenizer = byte_level(folder, config)
    tokenizer.post_processor = around_texts(tokenizer, config, first="cls_token", last="sep_token")
    return tokenizer


def byte_level(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(merging(folder))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The same with characters composed, and words and numbers cut in another way; nothing stands around a text."""
    tokenizer = byte_level(folder, config)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_by([QWEN2], bool(config.get("add_prefix_space", False)))
    return tokenizer


def gpt1_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Characters merged within words, whose last piece is marked; words are cut as BERT's are, in lower case."""
    tokenizer = Tokenizer(merging(folder, end_of_word_suffix=END_OF_WORD, unk_token=token_text(config["unk_token"])))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return tokenizer


def clip_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Bytes merged within lower-case words, whose last piece is marked, between start and end."""
    tokenizer = Tokenizer(merging(folder, end_of_word_suffix=END_OF_WORD, unk_token=token_text(config["unk_token"])))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = around_texts(
        tokenizer, {**config, "trim_offsets": False}, first="bos_token", last="eos_token"
    )
    return tokenizer


def around_texts(tokenizer: Tokenizer, config: Mapping[str, Any], *, first: str, last: str) -> processors.PostProcessor:
    before, behind = token_text(config[first]), token_text(config[last])
    return processors.RobertaProcessing(
        (behind, number_of(tokenizer, behind)),
        (before, number_of(tokenizer, before)),
        trim_offsets=bool(config.get("trim_offsets", True)),
        add_prefix_space=bool(config.get("add_prefix_space", False)),
    )


def merging(folder: Path, **settings: str) -> models.BPE:
    """The vocabulary and the merges, in the order in which they were learnt."""
    files = [folder / "vocab.json", folder / "merges.txt"]
    for file in files:
        if not file.exists():
            raise QkvError(f"The tokenizer in {folder} needs a vocab.json and a merges.txt, but {file} is missing.")
    vocabulary, merges = read_ids(files[0]), read_merges(files[1])
    check_merges(merges, vocabulary, str(files[1]))
    with LibraryErrors(f"{files[0]} and {files[1]} are no whole tokenizer"):
        return models.BPE(vocab=vocabulary, merges=merges, **settings)
