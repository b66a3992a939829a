"""Blocks of few bits: the same floats as the reference reader of the format, for every kind."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from qkv.errors import QkvError
from qkv.weights.blocks import DTYPES, VALUES, VALUES_AT_ONCE, VALUES_IN_BLOCK, values_of


def random_blocks(kind: str, count: int) -> np.ndarray:
    """Any bytes are a block; only the scales must be finite to be compared."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (count, DTYPES[kind].itemsize), np.uint8).view(DTYPES[kind])
    for name in {"d", "m"} & set(DTYPES[kind].names or ()):
        blocks[name] = random.standard_normal((count, 1)).astype(np.float16)
    return blocks.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("kind", DTYPES)
def test_every_kind_gives_what_the_reference_gives(kind: str) -> None:
    data = random_blocks(kind, 37)
    theirs = quants.dequantize(data.reshape(37, -1), GGMLQuantizationType[kind])
    assert theirs.std() > 0.5
    np.testing.assert_allclose(values_of(kind, data), theirs.reshape(-1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_floats_that_the_reference_packed_come_back_about_the_same(kind: str) -> None:
    floats = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    packed = quants.quantize(floats, GGMLQuantizationType[kind])
    step = {"4": 0.4, "5": 0.2, "8": 0.02}[kind[1]]  # the coarsest step between the values of a block
    np.testing.assert_allclose(values_of(kind, packed.reshape(-1)), floats.reshape(-1), atol=step)


def test_what_is_decoded_in_several_turns_is_decoded_like_the_rest() -> None:
    blocks_a_turn = VALUES_AT_ONCE // VALUES_IN_BLOCK["Q8_0"]
    data = np.tile(random_blocks("Q8_0", 5), blocks_a_turn // 4)
    values = values_of("Q8_0", data)
    assert len(values) > VALUES_AT_ONCE
    np.testing.assert_array_equal(values.reshape(-1, 160), np.tile(values[:160], (blocks_a_turn // 4, 1)))


def test_each_kind_has_a_layout_and_a_reading() -> None:
    assert DTYPES.keys() == VALUES.keys() == VALUES_IN_BLOCK.keys()


def test_an_infinite_scale_gives_no_warning() -> None:
    data = np.full(34, 0xFF, np.uint8)
    assert np.isnan(values_of("Q8_0", data)).all()


def test_no_blocks_are_no_values() -> None:
    assert values_of("Q6_K", np.zeros(0, np.uint8)).shape == (0,)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(QkvError, match="kind IQ1_S are not read here"):
        values_of("IQ1_S", np.zeros(50, np.uint8))
