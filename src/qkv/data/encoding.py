"""Texts as a model reads them: ids with their segments, their places in the text, and windows of a bounded length."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from qkv.data.tokenizer_files import raised_by_library
from qkv.errors import QkvError

CUTS = {"longest": "longest_first", "first": "only_first", "second": "only_second"}
IN_NO_TEXT = "\U0010ffff"  # a character that Unicode will never define, before a name that texts may not spell


@dataclass(frozen=True)
class Limit:
    """At most `length` tokens, special ones included; `cut` says which text of a pair gives way.

    Without `stride` what is too much is left out. With it nothing is: the text becomes several windows, each of which
    repeats the last `stride` tokens of the one before.
    """

    length: int
    cut: str = "longest"
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.cut not in CUTS:
            raise QkvError(f"There is no way {self.cut!r} to cut texts: there are {', '.join(CUTS)}.")
        if self.length < 1:
            raise QkvError(f"Texts cannot be cut to {self.length} tokens: it should be at least one.")
        if self.stride is not None and not 0 <= self.stride < self.length:
            raise QkvError(f"Windows of {self.length} tokens cannot share {self.stride}: it should be fewer.")


@dataclass(frozen=True)
class Encoding:
    """One text or pair of texts, or one window of it. All tuples have an entry for each token."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]  # what BERT calls token types: 0 for the first text, 1 for the second
    offsets: tuple[tuple[int, int], ...]  # from which character to which, (0, 0) for added tokens
    words: tuple[int | None, ...]  # number of the word in its text, None for added tokens
    sides: tuple[int | None, ...]  # 0 for the first text, 1 for the second, None for added tokens
    special: tuple[bool, ...]  # whether the token was added around the texts
    row: int  # which of the given texts this is, or is a window of

    def __len__(self) -> int:
        return len(self.ids)


class NotText:
    """Turns the library's complaints about what cannot be encoded into a `QkvError`."""

    def __init__(self, values: Sequence[object]):
        self.values = values

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if raised_by_library(kind):  # no token for the unknown, or too long a text that may not be cut
            raise QkvError(f"The tokenizer cannot cut this text as it should: {error}.") from error
        if kind is not None and issubclass(kind, TypeError | UnicodeEncodeError):
            for value in self.values:
                if not is_text(value):
                    raise QkvError(f"Only text can be encoded, and {value!r} is no valid text.") from error


def check_texts(texts: object, what: str = "text") -> list[str]:
    """A list of texts; a single one would be read letter by letter. `what` is what a text is called."""
    if isinstance(texts, str):
        raise QkvError(f"Give a list of {what}s, not a single text: put the one {what} into brackets.")
    if not isinstance(texts, Iterable):
        raise QkvError(f"Give a list of {what}s, not {texts!r:.60}.")
    found = list(texts)
    for text in found:
        if not isinstance(text, str):
            raise QkvError(f"Only text can be encoded, and {text!r:.60} is no valid text.")
    return found


def is_text(value: object) -> bool:
    """Says whether this is a string of whole characters."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def room_of(tokenizer: Tokenizer, limit: Limit, special: bool, pairs: bool) -> int:
    """How many tokens a limit leaves to texts."""
    added = tokenizer.num_special_tokens_to_add(pairs) if special else 0
    room = limit.length - added
    if room < 1 or (limit.stride is not None and limit.stride >= room):
        raise QkvError(
            f"A limit of {limit.length} tokens leaves {max(room, 0)} beside the {added} special ones, "
            f"of which {limit.stride or 0} would be shared: it should be longer."
        )
    if limit.cut == "second" and not pairs:
        raise QkvError("Only pairs of texts can be cut in the second one: for single texts cut the longest.")
    return room


def limited(tokenizer: Tokenizer, limit: Limit, special: bool, pairs: bool) -> Tokenizer:
    """The same tokenizer, cutting to a limit; the one given stays as it is."""
    room_of(tokenizer, limit, special, pairs)
    cutting = twin(tokenizer)
    cutting.enable_truncation(limit.length, stride=limit.stride or 0, strategy=CUTS[limit.cut])
    return cutting


def twin(tokenizer: Tokenizer, ordinary: Collection[int] = ()) -> Tokenizer:
    """A tokenizer with settings of its own that shares the vocabulary, which would be slow to copy.

    The tokens `ordinary` are special no longer: text may spell them.
    """
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    tokens = [_ordinary(token) if number in ordinary else token for number, token in added]
    other = around(tokenizer.model, tokenizer, tokens)
    if sorted(other.get_added_tokens_decoder()) != [number for number, _ in added]:
        state = json.loads(tokenizer.to_str())  # numbers with gaps between them, which only a file keeps
        for token in state["added_tokens"]:
            token["special"] &= token["id"] not in ordinary
        other = Tokenizer.from_str(json.dumps(state))
        other.encode_special_tokens = tokenizer.encode_special_tokens
    return other


def _ordinary(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        special=False,
        normalized=token.normalized,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
    )


def deaf_to(names: Collection[int], tokenizer: Tokenizer) -> Tokenizer:
    """A unigram tokenizer that cuts text that spells these tokens of its vocabulary into other pieces.

    The library looks for every piece of the vocabulary in the text, so these are given a spelling that no text has.
    """
    state = json.loads(tokenizer.to_str())["model"]
    pieces = [
        (f"{IN_NO_TEXT}{text}" if place in names else text, score) for place, (text, score) in enumerate(state["vocab"])
    ]
    model = models.Unigram(pieces, unk_id=state.get("unk_id"), byte_fallback=state.get("byte_fallback", False))
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    return around(model, tokenizer, [token for number, token in added if number not in names or number >= len(pieces)])


def around(model: models.Model, tokenizer: Tokenizer, added: Iterable[AddedToken]) -> Tokenizer:
    """A model with all the other parts of a tokenizer."""
    other = Tokenizer(model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(other, part, getattr(tokenizer, part))
    for token in added:  # one by one, since the library adds special and other tokens by different calls
        (other.add_special_tokens if token.special else other.add_tokens)([token])
    other.encode_special_tokens = tokenizer.encode_special_tokens
    return other


def encodings_of(
    tokenizer: Tokenizer, inputs: Sequence[Any], *, special: bool, words: bool, windows: bool
) -> Iterator[Encoding]:
    """The encodings of texts, of pairs of texts or of lists of words, and of their further windows if asked for."""
    found = tokenizer.encode_batch(list(inputs), is_pretokenized=words, add_special_tokens=special)
    for row, first in enumerate(found):
        for one in [first, *first.overflowing] if windows else [first]:
            yield Encoding(
                ids=tuple(one.ids),
                segments=tuple(one.type_ids),
                offsets=tuple(one.offsets),
                words=tuple(one.word_ids),
                sides=tuple(one.sequence_ids),
                special=tuple(map(bool, one.special_tokens_mask)),
                row=row,
            )
