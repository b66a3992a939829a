import pytest

from qkv.data.text_stream import TextStream
from qkv.errors import QkvError
from qkv.generate.line import Alternative, Line, StoppedText
from tests.generate.language_models import small_tokenizer, spaced_tokenizer

TOKENIZER = small_tokenizer("bytes", None)


def pieces_of(text: str, stops: tuple[str, ...]) -> tuple[list[str], StoppedText]:
    """The text byte by byte, as if every byte were a token."""
    watched, pieces = StoppedText(TOKENIZER, (), stops), []
    for token in TOKENIZER.encode([text])[0]:
        watched.add(token)
        pieces.append(watched.take())
        if watched.stopped:
            break
    watched.end()
    return [*pieces, watched.take()], watched


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("one twtwo", ("two",), "one tw"),
        ("aaab", ("aab",), "a"),
        ("one tw", ("two",), "one tw"),
        ("one", ("one",), ""),
        ("grüße, welt", ("ße",), "grü"),
        ("a\n\nb", ("\n\n",), "a"),
        ("abcd", ("bcd", "abce"), "a"),
    ],
)
def test_a_text_is_cut_before_the_first_stop(text, stops, expected):
    pieces, watched = pieces_of(text, stops)
    assert watched.text == "".join(pieces) == expected
    assert watched.stopped == (expected != text)


def test_nothing_that_could_begin_a_stop_is_given_out_too_early():
    pieces, _ = pieces_of("xab aby", ("abc",))
    assert pieces == ["x", "", "", "ab ", "", "", "aby", ""]


def test_a_space_before_the_first_new_word_belongs_to_the_output():
    tokenizer = spaced_tokenizer()
    first, whole = (tokenizer.encode([text])[0] for text in ("the dog", "the dog was"))
    assert whole[: len(first)] == first
    text = StoppedText(tokenizer, first)
    for token in whole[len(first) :]:
        text.add(token)
    text.end()
    assert text.text == " was"


@pytest.mark.parametrize(("stops", "spelled"), [((), 0), (("!",), 5)])
def test_tokens_are_spelled_one_by_one_where_a_text_could_stop_only(stops, spelled, monkeypatch):
    text, calls, add = StoppedText(TOKENIZER, (), stops), [], TextStream.add
    monkeypatch.setattr(TextStream, "add", lambda stream, *tokens: calls.append(tokens) or add(stream, *tokens))
    for token in TOKENIZER.encode(["abcde"])[0]:
        text.add(token)
    assert len(calls) == spelled
    text.end()
    assert text.text == "abcde"
    assert len(calls) == max(spelled, 1)


@pytest.mark.parametrize("ended", ["end", "stop", "limit"])
def test_a_line_ends_in_three_ways(ended):
    a, b, stop = TOKENIZER.encode(["a", "b", "!"])
    line = Line([1], 3, frozenset([TOKENIZER.end]), text=StoppedText(TOKENIZER, [1], ("!",)))
    assert line.add(a[0], -1.0, [Alternative(a[0], -1.0)])
    assert line.add(b[0], -2.0)
    last = {"end": TOKENIZER.end, "stop": stop[0], "limit": a[0]}[ended]
    assert not line.add(last, -0.5)
    assert (line.ended, line.live) == (ended, False)
    assert line.text.text == {"end": "ab", "stop": "ab", "limit": "aba"}[ended]
    assert len(line.ids) == {"end": 2, "stop": 3, "limit": 3}[ended]
    assert line.log_probabilities == [-1.0, -2.0, -0.5]
    assert line.log_probability == -3.5


def test_what_makes_no_sense_is_said():
    with pytest.raises(QkvError, match="empty stop"):
        StoppedText(TOKENIZER, (), ("a", ""))
    with pytest.raises(QkvError, match="no room"):
        Line([1], 0, frozenset())
    with pytest.raises(QkvError, match="NaN"):
        Line([1], 1, frozenset()).add(3, float("nan"))
