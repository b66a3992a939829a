"""Words that were met before: texts are cut by looking up their words, all at once and without a loop.

A tokenizer that looks at nothing beyond a space cuts a text into what it cuts its words into, one after the other. So
the library is asked for each word once. In books and in sentences most words have been met, and looking up costs a
small part of cutting, on one core. BERT's cuts at each sign too, so there "end" and "end." are one word.

A word is a pair of numbers that hold its letters as they are in UTF-8, and how many. Words too long for that are kept
by a dictionary.

Shapes: n texts, w words of all of them together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from string import punctuation
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from qkv.data.token_rows import Ints, TokenRows, offsets_of

Numbers = NDArray[np.uint64]

CUTTERS = (models.WordPiece, models.WordLevel)  # each word by itself, the same whenever it comes
APART = (pre_tokenizers.BertPreTokenizer, pre_tokenizers.Whitespace, pre_tokenizers.WhitespaceSplit)
LETTER_BY_LETTER = (type(None), normalizers.BertNormalizer, normalizers.Lowercase)
AROUND = (type(None), processors.TemplateProcessing, processors.BertProcessing, processors.RobertaProcessing)

LETTER, SPACE, SIGN = 0, 1, 2  # kinds of bytes; a sign is a word by itself
LONGEST = 15  # bytes of a word that a pair of numbers holds beside their count
COUNT_AT = np.uint64(56)  # bits of the second number before the count
KEPT = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # the first bytes of eight
BITS = 18
SLOTS = 1 << BITS
MOST = SLOTS // 2  # words; when there are more, all are forgotten
MOST_TOKENS = 1 << 21  # and likewise tokens of all words
AT_ONCE = 2 * MOST  # bytes of text that are looked up together, which hold hardly more words than the table may


def cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Says whether a text is surely cut as its words are, and always has something put around it that is the same.

    Tokens that the library looks for in texts before it cuts them may hold spaces, or take those around them; special
    ones are not looked for where texts may not spell them.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        isinstance(tokenizer.model, CUTTERS)
        and tokenizer.token_to_id(tokenizer.model.unk_token) is not None
        and isinstance(tokenizer.pre_tokenizer, APART)
        and isinstance(tokenizer.normalizer, LETTER_BY_LETTER)
        and isinstance(tokenizer.post_processor, AROUND)
        and tokenizer.encode_special_tokens
        and all(token.special for token in added)
        and _stands_once(tokenizer)
    )


def _stands_once(tokenizer: Tokenizer) -> bool:
    """Whether a text is in one piece among what is put around it."""
    before, behind = put_around(tokenizer)
    row = [*before, *tokenizer.encode("a", add_special_tokens=False).ids, *behind]
    return bool(tokenizer.encode("a", add_special_tokens=True).ids == row)


def signs_of(tokenizer: Tokenizer) -> str:
    """Which signs of ASCII are words by themselves to a tokenizer that cuts at spaces."""
    return punctuation if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer) else ""


def kinds_of_bytes(signs: str) -> bytes:
    """The kind of each of the 256."""
    known = {ord(" "): SPACE, **dict.fromkeys(signs.encode(), SIGN)}
    return bytes(known.get(byte, LETTER) for byte in range(256))


def put_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What a tokenizer that cuts at spaces puts before and behind a text."""
    found = tokenizer.encode("a", add_special_tokens=True)
    own = [place for place, added in enumerate(found.special_tokens_mask) if not added]
    return found.ids[: own[0]], found.ids[own[-1] + 1 :]


@dataclass(frozen=True)
class Words:
    """Stretches of a text without a space or a sign, and signs."""

    content: bytes
    firsts: Ints  # [w]
    lengths: Ints  # [w] bytes, one at least
    heads: Numbers  # [w]: the first eight bytes
    tails: Numbers  # [w]: the next seven, and how many there are in all

    @classmethod
    def of(cls, content: bytes, kinds: bytes) -> "Words":
        kind = np.frombuffer(b" ".join((b"", content, b"")).translate(kinds), np.uint8)
        before, here, behind = kind[:-2], kind[1:-1], kind[2:]
        firsts = np.flatnonzero((here == SIGN) | ((here == LETTER) & (before != LETTER)))
        lasts = np.flatnonzero((here == SIGN) | ((here == LETTER) & (behind != LETTER)))
        lengths = lasts + 1 - firsts
        eight = np.ndarray(len(content) + 9, "<u8", content + bytes(16), strides=(1,))  # from each byte on
        heads = eight[firsts] & KEPT[np.minimum(lengths, 8)]
        tails = eight[firsts + 8] & KEPT[np.clip(lengths - 8, 0, 7)]
        tails |= np.minimum(lengths, 255).astype(np.uint64) << COUNT_AT
        return cls(content, firsts, lengths, heads, tails)

    def some(self, places: Ints) -> "Words":
        firsts, lengths = self.firsts[places], self.lengths[places]
        return Words(self.content, firsts, lengths, self.heads[places], self.tails[places])

    def spelled(self) -> list[bytes]:
        lasts = (self.firsts + self.lengths).tolist()
        return [self.content[first:last] for first, last in zip(self.firsts.tolist(), lasts, strict=True)]


