import html

import pytest

from qkv.look.labels import LABEL_LENGTH, escaped, shortened, visible


@pytest.mark.parametrize(
    ("label", "shown"),
    [(" the", "␣the"), ("\n", "⏎"), ("\t", "⇥"), ("", "∅"), ("\x00", "\u2400"), ("\ud800", "\ufffd"), ("ə漢", "ə漢")],
)
def test_nothing_in_a_label_is_invisible(label, shown):
    assert visible(label) == shown


def test_a_long_label_ends_in_an_ellipsis():
    assert shortened("x" * 100) == "x" * (LABEL_LENGTH - 1) + "…"
    assert shortened("x" * LABEL_LENGTH) == "x" * LABEL_LENGTH


def test_escaped_text_is_the_text_again_when_read_as_html():
    hostile = """</script><img src=x onerror="alert('1')">&amp;"""
    assert html.unescape(escaped(hostile)) == hostile
    assert not set("<>\"'") & set(escaped(hostile))


def test_what_a_page_cannot_hold_is_replaced():
    assert escaped("a\x00b\x1bc\ud800d\n") == "a\ufffdb\ufffdc\ufffdd\n"
    escaped("\ud800").encode("utf-8")
