"""How English words are pronounced: the CMU pronouncing dictionary, packaged with qkv.

Phonemes are ARPAbet symbols separated by spaces: `cat` is `K AE T`. The dictionary marks vowel stress by a digit
(`K AE1 T`); as is the convention when letter-to-sound models are scored, the digits are left out unless asked for,
which leaves 39 phonemes. A word may have several right pronunciations, so a prediction should be scored against the
nearest of its `references`.
"""

import hashlib
import lzma
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

DICTIONARY = "embedded/cmudict.dict.xz"
ENTRY = re.compile(
    r"(?P<word>[a-z']+)(\(\d+\))? (?P<phonemes>[A-Z0-2 ]+?)( #.*)?"
)  # `tomato(2) T AH0 M AA1 T OW2 # note`
SHARES = {"test": 50, "valid": 20}  # words in a thousand; the rest is for training

Entry = tuple[str, str]


class PronunciationSplits(NamedTuple):
    """(word, phonemes) entries for training, choosing and final scoring. No word is in two of them."""

    train: list[Entry]
    valid: list[Entry]
    test: list[Entry]


@cache
def references(*, stress: bool = False) -> dict[str, list[str]]:
    """Every word of lower-case letters and apostrophes, with all its pronunciations, the most usual first."""
    found: dict[str, list[str]] = {}
    packed = resources.files("qkv.data").joinpath(DICTIONARY).read_bytes()
    for line in lzma.decompress(packed).decode().splitlines():
        entry = ENTRY.fullmatch(line)
        if entry is None or not entry["word"].strip("'"):
            continue  # words with hyphens, full stops or digits are spelled out rather than pronounced
        phonemes = entry["phonemes"] if stress else re.sub(r"\d", "", entry["phonemes"])
        known = found.setdefault(entry["word"], [])
        if phonemes not in known:  # variants that differ in stress alone become one
            known.append(phonemes)
    return found


def pronunciations(*, stress: bool = False) -> list[Entry]:
    """(word, phonemes) for every pronunciation of every word; the variants of a word follow each other."""
    return [(word, phonemes) for word, variants in references(stress=stress).items() for phonemes in variants]


def pronunciation_splits(*, stress: bool = False) -> PronunciationSplits:
    """All pronunciations, divided by word in a way that never changes."""
    splits = PronunciationSplits([], [], [])
    for word, phonemes in pronunciations(stress=stress):
        getattr(splits, split_of(word)).append((word, phonemes))
    return splits


def split_of(word: str) -> str:
    """`train`, `valid` or `test`: decided by a hash of the word, so it depends on no order and no other word."""
    place = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 1000
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return "train"
