"""Muon against its algorithm written out, and against torch's own."""

import math
from dataclasses import MISSING, fields

import pytest
import torch
from torch import Tensor, nn

from qkv.api.choices import named_sizes
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, Family, build, find_family
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt import LayerwiseRates
from qkv.train.optimizers import Muon, hidden_matrices, muon
from qkv.train.optimizers.orthogonal import orthogonalised
from tests.train.optimizers.common import gradients, one_parameter, small_gpt2, stepped
from tests.train.tiny import TinyModel


def newton_schulz(matrix: Tensor) -> Tensor:
    """As the post has it, for one matrix."""
    x = matrix / (matrix.norm() + 1e-7)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        b = -4.7750 * a + 2.0315 * a @ a
        x = 3.4445 * x + b @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def test_singular_values_come_near_one_and_directions_stay() -> None:
    torch.manual_seed(0)
    for shape in ((3, 8, 5), (2, 5, 8), (1, 6, 6)):
        matrices = torch.randn(shape, dtype=torch.float64)
        found = orthogonalised(matrices)
        u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
        own = torch.linalg.svdvals(found)
        assert own.min() > 0.3
        assert own.max() < 1.3  # [jordan2024]: the coefficients leave about 0.7 to 1.2 of what is not tiny
        middle = u.mT @ found @ vh.mT
        torch.testing.assert_close(
            middle, torch.diag_embed(torch.diagonal(middle, dim1=-2, dim2=-1)), atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_muon_is_its_algorithm(shape: tuple[int, int]) -> None:
    model, given = one_parameter(shape), gradients(shape, 5)
    theta, momentum = model.weight.detach().clone(), torch.zeros(shape, dtype=torch.float64)
    optimizer = Muon(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.3, pieces=())
    found = stepped(model, optimizer, given)
    for gradient in given:
        momentum = 0.9 * momentum + gradient
        update = newton_schulz(gradient + 0.9 * momentum)
        theta = theta - 0.02 * (0.2 * math.sqrt(6) * update + 0.3 * theta)  # [liu2025 §2.2]
    torch.testing.assert_close(found, theta, rtol=1e-10, atol=1e-10)


def test_muon_is_torchs_muon() -> None:
    """torch iterates in bfloat16, so that it agrees as far as that goes."""
    theirs = getattr(torch.optim, "Muon", None)
    if theirs is None:
        pytest.skip("This torch has no Muon.")
    ours, other = one_parameter((8, 12)), one_parameter((8, 12))
    given = gradients((8, 12), 4)
    found = stepped(ours, Muon(ours.parameters(), lr=0.01, momentum=0.95, weight_decay=0.1, pieces=()), given)
    how = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.1, "nesterov": True, "adjust_lr_fn": "match_rms_adamw"}
    expected = stepped(other, theirs(other.parameters(), **how), given)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    assert (found - one_parameter((8, 12)).weight).abs().max() > 1e-2


def test_what_is_left_to_adamw_is_adamw() -> None:
    shape = (3, 4)
    model, given = one_parameter(shape), gradients(shape, 5)
    found = stepped(model, Muon(model.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3), given)
    other = one_parameter(shape)
    plain = torch.optim.AdamW(other.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    torch.testing.assert_close(found, stepped(other, plain, given), rtol=1e-12, atol=1e-12)


def test_matrices_that_share_a_parameter_are_made_orthogonal_one_by_one() -> None:
    model, given = one_parameter((10, 6)), gradients((10, 6), 2)
    found = stepped(model, Muon(model.parameters(), lr=0.02, pieces=(6, 4)), given)
    for first, last in ((0, 6), (6, 10)):
        alone = one_parameter((10, 6))
        alone.weight = nn.Parameter(alone.weight.detach()[first:last].clone())
        own = [gradient[first:last] for gradient in given]
        expected = stepped(alone, Muon(alone.parameters(), lr=0.02, pieces=()), own)
        torch.testing.assert_close(found[first:last], expected, rtol=1e-10, atol=1e-10)


def test_a_stack_of_experts_is_many_matrices() -> None:
    model, given = one_parameter((3, 4, 5)), gradients((3, 4, 5), 2)
    found = stepped(model, Muon(model.parameters(), lr=0.02, pieces=()), given)
    for number in range(3):
        alone = one_parameter((3, 4, 5))
        alone.weight = nn.Parameter(alone.weight.detach()[number].clone())
        expected = stepped(alone, Muon(alone.parameters(), lr=0.02, pieces=()), [each[number] for each in given])
        torch.testing.assert_close(found[number], expected, rtol=1e-10, atol=1e-10)


def test_matrices_of_the_stack_are_muons_and_the_rest_is_adamws() -> None:
    model = small_gpt2(tied=False)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = muon(model).param_groups
    taken = {
        names[each]: group["pieces"] for group in groups if group["pieces"] is not None for each in group["params"]
    }
    block = {
        "attention.mixer.project.weight": (16, 16, 16),
        "attention.mixer.out.weight": (),
        "feed_forward.mixer.inner.weight": (),
        "feed_forward.mixer.outer.weight": (),
    }
    assert taken == {f"stack.blocks.{layer}.{name}": pieces for layer in (0, 1) for name, pieces in block.items()}
    assert hidden_matrices(model) == taken.keys()


def test_adamw_may_have_a_multiple_of_the_rate_of_muon_also_layer_by_layer() -> None:
    model = small_gpt2(tied=False)
    for rates in (None, LayerwiseRates(0.5)):
        plain = muon(model, learning_rate=0.01, rates=rates)
        groups = muon(model, learning_rate=0.01, rates=rates, adamw_factor=3.0).param_groups
        assert rates is not None or groups[0]["pieces"] is not None  # the first group's rate is what a run reports
        for group, usual in zip(groups, plain.param_groups, strict=True):
            assert group["lr"] == pytest.approx(usual["lr"] * (3 if group["pieces"] is None else 1))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "rnn"])
def test_every_family_has_matrices_for_it_none_of_them_of_its_ends(name: str) -> None:
    family = find_family(name)
    labelled = HeadChoice("classification", ("yes", "no")) if family.heads[:1] == ("classification",) else None
    with torch.device("meta"):
        model = build(name, family.sizes_type(**named_sizes(family, "desk"), **vocabularies(family)), labelled)
    found = hidden_matrices(model)
    shapes = {path: parameter.shape for path, parameter in model.named_parameters()}
    assert found
    ends = {"embed", "head", "source", "target", "frames", "queries", "backbone", "position"}
    assert [path for path in found if ends & set(path.split(".")) or len(shapes[path]) not in (2, 3)] == []


def vocabularies(family: Family) -> dict[str, int]:
    """The sizes that follow from data."""
    required = [each.name for each in fields(family.sizes_type) if each.default is MISSING]
    return {each: 50 for each in required if each.endswith("vocabulary")}


def test_experts_of_a_model_are_taken() -> None:
    sizes = GPT2Sizes(vocabulary=9, positions=8, width=8, hidden=16, heads=2, layers=2, experts=4)
    names = hidden_matrices(build("gpt2", sizes))
    assert {name for name in names if "feed_forward" in name and "router" not in name}


def test_a_model_without_a_stack_is_refused() -> None:
    with pytest.raises(QkvError, match="take adamw"):
        muon(TinyModel())
    model = small_gpt2()
    model.stack.requires_grad_(False)
    with pytest.raises(QkvError, match="has none that learns"):
        muon(model)
