"""`qkv run` with every kind of text model: what comes out, in which form, and what is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.api.choices import NewTokenizer
from qkv.api.loading import load
from qkv.generate import prepare
from qkv.generate.language import Options
from qkv.generate.shape import Temperature, TopK
from qkv.generate.strategy import Sampling
from qkv.parts import cpu
from tests.cli.command import Outcome, qkv
from tests.cli.text_models import HEADS, save, save_reader, save_writer

PROMPTS = ["And God said", "In the beginning", "And the evening and the"]
MOST = ["--max-tokens", "8"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_writer(folder / "writer")
    for kind in HEADS:
        save_reader(folder / kind, kind)
    return folder


@pytest.fixture(scope="module")
def writer(folders: Path) -> Path:
    return folders / "writer"


def said(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome
    return outcome.out


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.complaint.startswith("qkv: ")
    assert [word for word in words if word not in outcome.complaint] == []


# --- language models --------------------------------------------------------------------------------------------------


def test_texts_go_on_as_they_do_in_python(writer: Path, tmp_path: Path) -> None:
    wanted = [each.text for each in load(writer).run(PROMPTS, Options(most=8))]
    lines = [" ".join(text.splitlines()) for text in wanted]
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    assert said(qkv("run", writer, *PROMPTS, *MOST)).split("\n")[:-1] == lines
    assert said(qkv("run", writer, "--input", tmp_path / "prompts.txt", *MOST)).split("\n")[:-1] == lines
    assert said(qkv("run", writer, *MOST, stdin="\n".join(PROMPTS))).split("\n")[:-1] == lines
    assert said(qkv("run", writer, PROMPTS[0], *MOST)) == wanted[0] + "\n"
    assert said(qkv("run", writer, PROMPTS[0], *MOST, "--stream")) == wanted[0] + "\n"


def test_chance_is_what_was_asked_for(writer: Path) -> None:
    options = Options(strategy=Sampling(2, seed=5), shapers=(Temperature(0.7), TopK(9)), most=8)
    wanted = [[each.text for each in some] for some in load(writer).run_all(PROMPTS, options)]
    asked = ["--samples", "2", "--seed", "5", "--temperature", "0.7", "--top-k", "9", *MOST]
    found = [json.loads(line) for line in said(qkv("run", writer, *PROMPTS, *asked, "--json")).splitlines()]
    assert [[each["text"] for each in one["outputs"]] for one in found] == wanted
    lines = said(qkv("run", writer, *PROMPTS, *asked)).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["1", "1", "2", "2", "3", "3"]


@pytest.mark.parametrize(
    "options",
    [
        ["--top-p", "0.9", "--seed", "1"],
        ["--min-p", "0.1", "--seed", "1"],
        ["--typical", "0.9", "--seed", "1"],
        ["--repetition-penalty", "1.3", "--frequency-penalty", "0.5", "--presence-penalty", "0.5", "--no-repeat", "2"],
        ["--beams", "3", "--n-best", "2", "--length-penalty", "0.5"],
        ["--contrastive", "3,0.5"],
        ["--stop", "no such text", "--stop", "=of"],
        ["--slide"],
    ],
)
def test_every_way_of_writing_writes(options: list[str], writer: Path) -> None:
    plain = said(qkv("run", writer, *PROMPTS, *MOST))
    most = [] if "--slide" in options else MOST
    assert said(qkv("run", writer, *PROMPTS, *most, *options)) != plain


def test_guesses_change_nothing(writer: Path, tmp_path: Path) -> None:
    save_writer(tmp_path / "draft", seed=1)
    plain = said(qkv("run", writer, *PROMPTS, *MOST))
    assert said(qkv("run", writer, *PROMPTS, *MOST, "--prompt-lookup")) == plain
    assert said(qkv("run", writer, *PROMPTS, *MOST, "--draft", tmp_path / "draft")) == plain


def test_without_a_compiler_it_writes_the_same_and_says_so_once(writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = said(qkv("run", writer, *PROMPTS, *MOST))
    monkeypatch.setattr(prepare, "SMALL", 0)  # a tiny model would not ask for the program
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu.library.cache_clear()
    try:
        outcome = qkv("run", writer, *PROMPTS, *MOST)
    finally:
        cpu.library.cache_clear()
    assert said(outcome) == expected
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("qkv: Models answer more slowly on this CPU, by torch alone: 'no-such-compiler', ")


def test_a_draft_must_share_the_tokens(writer: Path, folders: Path, tmp_path: Path) -> None:
    save_writer(tmp_path / "draft", vocabulary=270)
    refused(qkv("run", writer, "And", "--draft", tmp_path / "draft"), "other tokens")
    refused(qkv("run", writer, "And", "--draft", folders / "masked"), "no language model")


def test_log_probabilities_are_told_with_their_tokens(writer: Path) -> None:
    asked = ["--json", "--log-probs", "--alternatives", "2", *MOST]
    (output,) = json.loads(said(qkv("run", writer, "And God", *asked)))["outputs"]
    wanted = load(writer).run(["And God"], Options(most=8))[0]
    assert [each["log_probability"] for each in output["tokens"]] == pytest.approx(wanted.log_probabilities)
    assert output["ended"] == wanted.ended
    for token in output["tokens"]:
        assert len(token["alternatives"]) == 2
        assert token["alternatives"][0]["log_probability"] >= token["log_probability"]


def test_the_window_limits_what_nobody_limited(writer: Path) -> None:
    outputs = [json.loads(line) for line in said(qkv("run", writer, "And", PROMPTS[1], "--json")).splitlines()]
    assert len(outputs) == 2
    refused(qkv("run", writer, "And", "--max-tokens", "60"), "do not fit", "48")


def test_output_in_a_form(writer: Path, tmp_path: Path) -> None:
    assert said(qkv("run", writer, "And", "--regex", "(light|night)")).strip() in ("light", "night")
    day = '"properties": {"day": {"enum": [1, 2]}}, "required": ["day"], "additionalProperties": false'
    schema = f'{{"type": "object", {day}}}'
    (tmp_path / "schema.json").write_text(schema)
    for given in (schema, tmp_path / "schema.json"):
        assert json.loads(said(qkv("run", writer, "And", "--json-schema", given)))["day"] in (1, 2)
    cut = qkv("run", writer, "And", "--regex", "[a-z]{50}", "--max-tokens", "2")
    assert cut.code == 0
    assert "--max-tokens" in cut.err


def test_a_form_that_cannot_be(writer: Path, tmp_path: Path) -> None:
    refused(qkv("run", writer, "And", "--json-schema", "{no json"), "no JSON")
    refused(qkv("run", writer, "And", "--json-schema", tmp_path / "absent.json"), "no file", "absent.json")
    refused(qkv("run", writer, "And", "--json-schema", '{"type": "nothing"}'), "JSON schema")
    refused(qkv("run", writer, "And", "--regex", "(("), "regular expression")


def test_an_extra_for_forms_is_named(writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    refused(qkv("run", writer, "And", "--regex", "a"), 'pip install "qkv[constrained]"')


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--temperature", "0"], "decode greedily"),
        (["--top-p", "1.5"], "Top-p"),
        (["--top-k", "0"], "Top-k"),
        (["--beams", "2", "--n-best", "3"], "2 beams"),
        (["--beams", "2", "--top-k", "3"], "two ways"),
        (["--contrastive", "4,0.6", "--seed", "1"], "two ways"),
        (["--contrastive", "much"], "4,0.6"),
        (["--length-penalty", "1"], "--beams"),
        (["--log-probs"], "--json"),
        (["--alternatives", "2", "--json"], "--log-probs"),
        (["--stream", "--json"], "--stream or --json"),
        (["--stream", "--samples", "2"], "streamed"),
        (["--system", "Be brief."], "--chat"),
        (["--chat"], "conversations"),
        (["--regex", "a", "--json-schema", "{}"], "one form"),
        (["--draft", "x", "--prompt-lookup"], "--draft or --prompt-lookup"),
        (["--draft", "absent"], "absent"),
        (["--min-tokens", "5", "--max-tokens", "4"], "5 to 4"),
        (["--max-tokens", "0"], "See qkv run --help"),
        (["--second", "x"], "classifiers"),
        (["--similar", "x"], "embedding models"),
        (["--context", "x"], "answerers"),
    ],
)
def test_what_cannot_be_asked_of_a_language_model(options: list[str], hint: str, writer: Path) -> None:
    refused(qkv("run", writer, "And", *options), hint)


# --- models that read -------------------------------------------------------------------------------------------------


def test_a_classifier_tells_labels(folders: Path, tmp_path: Path) -> None:
    model = folders / "classifier"
    wanted = load(model).run(PROMPTS)
    lines = said(qkv("run", model, *PROMPTS)).splitlines()
    assert lines == [f"{each.label}\t{each.probability:.4f}" for each in wanted]
    first = json.loads(said(qkv("run", model, PROMPTS[0], "--json")))
    assert first["probabilities"] == pytest.approx(wanted[0].probabilities)


def test_a_classifier_tells_labels_of_pairs(folders: Path, tmp_path: Path) -> None:
    model, seconds = folders / "classifier", ["light", "night", "the earth"]
    wanted = [f"{each.label}\t{each.probability:.4f}" for each in load(model).run(PROMPTS, seconds)]
    table = tmp_path / "pairs.tsv"
    table.write_text("a\tb\n" + "".join(f"{a}\t{b}\n" for a, b in zip(PROMPTS, seconds, strict=True)))
    given = [word for second in seconds for word in ("--second", second)]
    assert said(qkv("run", model, *PROMPTS, *given)).splitlines() == wanted
    assert said(qkv("run", model, "--input", table, "--source", "a", "--second", "b")).splitlines() == wanted
    alike = [f"{each.label}\t{each.probability:.4f}" for each in load(model).run(PROMPTS, ["light"] * 3)]
    assert said(qkv("run", model, *PROMPTS, "--second", "light")).splitlines() == alike
    refused(qkv("run", model, *PROMPTS, "--second", "a", "--second", "b"), "3 inputs and 2 texts")
    refused(qkv("run", model, "--input", table, "--source", "a", "--second", "c"), "no column 'c'")


def test_a_tagger_tells_tags(folders: Path) -> None:
    wanted = load(folders / "tagger").run([PROMPTS[0]])[0]
    assert said(qkv("run", folders / "tagger", PROMPTS[0])).split() == [f"{one.word}/{one.label}" for one in wanted]
    words = json.loads(said(qkv("run", folders / "tagger", PROMPTS[0], "--json")))["words"]
    assert [word["word"] for word in words] == PROMPTS[0].split()


def test_an_answerer_answers_from_a_text_or_a_file(folders: Path, tmp_path: Path) -> None:
    context = "And God said, Let there be light: and there was light."
    (tmp_path / "context.txt").write_text(context)
    model = folders / "answerer"
    (found,) = load(model).run(["who?"], [context], threshold=-100.0)
    assert found.text == ""
    (found,) = load(model).run(["who?"], [context], threshold=100.0)
    for given in (context, tmp_path / "context.txt"):
        assert said(qkv("run", model, "who?", "--context", given, "--threshold", "100")) == found.text + "\n"
    answer = json.loads(said(qkv("run", model, "who?", "--context", context, "--threshold", "-100", "--json")))
    assert (answer["answer"], answer["best"]) == ("", found.best)
    refused(qkv("run", model, "who?"), "--context")


def test_a_masked_model_fills_places(folders: Path) -> None:
    text = "let there be <mask>"
    wanted = load(folders / "masked").run([text], best=3)[0]
    lines = [line.split("\t") for line in said(qkv("run", folders / "masked", text, "--n-best", "3")).splitlines()]
    assert lines == [["1", f"{one.probability:.4f}", one.token, one.text] for one in wanted]
    assert len(json.loads(said(qkv("run", folders / "masked", text, "--json")))["fillings"]) == 5
    refused(qkv("run", folders / "masked", "let there be light"), "<mask>")
    refused(qkv("run", folders / "masked", text, "--n-best", "0"), "1 filling")


def test_an_embedding_is_a_vector_or_a_cosine(folders: Path) -> None:
    model = folders / "embedding"
    vectors = [json.loads(line) for line in said(qkv("run", model, *PROMPTS)).splitlines()]
    assert vectors == [pytest.approx(vector, abs=1e-6) for vector in load(model).run(PROMPTS).tolist()]
    cosines = said(qkv("run", model, *PROMPTS, "--similar", PROMPTS[0], "--similar", "light")).splitlines()
    assert cosines[0].split("\t")[0] == "1.0000"
    assert [line.split("\t")[2] for line in cosines] == PROMPTS
    found = json.loads(said(qkv("run", model, "light", "--similar", "light", "--json")))
    assert found["similar"][0]["cosine"] == pytest.approx(1)


def test_a_model_without_a_head_tells_its_states(folders: Path) -> None:
    (state,) = load(folders / "states").run(["light"])
    assert json.loads(said(qkv("run", folders / "states", "light"))) == [pytest.approx(row) for row in state.tolist()]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("classifier", ["--top-k", "3"], ["--top-k", "language models", "a classifier"]),
        ("classifier", ["--beams", "2"], ["translators and language models"]),
        ("tagger", ["--second", "x"], ["classifiers", "a tagger"]),
        ("answerer", ["--context", "x", "--chat"], ["--chat", "an answerer"]),
        ("masked", ["--similar", "x"], ["embedding models", "a masked model"]),
        ("embedding", ["--n-best", "2"], ["an embedding model"]),
        ("states", ["--stream"], ["a model without a head"]),
        ("answerer", ["--context", "x", "--second", "y"], ["one of the two"]),
    ],
)
def test_options_of_other_kinds_are_refused(kind: str, options: list[str], words: list[str], folders: Path) -> None:
    refused(qkv("run", folders / kind, "light", *options), *words)


def test_options_of_language_models_are_refused_by_a_translator(model: Path) -> None:
    refused(qkv("run", model, "cat", "--chat"), "--chat", "language models", "a translator")


def test_a_look_at_text_models(folders: Path, writer: Path, tmp_path: Path) -> None:
    for folder in (writer, folders / "classifier"):
        assert said(qkv("look", folder, "And God said", "--html", tmp_path / "look.html")) == "And God said\n"
        assert "God" in (tmp_path / "look.html").read_text("utf-8")
    said(qkv("look", folders / "classifier", "And God", "--target", "said light", "--png", tmp_path / "look.png"))


def test_a_text_without_a_token_is_refused(tmp_path: Path) -> None:
    """By a model that puts nothing around texts."""
    save(tmp_path / "gpt", "gpt2", HEADS["classifier"], NewTokenizer("bpe", 300), seed=0, framed=False)
    refused(qkv("run", tmp_path / "gpt", "light", ""), "no token")


def test_a_hub_name_that_was_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(qkv("run", "nobody/nothing", "light"), "no folder nobody/nothing", "offline")


def test_the_hub_is_asked_in_a_process_of_its_own() -> None:
    """Where nothing else imported the hub's modules before."""
    code = "from qkv.cli.main import main; raise SystemExit(main(['run', 'nobody/nothing', 'light']))"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_a_vocabulary_of_molecules_is_told_how_they_are_cut(tmp_path: Path) -> None:
    folder = tmp_path / "molecules"
    save_reader(folder, "masked")
    size = load(folder, "cpu").tokenizer.size
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"cCNO()=1.", ">>", "Br"]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"[{number}C]" for number in range(size - len(words)))]))
    guessed = qkv("run", folder, "BrC[MASK]CO>>CCCO")
    assert guessed.code == 0
    assert re.fullmatch(r"qkv: .* does not know \d+ of the \d+ pieces .*--split smiles.*\n", guessed.err)
    split = qkv("run", folder, "BrC[MASK]CO>>CCCO", "--split", "smiles", "--n-best", "1")
    assert (split.code, split.err) == (0, "")
    assert re.match(r"BrC.*CO>>CCCO$", split.out.split("\t")[-1].strip())
    refused(qkv("run", folder, "C", "--split", "smile"), "did you mean smiles?")
