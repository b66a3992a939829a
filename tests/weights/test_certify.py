"""Certify: every family and head that is published passes, and whatever is changed in a model is noticed."""

import builtins
import copy

import pytest
import torch
import transformers

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES
from qkv.weights.certify import EXACT, Difference, Finding, certify, compare_models, difference, open_reference
from qkv.weights.compare import Setting, compared, draw, pieces, settings_for
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import published_config, save_published
from qkv.weights.save import save_model
from tests.weights.folders import small_published, write_gpt2

HEADS = [
    (each.family, kind)
    for each in {published.family: published for published in PUBLISHED.values()}.values()
    for kind in each.architectures
    if FAMILIES[each.family].reads == "text" or each.family == "whisper"  # pictures have a file of their own
]


def quick_first(heads):
    """One head of each family at every change, all of them in the long run."""
    seen = set()
    for family, kind in heads:
        yield pytest.param(family, kind, marks=[pytest.mark.slow] if family in seen else [])
        seen.add(family)


@pytest.mark.parametrize(("family", "kind"), list(quick_first(HEADS)))
def test_what_we_write_answers_the_same_in_the_reference(family, kind, tmp_path):
    model = small_published(family, kind, **({"end": 22} if family == "clip-text" else {}))
    save_published(model, tmp_path, PUBLISHED, {"pad_token_id": 3})
    report = certify(tmp_path, longest=9, rows=(1, 3))
    assert report.keys == {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    assert [each for each in report.findings if not each.passed] == []
    assert {each.tolerance for each in report.findings if each.dtype == "float32"} == {
        EXACT
    }  # nothing was owed to rounding
    assert report.passed


def test_what_hears_is_compared_up_to_the_most_that_it_writes(tmp_path):
    model = small_published("whisper")
    save_published(model, tmp_path, PUBLISHED, {"pad_token_id": 3})
    report = certify(tmp_path, rows=(1,), dtypes=("float32",))
    assert report.reads == report.longest == model.sizes.target_positions
    assert max(each.setting.length for each in report.findings) == report.reads
    assert report.passed


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = write_gpt2(tmp_path_factory.mktemp("gpt2"))
    model = load_model(folder)
    reference, _ = open_reference(transformers, published_config(model, PUBLISHED)["architectures"][0], folder)
    return model, reference


@torch.no_grad()
def test_what_the_reference_itself_loses_to_rounding_is_allowed_and_no_more(pair):
    model, reference = copy.deepcopy(pair)
    settings = [Setting(9, 3)]
    found = compare_models(model, reference, settings, dtypes=["float32"], exact=0.0)
    assert all(0 < each.tolerance < 1e-5 for each in found if each.apart.relative)
    assert all(each.passed for each in found)
    next(model.parameters()).mul_(1 + 1e-4)
    assert not any(each.passed for each in compare_models(model, reference, settings, dtypes=["float32"], exact=0.0))


@torch.no_grad()
def test_a_change_of_any_one_parameter_is_noticed(pair):
    model, reference = copy.deepcopy(pair)
    settings = [Setting(9, 3)]
    assert all(each.passed for each in compare_models(model, reference, settings, dtypes=["float32"]))
    for name, parameter in model.named_parameters():
        kept = parameter.clone()
        parameter += 0.01 * torch.randn_like(parameter)
        found = compare_models(model, reference, settings, dtypes=["float32"])
        assert not all(each.passed for each in found), name
        parameter.copy_(kept)


@torch.no_grad()
def test_coarser_rounding_than_the_reference_s_is_noticed(pair):
    model, reference = copy.deepcopy(pair)
    settings = [Setting(32, 8)]
    assert all(each.passed for each in compare_models(model, reference, settings, dtypes=["bfloat16"]))
    for parameter in model.parameters():
        parameter *= 1 + 2**-5 * torch.randn_like(parameter)
    assert not any(each.passed for each in compare_models(model, reference, settings, dtypes=["bfloat16"]))


def test_all_settings_are_there_and_those_that_a_cache_adds(pair):
    settings = settings_for(pair[0], 32)
    assert {each.length for each in settings} == {1, 2, 9, 32}
    assert {(each.padding, each.cached) for each in settings if each.length == 9} == {
        (padding, cached) for padding in ("none", "left", "right") for cached in (False, True)
    }
    assert {each.rows for each in settings} == {1, 8}
    assert not any(each.cached for each in settings_for(small_published("bert", "masked"), 32))
    assert pieces(Setting(9, 1, cached=True)) == [(0, 5), (5, 6), (6, 7), (7, 8), (8, 9)]
    assert pieces(Setting(1, 1, cached=True)) == [(0, 1)]


def test_random_tokens_are_never_the_padding_token_and_are_the_same_again(pair):
    batch = draw(pair[0], Setting(9, 8, "left"), pad=5, seed=1)
    assert (batch.ids[batch.documents > 0] != 5).all()
    assert (batch.ids[batch.documents == 0] == 5).all()
    assert batch.documents[:, -1].all()
    assert torch.equal(batch.ids, draw(pair[0], Setting(9, 8, "left"), pad=5, seed=1).ids)
    assert not torch.equal(batch.ids, draw(pair[0], Setting(9, 8, "left"), pad=5, seed=2).ids)


@torch.no_grad()
def test_only_real_tokens_are_compared(pair):
    ((_, found, expected),) = compared(*pair, Setting(9, 4, "right"), pad=5)
    assert len(found) == len(expected) == 5 + 9 + 8 + 1


def test_a_difference_that_is_no_number_fails():
    apart = difference(torch.tensor([1.0, float("nan")]), torch.ones(2))
    assert not Finding(Setting(1, 1), "float32", "logits", apart, 1.0).passed
    assert difference(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 1.0])) == Difference(
        3.0, 3.0, pytest.approx(4.5**0.5)
    )


def test_a_folder_of_our_own_is_exported_first(tmp_path):
    save_model(small_published("t5"), tmp_path)
    report = certify(tmp_path, longest=9, rows=(2,), dtypes=["float32"])
    assert report.passed
    assert report.architecture == "T5ForConditionalGeneration"
    assert not (tmp_path / "parity.json").exists()


def test_a_family_that_nobody_else_has_is_said(tmp_path):
    save_model(small_published("rnn"), tmp_path)
    with pytest.raises(QkvError, match="family rnn has no published form"):
        certify(tmp_path)


def test_a_length_that_the_model_does_not_read_is_refused(tmp_path):
    with pytest.raises(QkvError, match="reads rows of 1 to 32 tokens, so it cannot be compared at 33"):
        certify(write_gpt2(tmp_path), longest=33)


def test_without_the_reference_library_its_name_is_said(tmp_path, monkeypatch):
    before = builtins.__import__

    def without(name, *more):
        if name == "transformers":
            raise ImportError(name)
        return before(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(QkvError, match=r'pip install "qkv\[certify\]"'):
        certify(tmp_path)
