"""The kinds of tokenizer that can be trained, one function a kind.

| kind         | a token is                           | decoding gives back                                         |
|--------------|--------------------------------------|-------------------------------------------------------------|
| `word`       | a word or a run of punctuation       | the words with single spaces between them                   |
| `symbols`    | what stands between white space      | the symbols with single spaces (phonemes: `K AE1 T`)        |
| `characters` | a Unicode character                  | the text, but for characters never seen in training         |
| `bpe`        | bytes merged by frequency            | the very text                                               |
| `wordpiece`  | the start or continuation of a word  | the words, spaced as English is                             |
| `unigram`    | bytes, cut by likelihood             | the very text                                               |
| `bytes`      | a byte                               | the very text                                               |

"The very text" is exact for every string, whatever its script, emoji, control characters or spaces. With `lowercase` it
is the lower-cased text.

Training is deterministic for all kinds but `wordpiece` and `unigram`, where the library breaks ties and sums
likelihoods in an order that varies from run to run.
"""

import json
from collections.abc import Callable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from qkv.errors import QkvError

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
BYTES = 256
# The byte-level kinds spell a byte as one visible character, by the library's and [radford2019]'s convention: visible
# ones as themselves, the others by the characters from 256 on.
ITSELF = {ord(character) for character in pre_tokenizers.ByteLevel.alphabet() if ord(character) < BYTES}
HIDDEN = sorted(set(range(BYTES)) - ITSELF)
BYTE_SPELLINGS = [chr(byte) if byte in ITSELF else chr(BYTES + HIDDEN.index(byte)) for byte in range(BYTES)]
SUBWORDS = 16_000  # vocabulary of the subword kinds where none is asked for
EVERYTHING = 2**31  # vocabulary of the other kinds where none is asked for: all that is met


def train_words(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    return train_whole(pre_tokenizers.Whitespace(), None, texts, vocabulary, lowercase)


def train_symbols(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    # A symbol spelled like a special token must not take its place in the vocabulary; in texts to come it is unknown.
    ordinary = [" ".join(symbol for symbol in text.split() if symbol.lower() not in SPECIALS) for text in texts]
    return train_whole(pre_tokenizers.WhitespaceSplit(), None, ordinary, vocabulary, lowercase)


def train_characters(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    each = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return train_whole(each, decoders.Fuse(), texts, vocabulary, lowercase)


def train_whole(
    cut: pre_tokenizers.PreTokenizer,
    join: decoders.Decoder | None,
    texts: Sequence[str],
    vocabulary: int | None,
    lowercase: bool,
) -> Tokenizer:
    """A vocabulary of the most frequent pieces, none of which is cut further."""
    size = at_least(len(SPECIALS) + 1, vocabulary, EVERYTHING)
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = cut
    if join is not None:  # without a decoder the pieces are joined by spaces
        tokenizer.decoder = join
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def train_bpe(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    """Byte-pair encoding [sennrich2016] over bytes rather than characters [radford2019 §2.2]: nothing is unknown."""
    tokenizer = byte_level(models.BPE(), lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=at_least(len(SPECIALS) + BYTES, vocabulary, SUBWORDS),
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def train_unigram(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    """The most likely cut under a unigram language model of pieces [kudo2018 §3.2], over bytes so that none is unknown.

    Scores are rounded, since the library does not read back every float exactly as it wrote it, and a saved tokenizer
    must cut as the trained one did.
    """
    tokenizer = byte_level(models.Unigram(), lowercase)
    trainer = trainers.UnigramTrainer(
        vocab_size=at_least(len(SPECIALS) + BYTES, vocabulary, SUBWORDS),
        special_tokens=SPECIALS,
        unk_token="<unk>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"] = [[piece, round(score, 6)] for piece, score in state["model"]["vocab"]]
    return Tokenizer.from_str(json.dumps(state))


def train_bytes(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    """Byte b is the id b + 4: nothing to learn, so the texts only have to be there."""
    if vocabulary not in (None, len(SPECIALS) + BYTES):
        raise QkvError(f"A bytes tokenizer always has {len(SPECIALS) + BYTES} tokens, so {vocabulary} cannot be had.")
    ids = {token: place for place, token in enumerate(SPECIALS + BYTE_SPELLINGS)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def train_wordpiece(texts: Sequence[str], vocabulary: int | None, lowercase: bool) -> Tokenizer:
    """Longest known piece first, continuations marked `##` [wu2016 §4.1]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    size = at_least(len(SPECIALS) + 1, vocabulary, SUBWORDS)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def byte_level(model: models.Model, lowercase: bool) -> Tokenizer:
    """A tokenizer over bytes that starts every text with a space of its own, and takes that one away in decoding.

    With the space, a word is the same token at the start of a text as inside it; and since it is added always, not only
    where none is there already, decoding gives back the very text.
    """
    tokenizer = Tokenizer(model)
    space = normalizers.Prepend(" ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), space]) if lowercase else space
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def at_least(least: int, vocabulary: int | None, default: int) -> int:
    """The size asked for, or the default; a sentence where it leaves no room for the tokens that must be there."""
    if vocabulary is not None and vocabulary < least:
        raise QkvError(f"A vocabulary of {vocabulary} tokens is too small for this kind: it needs at least {least}.")
    return default if vocabulary is None else vocabulary


KINDS: dict[str, Callable[[Sequence[str], int | None, bool], Tokenizer]] = {
    "word": train_words,
    "symbols": train_symbols,
    "characters": train_characters,
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
    "bytes": train_bytes,
}
