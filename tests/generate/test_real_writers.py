"""Published language models write as the reference library does, and keep to a form."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from qkv.api.loading import load
from qkv.generate.chat import Message
from qkv.generate.constrain import JsonSchema
from qkv.generate.language import Options
from qkv.generate.length_penalty import PowerPenalty
from qkv.generate.shape import RepetitionPenalty, Temperature, TopP
from qkv.generate.speculative import PromptLookup, Speculative
from qkv.generate.strategy import Beams, Sampling
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tools.llama2c import publish

CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
PROMPTS = ["Once upon a time", "Tom had a red ball. One day, Tom", "Lily"]

pytestmark = pytest.mark.slow


def published(name: str) -> Path:
    if not (CHECKPOINTS / name).exists():
        pytest.skip("needs `make checkpoints`")
    return CHECKPOINTS / name


@pytest.fixture(scope="module")
def storyteller(tmp_path_factory):
    """The published model, and the reference as it opens what we write."""
    folder = tmp_path_factory.mktemp("stories")
    publish(published("stories15m/stories15M.bin"), folder / "read")
    writer = load(folder / "read", "cpu")
    save_published(writer.model, folder, PUBLISHED, {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    return writer, transformers.LlamaForCausalLM.from_pretrained(folder).eval()


def reference_ids(reference, ids, **options):
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0, **options}
    (found,) = reference.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **options).tolist()
    written = found[len(ids) :]
    return written[: written.index(2)] if 2 in written else written


def test_stories_are_those_of_the_reference(storyteller):
    writer, reference = storyteller
    penalised = Options(most=40, shapers=(RepetitionPenalty(1.3),))
    beams = Options(most=40, strategy=Beams(3, 1, PowerPenalty(1.0)))
    for options, theirs in (
        (Options(most=40), {}),
        (penalised, {"repetition_penalty": 1.3}),
        (beams, {"num_beams": 3, "length_penalty": 1.0, "early_stopping": "never"}),
    ):
        for prompt, found in zip(PROMPTS, writer.run(PROMPTS, options), strict=True):
            assert found.ids == reference_ids(reference, writer.encode(prompt), **theirs)


def test_guesses_and_company_change_no_story(storyteller):
    writer, _ = storyteller
    plain = writer.run(PROMPTS, Options(most=60))
    guessed = writer.run(PROMPTS, Options(most=60, strategy=Speculative(PromptLookup())))
    assert [one.text for one in guessed] == [one.text for one in plain]
    options = Options(most=60, strategy=Sampling(samples=2, seed=3), shapers=(Temperature(0.9), TopP(0.9)))
    together = writer.run_all(PROMPTS, options)
    for prompt, found in zip(PROMPTS, together, strict=True):
        assert [one.text for one in writer.run_all([prompt], options)[0]] == [one.text for one in found]
    assert writer.run([""], Options(most=20))[0].text.startswith("Once upon a time")
    assert "".join(writer.stream(PROMPTS[0], Options(most=60))) == plain[0].text


def test_the_assistant_answers_and_keeps_to_a_schema():
    writer = load(published("smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"), "cpu")
    (answer,) = writer.run([[Message("user", "What is the capital of France?")]], Options(most=30))
    assert "Paris" in answer.text
    assert answer.ended == "end"
    properties = {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 1, "maximum": 120}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"], "additionalProperties": False}
    (person,) = writer.run(
        [[Message("user", "Give me a person with name and age as JSON.")]], Options(most=60, form=JsonSchema(schema))
    )
    assert person.ended == "end"
    assert json.loads(person.text).keys() == {"name", "age"}
