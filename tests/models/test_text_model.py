"""What a text model refuses: a cache where tokens see those after them."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES
from qkv.parts.attention.cache import Cache
from tests.models.test_text_contract import DECODERS, TEXT_FAMILIES, small_model

ENCODERS = [name for name in TEXT_FAMILIES if name not in DECODERS]


@pytest.mark.parametrize("family", ENCODERS)
def test_a_model_that_looks_both_ways_takes_no_cache(family: str) -> None:
    model = small_model(family)
    with pytest.raises(QkvError, match="looks both ways"):
        model.new_cache(9)
    with pytest.raises(QkvError, match="looks both ways"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=Cache())


def test_there_are_models_of_both_kinds() -> None:
    assert {"bert", "albert", "distilbert", "roformer"} <= set(ENCODERS)
    assert {"gpt2"} <= set(DECODERS) <= FAMILIES.keys()
    assert all(small_model(family).looks_back == (family in DECODERS) for family in TEXT_FAMILIES)
