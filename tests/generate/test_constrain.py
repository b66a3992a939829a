import json
import re

import pytest

from qkv.errors import QkvError
from qkv.generate import constrain
from qkv.generate.constrain import JsonSchema, Regex, token_bytes
from qkv.generate.contrastive import Contrastive
from qkv.generate.language import Options, TextWriter
from qkv.generate.shape import Temperature
from qkv.generate.speculative import DraftModel, PromptLookup, Speculative
from qkv.generate.strategy import Beams, Greedy, Sampling
from tests.generate.language_models import TEXTS, small_gpt, small_tokenizer, spaced_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pet": {"enum": ["dog", "cat", None]},
    },
    "required": ["name", "age", "pet"],
    "additionalProperties": False,
}


def writer(tokenizer, seed=0):
    return TextWriter(small_gpt(tokenizer.size + 3, seed, positions=256), tokenizer)


BYTE_LEVEL, SPACED = writer(small_tokenizer()), writer(spaced_tokenizer())


@pytest.mark.parametrize("one", [BYTE_LEVEL, SPACED], ids=["byte level", "spaces with words"])
@pytest.mark.parametrize("seed", range(3))
def test_what_ended_is_json_of_its_schema(one, seed):
    options = Options(
        strategy=Sampling(samples=3, seed=seed), shapers=(Temperature(1.3),), most=120, form=JsonSchema(PERSON)
    )
    (found,) = one.run_all(["The dog"], options)
    assert any(output.ended == "end" for output in found)
    for output in found:
        if output.ended == "end":
            person = json.loads(output.text)
            assert person.keys() == {"name", "age", "pet"}
            assert isinstance(person["name"], str)
            assert len(person["name"]) <= 4
            assert 0 <= person["age"] <= 150
            assert person["pet"] in ("dog", "cat", None)


PATTERN = r"[a-c]{2,4}(, [0-9]{1,3}){2}\."


@pytest.mark.parametrize(
    "strategy",
    [
        Greedy(),
        Beams(3, 3),
        Contrastive(),
        Sampling(samples=3, seed=1),
        Speculative(PromptLookup()),
        Speculative(DraftModel(small_gpt(BYTE_LEVEL.model.vocabulary, 4, positions=256)), 3, Sampling(seed=2)),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_every_strategy_keeps_to_a_pattern(strategy):
    found = BYTE_LEVEL.run_all(["A list: ", "The"], Options(strategy=strategy, most=60, form=Regex(PATTERN)))
    for outputs in found:
        assert len(outputs) == strategy.outputs
        for output in outputs:
            assert output.ended == "end"
            assert re.fullmatch(PATTERN, output.text)


def test_speculation_under_a_form_writes_what_greedy_decoding_writes():
    plain = BYTE_LEVEL.run(["A list: "], Options(most=60, form=Regex(PATTERN)))
    guessed = BYTE_LEVEL.run(["A list: "], Options(strategy=Speculative(PromptLookup()), most=60, form=Regex(PATTERN)))
    assert [one.ids for one in guessed] == [one.ids for one in plain]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (JsonSchema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable schema: minimum"),
        (JsonSchema(False), "Unsatisfiable"),
        (JsonSchema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "incompatible types"),
        (JsonSchema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (JsonSchema({"type": "frobnicate"}), "frobnicate"),
        (JsonSchema("{"), "no JSON"),
        (JsonSchema("[1]"), "is an object"),
        (Regex("("), "unclosed"),
        (Regex(r"a(?=b)"), "look-around"),
        (Regex(r"[^\s\S]"), "can meet the regular expression"),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_met_is_said(form, said):
    with pytest.raises(QkvError, match=said):
        BYTE_LEVEL.run(["The"], Options(form=form))


def test_a_form_that_the_vocabulary_cannot_spell_is_said():
    tokenizer = small_tokenizer("characters", None)
    with pytest.raises(QkvError, match="No output of this vocabulary"):
        writer(tokenizer).run(["The"], Options(form=Regex("[ξ]+")))


def test_an_output_cut_at_its_limit_says_so():
    (cut,) = BYTE_LEVEL.run(["The"], Options(most=3, form=Regex("[a-z]{30}")))
    assert (cut.ended, len(cut.ids)) == ("limit", 3)


@pytest.mark.parametrize("tokenizer", [small_tokenizer(), spaced_tokenizer(), small_tokenizer("characters", None)])
def test_tokens_spell_the_bytes_that_decoding_gives(tokenizer):
    spelled = token_bytes(tokenizer)
    first, *rest = tokenizer.encode(["x" + text for text in TEXTS[:3]])
    for ids in (first, *rest):
        start = tokenizer.decode(ids[:1], whole=True)
        assert start + b"".join(spelled[token] for token in ids[1:]).decode() == tokenizer.decode(ids, whole=True)


def test_a_missing_library_is_said(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(constrain.importlib, "import_module", missing)
    with pytest.raises(QkvError, match=r"pip install \"qkv\[constrained\]\""):
        writer(small_tokenizer()).run(["The"], Options(form=Regex("a")))


def test_a_form_needs_an_end_and_no_least_length():
    with pytest.raises(QkvError, match="least number"):
        BYTE_LEVEL.run(["The"], Options(form=Regex("a+"), least=3))
