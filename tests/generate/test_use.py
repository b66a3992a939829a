"""What all uses of a model share."""

import copy

import pytest
import torch

from qkv.data.letters import Letters
from qkv.data.preprocessing import EdgesUpTo, Exactly, Preprocessing
from qkv.data.sound_features import WaveFeatures
from qkv.errors import QkvError
from qkv.generate.detect import Detector
from qkv.generate.image_readers import use_of_images
from qkv.generate.keypoints import KeypointFinder
from qkv.generate.listen import Listener
from qkv.generate.readers import Labelled
from qkv.generate.sound_readers import SoundClassifier
from qkv.generate.use import at_rest
from tests.cli.hostile_images import picture
from tests.generate.test_detect import small_detector
from tests.generate.test_keypoints import small_model as small_pose
from tests.generate.test_sound_readers import BANK, small_ast
from tests.models.small_images import small_model
from tests.models.small_sounds import small_sound

WAY = Preprocessing(resize=Exactly(12, 12))
USES = {
    "pictures": lambda: use_of_images(copy.deepcopy(small_model("vit", "classification")), WAY),
    "vectors": lambda: use_of_images(copy.deepcopy(small_model("vit", "embedding")), WAY),
    "objects": lambda: Detector(
        copy.deepcopy(small_detector()), Preprocessing(resize=EdgesUpTo(32, 64), padding="to largest")
    ),
    "points": lambda: KeypointFinder(copy.deepcopy(small_pose()), Preprocessing(resize=Exactly(64, 48))),
    "sounds": lambda: SoundClassifier(small_ast(), BANK),
    "letters": lambda: Listener(copy.deepcopy(small_sound()), Letters(tuple("-|abcde"), space=1), WaveFeatures()),
}


@pytest.mark.parametrize("kind", USES)
def test_a_model_with_damaged_weights_is_told(kind: str) -> None:
    use = USES[kind]()
    given = torch.randn(3000) * 0.1 if kind in ("sounds", "letters") else picture()
    use.run([given])
    with torch.no_grad():
        for parameter in use.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(QkvError, match="answers NaN: its weights are damaged"):
        use.run([given])


def test_a_model_is_given_back_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.9)).train()
    with at_rest(model):
        assert not model.training
        assert torch.equal(model(torch.ones(1, 2)), model(torch.ones(1, 2)))
        with pytest.raises(QkvError, match="NaN"):
            model(torch.full((1, 2), float("nan")))
    assert model.training
    assert model(torch.full((1, 2), float("nan"))).isnan().any()


def test_classes_of_one_name_count_together() -> None:
    """The reference library has 134 and 517 of ImageNet's classes both as crane."""
    found = Labelled.of(("crane", "ant", "crane"), torch.tensor([0.5, 0.3, 0.2]))
    assert found.label == "crane"
    assert found.probability == pytest.approx(0.7)
    assert found.probabilities == pytest.approx({"crane": 0.7, "ant": 0.3})
