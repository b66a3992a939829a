"""Encoder-decoders that were loaded, trained further on pairs: what stays, what changes, and who opens the folder."""

from functools import partial

import pytest
import torch
import transformers

from qkv.api.choices import DataSettings
from qkv.api.loading import load
from qkv.api.training import read_result, train_text_to_text
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.train.adapt import LayerwiseRates, LoRA, add_lora, freeze
from qkv.train.optimizers import adamw
from qkv.weights.certify import open_reference
from qkv.weights.export import export
from tests.api.tiny import PAIRS, settings, train_tiny
from tests.api.translators import SENTENCES, marian_folder, t5_folder

NO_KEYS = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
HOW = {"valid": SENTENCES[:2], "optimizer": partial(adamw, learning_rate=1e-2), "settings": settings(steps=3)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("published")
    return {"t5": t5_folder(place / "t5"), "marian": marian_folder(place / "marian")}


def same(first, second):
    states = first.model.state_dict(), second.model.state_dict()
    return {name for name in states[0] if torch.equal(states[0][name], states[1][name])}


@pytest.mark.filterwarnings("ignore:Recommended")
@pytest.mark.parametrize(("kind", "name"), [("t5", "T5ForConditionalGeneration"), ("marian", "MarianMTModel")])
def test_what_was_trained_further_the_reference_opens_with_equal_logits(folders, kind, name, tmp_path):
    before = load(folders[kind], "cpu")
    trained = train_text_to_text(SENTENCES, tmp_path / "run", model=load(folders[kind], "cpu"), **HOW)
    assert len(same(before, trained)) < len(before.model.state_dict())
    loaded = load(tmp_path / "run", "cpu")
    assert same(trained, loaded) == set(trained.model.state_dict())
    export(tmp_path / "run", tmp_path / "out")
    opened, keys = open_reference(transformers, name, tmp_path / "out")
    assert keys == NO_KEYS
    texts = [source for source, _ in SENTENCES[:2]]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = loaded.source_tokenizer.encode(texts, special=True)
    assert theirs(texts)["input_ids"] == ids
    target = [target for _, target in SENTENCES[:1]]
    wanted = loaded.target_tokenizer.encode(target)
    assert theirs(text_target=target, add_special_tokens=False)["input_ids"] == wanted
    source, fed = torch.tensor(ids[:1]), torch.tensor([[loaded.target_tokenizer.start, *wanted[0]]])
    with torch.no_grad():
        expected = opened(input_ids=source, decoder_input_ids=fed).logits
        torch.testing.assert_close(loaded.model(source, None, fed), expected, atol=1e-5, rtol=1e-4)
    again = load(tmp_path / "out", "cpu")
    assert again.run(texts) == loaded.run(texts)
    assert opened.generate(source, max_new_tokens=1)[0, 0] == fed[0, 0]


def test_rows_that_stand_for_no_token_are_noted_and_never_written(folders, tmp_path):
    model = load(folders["t5"], "cpu")
    spare = model.model.target_vocabulary - model.target_tokenizer.size
    assert spare > 0
    train_text_to_text(SENTENCES, tmp_path, model=model, **HOW)
    notes = read_json(tmp_path / "tokenizer_config.json")
    assert notes["spare_rows"] == spare
    write_json(tmp_path / "tokenizer_config.json", {**notes, "spare_rows": spare - 1})
    with pytest.raises(QkvError, match="Mismatched tokenizer"):
        load(tmp_path, "cpu")
    for wrong in (-1, "28", True):
        write_json(tmp_path / "tokenizer_config.json", {**notes, "spare_rows": wrong})
        with pytest.raises(QkvError, match="spare_rows"):
            load(tmp_path, "cpu")


def test_low_rank_updates_are_folded_in(folders, tmp_path):
    before, model = load(folders["t5"], "cpu"), load(folders["t5"], "cpu")
    add_lora(model.model, LoRA(rank=2, alpha=4.0))
    trained = train_text_to_text(SENTENCES, tmp_path / "run", model=model, **HOW)
    loaded = load(tmp_path / "run", "cpu")
    assert same(trained, loaded) == set(before.model.state_dict())
    changed = set(before.model.state_dict()) - same(before, loaded)
    assert changed
    assert all("project" in name or "cross.mixer.query" in name for name in changed)
    export(tmp_path / "run", tmp_path / "out")
    assert open_reference(transformers, "T5ForConditionalGeneration", tmp_path / "out")[1] == NO_KEYS
    said = read_json(tmp_path / "run" / "run.json")["settings"]
    assert said["low_rank_updates"] > 0
    assert said["learned_parameters"] < sum(parameter.numel() for parameter in model.model.parameters()) / 2


def test_frozen_layers_stay_and_lower_ones_learn_more_slowly(folders, tmp_path):
    before, model = load(folders["marian"], "cpu"), load(folders["marian"], "cpu")
    freeze(model.model, embeddings=True, layers=1)
    trained = train_text_to_text(SENTENCES, tmp_path / "frozen", model=model, **HOW)
    kept = same(before, trained)
    below = ("source.", "target.", "encoder.blocks.0.", "decoder.blocks.0.", "head.weight")
    assert {name for name in before.model.state_dict() if name.startswith(below)} <= kept
    assert not any(name.startswith(("encoder.blocks.1.", "decoder.blocks.1.")) for name in kept)
    slow = {**HOW, "optimizer": partial(adamw, learning_rate=1e-2, weight_decay=0.0, rates=LayerwiseRates(0.01))}
    trained = train_text_to_text(SENTENCES, tmp_path / "slow", model=load(folders["marian"], "cpu"), **slow)
    old, new = before.model.state_dict(), trained.model.state_dict()
    moved = [(new[name] - old[name]).abs().max() for name in old if name.endswith("attention.mixer.out.weight")]
    assert moved[0] < 0.1 * moved[1]  # the encoder's two layers


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_goes_on_where_it_stopped(folders, tmp_path, lora):
    def go(folder, **more):
        model = load(folders["t5"], "cpu")
        torch.manual_seed(1)
        if lora:
            add_lora(model.model, LoRA(rank=2))
        return train_text_to_text(SENTENCES, folder, model=model, **{**HOW, **more})

    through = go(tmp_path / "through", settings=settings(steps=5))
    go(tmp_path / "halted", settings=settings(steps=5, minutes=1e-9))
    assert read_result(tmp_path / "halted").step < 5
    resumed = go(tmp_path / "halted", settings=settings(steps=5), resume=True)
    assert same(through, resumed) == set(through.model.state_dict())


def test_a_model_of_our_own_goes_on_with_other_words(tmp_path):
    """Also a recurrent one, with a tokenizer for each side."""
    sizes = {"embedding": 8, "width": 8, "alignment": 8, "maxout": 8}
    first = train_tiny(tmp_path / "first", family="rnn", sizes=sizes)
    second = train_text_to_text(
        [("go", "O G")], tmp_path / "second", model=first, data=DataSettings(hold_out=0), settings=settings()
    )
    loaded = load(tmp_path / "second", "cpu")
    assert loaded.source_tokenizer.fingerprint() == first.source_tokenizer.fingerprint()
    assert loaded.run(["cat"]) == second.run(["cat"])
    with pytest.raises(QkvError, match="no blocks"):
        add_lora(second.model)


def test_admin_is_not_balanced_again(tmp_path):
    first = train_tiny(tmp_path / "first", family="transformer-admin")
    before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    frozen = {**HOW, "valid": None, "data": DataSettings(hold_out=0), "optimizer": partial(adamw, learning_rate=1e-12)}
    second = train_text_to_text(PAIRS, tmp_path / "second", model=first, **frozen)
    for name, tensor in second.model.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


@pytest.mark.parametrize(
    ("choices", "hint"),
    [
        ({"sizes": {"width": 8}}, "sizes"),
        ({"family": "rnn"}, "family"),
        ({"tokenizer": TextTokenizer.train("bytes", ["a"])}, "tokenizer"),
        ({"target_tokenizer": TextTokenizer.train("bytes", ["a"])}, "target_tokenizer"),
        ({"initialise": print}, "initialise"),
    ],
)
def test_what_would_do_nothing_is_refused(folders, tmp_path, choices, hint):
    with pytest.raises(QkvError, match=f"a model or {hint}, not both"):
        train_text_to_text(SENTENCES, tmp_path / "run", model=load(folders["t5"], "cpu"), **choices)
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_frozen_whole_or_of_another_kind_is_refused(folders, tmp_path):
    model = load(folders["t5"], "cpu")
    model.model.requires_grad_(False)
    with pytest.raises(QkvError, match="All of the model is frozen"):
        train_text_to_text(SENTENCES, tmp_path, model=model)
    with pytest.raises(QkvError, match="does not turn one text into another"):
        train_text_to_text(SENTENCES, tmp_path, model=model.model)


def test_gaps_can_be_learned_from_pairs(folders, tmp_path):
    """A text that names a sentinel means it, in sources and in targets."""
    pairs = [("the <extra_id_0> sat", "<extra_id_0> cat")]
    model = load(folders["t5"], "cpu")
    seen = []

    def objective(network, batch):
        from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss

        seen.append(batch)
        return SequenceToSequenceLoss()(network, batch)

    train_text_to_text(
        pairs, tmp_path, model=model, objective=objective, data=DataSettings(hold_out=0), settings=settings(steps=1)
    )
    sentinel = model.source_tokenizer.id_of("<extra_id_0>")
    assert sentinel in seen[0].source[0].tolist()
    assert seen[0].target[0].tolist()[:2] == [model.target_tokenizer.start, sentinel]
