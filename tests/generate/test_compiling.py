"""Models compiled for answers: the same answers, few makes of code, and a clear word where nothing is compiled."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.api.loading import load
from qkv.errors import QkvError
from qkv.generate.compiling import compiled
from qkv.parts.attention.in_line import InLine
from tests.cli.text_models import save_reader, save_writer
from tests.models.small_images import small_model as small_image_model
from tests.models.small_text import small_model


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was handed to the compiler, which here is none."""
    found: list[Any] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Any:
        found.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda code, dynamic: compile_(code, dynamic=dynamic, backend=keep))
    torch._dynamo.reset()
    return found


@pytest.mark.slow
@torch.inference_mode()
def test_texts_in_line_need_no_code_of_their_own(graphs: list[Any]) -> None:
    model = deepcopy(small_model("bert", "embedding"))
    lines = [(5, 3, 3), (7, 2), (4, 4, 4, 1), (6, 6, 5, 5, 5)]
    ids = [torch.randint(0, model.vocabulary, (1, sum(lengths))) for lengths in lines]
    expected = [model(each, tokens=InLine.of(lengths)) for each, lengths in zip(ids, lines, strict=True)]
    compiled(model)
    makes = []
    for each, lengths, wanted in zip(ids, lines, expected, strict=True):
        torch.testing.assert_close(model(each, tokens=InLine.of(lengths)), wanted)
        makes.append(len(graphs))
    assert makes[1] == makes[-1] > 0


@pytest.mark.slow
@torch.inference_mode()
def test_blocks_of_pictures_share_one_code(graphs: list[Any]) -> None:
    model, pictures = deepcopy(small_image_model("vit")), torch.randn(3, 3, 12, 12)
    expected = model(pictures)
    torch.testing.assert_close(compiled(model)(pictures), expected)
    assert len(graphs) == 1


def test_what_is_not_compiled_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QkvError, match="leave compile out"):
        load(save_writer(tmp_path / "writer"), "cpu", compile=True)
    monkeypatch.setattr("qkv.parts.narrow_maps.SMALL", 1)
    with pytest.raises(QkvError, match="fewer bits than the stream"):
        load(save_reader(tmp_path / "reader", "embedding"), "cpu", precision="int8", compile=True)
