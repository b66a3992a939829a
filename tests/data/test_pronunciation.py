"""The packaged pronouncing dictionary: clean, whole, and divided once and for all."""

import re
from importlib import resources

from qkv.data.pronunciation import pronunciation_splits, pronunciations, references, split_of


def test_known_words():
    known = references()
    assert known["cat"] == ["K AE T"]
    assert known["tomato"] == ["T AH M EY T OW", "T AH M AA T OW"]
    assert references(stress=True)["cat"] == ["K AE1 T"]


def test_entries_are_clean():
    entries = pronunciations()
    assert len(entries) == len(set(entries)) == sum(map(len, references().values()))
    assert len(references()) > 120_000
    assert all(re.fullmatch(r"[a-z']*[a-z][a-z']*", word) for word, _ in entries)
    assert all(re.fullmatch(r"[A-Z]+( [A-Z]+)*", phonemes) for _, phonemes in entries)


def test_phoneme_inventory():
    assert len({phoneme for _, phonemes in pronunciations() for phoneme in phonemes.split()}) == 39
    with_stress = {phoneme for _, phonemes in pronunciations(stress=True) for phoneme in phonemes.split()}
    assert {re.sub(r"\d", "", phoneme) for phoneme in with_stress} == {
        phoneme for _, phonemes in pronunciations() for phoneme in phonemes.split()
    }
    assert {"AE0", "AE1", "AE2"} <= with_stress


def test_variants_stand_together():
    words = [word for word, _ in pronunciations()]
    starts = [word for word, before in zip(words, [None, *words], strict=False) if word != before]
    assert len(starts) == len(set(starts))


def test_splits_are_whole_disjoint_and_fixed():
    splits = pronunciation_splits()
    words = [{word for word, _ in split} for split in splits]
    assert not words[0] & words[1]
    assert not words[0] & words[2]
    assert not words[1] & words[2]
    assert sorted(entry for split in splits for entry in split) == sorted(pronunciations())
    assert 0.015 < len(words[1]) / len(references()) < 0.025
    assert 0.045 < len(words[2]) / len(references()) < 0.055
    # The division must never change, or scores stop being comparable.
    assert [split_of(word) for word in ("cat", "aardvarks", "zebra")] == ["train", "test", "train"]


def test_licence_travels_with_the_data():
    licence = resources.files("qkv.data").joinpath("embedded/cmudict.LICENSE.txt").read_text()
    assert "Carnegie Mellon University" in licence
    assert "Redistribution" in licence
