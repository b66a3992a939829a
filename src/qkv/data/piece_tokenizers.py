"""Published tokenizers in SentencePiece files: T5, ALBERT, Llama and Marian."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from qkv.data.sentencepiece import (
    CONTROL,
    SPACE,
    UNIGRAM,
    Piece,
    SentencePieceModel,
    add_pieces,
    compiled,
    cutter,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from qkv.data.token_roles import TokenizerNotes, frame, number_of, token_text
from qkv.data.tokenizer_files import read_ids
from qkv.errors import QkvError

SENTINELS = 100  # tokens that stand for a span left out [raffel2020 §3.1.4]


def t5_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Unigram pieces of words, then a hundred tokens for spans left out, counted down; `</s>` ends each text."""
    model = read_sentencepiece(folder / "spiece.model")
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(int(config.get("extra_ids", SENTINELS))))]
    known = {piece.text for piece in model.pieces}
    added = tuple(Piece(name, 0.0, CONTROL) for name in sentinels if name not in known)
    tokenizer = of_words(replace(model, pieces=model.pieces + added), [], adds_space=True)
    end = token_text(config["eos_token"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, number_of(tokenizer, end))]
    )
    return tokenizer


def albert_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Unigram pieces of words in lower case without accents, between `[CLS]` and `[SEP]`."""
    model = read_sentencepiece(folder / "spiece.model")
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not config.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    tokenizer = of_words(model, steps, adds_space=bool(config.get("add_prefix_space", True)))
    first, last = token_text(config["cls_token"]), token_text(config["sep_token"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, "$B:1", f"{last}:1"],
        special_tokens=[(token, number_of(tokenizer, token)) for token in {first, last}],
    )
    return tokenizer


def of_words(model: SentencePieceModel, steps: list[normalizers.Normalizer], *, adds_space: bool) -> Tokenizer:
    """Words at white space of any kind, each with the mark of a space before it, cut into pieces."""
    if model.kind != UNIGRAM:
        raise QkvError("The SentencePiece model merges pairs of pieces, but this tokenizer needs a unigram model.")
    tokenizer = Tokenizer(cutter(model))
    if model.characters:
        steps = [*steps, compiled(model.characters)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if adds_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    add_pieces(tokenizer, model)
    return tokenizer


def llama_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """As the SentencePiece library cuts, with the start and end tokens that the folder asks for."""
    files = [folder / name for name in ("tokenizer.model", "spiece.model") if (folder / name).exists()]
    if not files:
        raise QkvError(f"The tokenizer in {folder} is a SentencePiece model, but there is no tokenizer.model.")
    tokenizer = sentencepiece_tokenizer(read_sentencepiece(files[0]))
    starts, ends = bool(config.get("add_bos_token", False)), bool(config.get("add_eos_token", False))
    frame(tokenizer, TokenizerNotes.from_published(config).roles, starts, ends)
    return tokenizer


def marian_tokenizer(folder: Path, side: str, config: Mapping[str, Any]) -> tuple[Tokenizer, int]:
    """One side of a translator: cut by its SentencePiece model, numbered by a vocabulary that both sides share.

    Gives the tokenizer and the number of tokens in the vocabulary; pieces with later numbers are unknown to it.
    """
    model = read_sentencepiece(folder / f"{side}.spm")
    own = folder / "target_vocab.json" if side == "target" and config.get("separate_vocabs") else folder / "vocab.json"
    vocabulary = read_ids(own)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise QkvError(f"{own} should number the tokens from 0 on without gaps.")
    if model.kind != UNIGRAM:
        raise QkvError(f"{folder / side}.spm merges pairs of pieces, but a Marian tokenizer needs a unigram model.")
    tokenizer = Tokenizer(cutter(model, vocabulary=vocabulary))
    like = sentencepiece_tokenizer(model)
    tokenizer.normalizer, tokenizer.decoder = like.normalizer, like.decoder
    # Some translators are told the language to translate to by a first word such as >>fr<<.
    codes = [token for token in vocabulary if token.startswith(">>") and token.endswith("<<")]
    tokenizer.add_tokens([AddedToken(code, special=False, normalized=False) for code in codes])
    end = token_text(config["eos_token"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", "$B", end], special_tokens=[(end, number_of(tokenizer, end))]
    )
    return tokenizer, len(vocabulary)
