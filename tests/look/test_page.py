import base64
import hashlib
import json
import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import QkvError
from qkv.look.colour import LEVELS
from qkv.look.maps import AttentionRecord, Kind
from qkv.look.page import PAGE_LIMIT, attention_page, packed, write_page
from qkv.look.table import written
from tests.look.fabricated import fabricate

HOSTILE = "</script><script>alert(1)</script><!--\u2028&amp;\"'"
VOID = {"meta", "link", "br"}


class Read(HTMLParser):
    """The page as a browser would read it: tags, attributes, the text of scripts and of everything else."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.scripts, self.text = [], [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.open[-1:] != ["style"]:
            self.text += data


def unpacked(text, rows, columns):
    return np.frombuffer(base64.b64decode(text), dtype="<u2").reshape(rows, columns) / 65535


def data_of(page):
    return [json.loads(script) for script in Read(page).scripts[:-1]]


def test_every_number_in_the_page_is_that_of_the_record():
    record = fabricate(layers=2, heads=3)
    (data,) = data_of(attention_page([record]))
    assert [kind["heading"] for kind in data["kinds"]] == [kind.heading for kind in record.kinds]
    for shown, kind in zip(data["kinds"], record.kinds, strict=True):
        average, *layers = shown["layers"]
        expected = [record.average(kind).average()]
        found = [average["heads"][0]]
        for layer, attention in zip(layers, record.of(kind), strict=True):
            assert layer["name"] == attention.name
            assert [head["label"] for head in layer["heads"]] == ["average of its heads", "head 1", "head 2", "head 3"]
            expected += [attention.average(), *attention.weights]
            found += layer["heads"]
        for head, weights in zip(found, expected, strict=True):
            read = unpacked(head["weights"], len(shown["queries"]), len(shown["keys"]))
            np.testing.assert_allclose(read, weights, atol=1e-5)
            np.testing.assert_allclose(read.sum(axis=-1), 1, atol=1e-4)


def test_packing_keeps_none_and_all_exactly():
    assert unpacked(packed(np.array([[0.0, 1.0]])), 1, 2).tolist() == [[0, 1]]


def test_without_javascript_the_average_of_every_kind_is_there():
    record = fabricate()
    page = re.sub(r"<script.*?</script>", "", attention_page([record]), flags=re.DOTALL)
    tables = page.split("<table")[1:]
    assert len(tables) == 3
    for table, kind in zip(tables, record.kinds, strict=True):
        average = record.average(kind)
        cells = re.findall(r"<td class=c\d+>([^<]*)</td>", table)
        assert cells == [written(weight) for weight in average.weights.ravel().tolist()]
        assert f"<caption>{kind.heading}, {average.name}</caption>" in table
    assert "Every row sums to one" in page
    assert record.source in page
    assert record.target in page


def test_hostile_text_stays_text():
    record = fabricate(source=(HOSTILE, "\x00"), target=("<img src=x onerror=alert(1)>",))
    page = attention_page([record, record], title=HOSTILE, about=HOSTILE)
    read = Read(page)
    assert len(read.scripts) == 3  # one block of data an input, and the page's own
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert HOSTILE in read.text
    (cross, *_) = data_of(page)[0]["kinds"]
    assert cross["queries"][0].startswith("<img")
    assert "\x00" not in page


def test_only_the_script_of_the_page_may_run_and_nothing_may_be_fetched():
    page = attention_page([fabricate()])
    read = Read(page)
    (policy,) = [a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(read.scripts[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not [a for _, a in read.tags if "src" in a]
    assert {a["href"] for _, a in read.tags if "href" in a} == {"data:,"}
    assert not re.search(r"url\(|@import|fetch\(|https?://", page)


def test_both_schemes_are_there_and_every_level_has_its_colour():
    page = attention_page([fabricate()])
    for block in (
        r":root \{[^}]*--c63:",
        r"@media \(prefers-color-scheme: dark\) \{ :root:not\(\[data-scheme=light\]\) \{[^}]*--page:[^}]*--c63:",
        r":root\[data-scheme=dark\] \{[^}]*--page:[^}]*--c63:",
    ):
        assert re.search(block, page)
    assert "DARK" not in page
    assert "RAMP" not in page
    used = set(re.findall(r"<td class=(c\d+)>", page))
    assert used <= set(re.findall(r"\.(c\d+)\{background", page))


def test_the_script_counts_the_levels_as_the_colours_do():
    assert re.search(r"const LEVELS = (\d+);", attention_page([fabricate()])).group(1) == str(LEVELS)


def test_many_inputs_are_linked_and_their_ids_exist():
    page = attention_page([fabricate(target=("N",) * length) for length in (1, 2, 3)])
    read = Read(page)
    links = {a["href"][1:] for tag, a in read.tags if tag == "a"}
    assert links == {a["id"] for tag, a in read.tags if tag == "section"} == {"input-1", "input-2", "input-3"}
    assert len(data_of(page)) == 3


def test_a_long_input_is_cut_and_the_page_says_so():
    record = fabricate(source=("a",) * 300, layers=1, heads=1)
    page = attention_page([record])
    assert f"the first 4 of 4 rows and {PAGE_LIMIT} of 301 columns are shown" in page
    cross, encoder, _ = data_of(page)[0]["kinds"]
    assert len(cross["keys"]) == len(encoder["queries"]) == PAGE_LIMIT
    weights = record.of(Kind.ENCODER)[0].weights[0, :PAGE_LIMIT, :PAGE_LIMIT]
    read = unpacked(encoder["layers"][0]["heads"][0]["weights"], PAGE_LIMIT, PAGE_LIMIT)
    np.testing.assert_allclose(read, weights, atol=1e-5)
    assert "Too large" not in attention_page([record], limit=400)


def test_a_kind_that_is_cut_says_so_even_where_another_is_not():
    record = fabricate(target=("b",) * 300, layers=1)
    without_cross = AttentionRecord("a", "b", tuple(each for each in record.maps if each.kind is not Kind.CROSS))
    page = attention_page([without_cross])
    encoder, decoder = data_of(page)[0]["kinds"]
    assert encoder["note"] == ""
    assert f"{PAGE_LIMIT} of 301 rows" in decoder["note"]
    assert decoder["note"] in Read(page).text


def test_one_head_of_one_layer_is_not_called_an_average():
    record = fabricate(layers=1, heads=1)
    page = attention_page([AttentionRecord("a", "b", record.of(Kind.CROSS))])
    assert "average" not in Read(page).text
    (kind,) = data_of(page)[0]["kinds"]
    assert [layer["label"] for layer in kind["layers"]] == ["the only head"]
    assert len(kind["layers"][0]["heads"]) == 1


def test_the_file_is_written_as_utf8(tmp_path):
    path = write_page([fabricate(source=("ʃ", "漢", "\ud800"))], tmp_path / "look.html", about="größe")
    assert "größe" in path.read_text(encoding="utf-8")
    assert 'charset="utf-8"' in path.read_text(encoding="utf-8")


def test_wrong_use_is_a_clear_error(tmp_path):
    with pytest.raises(QkvError, match="at least one input"):
        attention_page([])
    with pytest.raises(QkvError, match="Cannot write"):
        write_page([fabricate()], tmp_path)


def test_the_style_and_the_script_are_packaged():
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["qkv"]
    for file in ("look/page.css", "look/page.js"):
        assert (root / "src" / "qkv" / file).exists()
        assert any(fnmatch(file, pattern) for pattern in patterns), f"{file} is missing from package-data"
