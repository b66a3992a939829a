"""Small vocabularies, learnt on the spot and laid out as published models have them."""

import io
import json
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The cat sat on the mat, and the cats sang: it's 1984, don't we'll I'd.",
    "Das Mädchen grüßt die Katze: schöne Grüße! Ça va? Ω and naïve café.",
    "internationalisation of the international nation, unbelievably long words",
    "日本語のテキスト 中文 한국어 العربية עברית ไทย",
    "camelCase snake_case kebab-case 3.14159 1,000,000 0x1F user@example.org",
    'quoted "text" and [brackets] <angles> {braces} | pipes / slashes',
] * 20
BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def bert_folder(folder: Path, **config: object) -> Path:
    lowercase = bool(config.get("do_lower_case", True))
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=BERT_SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.model.save(str(folder))
    write(folder, "config.json", {"model_type": "bert"})
    if config:
        write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **config})
    return folder


def byte_level_folder(folder: Path, kind: str, specials: list[str], **config: object) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.model.save(str(folder))
    write(folder, "config.json", {"model_type": kind})
    write(folder, "tokenizer_config.json", config)
    return folder


def marked_words_folder(folder: Path, kind: str, specials: list[str]) -> Path:
    """GPT-1's and CLIP's: the last piece of a word ends in `</w>`."""
    tokenizer = Tokenizer(models.BPE(unk_token=specials[-1], end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    alphabet: list[str] = []
    if kind == "clip":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=specials,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.model.save(str(folder))
    write(folder, "config.json", {"model_type": kind})
    return folder


def sentencepiece_bytes(kind: str = "unigram", size: int = 200, **settings: object) -> bytes:
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=stream,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return stream.getvalue()
