"""Text to ids and back: one wrapper around `tokenizers.Tokenizer`, for those trained here and for published ones.

Unless it is asked to, the wrapper adds no special tokens, and text that happens to spell one stays text.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from qkv.data.encoding import Encoding, Limit, NotText, check_texts, deaf_to, encodings_of, limited, room_of, twin
from qkv.data.token_kinds import KINDS
from qkv.data.token_labels import from_byte_level, readable
from qkv.data.token_roles import LARGEST_VOCABULARY, USUAL_NAMES, TokenizerNotes, WithRoles, cleaned_up, found_roles
from qkv.data.token_rows import TokenRows
from qkv.data.tokenizer_files import notes_file, read_object, read_tokenizer_file, write_tokenizer_file
from qkv.data.word_table import WordTable, cuts_at_spaces, put_around, signs_of
from qkv.errors import QkvError

ENCODED_AT_ONCE = 8192  # texts; bounds what the library holds beside the ids
ENOUGH = 1024  # characters from which on looking words up is worth its beginning


class TextTokenizer(WithRoles):
    """A vocabulary and the way to cut text into it. In those made here `<pad>`=0, `<s>`=1, `</s>`=2 and `<unk>`=3.

    The roles `pad`, `start`, `end`, `unknown`, `mask`, `classifier` and `separator` are ids. A published tokenizer may
    lack some: `has` tells, and asking for one that is not there raises. Where there is no start or end, as in BERT's,
    the classifier and the separator stand in for them.
    """

    def __init__(self, tokenizer: Tokenizer, notes: TokenizerNotes | None = None):
        """Wrap a tokenizer made anywhere; `notes` name its special tokens where they have no usual name."""
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise QkvError("The tokenizer has no tokens at all, so it cannot cut any text.")
        if max(vocabulary.values()) >= LARGEST_VOCABULARY:
            raise QkvError(f"The tokenizer numbers a token {max(vocabulary.values()):,}, far beyond any vocabulary.")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # a text that spells a special token is cut like any other text
        self.notes = notes or TokenizerNotes()
        self.roles: dict[str, str] = found_roles(tokenizer, self.notes.roles)
        self.size: int = self.notes.known or max(vocabulary.values()) + 1
        self.cleans_up = self.notes.clean_up and not isinstance(tokenizer.model, models.BPE)
        self._tokenizer = tokenizer
        self._with_dropout: dict[float, Tokenizer] = {}
        self._deaf: Tokenizer | None = None
        self._words: WordTable | None = None
        self._obeying: Tokenizer | None = None
        self._ids = {role: vocabulary[token] for role, token in self.roles.items()}
        added = tokenizer.get_added_tokens_decoder().items()
        self._specials = {number for number, token in added if token.special} | set(self._ids.values())
        # What no text may give. A name of one character is no name: some CLIP tokenizers pad with an exclamation mark.
        self._never_text = {token for token in self._specials if len(tokenizer.id_to_token(token) or "") > 1}
        self._never_text.discard(self._ids.get("unknown", -1))

    def __reduce__(self) -> tuple[type["TextTokenizer"], tuple[Tokenizer, TokenizerNotes]]:
        """For other processes: the library's own copy forgets that texts may not spell special tokens."""
        return type(self), (self._tokenizer, self.notes)

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
        """Read a `tokenizer.json` that was saved here or made elsewhere, with the notes beside it if there are any.

        The folder of a published model may hold its tokenizer in other files: `published_tokenizer.read_tokenizer`.
        """
        tokenizer = read_tokenizer_file(Path(file))
        try:
            return cls(tokenizer, TokenizerNotes.from_published(read_object(notes_file(Path(file)))))
        except QkvError as error:
            raise QkvError(f"{file} cannot be used. {error}") from error

    def save(self, file: Path) -> None:
        """Write `tokenizer.json` as the tokenizers library does, and `tokenizer_config.json` with the roles beside it.

        Other libraries open such a folder with the same roles.
        """
        write_tokenizer_file(Path(file), self._tokenizer, self.notes, self.roles)

    def with_roles(self, **tokens: str) -> "TextTokenizer":
        """The same tokenizer with other tokens for some roles: T5 decodes from its padding, `start="<pad>"`."""
        for role in tokens:
            if role not in USUAL_NAMES:
                raise QkvError(f"There is no role {role!r}: the roles are {', '.join(USUAL_NAMES)}.")
        return type(self)(self._tokenizer, replace(self.notes, roles=self.roles | tokens))

    def with_spare(self, rows: int) -> "TextTokenizer":
        """The same tokenizer with the note that its model has so many rows more than there are tokens."""
        return type(self)(self._tokenizer, replace(self.notes, roles=self.roles, spare=rows))

    def hearing(self, tokens: Collection[int]) -> "TextTokenizer":
        """The same tokenizer, to which these special tokens are like any other: text may spell them, and shows them."""
        return type(self)(twin(self._tokenizer, tokens), replace(self.notes, roles=self.roles))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that stand for no text."""
        return frozenset(self._specials)

    def knows(self, token: str) -> bool:
        """Says whether the vocabulary spells a token so."""
        return self._tokenizer.token_to_id(token) is not None

    def id_of(self, token: str) -> int:
        """The id of a token as the vocabulary spells it, such as `<extra_id_0>`."""
        number: int | None = self._tokenizer.token_to_id(token)
        if number is None:
            raise QkvError(f"This tokenizer's vocabulary of {self.size} tokens does not know {token!r}.")
        return number

    def spelling(self, token: int) -> str:
        """The token as the vocabulary spells it."""
        name: str | None = self._tokenizer.id_to_token(self._checked([token])[0])
        if name is None:
            raise QkvError(f"The id {token} stands for no token of this vocabulary.")
        return name

    def encode(
        self,
        texts: Sequence[str],
        *,
        special: bool = False,
        allow_special: bool = False,
        subword_dropout: float = 0.0,
        limit: Limit | None = None,
    ) -> list[list[int]]:
        """The ids of each text, computed on all cores.

        With `special` the tokens stand around each text that the model expects there, `[CLS] … [SEP]`. Text that spells
        a special token stays text unless `allow_special`, which is for text that was put together on purpose. What is
        beyond a `limit` is left out: windows that overlap need `encodings`.

        With `subword_dropout` each merge of a BPE tokenizer is left out with this probability, so that a text is cut
        differently each time [provilkov2020 §3.1]: a regulariser for training. The library draws from a generator that
        cannot be seeded, so two runs see different cuts.
        """
        if subword_dropout and allow_special:
            raise QkvError("Subword dropout is for training texts, in which no special tokens can be allowed.")
        if limit is not None and limit.stride is not None:
            raise QkvError("Windows that overlap tell where they begin: take encodings in place of ids.")
        texts = check_texts(texts)
        tokenizer = self._dropping(subword_dropout) if subword_dropout else self._reader(allow_special)
        if limit is not None:
            tokenizer = limited(tokenizer, limit, special, pairs=False)
        ids: list[list[int]] = []
        for first in range(0, len(texts), ENCODED_AT_ONCE):
            some = texts[first : first + ENCODED_AT_ONCE]
            with NotText(some):
                encodings = tokenizer.encode_batch_fast(some, add_special_tokens=special)
            for one in encodings:
                row, added = one.ids, one.special_tokens_mask if special else ()
                if self._in_doubt(row, added, allow_special):
                    row = list(self._admitted(row, one.special_tokens_mask, allow_special))
                ids.append(row)
        return ids

    def encode_rows(self, texts: Sequence[str], *, special: bool = False, limit: Limit | None = None) -> TokenRows:
        """The same ids as `encode` gives, flat: for many texts, of which most words were met before."""
        texts = check_texts(texts)
        pad = self.pad if self.has("pad") else 0
        tokenizer = self._reader(allow_special=False)
        few = sum(map(len, texts)) < ENOUGH
        if few or (limit is not None and limit.stride is not None) or not cuts_at_spaces(tokenizer):
            return TokenRows.from_lists(self.encode(texts, special=special, limit=limit), pad)
        if self._words is None:
            self._words = WordTable(self.encode, signs_of(tokenizer), pad)
        with NotText(texts):
            rows = self._words.rows(texts)
        if limit is not None:
            rows = rows.shortened(room_of(tokenizer, limit, special, pairs=False))
        return rows.between(*put_around(tokenizer)) if special else rows

    def encodings(
        self, texts: Sequence[str], *, special: bool = True, allow_special: bool = False, limit: Limit | None = None
    ) -> list[Encoding]:
        """Each text with its segments, places and words, and with special tokens around it unless told otherwise.

        Where `limit` asks for overlapping windows a text may give several encodings: `row` tells which text it is.
        """
        return self._encodings(check_texts(texts), special, allow_special, limit)

    def encode_pairs(
        self,
        first: Sequence[str],
        second: Sequence[str],
        *,
        special: bool = True,
        allow_special: bool = False,
        limit: Limit | None = None,
    ) -> list[Encoding]:
        """Two texts as one row: `[CLS] question [SEP] paragraph [SEP]`, segment 0 and segment 1."""
        first, second = check_texts(first), check_texts(second)
        if len(first) != len(second):
            raise QkvError(f"Pairs need as many first texts as second, but there are {len(first)} and {len(second)}.")
        return self._encodings(list(zip(first, second, strict=True)), special, allow_special, limit, pairs=True)

    def encode_words(
        self, rows: Sequence[Sequence[str]], *, special: bool = True, limit: Limit | None = None
    ) -> list[Encoding]:
        """Texts that are cut into words already, as tagged texts are: `words` and `offsets` count by these words."""
        return self._encodings([check_texts(words, "word") for words in rows], special, False, limit, words=True)

    def _encodings(
        self,
        inputs: list[Any],
        special: bool,
        allow_special: bool,
        limit: Limit | None,
        *,
        pairs: bool = False,
        words: bool = False,
    ) -> list[Encoding]:
        tokenizer = self._reader(allow_special)
        if limit is not None:
            tokenizer = limited(tokenizer, limit, special, pairs)
        windows = limit is not None and limit.stride is not None
        with NotText([text for one in inputs for text in (one if pairs or words else (one,))]):
            found = list(encodings_of(tokenizer, inputs, special=special, words=words, windows=windows))
        return [replace(one, ids=tuple(self._admitted(one.ids, one.special, allow_special))) for one in found]

    def _in_doubt(self, ids: Sequence[int], added: Sequence[int], allow_special: bool) -> bool:
        """Says quickly whether some of the ids may be none that text may give; those that were added are not meant."""
        of_text = compress(ids, map(not_, added)) if added else ids
        return self.notes.known is not None or not (allow_special or self._never_text.isdisjoint(of_text))

    def _admitted(self, ids: Sequence[int], added: Sequence[int], allow_special: bool) -> Sequence[int]:
        """The ids as they are, but what text may not give is unknown: special tokens by the back door of a vocabulary
        that holds their names as words, and pieces that the model has no row for."""
        if not allow_special and not self._never_text.isdisjoint(ids):
            pairs = zip(ids, added, strict=True)
            ids = [self.unknown if token in self._never_text and not mark else token for token, mark in pairs]
        if self.notes.known is not None:
            ids = [token if token < self.notes.known else self.unknown for token in ids]
        return ids

    def _reader(self, allow_special: bool) -> Tokenizer:
        if not allow_special:
            if self._deaf is None:
                names = self._never_text | {self._ids.get("unknown", -1)}
                unigram = isinstance(self._tokenizer.model, models.Unigram)
                self._deaf = deaf_to(names, self._tokenizer) if unigram else self._tokenizer
            return self._deaf
        if self._obeying is None:
            self._obeying = twin(self._tokenizer)
            self._obeying.encode_special_tokens = False
        return self._obeying

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

    def decode(self, ids: Sequence[int], *, whole: bool = False, special: bool = False) -> str:
        """The text of the ids up to the first end token, or of all if `whole`; special tokens only if `special`."""
        ids = self._checked(ids)
        if not whole and self.has("end"):
            begun = 1 if ids[:1] == [self.end] and self.has("start") and self.start == self.end else 0
            ids = ids[: ids.index(self.end, begun)] if self.end in ids[begun:] else ids
        if not special:
            ids = [token for token in ids if token not in self._specials]
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        suffix = getattr(self._tokenizer.model, "end_of_word_suffix", None)
        if suffix and self.byte_level:
            text = text.replace(suffix, " ").strip()  # CLIP's, which no decoder of the library takes off
        return cleaned_up(text) if self.cleans_up else text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable label for each id: `▁` for a space, a character for its bytes, `\\xe2` for part of one."""
        names = [self._tokenizer.id_to_token(token) or "" for token in self._checked(ids)]
        text_of = from_byte_level if self.byte_level else str
        return [
            name if token in self._specials else readable(text_of(name)) for token, name in zip(ids, names, strict=True)
        ]

    def names(self) -> list[str]:
        """Each token as the vocabulary spells it; nothing for a number without a token."""
        return [self._tokenizer.id_to_token(token) or "" for token in range(self.size)]

    @property
    def byte_level(self) -> bool:
        """Whether tokens are spelled in signs that stand for single bytes."""
        return "ByteLevel" in str(self._tokenizer.pre_tokenizer)

    def library_state(self) -> str:
        """The tokenizer as the tokenizers library writes it."""
        state: str = self._tokenizer.to_str()
        return state

    def fingerprint(self) -> str:
        """A short name for this very vocabulary and way of cutting, equal after saving and loading."""
        return hashlib.sha256(self.library_state().encode()).hexdigest()[:16]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in ids]
        for token in ids:
            if not 0 <= token < self.size:
                raise QkvError(f"The id {token} is not in this tokenizer's vocabulary of {self.size} tokens.")
        return ids
