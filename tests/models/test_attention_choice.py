"""Any attention in any family: spellings, agreement with `exact` under the same rule, caches, folders, refusals."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.models.attention_choice import KINDS, AttentionChoice
from qkv.models.catalogue import build, config_of, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention, CrossAttention, MultiHead
from qkv.parts.attention.big_bird import BlocksOfRow, RandomBlocks
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.linformer import LinformerKernel
from qkv.parts.attention.kernels.random_features import RandomDirections
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import (
    Causal,
    Everything,
    Fixed,
    GlobalTokens,
    NotPadding,
    Rule,
    SameDocument,
    Strided,
    Tokens,
    Window,
)
from qkv.parts.position import positions_in_documents
from qkv.train.adapt import LoRA, add_lora, freeze
from qkv.weights.load import load_model, with_attention, with_head
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.save import save_model, tensors_of
from tests.models.small import perturb
from tests.models.small_text import small_model, small_sizes

SLOTS = 12
RULES = {
    "window:3": Window(3),
    "window:2:3": Window(2, 3),
    "window:2+global:1": Window(2) | GlobalTokens(1),
    "strided:4": Window(4) | Strided(4),
    "fixed:4:1": Fixed(4, 1),
}
LOOKING_BACK = [*RULES, "performer:32", "rfa:32", "lsh:2:16"]
BOTH_WAYS = [*RULES, "performer:32", "rfa:32", "lsh:2:16", "linformer:5", "big_bird:1:1"]
BOTH_WAYS += ["linformer_key_value:5", "linformer_headwise:5"]
CASES = [*((family, spelled) for family in ("gpt2", "llama") for spelled in LOOKING_BACK)]
CASES += [("bert", spelled) for spelled in BOTH_WAYS]


def model_with(family: str, spelled: str | None, layers: int = 2) -> TextModel:
    torch.manual_seed(1)
    sizes = replace(small_sizes(family), layers=layers)
    model: TextModel = build(family, sizes, None, AttentionChoice.of(spelled)).eval()
    perturb(model)
    return model


def random_ids(model: TextModel, rows: int = 2) -> Tensor:
    return torch.randint(0, model.vocabulary, (rows, SLOTS), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def states(model: TextModel, ids: Tensor, rule: Rule | None = None) -> Tensor:
    return model.states(ids, model.context(ids, visibility=rule or NotPadding()))


def attentions(model: torch.nn.Module) -> list[MultiHead]:
    return [each for each in model.modules() if isinstance(each, MultiHead) and not isinstance(each, CrossAttention)]


@pytest.mark.parametrize(
    "spelled", [*RULES, "window:256+strided:64+global:4", "big_bird:64", "big_bird:64:2", *LOOKING_BACK, "linformer:8"]
)
def test_a_choice_is_spelled_as_it_was(spelled: str) -> None:
    choice = AttentionChoice.parse(spelled)
    assert str(choice) == spelled
    assert choice == AttentionChoice.parse(str(choice)) == AttentionChoice.of(choice)
    assert AttentionChoice.of(None) is None


@pytest.mark.parametrize(
    ("spelled", "words"),
    [
        ("windw:3", "did you mean window?"),
        ("", "there are window, global"),
        ("window", "window:SIZE[:STEP]"),
        ("window:0", "from 1 to"),
        ("window:-3", "whole numbers"),
        ("window:3.5", "whole numbers"),
        ("window:9999999", "from 1 to 1,048,576"),
        ("window:3:4:5", "window:SIZE[:STEP]"),
        ("lsh:4", "lsh:ROUNDS:CHUNK"),
        ("global:4", "window:256+global:4"),
        ("performer:64+global:1", "performer stands alone"),
        ("fixed:4:8", "fixed:4:4"),
    ],
)
def test_a_bad_spelling_gets_one_sentence(spelled: str, words: str) -> None:
    with pytest.raises(QkvError) as caught:
        AttentionChoice.parse(spelled)
    assert words in str(caught.value)


@pytest.mark.parametrize("spelled", RULES)
@pytest.mark.parametrize("family", ["gpt2", "gpt3", "llama", "bert", "albert"])
def test_a_rule_is_exact_attention_narrowed_by_it(family: str, spelled: str) -> None:
    model = model_with(family, spelled)
    own = with_attention(model, None)
    for attention in attentions(own):
        attention.kernel = exact
    ids = random_ids(model)
    torch.testing.assert_close(states(model, ids), states(own, ids, RULES[spelled]), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(states(model, ids), states(own, ids), atol=1e-3)


def test_many_positive_features_come_near_exact_attention() -> None:
    """The error falls with the square root of their number: a hundred times as many, a tenth of it."""
    own = build("llama", small_sizes("llama")).eval()
    ids, errors = random_ids(own, rows=4), []
    for features in (16, 1600):
        torch.manual_seed(0)
        found = states(with_attention(own, AttentionChoice.parse(f"performer:{features}")), ids)
        errors.append(float((found - states(own, ids)).abs().mean()))
    assert errors[1] < errors[0] / 4
    assert errors[1] < 0.05 * float(states(own, ids).abs().mean())


@pytest.mark.parametrize(
    ("spelled", "projections"), [("linformer:5", 1), ("linformer_key_value:5", 3), ("linformer_headwise:5", 6)]
)
def test_projections_are_shared_as_the_spelling_says(spelled: str, projections: int) -> None:
    """By all of three layers, by keys and values of a layer, by the heads of either."""
    model = model_with("bert", spelled, layers=3)
    kernels = [attention.kernel for attention in attentions(model)]
    weights = {id(w): w for kernel in kernels if isinstance(kernel, LinformerKernel) for w in kernel.parameters()}
    assert len(weights) == projections
    assert all(w.shape == (1, 5, small_sizes("bert").positions) for w in weights.values())
    assert sum("kernel" in name for name in tensors_of(model)) == projections
    too_long = torch.zeros(1, small_sizes("bert").positions + 1, dtype=torch.long)
    with pytest.raises(QkvError):
        model(too_long)


@pytest.mark.parametrize(("spelled", "every"), [("performer:8", 1000), ("performer:8:50", 50), ("rfa:8", None)])
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_features_are_drawn_anew_as_the_spelling_says(family: str, spelled: str, every: int | None) -> None:
    model = model_with(family, spelled)
    drawn = [module for module in model.modules() if isinstance(module, RandomDirections)]
    assert [module.redraw_every for module in drawn] == [every] * 2


def test_a_linformer_that_projects_nothing_is_exact() -> None:
    longest = small_sizes("bert").positions
    model = model_with("bert", f"linformer:{longest}")
    kernels = [attention.kernel for attention in attentions(model)]
    assert all(isinstance(kernel, LinformerKernel) for kernel in kernels)
    assert len({id(kernel.keys) for kernel in kernels} | {id(kernel.values) for kernel in kernels}) == 1
    with torch.no_grad():
        kernels[0].keys.weight.copy_(torch.eye(longest))
    ids = random_ids(model)[:, : min(longest, SLOTS)]
    model_ids = torch.cat((ids, ids.new_zeros(2, longest - ids.shape[1])), 1)
    torch.testing.assert_close(states(model, model_ids), states(with_attention(model, None), model_ids))


def test_hashed_attention_keeps_queries_and_values() -> None:
    """In one chunk all tokens read each other but themselves: exact attention to the directions of queries."""
    own = model_with("gpt2", None, layers=1)
    model = with_attention(own, AttentionChoice.parse("lsh:1:16"))
    (old,), (new,) = attentions(own), attentions(model)
    assert isinstance(new, SharedAttention)
    kept, before = new.project.state_dict(), old.project.state_dict()
    assert kept.keys() == {name for name in before if not name.startswith("key.")}
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.items())
    assert torch.equal(new.out.weight, old.out.weight)
    ids = random_ids(model)
    found = states(model, ids)
    del new.kernel
    new.kernel, new.visibility = exact, Causal() & ~Window(1)
    torch.testing.assert_close(found[:, 1:], states(model, ids)[:, 1:], atol=1e-5, rtol=1e-4)


def test_shared_values_are_given_to_each_head_that_shared_them() -> None:
    own = model_with("llama", None)
    model = with_attention(own, AttentionChoice.parse("lsh:1:16"))
    for old, new in zip(attentions(own), attentions(model), strict=True):
        assert (old.heads, old.key_value_heads, new.key_value_heads) == (2, 1, 2)
        old_value, new_value = (each.project.state_dict()["value.weight"] for each in (old, new))
        assert torch.equal(new_value, torch.cat((old_value, old_value)))


def test_blocks_are_exact_attention_under_their_rules_in_training_and_after() -> None:
    model = model_with("bert", "big_bird:1:1", layers=1)
    own, ids = with_attention(model, None), random_ids(model)
    rule = BlocksOfRow(1, SLOTS) | RandomBlocks(1, SLOTS, 1, 0)
    torch.testing.assert_close(states(model, ids), states(own, ids, rule), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("family", "spelled"), [case for case in CASES if case[0] != "bert"])
def test_nothing_that_comes_later_is_seen_and_a_cache_changes_nothing(family: str, spelled: str) -> None:
    model = model_with(family, spelled)
    ids = random_ids(model)
    whole = states(model, ids)
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 1) % model.vocabulary
    torch.testing.assert_close(states(model, other)[:, :7], whole[:, :7], atol=1e-5, rtol=1e-4)
    cache, found = model.new_cache(SLOTS), []
    for part in (ids[:, :5], *ids[:, 5:].split(1, 1)):
        found.append(model.states(part, model.context(part, cache=cache)))
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("spelled", [spelled for spelled in BOTH_WAYS if not spelled.startswith("big_bird")])
def test_padding_behind_a_row_changes_nothing(spelled: str) -> None:
    model, ids = model_with("bert", spelled), random_ids(model_with("bert", spelled))
    lengths = torch.tensor([SLOTS, 7])
    found = model.states(ids, model.context(ids, lengths=lengths))
    torch.testing.assert_close(found[1:, :7], states(model, ids[1:, :7]), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "spelled", [each for each in LOOKING_BACK if AttentionChoice.parse(each).tells_documents_apart]
)
def test_documents_that_share_a_row_are_read_as_if_alone(spelled: str) -> None:
    model = model_with("gpt2", spelled)
    ids = random_ids(model)
    documents = torch.tensor([[1] * 5 + [2] * 7] * 2)
    ctx = model.context(
        ids,
        tokens=Tokens(SLOTS, documents=documents),
        positions=positions_in_documents(documents),
        visibility=SameDocument(),
    )
    torch.testing.assert_close(model.states(ids, ctx)[:, 5:], states(model, ids[:, 5:]), atol=1e-5, rtol=1e-4)


def test_only_some_choices_tell_documents_apart() -> None:
    apart = {"window:3", "strided:3", "lsh:2:8"}
    others = {"fixed:4:1", "window:3+global:1", "performer:8", "rfa:8", "linformer:8", "big_bird:4"}
    others |= {"linformer_key_value:8", "linformer_headwise:8"}
    assert {spelled.split(":")[0] for spelled in apart | others} == KINDS.keys() - {"global"}
    assert {spelled for spelled in apart | others if AttentionChoice.parse(spelled).tells_documents_apart} == apart


@pytest.mark.parametrize(("family", "spelled"), CASES)
def test_a_folder_brings_it_back(family: str, spelled: str, tmp_path: Path) -> None:
    model = model_with(family, spelled)
    save_model(model, tmp_path)
    assert read_json(tmp_path / "config.json")["attention"] == spelled
    again = load_model(tmp_path)
    assert str(again.attention_choice) == spelled
    assert config_of(again) == config_of(model)
    assert torch.equal(states(again, random_ids(model)), states(model, random_ids(model)))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(family, model.sizes, None, model.attention_choice) == parameters


@pytest.mark.parametrize("value", ["window:4", "windw:3", 3, None, ["window:3"], "lsh:2:8", "performer:99999"])
def test_a_folder_that_says_something_else_is_refused(value: object, tmp_path: Path) -> None:
    save_model(model_with("gpt2", "window:3"), tmp_path)
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), "attention": value})
    with pytest.raises(QkvError):
        load_model(tmp_path)


def test_a_loaded_model_is_swapped_and_stays_as_it_was() -> None:
    own = model_with("gpt2", None)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    for spelled in LOOKING_BACK:
        new = with_attention(own, AttentionChoice.parse(spelled))
        assert new is not own
        assert (str(new.attention_choice), own.attention_choice) == (spelled, None)
        with torch.no_grad():
            for parameter in new.parameters():
                parameter.zero_()
        assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())
    there = with_attention(own, AttentionChoice.parse("performer:8"))
    back = with_attention(with_attention(there, AttentionChoice.parse("window:3")), None)
    assert torch.equal(states(back, random_ids(own)), states(own, random_ids(own)))
    assert with_attention(there, AttentionChoice.parse("performer:8")) is there


def test_what_is_gone_is_told_and_not_made_up() -> None:
    choice = AttentionChoice.parse("lsh:2:8")
    assert choice.loses is not None
    assert "keys are gone" in choice.loses
    assert AttentionChoice.parse("window:3").loses is None
    with pytest.raises(QkvError, match="lsh:2:8 has no longer all that window:3 needs"):
        with_attention(model_with("gpt2", "lsh:2:8"), AttentionChoice.parse("window:3"))
    updated = model_with("gpt2", None)
    add_lora(updated, LoRA(rank=2, alpha=4.0))
    with pytest.raises(QkvError, match="merge them first"):
        with_attention(updated, AttentionChoice.parse("window:3"))


def test_another_head_keeps_the_attention() -> None:
    model = with_head(model_with("bert", "linformer:5"), HeadChoice("states"))
    assert str(model.attention_choice) == "linformer:5"
    assert all(isinstance(attention.kernel, LinformerKernel) for attention in attentions(model))


@pytest.mark.parametrize("spelled", ["window:3", "performer:8"])
def test_no_published_form_knows_it(spelled: str, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=f"the attention {spelled} in place of its family's own"):
        save_published(model_with("gpt2", spelled), tmp_path / "out", PUBLISHED)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "spelled", "words"),
    [
        ("gpt2", "linformer:4", "looks both ways"),
        ("gpt2", "big_bird:4", "looks both ways"),
        ("roformer", "big_bird:4", "by content alone"),
        ("bert", "performer:16385", "16,384 at most"),
        ("gpt2", "rfa:3", "give an even number"),
        ("longformer", "window:3", "of its own kind"),
        ("reformer", "lsh:2:8", "of its own kind"),
    ],
)
def test_what_makes_no_sense_is_refused(family: str, spelled: str, words: str) -> None:
    with pytest.raises(QkvError, match=words):
        build(family, small_sizes(family), None, AttentionChoice.parse(spelled))


def test_layers_that_look_near_keep_their_own_sight() -> None:
    """Every second layer of a GPT-3 has a band: the others are swapped."""
    first, second = attentions(model_with("gpt3", "performer:8"))
    assert first.kernel is not None
    assert second.kernel is None
    assert second.visibility == Causal() & Window(3)


def test_dropout_of_weights_goes_where_there_are_none() -> None:
    sizes = replace(small_sizes("gpt2"), attention_dropout=0.5)
    for spelled, dropout in (("performer:8", 0.0), ("rfa:8", 0.0), ("window:3", 0.5), ("lsh:2:8", 0.5)):
        model = build("gpt2", sizes, None, AttentionChoice.parse(spelled)).train()
        assert {attention.dropout for attention in attentions(model)} == {dropout}
        assert model(random_ids(model)).isfinite().all()


@pytest.mark.parametrize(
    ("family", "spelled", "words"),
    [("bert", "linformer:5", ("kernel.keys",)), ("gpt2", "rfa:8", ("gate", "spread")), ("gpt2", "performer:8", ())],
)
def test_what_is_new_learns_where_the_rest_is_frozen(family: str, spelled: str, words: tuple[str, ...]) -> None:
    for adapt in (partial(add_lora, lora=LoRA(rank=2, alpha=4.0)), partial(freeze, embeddings=True, layers=2)):
        model = model_with(family, spelled)
        adapt(model)
        learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        own = {name for name in learned if ".mixer." in name and ".lora." not in name}
        assert bool(own) == bool(words)
        assert all(any(word in name for word in words) for name in own)
        assert all(any(word in name for name in own) for word in words)


def test_families_as_they_are_have_no_choice() -> None:
    model = small_model("gpt2")
    assert model.attention_choice is None
    assert "attention" not in config_of(model)
    assert all(type(each) is Attention and each.kernel is None for each in attentions(model))
    assert {each.visibility for each in attentions(small_model("bert"))} == {Everything()}
