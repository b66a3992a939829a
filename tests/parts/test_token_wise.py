"""Which models read documents in line: all parts of theirs must treat a document as if it stood alone."""

from copy import deepcopy

import pytest
from torch import nn

from qkv.models.attention_choice import AttentionChoice
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.token_wise import reads_in_line
from qkv.weights.load import with_attention
from tests.models.small_text import small_model

READ_IN_LINE = ("albert", "bert", "distilbert", "gpt1", "gpt2", "llama", "roformer")
IN_ROWS = ("big-bird", "gpt-neo", "longformer", "mixtral", "reformer")


@pytest.mark.parametrize("family", READ_IN_LINE)
def test_plain_models_read_documents_in_line(family: str) -> None:
    assert small_model(family).in_line


@pytest.mark.parametrize("family", IN_ROWS)
def test_models_whose_parts_look_elsewhere_read_rows(family: str) -> None:
    assert not small_model(family).in_line


def test_a_part_that_is_not_known_is_not_trusted() -> None:
    class Strange(nn.Linear):
        pass

    model: TextModel = deepcopy(small_model("bert"))
    block = model.stack.blocks[0]  # type: ignore[union-attr, index]
    (attention,) = (module for module in block.modules() if isinstance(module, Attention))
    attention.kernel = exact
    assert not model.in_line
    attention.kernel = None
    assert model.in_line
    model.head.strange = Strange(2, 2)
    assert not reads_in_line(model)


def test_another_attention_is_not_trusted_either() -> None:
    assert not with_attention(small_model("bert"), AttentionChoice.parse("window:4")).in_line
