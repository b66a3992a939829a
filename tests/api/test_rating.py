"""Numbers for texts: learned, saved, and the same in the reference library."""

from functools import partial

import pytest
import torch
from transformers import BertForSequenceClassification

from qkv.api.choices import NewTokenizer
from qkv.api.figures import RatingFigures
from qkv.api.fine_tuning import FineTuning
from qkv.api.loading import load
from qkv.api.rating import fine_tune_rater
from qkv.api.texts import new_text_model
from qkv.api.training import read_result
from qkv.data.labelled import RatedTexts, ValueRows
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.reading_tokenizer import for_reading
from qkv.errors import QkvError
from qkv.generate.readers import Classifier, MaskFiller, Rater
from qkv.models.head_choice import HeadChoice
from qkv.train.objectives.labels import RegressionLoss
from qkv.train.optimizers import adamw
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.export import export
from tests.api.corpus import TINY, VERSES

VALUES = [2.0 if "light" in verse.lower() else -1.0 for verse in VERSES]
DATA = RatedTexts(VERSES, None, VALUES)
PAIRS = RatedTexts(VERSES, VERSES[1:] + VERSES[:1], VALUES)
HOW = FineTuning(
    length=64,
    batching=RowCount(8),
    settings=TrainSettings(steps=80, evaluate_every=80, save_every=80, keep=1),
    optimizer=partial(adamw, learning_rate=3e-3),
    schedule=Constant(),
    hold_out=0.0,
)


@pytest.fixture(scope="module")
def start() -> MaskFiller:
    torch.manual_seed(0)
    tokenizer = for_reading(NewTokenizer("bpe", 300).train(VERSES))
    return MaskFiller(new_text_model("bert", {**TINY, "dropout": 0.0}, HeadChoice("masked"), tokenizer, 64), tokenizer)


@pytest.mark.parametrize("data", [DATA, PAIRS], ids=["texts", "pairs"])
def test_numbers_are_learned_and_come_back_from_the_folder(start, data, tmp_path):
    figures = RatingFigures(data, ["pearson", "spearman"])
    rater = fine_tune_rater(start, data, tmp_path, valid=data, how=HOW, evaluate=figures, name="alike")
    assert read_result(tmp_path).figures["pearson"] > 0.9
    loaded = load(tmp_path, "cpu")
    assert isinstance(loaded, Rater)
    assert loaded.model.head_choice.labels == ("alike",)
    assert loaded.run(data.texts, data.seconds) == pytest.approx(rater.run(data.texts, data.seconds), abs=1e-5)


def test_the_reference_gives_the_same_numbers_and_the_same_loss(start, tmp_path):
    short = TrainSettings(steps=3, evaluate_every=3, save_every=3, keep=1)
    rater = fine_tune_rater(start, DATA, tmp_path / "run", valid=DATA, how=FineTuning(length=64, settings=short))
    export(tmp_path / "run", tmp_path / "published")
    reference = BertForSequenceClassification.from_pretrained(tmp_path / "published").eval()
    assert (reference.config.num_labels, reference.config.problem_type) == (1, "regression")
    rows = ValueRows(rater.rows(rater.encodings(VERSES)), torch.tensor(VALUES).numpy())
    batch = rows.batch(PlannedBatch(rows=torch.arange(len(VERSES)).numpy(), source_width=64, target_width=1))
    attends = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        theirs = reference(batch.ids, attends.long(), batch.segments, labels=batch.values)
        loss = RegressionLoss()(rater.model, batch)
    torch.testing.assert_close(torch.tensor(rater.run(VERSES)), theirs.logits[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loss.total / loss.count, theirs.loss)
    assert isinstance(load(tmp_path / "published", "cpu"), Rater)


def test_what_does_not_fit_is_refused(start, tmp_path):
    with pytest.raises(QkvError, match="must be pairs"):
        fine_tune_rater(start, DATA, tmp_path, valid=PAIRS, how=HOW)
    model = new_text_model("bert", TINY, HeadChoice("classification", labels=("a", "b")), start.tokenizer, 64)
    with pytest.raises(QkvError, match="one label, but it has 2"):
        Rater(model, start.tokenizer)
    assert isinstance(Classifier(model, start.tokenizer), Classifier)
