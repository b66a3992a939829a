"""The real harness, on a task from the disk: its figures are those of the model computed one text at a time."""

import builtins
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.api.harness import harness_model, writing_options
from qkv.errors import QkvError
from qkv.generate.language import TextWriter
from qkv.generate.shape import RepetitionPenalty, Temperature, TopP
from qkv.generate.strategy import Greedy, Sampling
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.generate.language_models import small_gpt, small_tokenizer

pytest.importorskip("lm_eval", reason="the harness itself is what is tested with")

PAIRS = [
    ("The quick brown", " fox"),
    ("The quick brown ", "dog"),  # the space belongs to what follows
    ("", "Once upon a time"),
    ("It was a sunny day, and", " the dog did not mind."),
    ("A list: 1, 2,", " 3"),
]


@pytest.fixture(scope="module")
def writer() -> TextWriter:
    tokenizer = small_tokenizer()
    return TextWriter(small_gpt(tokenizer.size, positions=48), tokenizer)


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=args) for args in arguments]


@torch.inference_mode()
def log_probability(writer: TextWriter, before: Sequence[int], wanted: Sequence[int]) -> tuple[float, bool]:
    """Token by token, each from a pass of its own; and whether each was the likeliest."""
    total, greedy = 0.0, True
    for place, token in enumerate(wanted):
        logs = writer.model(torch.tensor([[*before, *wanted[:place]]]))[0, -1].double().log_softmax(-1)
        total += float(logs[token])
        greedy &= int(logs.argmax()) == token
    return total, greedy


def expected_pair(writer: TextWriter, context: str, continuation: str) -> tuple[float, bool]:
    spaces = len(context) - len(context.rstrip())
    context, continuation = context.rstrip(), context[len(context) - spaces :] + continuation
    cut = writer.tokenizer.encode([context, context + continuation])
    before = cut[0] or [writer.tokenizer.start]
    return log_probability(writer, before, cut[1][len(cut[0]) :])


def test_pairs_are_as_likely_as_the_model_says(writer: TextWriter) -> None:
    found = harness_model(writer).loglikelihood(requests(*PAIRS), disable_tqdm=True)
    for (value, greedy), pair in zip(found, PAIRS, strict=True):
        expected, likeliest = expected_pair(writer, *pair)
        assert value == pytest.approx(expected, abs=1e-4)
        assert greedy == likeliest


def test_what_the_model_would_write_itself_is_called_greedy(writer: TextWriter) -> None:
    model = harness_model(writer)
    ids = writer.tokenizer.encode(["The quick brown"])[0]
    with torch.inference_mode():
        best = int(writer.model(torch.tensor([ids]))[0, -1].argmax())
    ((value, greedy),) = model._loglikelihood_tokens([(None, ids, [best])])
    assert greedy
    assert value == pytest.approx(log_probability(writer, ids, [best])[0], abs=1e-4)


def test_of_a_long_context_the_end_is_kept(writer: TextWriter) -> None:
    context, continuation = "the lazy dog and the sea " * 12, " sang"
    whole = writer.tokenizer.encode([context.rstrip() + " " + continuation])[0]
    before = writer.tokenizer.encode([context.rstrip()])[0]
    wanted = whole[len(before) :]
    assert len(before) > 60
    ((value, _),) = harness_model(writer).loglikelihood(requests((context, continuation)), disable_tqdm=True)
    expected, _ = log_probability(writer, before[-(49 - len(wanted)) :], wanted)
    assert value == pytest.approx(expected, abs=1e-4)
    with pytest.raises(QkvError, match="this model reads at most 48"):
        harness_model(writer).loglikelihood(requests(("a", context)), disable_tqdm=True)


def test_a_whole_text_is_scored_in_windows_each_token_once(writer: TextWriter) -> None:
    short, long = "Once upon a time", "its people fished and sang until the night came; " * 6
    ids = writer.tokenizer.encode([short, long])
    assert len(ids[1]) > 2 * 48
    found = harness_model(writer).loglikelihood_rolling(requests((short,), (long,)), disable_tqdm=True)
    start = [writer.tokenizer.start]
    assert found[0] == pytest.approx(log_probability(writer, start, ids[0])[0], abs=1e-4)
    expected = log_probability(writer, start, ids[1][:48])[0]
    for first in range(48, len(ids[1]), 48):
        last = min(first + 48, len(ids[1]))
        expected += log_probability(writer, ids[1][last - 49 : first], ids[1][first:last])[0]
    assert found[1] == pytest.approx(expected, abs=1e-3)


def test_texts_are_written_until_they_stop(writer: TextWriter) -> None:
    model = harness_model(writer)
    prompts = ["The quick", "Once upon a time there was", ""]
    found = model.generate_until(requests(*((each, {"until": [], "max_gen_toks": 12}) for each in prompts)))
    alone = writer.run(prompts[:2], writing_options(writer, {"max_gen_toks": 12}, 0))
    assert found[:2] == [writing.text.lstrip() for writing in alone]
    assert all(found)
    stop = found[0][3:5]
    (stopped,) = model.generate_until(requests((prompts[0], {"until": [stop], "max_gen_toks": 12})))
    assert stopped == found[0][: found[0].index(stop)]
    (long,) = model.generate_until(requests(("the lazy dog and the sea " * 12, {"max_gen_toks": 8})))
    assert long


