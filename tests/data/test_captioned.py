import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.augment import Flip
from qkv.data.batches import Batches
from qkv.data.captioned import Captioned, CaptionRows, read_captions
from qkv.data.encoding import Encoding
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Normalise
from qkv.data.text_rows import TextRows
from qkv.errors import QkvError

CAPTIONS = [("a", "bb"), ("ccc",), ("d", "ee", "f")]
PICTURES = [(0, 1), (2,), (3,)]
NORMALISE = Normalise(1 / 255)


def things() -> Captioned:
    pixels = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 3), np.uint8)
    pixels[:, :, 0] += 100  # bright at the left
    return Captioned(pixels, CAPTIONS, PICTURES)


def rows() -> CaptionRows:
    encodings = []
    for number, text in enumerate(text for texts in CAPTIONS for text in texts):
        ids = tuple(map(ord, text))
        nothing: tuple[None, ...] = (None,) * len(ids)
        encodings.append(
            Encoding(ids, (0,) * len(ids), ((0, 0),) * len(ids), nothing, nothing, (False,) * len(ids), number)
        )
    return CaptionRows.first(things(), TextRows.from_encodings(encodings, pad=0), NORMALISE)


def texts_of(batch) -> list[str]:
    return ["".join(map(chr, ids[:length])) for ids, length in zip(batch.ids.tolist(), batch.lengths, strict=True)]


def test_without_more_the_first_picture_and_the_first_caption_are_taken():
    batch = rows().batch(PlannedBatch(np.array([2, 0, 1]), 3, 1))
    assert texts_of(batch) == ["d", "a", "ccc"]
    assert batch.pixels[:, 0, 0, 1].tolist() == [3, 0, 2]
    assert batch.pixels.shape == (3, 3, 2, 3)
    torch.testing.assert_close(batch.images, batch.pixels / 255)
    assert rows().sizes[0].tolist() == [1, 3, 1]


def test_every_epoch_draws_anew_and_always_the_same():
    seen = set()
    for epoch in range(30):
        made, again = (rows().anew(seed=3)(epoch) for _ in range(2))
        batch, same = (each.batch(PlannedBatch(np.arange(3), 3, 1)) for each in (made, again))
        assert texts_of(batch) == texts_of(same)
        assert torch.equal(batch.pixels, same.pixels)
        for thing, (text, picture) in enumerate(zip(texts_of(batch), batch.pixels[:, 0, 0, 1].tolist(), strict=True)):
            assert text in CAPTIONS[thing]
            assert picture in PICTURES[thing]
            seen.add((text, picture))
    assert seen == {("a", 0), ("a", 1), ("bb", 0), ("bb", 1), ("ccc", 2), ("d", 3), ("ee", 3), ("f", 3)}


def test_pictures_are_changed_where_they_are_and_the_same_when_asked_again():
    made = rows().anew(augment=Flip(1.0))(0).batch(PlannedBatch(np.arange(3), 3, 1))
    assert (made.images[..., 2] > made.images[..., 0]).all()
    assert torch.equal(made.images, made.images)
    assert (made.pixels[..., 0] > made.pixels[..., 2]).all()


def test_all_things_come_once_an_epoch():
    batches = Batches(rows().anew(), RowCount(2), prefetch=0)
    assert sum(len(batch.ids) for batch in batches) == 3


def test_some_things_keep_their_pictures():
    some = things().some([2, 0])
    assert some.captions == [CAPTIONS[2], CAPTIONS[0]]
    assert some.shown == [PICTURES[2], PICTURES[0]]
    plain = Captioned(things().pixels[:2], [("a",), ("b",)])
    assert plain.shown == [(0,), (1,)]


def test_what_makes_no_sense_is_refused():
    pixels = things().pixels
    for broken, told in [
        ((pixels.astype(np.int64), CAPTIONS, PICTURES), "numbers of 8 bits"),
        ((pixels, CAPTIONS[:2], PICTURES), "pictures of 3 things, and captions of 2"),
        ((pixels, [*CAPTIONS[:2], ()], PICTURES), "one has none"),
        ((pixels, CAPTIONS, [(0,), (1,), (4,)]), "none of the 4"),
    ]:
        with pytest.raises(QkvError, match=told):
            Captioned(*broken)
    with pytest.raises(QkvError, match="filler"):
        rows().batch(PlannedBatch(np.array([0]), 3, 1, filler=1))


def test_a_table_holds_one_caption_or_several(tmp_path: Path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    lines = [
        {"image": "a.png", "text": "one"},
        {"image": "a.png", "text": ["two", "three"]},
        {"image": "a.png", "text": []},
        {"image": "a.png", "text": ["four", ""]},
        {"image": "b.png", "text": "five"},
    ]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_captions(tmp_path / "table.jsonl")
    assert found.captions == [("one",), ("two", "three")]
    assert len(found) == 2
    assert [problem.line for problem in found.problems] == [3, 4, 5]
