"""Text to ids and back: one wrapper around `tokenizers.Tokenizer`, with seven ways of cutting text.

The wrapper never adds special tokens (batches do, in `pairs.py`), and text that happens to spell one stays text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models

from qkv.data.token_kinds import BYTE_SPELLINGS, KINDS
from qkv.errors import QkvError

# The first name that a tokenizer knows is taken; ours are first, then those of well-known published tokenizers.
SPECIAL_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "start": ("<s>", "[CLS]", "[BOS]", "<bos>", "<|startoftext|>"),
    "end": ("</s>", "[SEP]", "[EOS]", "<eos>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
}
BYTE_OF = {spelling: byte for byte, spelling in enumerate(BYTE_SPELLINGS)}
ENCODED_AT_ONCE = 8192  # texts; bounds what the library holds beside the ids


class TextTokenizer:
    """A vocabulary and the way to cut text into it. In those made here `<pad>`=0, `<s>`=1, `</s>`=2 and `<unk>`=3."""

    def __init__(self, tokenizer: Tokenizer):
        """Wrap a tokenizer made anywhere, so long as its special tokens can be found under a usual name."""
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        found = {}
        for role, names in SPECIAL_NAMES.items():
            known = [name for name in names if name in vocabulary]
            if not known:
                raise QkvError(f"The tokenizer has no {role} token: it should know one of {' '.join(names)}.")
            found[role] = known[0]
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # a text that spells a special token is cut like any other text
        self._tokenizer = tokenizer
        self._with_dropout: dict[float, Tokenizer] = {}
        self._specials = {vocabulary[name]: name for name in found.values()}
        self.pad: int = vocabulary[found["pad"]]
        self.start: int = vocabulary[found["start"]]
        self.end: int = vocabulary[found["end"]]
        self.unknown: int = vocabulary[found["unknown"]]
        self.size: int = max(vocabulary.values()) + 1

    def __reduce__(self) -> tuple[type["TextTokenizer"], tuple[Tokenizer]]:
        """For other processes: the library's own copy forgets that texts may not spell special tokens."""
        return type(self), (self._tokenizer,)

    def __repr__(self) -> str:
        return f"TextTokenizer({type(self._tokenizer.model).__name__}, {self.size} tokens)"

    @classmethod
    def train(
        cls, kind: str, texts: Iterable[str], *, vocabulary: int | None = None, lowercase: bool = False
    ) -> "TextTokenizer":
        """Learn a vocabulary of at most `vocabulary` tokens from texts; the kinds are those of `token_kinds.KINDS`."""
        if kind not in KINDS:
            raise QkvError(f"There is no tokenizer kind {kind!r}: the kinds are {', '.join(KINDS)}.")
        texts = list(texts)
        if not any(texts):
            raise QkvError(f"A {kind} tokenizer cannot be trained without any text.")
        return cls(KINDS[kind](texts, vocabulary, lowercase))

    @classmethod
    def load(cls, file: Path) -> "TextTokenizer":
        """Read a `tokenizer.json`, ours or one made elsewhere."""
        try:
            content = Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise QkvError(f"{file} is not a tokenizer file: it is not text.") from error
        except OSError as error:
            raise QkvError(f"The tokenizer file {file} cannot be read: {error.strerror}.") from error
        with _LibraryErrors(f"{file} is not a whole tokenizer file"):
            tokenizer = Tokenizer.from_str(content)
        try:
            return cls(tokenizer)
        except QkvError as error:
            raise QkvError(f"{file} cannot be used. {error}") from error

    def save(self, file: Path) -> None:
        """Write `tokenizer.json` as the tokenizers library does."""
        try:
            Path(file).write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")
        except OSError as error:
            raise QkvError(f"The tokenizer file {file} cannot be written: {error.strerror}.") from error

    def encode(self, texts: Sequence[str], *, subword_dropout: float = 0.0) -> list[list[int]]:
        """The ids of each text, without special tokens, computed on all cores.

        With `subword_dropout` each merge of a BPE tokenizer is left out with this probability, so that a text is cut
        differently each time [provilkov2020 §3.1]: a regulariser for training. The library draws from a generator that
        cannot be seeded, so two runs see different cuts.
        """
        tokenizer = self._dropping(subword_dropout) if subword_dropout else self._tokenizer
        ids: list[list[int]] = []
        for first in range(0, len(texts), ENCODED_AT_ONCE):
            some = list(texts[first : first + ENCODED_AT_ONCE])
            try:
                encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
            except TypeError as error:
                raise QkvError(f"Only text can be encoded, and {first_not_text(some)!r} is no valid text.") from error
            ids.extend(encoding.ids for encoding in encodings)
        names = list(self._specials.values())
        for place, text in enumerate(texts):
            if any(name in text or name in text.lower() for name in names):
                # Where the name is a whole word of the text, the vocabulary knows it: not by this door.
                ids[place] = [self.unknown if token in self._specials else token for token in ids[place]]
        return ids

    def _dropping(self, rate: float) -> Tokenizer:
        """A copy of the tokenizer that drops merges, so that encoding without dropout may go on beside it."""
        if not isinstance(self._tokenizer.model, models.BPE):
            raise QkvError("Subword dropout leaves out merges, so it needs a bpe tokenizer.")
        if not 0 < rate <= 1:
            raise QkvError(f"The subword dropout {rate} is no probability: it should lie between 0 and 1.")
        if rate not in self._with_dropout:
            copy = Tokenizer.from_str(self._tokenizer.to_str())
            copy.encode_special_tokens = True
            copy.model.dropout = rate
            self._with_dropout[rate] = copy
        return self._with_dropout[rate]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids up to the first `</s>`, special tokens left out."""
        ids = self._checked(ids)
        if self.end in ids:
            ids = ids[: ids.index(self.end)]
        return self._tokenizer.decode([token for token in ids if token not in self._specials])

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable label for each id: `▁` for a space, a character for its bytes, `\\xe2` for part of one."""
        names = [self._tokenizer.id_to_token(token) or "" for token in self._checked(ids)]
        byte_level = "ByteLevel" in str(self._tokenizer.pre_tokenizer)
        return [
            name if token in self._specials else readable(from_byte_level(name) if byte_level else name)
            for token, name in zip(ids, names, strict=True)
        ]

    def fingerprint(self) -> str:
        """A short name for this very vocabulary and way of cutting, equal after saving and loading."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()[:16]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in ids]
        for token in ids:
            if not 0 <= token < self.size:
                raise QkvError(f"The id {token} is not in this tokenizer's vocabulary of {self.size} tokens.")
        return ids


class _LibraryErrors:
    """Turns what the tokenizers library raises into a `QkvError`.

    For a file that it cannot read the library raises a bare `Exception`. Only that very type is turned, so that errors
    with a type of their own, which are bugs or interruptions, still show as what they are.
    """

    def __init__(self, what: str):
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is Exception:
            raise QkvError(f"{self.what}: {error}.") from error


def first_not_text(values: Sequence[object]) -> object:
    """The first value that is no string of whole characters."""
    for value in values:
        try:
            if not isinstance(value, str):
                return value
            value.encode()
        except UnicodeEncodeError:
            return value
    return None


def from_byte_level(token: str) -> str:
    """The text behind a byte-level token, with `\\xe2` where a character is cut in the middle."""
    if any(character not in BYTE_OF for character in token):
        return token  # not spelled in bytes: a token that was added to the vocabulary by hand
    return bytes(BYTE_OF[character] for character in token).decode(errors="backslashreplace")


def readable(text: str) -> str:
    """A label that shows what would be invisible on a plot."""
    text = text.replace(" ", "▁")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
