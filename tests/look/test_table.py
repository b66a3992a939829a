import re
from html.parser import HTMLParser

import numpy as np
import pytest

from qkv.look.colour import level
from qkv.look.table import map_table, notebook_html, written


@pytest.mark.parametrize(("weight", "text"), [(0, "0"), (0.004, "0"), (0.426, ".43"), (0.996, "1"), (1, "1")])
def test_a_weight_is_written_to_two_places(weight, text):
    assert written(weight) == text


def test_every_cell_stands_under_its_headings_with_its_weight_and_colour():
    weights = np.array([[0.9, 0.1, 0.0], [0.25, 0.25, 0.5]], dtype=np.float32)
    table = map_table(weights, ("A", "B"), ("x", "y", "z"), "caption", lambda step: f"class=c{step}")
    rows = [re.findall(r"<td class=c(\d+)>([^<]*)</td>", row) for row in table.split('scope="row"')[1:]]
    assert [[text for _, text in row] for row in rows] == [[".90", ".10", "0"], [".25", ".25", ".50"]]
    assert [[int(step) for step, _ in row] for row in rows] == level(weights).tolist()
    assert re.findall(r'scope="col"><bdi>(.)', table) == ["x", "y", "z"]
    assert re.findall(r'scope="row"><bdi>(.)', table) == ["A", "B"]
    assert "<caption>caption</caption>" in table


def test_a_shortened_heading_keeps_the_whole_label_as_its_tip():
    table = map_table(np.ones((1, 1)), ("q",), ("x" * 50,), "", lambda step: "")
    assert f'title="{"x" * 50}"' in table


def test_notebook_table_needs_no_style_sheet_and_closes_every_tag():
    page = notebook_html(np.eye(2), ("a", "b"), ("<", "&"), "caption", note="note & more")
    depth = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attributes):
            depth.append(tag)

        def handle_endtag(self, tag):
            assert depth.pop() == tag

    Balance().feed(page)
    assert depth == []
    assert page.count("background:#") == 4
    assert "note &amp; more" in page
