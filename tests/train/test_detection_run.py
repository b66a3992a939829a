"""A whole run on composed scenes: from cutouts through the training loop to a folder whose boxes are scored."""

import numpy as np
import torch

from qkv.api.loading import load
from qkv.data.batches import Batches
from qkv.data.box_rows import BoxRows
from qkv.data.boxes import BoxedImages
from qkv.data.composing import Composer
from qkv.data.plan import RowCount
from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.generate.detect import Detector
from qkv.models.catalogue import build
from qkv.models.detr import DetrSizes
from qkv.models.head_choice import HeadChoice
from qkv.train.evaluation import ValidationLoss
from qkv.train.loop import train
from qkv.train.metrics_of_boxes import score_boxes
from qkv.train.objectives.detection import SetPredictionLoss
from qkv.train.optimizers import adam
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from tests.data.test_composing import cutouts
from tests.train.tiny import open_run, quiet

SIZES = DetrSizes(
    stem=4, stage_widths=(8, 12), stage_depths=(1, 1), residual="basic", map_norm="batch", queries=5, width=16,
    encoder_hidden=16, decoder_hidden=16, encoder_heads=2, decoder_heads=2, encoder_layers=1, decoder_layers=2,
)  # fmt: skip
PREPARED = Preprocessing(resize=Exactly(32, 32), normalise=Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3))


def scenes(count: int, seed: int) -> Composer:
    backgrounds = [np.full((40, 40, 3), 200, np.uint8)]
    return Composer(
        cutouts=cutouts(),
        backgrounds=backgrounds,
        scenes=count,
        size=(32, 32),
        objects=(1, 2),
        scale=(0.4, 0.6),
        seed=seed,
    )


def test_a_run_on_composed_scenes_learns_and_its_folder_finds_boxes(tmp_path):
    torch.manual_seed(0)
    made, held = scenes(32, seed=0), scenes(8, seed=1)
    model = build("detr", SIZES, HeadChoice("detection", made.names))
    objective = SetPredictionLoss()
    valid = list(Batches(BoxRows(BoxedImages(held, held.names), PREPARED), RowCount(8), prefetch=0))
    result = train(
        model,
        objective,
        Batches(BoxRows(BoxedImages(made, made.names), PREPARED), RowCount(8), prefetch=2),
        TrainSettings(steps=80, log_every=20, evaluate_every=40, device="cpu"),
        open_run(tmp_path / "run", save_model=lambda model, folder: Detector(model, PREPARED).save(folder)),
        optimizer=adam(model, learning_rate=3e-3),
        schedule=Constant(),
        evaluate=ValidationLoss(objective, valid),
        reporter=quiet(),
    )
    assert result.step == 80
    before = build("detr", SIZES, HeadChoice("detection", made.names)).eval()
    figures = ValidationLoss(objective, valid)
    with torch.no_grad():
        assert figures(model.eval())["loss"] < 0.85 * figures(before)["loss"]
    found = load(tmp_path / "run", "cpu").run([scene.image for scene in held], threshold=0.0)
    scores = score_boxes(found, [scene.boxes for scene in held])
    assert 0 <= scores.average <= scores.at_half <= 1
