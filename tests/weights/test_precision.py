"""Weights held in a narrower type: what is asked for is what is held, and answers stay near."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from qkv.api.loading import load
from qkv.errors import QkvError
from qkv.files import read_tensors, write_tensors
from qkv.models.text_model import TextModel
from qkv.parts.attention.visibility import Tokens
from qkv.parts.cpu_maps import onednn_takes
from qkv.parts.eight_bits import Int8Linear
from qkv.parts.position import ALiBi, Rotary, rotary_rates
from qkv.weights.load import load_model
from qkv.weights.precision import published_narrow, settled
from tests.cli.text_models import save_reader, save_writer
from tests.generate.test_detect import small_detector
from tests.models.small_images import IMAGE_FAMILIES
from tests.models.small_images import small_model as small_image_model
from tests.models.small_sounds import small_sound
from tests.models.small_text import TEXT_FAMILIES
from tests.models.small_text import small_model as small_text_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ROUTED = ("mixtral",)  # where a rounded score may send a token to another expert


def off_by(narrow: torch.Tensor, wide: torch.Tensor) -> float:
    return float((narrow.float() - wide).norm() / wide.norm())


def first(answer: object) -> torch.Tensor:
    return answer[0] if isinstance(answer, tuple) else answer  # type: ignore[return-value]


def test_nothing_is_narrowed_unasked(tmp_path: Path) -> None:
    """bfloat16 is taken by itself only on a GPU, of weights that were published so."""
    folder = save_writer(tmp_path)
    assert next(load(folder, "cpu").model.parameters()).dtype == torch.float32
    assert not published_narrow(folder)
    assert settled("auto", folder, GPU) == "float32"
    tensors = read_tensors(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert published_narrow(folder)
    assert settled("auto", folder, GPU) == "bfloat16"
    assert settled("auto", folder, CPU) == "float32"
    assert settled("float32", folder, GPU) == "float32"


def test_weights_are_held_as_asked(tmp_path: Path) -> None:
    folder = save_reader(tmp_path, "embedding")
    texts = ["And God said", "the light", "Let there be light, and there was light"]
    expected = load(folder, "cpu").run(texts)
    narrow = load(folder, "cpu", precision="bfloat16")
    if onednn_takes(torch.bfloat16):  # else some are held so, and nothing is computed so
        assert {parameter.dtype for parameter in narrow.model.parameters()} == {torch.bfloat16}
    found = narrow.run(texts)
    assert found.dtype == torch.float32
    assert off_by(found, expected) < 0.02
    assert load_model(folder, precision="bfloat16").in_line
    with pytest.raises(QkvError, match="no precision called 'half'"):
        load(folder, "cpu", precision="half")
    with pytest.raises(QkvError, match=r"no precision called 'bfloat'.*bfloat16"):
        load_model(folder, precision="bfloat")


def test_eight_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.parts.narrow_maps.SMALL", 1)
    folder = save_reader(tmp_path, "embedding")
    texts = ["And God said", "the light", "Let there be light, and there was light"]
    use = load(folder, "cpu", precision="int8")
    assert any(isinstance(module, Int8Linear) for module in use.model.modules())
    assert use.model.in_line  # a token is the same in any company
    assert off_by(use.run(texts), load(folder, "cpu").run(texts)) < 0.05


@pytest.mark.parametrize("family", [name for name in TEXT_FAMILIES if name not in ROUTED])
@torch.inference_mode()
def test_texts_in_bfloat16(family: str) -> None:
    model: TextModel = small_text_model(family)
    ids, lengths = torch.randint(0, model.vocabulary, (2, 7)), torch.tensor([7, 4])
    narrow = deepcopy(model).to(torch.bfloat16)
    answer = first(narrow(ids, lengths=lengths))
    assert answer.dtype == torch.bfloat16
    assert off_by(answer[1, :4], first(model(ids, lengths=lengths))[1, :4]) < 0.03


@pytest.mark.parametrize("family", IMAGE_FAMILIES)
@torch.inference_mode()
def test_pictures_in_bfloat16_come_as_they_are(family: str) -> None:
    model, pictures = small_image_model(family), torch.randn(2, 3, 12, 12)
    assert off_by(first(deepcopy(model).to(torch.bfloat16)(pictures)), first(model(pictures))) < 0.03


@torch.inference_mode()
def test_sounds_and_scenes_in_bfloat16_come_as_they_are() -> None:
    sound, waves = small_sound(), torch.randn(2, 900)
    assert off_by(deepcopy(sound).to(torch.bfloat16)(waves), sound(waves)) < 0.03
    scenes, picture = small_detector().eval(), torch.randn(1, 3, 32, 32)
    assert off_by(deepcopy(scenes).to(torch.bfloat16)(picture).logits, scenes(picture).logits) < 0.05


def test_positions_are_never_rounded() -> None:
    for part in (ALiBi(12), Rotary(rotary_rates(8))):
        before = dict(part.named_buffers())
        after = dict(part.to(torch.bfloat16).named_buffers())
        assert all(torch.equal(after[name], numbers) for name, numbers in before.items())
        assert all(after[name].dtype == numbers.dtype for name, numbers in before.items())
    far = ALiBi(4).to(torch.bfloat16)(Tokens(1, start=999), Tokens(1000))[0, 0, 0]
    assert len(far.unique()) == 1000
