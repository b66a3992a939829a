"""BERT's way of cutting: words at white space and punctuation, then the longest pieces that the vocabulary knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from qkv.data.token_roles import token_text
from qkv.data.tokenizer_files import LibraryErrors
from qkv.errors import QkvError


def bert_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read a `vocab.txt`: one token a line."""
    file = folder / "vocab.txt"
    if not file.is_file():
        raise QkvError(f"The tokenizer in {folder} is a BERT tokenizer, but there is no vocab.txt.")
    with LibraryErrors(f"{file} is not a whole vocabulary"):
        vocabulary = models.WordPiece.read_file(str(file))
    return bert_parts(vocabulary, config)


def bert_parts(vocabulary: Mapping[str, int], config: Mapping[str, Any]) -> Tokenizer:
    """A WordPiece tokenizer [wu2016 §4.1] with `[CLS] … [SEP]` around a text and a `[SEP]` behind a second one."""
    names = {key: token_text(config.get(f"{key}_token") or f"[{key.upper()}]") for key in ("unk", "cls", "sep")}
    missing = [name for name in names.values() if name not in vocabulary]
    if missing:
        raise QkvError(f"The vocabulary does not know {' '.join(missing)}, so it is not one of a BERT tokenizer.")
    tokenizer = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=names["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    first, last = names["cls"], names["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, "$B:1", f"{last}:1"],
        special_tokens=[(token, vocabulary[token]) for token in {first, last}],
    )
    return tokenizer
