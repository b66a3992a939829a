"""Sentinels: tokens that stand for stretches left out of a text, spelled as T5 does. [raffel2020 §3.1.4]"""

import re

from tokenizers import AddedToken, Tokenizer

from qkv.data.piece_tokenizers import SENTINELS
from qkv.data.token_roles import frame
from qkv.data.tokenizer import TextTokenizer

SPELLED = re.compile(r"<extra_id_\d+>")


def sentinels_of(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` and so on; none where the vocabulary has no such tokens."""
    found: list[int] = []
    while tokenizer.knows(name := f"<extra_id_{len(found)}>"):
        found.append(tokenizer.id_of(name))
    return tuple(found)


def with_sentinels(tokenizer: TextTokenizer) -> TextTokenizer:
    """A tokenizer made here with a hundred sentinels more, counted down as T5's are, and `</s>` behind each text.

    One that has sentinels already, such as a published one, is given back as it is.
    """
    if sentinels_of(tokenizer):
        return tokenizer
    made = Tokenizer.from_str(tokenizer.library_state())
    names = [f"<extra_id_{number}>" for number in reversed(range(SENTINELS))]
    # Where words bring their own space, the one that is typed beside a sentinel would be a second.
    alone, twice = tokenizer.encode(["a", "a a"])
    bring = len(twice) == 2 * len(alone)
    made.add_special_tokens([AddedToken(name, special=True, lstrip=bring, rstrip=bring) for name in names])
    frame(made, tokenizer.roles, starts=False, ends=True)
    return TextTokenizer(made).with_roles(**tokenizer.roles)


def hearing_sentinels(tokenizer: TextTokenizer) -> TextTokenizer:
    """The same tokenizer, for which a text that spells a sentinel means it; other special tokens stay unheard."""
    sentinels = sentinels_of(tokenizer)
    return tokenizer.hearing(sentinels) if sentinels else tokenizer


def spells_sentinels(text: str) -> bool:
    return SPELLED.search(text) is not None
