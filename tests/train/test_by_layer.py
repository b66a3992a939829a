"""Norms of each layer's gradients and updates, against autograd and against weights that were kept."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.by_layer import LayerWatch, gradient_norms, stacks_of
from qkv.train.loop import train
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.optimizers import adam
from qkv.train.prefetch import Prefetch
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from tests.models.small import small_model
from tests.train.tiny import TinyBatches, TinyModel, make_batch

OBJECTIVE = SequenceToSequenceLoss(smoothing=0.1)


def whole(tensors: list[torch.Tensor]) -> float:
    return torch.cat([tensor.flatten() for tensor in tensors]).norm().item()


def mean_loss(model: nn.Module, number: int = 0) -> torch.Tensor:
    batch = make_batch(number)
    return OBJECTIVE(model, batch).total / batch.target_tokens


def test_norms_of_gradients_are_those_of_autograd() -> None:
    model = small_model("transformer")
    mean_loss(model).backward()
    found = gradient_norms(model)
    assert list(found) == ["encoder", "decoder"]
    for name, norms in found.items():
        blocks = model.get_submodule(name).blocks
        expected = [whole(list(torch.autograd.grad(mean_loss(model), list(block.parameters())))) for block in blocks]
        assert [norm.item() for norm in norms] == pytest.approx(expected, rel=1e-5)
        assert len(set(expected)) == 2


def test_a_block_without_gradient_has_the_norm_zero() -> None:
    model = small_model("transformer")
    model.encoder.blocks[0].requires_grad_(False)
    mean_loss(model).backward()
    assert gradient_norms(model)["encoder"][0] == 0
    assert gradient_norms(model)["encoder"][1] > 0


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_an_update_is_watched_before_it_is_clipped_and_after_it_is_done(clip: float | None) -> None:
    model = small_model("transformer")
    settings = TrainSettings(steps=1, device="cpu", clip=clip)
    stepper = Stepper(model, OBJECTIVE, torch.optim.SGD(model.parameters(), lr=0.1), settings)
    blocks = list(model.decoder.blocks)
    gradients = [whole(list(torch.autograd.grad(mean_loss(model), list(block.parameters())))) for block in blocks]
    before = [[one.detach().clone() for one in block.parameters()] for block in blocks]
    watch = LayerWatch(model)
    stepper.update(Prefetch(TinyBatches(size=1), torch.device("cpu")), watch)
    record = watch.record()
    assert record["gradient_norms"]["decoder"] == pytest.approx(gradients, rel=1e-4)
    moved = [
        whole([after.detach() - old for after, old in zip(block.parameters(), kept, strict=True)]) / whole(kept)
        for block, kept in zip(blocks, before, strict=True)
    ]
    assert record["relative_updates"]["decoder"] == pytest.approx(moved, rel=1e-4)
    assert min(moved) > 0


def test_what_is_not_finite_is_written_as_none() -> None:
    model = small_model("transformer")
    mean_loss(model).backward()
    next(model.encoder.blocks[1].parameters()).grad.fill_(float("nan"))
    watch = LayerWatch(model)
    watch.gradients()
    watch.updates()
    assert watch.record()["gradient_norms"]["encoder"][1] is None
    json.dumps(watch.record(), allow_nan=False)


def test_a_model_without_stacks_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="no stack of blocks"):
        stacks_of(TinyModel())
    with pytest.raises(QkvError, match="no stack of blocks"):
        run_of(TinyModel(), tmp_path, gradient_norms=True)
    assert not (tmp_path / "run.json").exists()


def run_of(model: nn.Module, folder: Path, resume: bool = False, **settings: object) -> list[dict]:
    torch.manual_seed(0)
    run = RunFolder(folder, save_model=lambda model, folder: None, resume=resume)
    train(
        model,
        OBJECTIVE,
        TinyBatches(size=3),
        TrainSettings(**{"steps": 7, "device": "cpu", "log_every": 3, **settings}),
        run,
        optimizer=adam(model),
        schedule=Constant(),
    )
    return run.records()


def test_a_run_keeps_them_at_its_first_step_and_at_each_record(tmp_path: Path) -> None:
    records = run_of(small_model("transformer-rezero"), tmp_path / "told", gradient_norms=True)
    layers = [record for record in records if record["kind"] == "layers"]
    assert [record["step"] for record in layers] == [1, 3, 6]
    for record in layers:
        for figures in (record["gradient_norms"], record["relative_updates"]):
            assert {name: len(values) for name, values in figures.items()} == {"encoder": 2, "decoder": 2}
            assert all(value > 0 for values in figures.values() for value in values)


def test_watching_changes_nothing_of_a_run(tmp_path: Path) -> None:
    models = [small_model("transformer"), small_model("transformer")]
    told = run_of(models[0], tmp_path / "told", gradient_norms=True)
    plain = run_of(models[1], tmp_path / "plain")
    assert [record["kind"] for record in plain] == [record["kind"] for record in told if record["kind"] != "layers"]
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_may_be_watched_from_where_it_is_resumed(tmp_path: Path) -> None:
    model = small_model("transformer")
    run_of(model, tmp_path, steps=3)
    records = run_of(model, tmp_path, resume=True, gradient_norms=True)
    assert [record["step"] for record in records if record["kind"] == "layers"] == [6]