class WordTable:
    """What `cut` makes of words, kept for the next time. Serves several threads."""

    def __init__(self, cut: Callable[[list[str]], Iterable[Sequence[int]]], signs: str, pad: int) -> None:
        """`signs` are those that `cut` takes for words by themselves, if there are any."""
        self._rows_of = partial(TokenRows.from_lists, pad=pad)
        self._cut, self._kinds = cut, kinds_of_bytes(signs)
        self._alone = Lock()
        self._forget()

    def rows(self, texts: Sequence[str]) -> TokenRows:
        """What each of one or more texts is cut into."""
        encoded = [text.encode() for text in texts]
        content = b" ".join(encoded)
        if len(content) > AT_ONCE:
            if len(texts) == 1:
                return self._rows_of(self._cut(list(texts)))
            half = len(texts) // 2
            return TokenRows.joined([self.rows(texts[:half]), self.rows(texts[half:])])
        words = Words.of(content, self._kinds)
        with self._alone:
            numbers, known = self._learned(words), self._rows
        found = known.chosen(numbers)
        begins = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1)  # [n + 1]
        return TokenRows(found.ids, found.offsets[np.searchsorted(words.firsts, begins)], found.pad)

    def _forget(self) -> None:
        # Drawn anew for each table, so that nobody can write words that all want the same slot.
        self._factors = np.random.default_rng().integers(1 << 63, size=2, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._slots = np.zeros((SLOTS, 3), np.uint64)  # head, tail and number of a word, side by side; 0: free
        self._long: dict[bytes, int] = {}
        self._rows = self._rows_of([()])

    def _learned(self, words: Words) -> Ints:
        """The numbers of words. Those that are new are cut before."""
        numbers = self._numbers_of(words)
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return numbers
        new = list(dict.fromkeys(words.some(missing).spelled()))
        if len(self._rows) > 1 and (len(self._rows) + len(new) > MOST or len(self._rows.ids) > MOST_TOKENS):
            self._forget()
            return self._learned(words)
        self._learn(new)
        numbers[missing] = self._numbers_of(words.some(missing))
        return numbers

    def _numbers_of(self, words: Words) -> Ints:
        """-1 for a word that is new. [w]"""
        numbers = self._numbers_from(self._places_of(words), words)
        long = np.flatnonzero(words.lengths > LONGEST)
        numbers[long] = [self._long.get(word, -1) for word in words.some(long).spelled()]
        return numbers

    def _numbers_from(self, places: Ints, words: Words) -> Ints:
        """The same of short words; where another has a word's slot, it may be in the next one."""
        heads, tails, found = self._slots.take(places, axis=0).T
        there = (heads == words.heads) & (tails == words.tails)
        numbers = np.where(there, found.view(np.int64), -1)
        others = np.flatnonzero(~there & (found != 0))
        if len(others):
            numbers[others] = self._numbers_from((places[others] + 1) % SLOTS, words.some(others))
        return numbers

    def _learn(self, new: list[bytes]) -> None:
        words = Words.of(b" ".join(new), self._kinds)
        numbers = np.arange(len(new)) + len(self._rows)
        self._rows = TokenRows.joined([self._rows, self._rows_of(self._cut([word.decode() for word in new]))])
        long = np.flatnonzero(words.lengths > LONGEST)
        self._long.update(zip(words.some(long).spelled(), numbers[long].tolist(), strict=True))
        left = np.flatnonzero(words.lengths <= LONGEST)
        places = self._places_of(words)[left]
        entries = np.stack([words.heads, words.tails, numbers.astype(np.uint64)], 1)
        while len(left):
            free = self._slots[places, 2] == 0
            self._slots[places[free]] = entries[left[free]]  # of several that want a slot the last gets it
            waits = self._slots[places, 2] != entries[left, 2]
            left, places = left[waits], (places[waits] + 1) % SLOTS

    def _places_of(self, words: Words) -> Ints:
        """Where the search for each begins. [w]"""
        mixed = words.heads * self._factors[0] + words.tails * self._factors[1]
        return (mixed >> np.uint64(64 - BITS)).astype(np.int64)