def test_samples_are_drawn_anew_for_each_request_and_alike_for_a_seed(writer: TextWriter) -> None:
    asked = {"do_sample": True, "temperature": 2.0, "top_p": 0.95, "max_gen_toks": 10, "until": ["\n\n\n"]}
    twice = requests(("The", asked), ("The", asked))
    first, second = harness_model(writer).generate_until(twice)
    assert first != second
    assert harness_model(writer).generate_until(twice) == [first, second]
    assert harness_model(writer, seed=7).generate_until(twice) != [first, second]


def test_what_a_task_asks_for_becomes_options(writer: TextWriter) -> None:
    greedy = writing_options(writer, {"do_sample": False, "temperature": 0.7, "top_p": 0.5, "until": "\n"}, 3)
    assert (greedy.strategy, greedy.shapers, greedy.stop_texts, greedy.most) == (Greedy(), (), ("\n",), 24)
    drawn = writing_options(writer, {"temperature": 0.7, "top_p": 0.5, "repetition_penalty": 1.2, "max_tokens": 5}, 3)
    assert drawn.strategy == Sampling(seed=3)
    assert drawn.shapers == (RepetitionPenalty(1.2), Temperature(0.7), TopP(0.5))
    assert drawn.most == 5
    with pytest.raises(QkvError, match="text with num_beams"):
        writing_options(writer, {"num_beams": 4}, 0)
    with pytest.raises(QkvError, match="reads at most 48"):
        writing_options(writer, {"max_gen_toks": 48}, 0)


QUESTIONS = [
    {"question": "The quick brown", "choices": ["fox", "sea", "night"], "answer": 0},
    {"question": "Its people fished and", "choices": ["sang", "list", "dog"], "answer": 0},
    {"question": "Once upon a", "choices": ["fox", "time", "village by the sea"], "answer": 1},
    {"question": "It was a sunny", "choices": ["mind", "key", "day"], "answer": 2},
]

TASKS = {
    "tiny_choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
""",
    "tiny_perplexity": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - metric: bits_per_byte
""",
    "tiny_writing": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 6
metric_list:
  - metric: exact_match
""",
}


@pytest.mark.slow
def test_the_harness_runs_its_tasks_with_the_model(writer: TextWriter, tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    import lm_eval
    from lm_eval.tasks import TaskManager

    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, task in TASKS.items():
        source = (
            f"task: {name}\ndataset_path: json\ntest_split: test\ndataset_kwargs:\n  data_files: {{test: {data}}}\n"
        )
        (tmp_path / f"{name}.yaml").write_text(f"{source}  cache_dir: {tmp_path / 'cache'}\n{task.strip()}\n")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=harness_model(writer), tasks=list(TASKS), task_manager=manager, bootstrap_iters=0
    )
    right, nats, size = 0, 0.0, 0
    for question in QUESTIONS:
        scores = [expected_pair(writer, question["question"], f" {choice}")[0] for choice in question["choices"]]
        right += max(range(3), key=scores.__getitem__) == question["answer"]
        ids = writer.tokenizer.encode([question["question"]])[0]
        nats += log_probability(writer, [writer.tokenizer.start], ids)[0]
        size += len(question["question"].encode())
    figures = results["results"]
    assert figures["tiny_choices"]["acc,none"] == right / len(QUESTIONS)
    assert figures["tiny_perplexity"]["bits_per_byte,none"] == pytest.approx(-nats / math.log(2) / size, abs=1e-4)
    written = [sample["resps"][0][0] for sample in results["samples"]["tiny_writing"]]
    options = writing_options(writer, {"until": ["."], "max_gen_toks": 6}, 0)
    alone = writer.run([question["question"] for question in QUESTIONS], options)
    assert written == [each.text.lstrip() for each in alone]


@pytest.mark.slow
def test_the_figures_are_those_of_the_harness_for_the_other_library(writer: TextWriter, tmp_path: Path) -> None:
    import transformers
    from lm_eval.models.huggingface import HFLM

    save_published(writer.model, tmp_path, PUBLISHED)
    writer.tokenizer.save(tmp_path / "tokenizer.json")
    reference = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    theirs, ours = HFLM(pretrained=reference, tokenizer=tokenizer, device="cpu", batch_size=2), harness_model(writer)
    long = "its people fished and sang until the night came; " * 6
    pairs = requests(*PAIRS, (long, " day"))
    expected, found = (model.loglikelihood(pairs, disable_tqdm=True) for model in (theirs, ours))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    texts = requests(("Once upon a time",), (long,))
    expected, found = (model.loglikelihood_rolling(texts, disable_tqdm=True) for model in (theirs, ours))
    assert found == pytest.approx(expected, abs=1e-2)
    asked = {"until": ["."], "max_gen_toks": 8, "do_sample": False}
    prompts = requests(("The quick", asked), ("Once upon a time there was", asked), (long, asked))
    expected, found = (model.generate_until(prompts, disable_tqdm=True) for model in (theirs, ours))
    assert found == expected


def test_without_the_harness_and_without_a_writer_one_sentence_says_so(writer: TextWriter, monkeypatch: Any) -> None:
    with pytest.raises(QkvError, match="a str does not"):
        harness_model("folder")  # type: ignore[arg-type]
    imported = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("lm_eval"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(QkvError, match=r'pip install "qkv\[harness\]"'):
        harness_model(writer)
