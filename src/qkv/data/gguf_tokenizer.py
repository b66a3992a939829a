"""The tokenizers of llama.cpp, in the metadata of a GGUF file.

A GGUF file holds the vocabulary, merges or scores, and a name for the way in which text is split before it is merged;
the splitting itself is in no file. The expressions here are those that the models of these names were published with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from qkv.data.bert_tokenizer import bert_parts
from qkv.data.sentencepiece import (
    BPE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    sentencepiece_tokenizer,
)
from qkv.data.token_roles import TokenizerNotes, frame
from qkv.data.tokenizer import TextTokenizer
from qkv.data.tokenizer_files import LibraryErrors, check_merges
from qkv.errors import QkvError, nearest_or_all

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{LINES}"
QWEN2 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{LINES}"
QWEN35 = (
    rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*{{0}}"
TEKKEN = CASED.replace("{0}", "") + rf"|\p{{N}}|{SLASHES}"
GPT4O = CASED.replace("{0}", f"{ENDINGS}?") + rf"|\p{{N}}{{1,3}}|{SLASHES}"
HAN = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
# The name of a way to split, and the expressions that split the text one after another.
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "modern-bert", "mellum"), (GPT2,)),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", GPT2)
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "dbrx", "smaug-bpe"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (QWEN2,)),
    "qwen35": (QWEN35,),
    "tekken": (TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4"), (GPT4O,)),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"),
}
# Words that the vocabulary knows whole are taken whole, whatever the merges say; and texts start with the start token.
WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "tekken"}
GGUF_ROLES = {
    "start": "bos",
    "end": "eos",
    "unknown": "unknown",
    "pad": "padding",
    "mask": "mask",
    "classifier": "cls",
    "separator": "seperator",  # so spelled in the format
}


def tokenizer_of_gguf(metadata: Mapping[str, Any]) -> TextTokenizer:
    """The tokenizer in the metadata of a GGUF file."""
    facts = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    builders = {"gpt2": merged, "llama": scored, "gemma4": merged_pieces, "bert": words_and_parts, "t5": likeliest}
    kind = str(facts.get("model"))
    if kind not in builders:
        raise QkvError(f"The GGUF file has a tokenizer {kind!r} that cannot be read: {nearest_or_all(kind, builders)}")
    tokens = [str(token) for token in facts.get("tokens") or ()]
    if not tokens:
        raise QkvError("The GGUF file has a tokenizer without tokens: it should list them as tokenizer.ggml.tokens.")
    roles = {}
    for role, name in GGUF_ROLES.items():
        number = facts.get(f"{name}_token_id")
        if number is not None:
            if not 0 <= int(number) < len(tokens):
                raise QkvError(f"The GGUF file's {role} token is number {number}, but there are {len(tokens)} tokens.")
            roles[role] = tokens[int(number)]
    tokenizer = builders[kind](facts, tokens)
    if kind == "bert":
        roles.setdefault("classifier", "[CLS]")
    else:
        frame(tokenizer, roles, *frames(facts, kind))
    template = metadata.get("tokenizer.chat_template")
    return TextTokenizer(tokenizer, TokenizerNotes(roles=roles, chat_template=template))


def frames(facts: Mapping[str, Any], kind: str) -> tuple[bool, bool]:
    """Whether texts start with the start token and end with the end token, where the file does not say."""
    starts = kind in ("llama", "gemma4") or (kind == "gpt2" and facts.get("pre") in WHOLE_WORDS)
    return bool(facts.get("add_bos_token", starts)), bool(facts.get("add_eos_token", kind == "t5"))


def merged(facts: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """Bytes merged by a list of merges, after the text was split in one of the known ways."""
    name = str(facts.get("pre", "default"))
    if name not in SPLITS:
        ways = ", ".join(SPLITS)
        raise QkvError(f"The GGUF file splits text in the way {name!r}, which is not known here: there are {ways}.")
    with LibraryErrors("The GGUF file's merges do not fit its tokens"):
        model = models.BPE(vocab=ids_of(tokens), merges=merges_in(facts, tokens), ignore_merges=name in WHOLE_WORDS)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split_by(SPLITS[name])
    tokenizer.decoder = decoders.ByteLevel()
    add_marked(tokenizer, facts, tokens)
    return tokenizer


def split_by(expressions: Sequence[str], space: bool = False) -> pre_tokenizers.PreTokenizer:
    """Bytes of what the expressions split a text into, one after another; with a space put before it, or not."""
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)])


def scored(facts: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """A SentencePiece BPE model: the pieces with their scores."""
    model = SentencePieceModel(
        pieces=pieces_of(facts, tokens),
        kind=BPE,
        byte_fallback=True,
        adds_space=bool(facts.get("add_space_prefix", True)),
        removes_spaces=bool(facts.get("remove_extra_whitespaces", False)),
    )
    return sentencepiece_tokenizer(model)


def merged_pieces(facts: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """A SentencePiece BPE model whose merges are listed."""
    model = SentencePieceModel(
        pieces=pieces_of(facts, tokens),
        kind=BPE,
        byte_fallback=True,
        adds_space=bool(facts.get("add_space_prefix", True)),
        removes_spaces=False,
    )
    return sentencepiece_tokenizer(model, merges_in(facts, tokens))


def likeliest(facts: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """A SentencePiece unigram model."""
    model = SentencePieceModel(
        pieces=pieces_of(facts, tokens),
        characters=bytes(facts.get("precompiled_charsmap") or ()),
        adds_space=bool(facts.get("add_space_prefix", True)),
        removes_spaces=bool(facts.get("remove_extra_whitespaces", True)),
    )
    return sentencepiece_tokenizer(model)


def words_and_parts(facts: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """BERT's WordPiece: here a word's start is marked, there its continuation is."""
    kinds = facts.get("token_type") or [NORMAL] * len(tokens)
    names = []
    for token, kind in zip(tokens, kinds, strict=True):
        special = kind in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]"))
        names.append(token if special else token[1:] if token.startswith(SPACE) else f"##{token}")
    return bert_parts(ids_of(names), {})


def add_marked(tokenizer: Tokenizer, facts: Mapping[str, Any], tokens: Sequence[str]) -> None:
    for token, kind in zip(tokens, facts.get("token_type") or (), strict=False):
        if kind in (CONTROL, UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def pieces_of(facts: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Piece, ...]:
    scores, kinds = facts.get("scores"), facts.get("token_type")
    if scores is None or kinds is None or not len(scores) == len(kinds) == len(tokens):
        raise QkvError(f"The GGUF file should have a score and a type for each of its {len(tokens)} tokens.")
    return tuple(map(Piece, tokens, map(float, scores), map(int, kinds)))


def merges_in(facts: Mapping[str, Any], tokens: Sequence[str]) -> list[tuple[str, str]]:
    """The two halves of each merge. A half may begin with a space itself, but it is never empty."""
    merges = []
    for merge in facts.get("merges") or ():
        cut = str(merge).find(" ", 1)
        merges.append((str(merge)[:cut], str(merge)[cut + 1 :]))
    if not merges:
        raise QkvError("The GGUF file has a tokenizer without merges: it should list them as tokenizer.ggml.merges.")
    check_merges(merges, ids_of(tokens), "The GGUF file")
    return merges


def ids_of(tokens: Sequence[str]) -> dict[str, int]:
    return {token: place for place, token in enumerate(tokens)}
