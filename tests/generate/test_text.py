from dataclasses import replace

import pytest
import torch

from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.decode import LengthLimit
from qkv.generate.shape import NoRepeat, Temperature, TopK
from qkv.generate.text import TextToText, load_tokenizers
from qkv.models.catalogue import build
from qkv.models.transformer import TransformerSizes

TEXTS = ["a bad cab", "face", "e", "a deaf bee fed a cad", "b"]
SIZES = TransformerSizes(vocabulary=0, width=16, hidden=32, heads=2, encoder_layers=2, decoder_layers=1, dropout=0.1)
LIMIT = LengthLimit(1, 4)


def characters(text="abcdef "):
    return TextTokenizer.train("characters", [text])


def made(source, target):
    shared = source is target
    sizes = replace(SIZES, vocabulary=target.size, source_vocabulary=None if shared else source.size)
    torch.manual_seed(5)
    model = build("transformer", sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return TextToText(model, source, target)


@pytest.fixture
def text_to_text():
    tokenizer = characters()
    return made(tokenizer, tokenizer)


def test_each_text_gets_the_answer_it_would_get_alone_in_the_order_given(text_to_text):
    together = text_to_text.run(TEXTS, limit=LIMIT)
    assert len({result.text for result in together}) > 1
    for text, result in zip(TEXTS, together, strict=True):
        (alone,) = text_to_text.run([text], limit=LIMIT)
        assert (alone.text, alone.hypothesis.ids) == (result.text, result.hypothesis.ids)
        assert alone.score == pytest.approx(result.score, abs=1e-4)


def test_small_batches_change_nothing(text_to_text):
    at_once = text_to_text.run(TEXTS, limit=LIMIT)
    one_by_one = text_to_text.run(TEXTS, limit=LIMIT, batch_tokens=1)
    assert [result.text for result in at_once] == [result.text for result in one_by_one]


def test_the_best_outputs_come_best_first_and_special_tokens_never(text_to_text):
    tokenizer = text_to_text.target_tokenizer
    for results in text_to_text.run_best(TEXTS, best=3, limit=LIMIT):
        scores = [result.score for result in results]
        assert len(results) == 3
        assert scores == sorted(scores, reverse=True)
        for result in results:
            assert result.text == tokenizer.decode(result.hypothesis.ids)
            assert not set(result.hypothesis.ids) & {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown}


def test_outputs_are_drawn_and_the_seed_decides(text_to_text):
    first = text_to_text.sample(TEXTS, samples=3, seed=1, limit=LIMIT)
    assert [len(results) for results in first] == [3] * len(TEXTS)
    assert len({result.text for results in first for result in results}) > len(TEXTS)
    assert [[one.text for one in row] for row in first] == [
        [one.text for one in text_to_text.sample([text], samples=3, seed=1, limit=LIMIT, batch_tokens=1)[0]]
        for text in TEXTS
    ]
    other = text_to_text.sample(TEXTS, samples=3, seed=2, limit=LIMIT)
    assert [[one.text for one in row] for row in first] != [[one.text for one in row] for row in other]
    unseeded = [text_to_text.sample(TEXTS, samples=3, limit=LIMIT)[3] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_shapers_change_what_is_drawn_and_what_is_found(text_to_text):
    greedy = text_to_text.run(TEXTS, beams=1, limit=LIMIT)
    for shapers in ((TopK(1),), (Temperature(1e-4),)):
        drawn = text_to_text.sample(TEXTS, seed=0, shapers=shapers, limit=LIMIT)
        assert [one.text for (one,) in drawn] == [one.text for one in greedy]
    varied = text_to_text.run_best(TEXTS, best=1, shapers=[NoRepeat(1)], limit=LIMIT)
    assert all(len(set(one.hypothesis.ids)) == len(one.hypothesis.ids) for (one,) in varied)
    assert any(len(set(one.hypothesis.ids)) < len(one.hypothesis.ids) for one in greedy)


def test_a_blank_text_is_not_drawn_for_and_no_sample_is_refused(text_to_text):
    assert [[one.text for one in row] for row in text_to_text.sample([" "], samples=2, seed=0)] == [[""]]
    with pytest.raises(QkvError, match="1 output a text at least, not 0"):
        text_to_text.sample(TEXTS, samples=0)


def test_no_text_gives_no_result(text_to_text):
    assert text_to_text.run([]) == []


def test_a_blank_text_has_a_blank_answer_and_leaves_the_others_as_they_are(text_to_text):
    alone = text_to_text.run(TEXTS, limit=LIMIT)
    found = text_to_text.run(["", *TEXTS, " \t", "\n"], limit=LIMIT)
    assert [result.text for result in found] == ["", *(result.text for result in alone), "", ""]
    assert [(result.score, result.hypothesis.ids) for result in text_to_text.run([" ", ""])] == [(0.0, [])] * 2
    assert [len(results) for results in text_to_text.run_best(["", TEXTS[0]], best=3, limit=LIMIT)] == [1, 3]


def test_a_single_text_is_not_taken_apart(text_to_text):
    with pytest.raises(QkvError, match="list of texts"):
        text_to_text.run("face")


@pytest.mark.parametrize("step", ["assigned", "optimised", "optimised by a fused kernel", "written as data", "loaded"])
def test_weights_that_changed_are_the_ones_that_decode(text_to_text, monkeypatch, step):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    model = text_to_text.model
    before = text_to_text.run(TEXTS, limit=LIMIT)
    changed = {name: tensor + torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    changed["target.tokens.weight"] = changed["source.tokens.weight"]
    if step == "loaded":
        model.load_state_dict(changed)
    elif step == "assigned":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
    elif step == "written as data":
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused="fused" in step)
        model(torch.tensor([[5, 6]]), None, torch.tensor([[1, 7]])).logsumexp(-1).sum().backward()
        optimizer.step()
    after = text_to_text.run(TEXTS, limit=LIMIT)
    fresh = TextToText(model, text_to_text.source_tokenizer, text_to_text.target_tokenizer)
    assert after == fresh.run(TEXTS, limit=LIMIT)
    assert after != before


def test_weights_are_packed_once(text_to_text, monkeypatch):
    calls = []
    monkeypatch.setattr("qkv.generate.prepare.prepare", lambda model: calls.append(model) or model)
    text_to_text.run(TEXTS, limit=LIMIT)
    text_to_text.run(TEXTS, limit=LIMIT)
    assert len(calls) == 1


def test_a_model_in_training_goes_on_training(text_to_text):
    text_to_text.model.train()
    first = text_to_text.run(["face"], limit=LIMIT)
    assert text_to_text.model.training
    assert first == text_to_text.run(["face"], limit=LIMIT)  # decoded without dropout all the same


@pytest.mark.parametrize("shared", [True, False])
def test_a_saved_folder_loads_and_answers_the_same(tmp_path, shared):
    source = characters()
    text_to_text = made(source, source if shared else characters("ABC"))
    text_to_text.save(tmp_path)
    loaded = TextToText.load(tmp_path)
    assert (loaded.source_tokenizer is loaded.target_tokenizer) == shared
    assert loaded.run(TEXTS, limit=LIMIT) == text_to_text.run(TEXTS, limit=LIMIT)
    sides = ("",) if shared else ("source_", "target_")
    names = {f"{side}tokenizer{notes}.json" for side in sides for notes in ("", "_config")}
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"} | names


def test_a_larger_vocabulary_is_allowed_where_it_is_said_and_noted(tmp_path):
    tokenizer = characters()
    larger = build("transformer", replace(SIZES, vocabulary=tokenizer.size + 5)).eval()
    with pytest.raises(QkvError, match="Mismatched tokenizer"):
        TextToText(larger, tokenizer, tokenizer)
    with pytest.raises(QkvError, match="Mismatched tokenizer"):
        TextToText(larger, tokenizer, tokenizer, spare=4)
    text_to_text = TextToText(larger, tokenizer, tokenizer, spare=5)
    text_to_text.save(tmp_path)
    loaded = TextToText.load(tmp_path)
    assert loaded.source_tokenizer.notes.spare == 5
    assert loaded.run(TEXTS, limit=LIMIT) == text_to_text.run(TEXTS, limit=LIMIT)
    drawn = text_to_text.sample(TEXTS, samples=5, seed=0, limit=LIMIT)
    assert all(max(one.hypothesis.ids, default=0) < tokenizer.size for row in drawn for one in row)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_mismatched_tokenizer_is_said(tmp_path, side):
    made(characters(), characters("ABC")).save(tmp_path)
    characters("abcdefghijkl").save(tmp_path / f"{side}_tokenizer.json")
    with pytest.raises(QkvError, match=rf"Mismatched tokenizer: the {side} one has 16 tokens.*built for"):
        TextToText.load(tmp_path)


def test_a_folder_without_tokenizers_is_said(tmp_path):
    with pytest.raises(QkvError, match=r"source_tokenizer.json"):
        load_tokenizers(tmp_path)


def test_a_notebook_shows_family_sizes_parts_and_parameters(text_to_text):
    count = sum(parameter.numel() for parameter in text_to_text.model.parameters())
    assert repr(text_to_text) == f"TextToText(transformer, {count:,} parameters, 11 → 11 tokens)"
    page = text_to_text._repr_html_()
    assert f"{count:,} parameters" in page
    assert "width 16" in page
    assert "2 × (attention, feed_forward)" in page
    assert "1 × (attention, cross, feed_forward)" in page
    cells = [
        int(cell.replace(",", ""))
        for cell in page.replace("</td>", "<td>").split("<td>")
        if cell.replace(",", "").isdigit()
    ]
    assert sum(cells) == count  # a shared matrix counts once
