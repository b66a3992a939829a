"""The losses of experts beside those of a task."""

from dataclasses import replace

import pytest
import torch

from qkv.data.packing import pack
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build
from qkv.parts.context import Ledger
from qkv.parts.experts import BALANCE, LOADS, ROUTER_Z
from qkv.train.evaluation import ValidationLoss
from qkv.train.flops import flops_per_counted_token, flops_per_target_token
from qkv.train.objectives.consistency import ConsistentLoss
from qkv.train.objectives.expert_losses import WithExpertLosses, with_expert_losses
from qkv.train.objectives.labels import ClassificationLoss, RegressionLoss, SpanLoss, TagLoss
from qkv.train.objectives.language import LanguageLoss, read_documents
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from tests.models.small import perturb, shrunk
from tests.train.objectives.small import all_of, small_gpt
from tests.train.objectives.test_language import END, some_documents


def gpt_with_experts(**changes):
    torch.manual_seed(0)
    plain = small_gpt()
    model = build("gpt2", replace(plain.sizes, experts=4, layers=4, **changes), plain.head_choice)
    perturb(model)
    return model.eval()


def switch():
    torch.manual_seed(0)
    model = build("switch", shrunk(FAMILIES["switch"].published["base-8"], capacity=2, dropout=0.0))
    perturb(model)
    return model.eval()


class SomePairs:
    source = torch.randint(0, 23, (3, 9))
    source_lengths = padding = torch.tensor([9, 4, 6])
    target = torch.randint(0, 23, (3, 8))
    target_lengths = torch.tensor([8, 3, 5])
    target_tokens = 13


def texts():
    return all_of(pack(some_documents(), 40, end=END, start=1))


def recorded(ledger, kind):
    return torch.stack([value for name, values in ledger.entries.items() if name.endswith(kind) for value in values])


def test_both_losses_are_added_for_every_counted_token():
    model, batch = gpt_with_experts(), texts()
    ledger = Ledger(model, [BALANCE, ROUTER_Z, LOADS])
    read_documents(model, batch, ledger)
    plain = LanguageLoss()(model, batch)
    balance, z = recorded(ledger, BALANCE), recorded(ledger, ROUTER_Z)
    assert balance.shape == z.shape == (2,)  # every other of four blocks
    measured = WithExpertLosses(LanguageLoss(), balance=0.3, router_z=0.02).measure(model, batch)
    expected = plain.total + plain.count * (0.3 * balance.sum() + 0.02 * z.sum())
    torch.testing.assert_close(measured["loss"].total, expected)
    assert measured["loss"].count == plain.count
    torch.testing.assert_close(measured["nll"].total, LanguageLoss().measure(model, batch)["nll"].total)
    mean = {name: float(loss.total.detach()) / loss.count for name, loss in measured.items()}
    assert mean["balance"] == pytest.approx(balance.mean().item())
    assert mean["busiest_expert"] == pytest.approx(recorded(ledger, LOADS).amax(-1).mean().item())
    assert mean["dropped"] == 0


def test_an_encoder_decoder_tells_of_both_its_stacks():
    model, batch = switch(), SomePairs()
    task = SequenceToSequenceLoss()
    plain, measured = task(model, batch), WithExpertLosses(task).measure(model, batch)
    ledger = Ledger(model, [BALANCE, ROUTER_Z])
    task.predictions(model, batch, ledger)
    beside = 0.01 * recorded(ledger, BALANCE).sum() + 0.001 * recorded(ledger, ROUTER_Z).sum()
    assert len(recorded(ledger, BALANCE)) == 2
    torch.testing.assert_close(measured["loss"].total, plain.total + plain.count * beside)
    assert 0 < float(measured["dropped"].total) / measured["dropped"].count < 1


def test_the_weights_of_the_papers_are_usual():
    objective = WithExpertLosses(LanguageLoss())
    assert (objective.balance, objective.router_z, objective.counts) == (0.01, 0.001, "tokens")
    assert WithExpertLosses(ClassificationLoss()).counts == "texts"


def test_only_models_with_experts_get_them():
    task = LanguageLoss()
    assert with_expert_losses(small_gpt(), task) is task
    wrapped = with_expert_losses(gpt_with_experts(), task)
    assert wrapped == WithExpertLosses(task)
    own = WithExpertLosses(task, balance=0.5)
    assert with_expert_losses(gpt_with_experts(), own) is own
    with pytest.raises(QkvError, match="has no experts"):
        own(small_gpt(), texts())


def test_objectives_that_cannot_record_say_so():
    for task in (
        LanguageLoss(),
        SequenceToSequenceLoss(),
        ClassificationLoss(),
        TagLoss(),
        RegressionLoss(),
        SpanLoss(),
    ):
        WithExpertLosses(task)
    with pytest.raises(QkvError, match="cannot be trained by ConsistentLoss"):
        WithExpertLosses(ConsistentLoss())
    with pytest.raises(QkvError, match="0 or more"):
        WithExpertLosses(LanguageLoss(), balance=-1)


def test_a_router_learns_from_its_losses_alone():
    model, batch = gpt_with_experts(), texts()
    routers = [parameter for name, parameter in model.named_parameters() if "router" in name]
    with_losses = torch.autograd.grad(WithExpertLosses(LanguageLoss(), 1.0, 1.0)(model, batch).total, routers)
    without = torch.autograd.grad(WithExpertLosses(LanguageLoss(), 0.0, 0.0)(model, batch).total, routers)
    for one, other in zip(with_losses, without, strict=True):
        assert (one - other).abs().max() > 1e-3


@torch.no_grad()
def test_validation_tells_how_experts_are_used():
    model = gpt_with_experts()
    figures = ValidationLoss(with_expert_losses(model, LanguageLoss()), [texts(), texts()])(model)
    assert {"loss", "perplexity", "balance", "router_z", "busiest_expert", "dropped"} <= figures.keys()
    assert figures["balance"] >= 0.5
    assert 0.25 <= figures["busiest_expert"] <= 1


def test_experts_cost_the_operations_of_one_feed_forward():
    """And of a router: the same model with one expert has the rest of them."""
    batch = texts()
    many, one = gpt_with_experts(), small_gpt()
    one = build("gpt2", replace(many.sizes, experts=None), many.head_choice)
    counted = [flops_per_counted_token(model, LanguageLoss(), batch) for model in (many, one)]
    assert 1 < counted[0] / counted[1] < 1.1
    large = switch()
    dense = build("t5", FAMILIES["t5"].sizes({name: value for name, value in vars(large.sizes).items() if name in T5}))
    counted = [flops_per_target_token(model, SomePairs()) for model in (large, dense)]
    assert 1 < counted[0] / counted[1] < 1.1


T5 = set(vars(FAMILIES["t5"].published["small"]))
