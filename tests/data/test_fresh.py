"""Pairs cut anew each epoch, by another process."""

from qkv.data.batches import Batches
from qkv.data.fresh import FreshPairs
from qkv.data.plan import TokenBudget
from qkv.data.tokenizer import TextTokenizer

ENGLISH = ["the cat sat on the mat", "a dog lay on the rug", "the dog saw the cat"] * 5
GERMAN = ["die Katze saß auf der Matte", "ein Hund lag auf dem Teppich", "der Hund sah die Katze"] * 5


def test_every_epoch_is_cut_anew_and_never_says_anything_else() -> None:
    tokenizer = TextTokenizer.train("bpe", ENGLISH + GERMAN, vocabulary=300)
    fresh = FreshPairs(ENGLISH, GERMAN, tokenizer, tokenizer, subword_dropout=0.5)
    first, second = fresh(0), fresh(1)
    lengths = [first.source.lengths.tolist(), second.source.lengths.tolist()]
    assert lengths[0] != lengths[1]
    for pairs in (first, second):
        rows = pairs.source.padded(pairs.original, pairs.source.lengths, int(pairs.source.lengths.max()))
        assert [tokenizer.decode(row) for row in rows.tolist()] == ENGLISH
    batches = Batches(fresh, TokenBudget(100))
    assert sum(len(batch.source) for batch in batches) == len(ENGLISH)
