import numpy as np
import pytest

from qkv.look.colour import LEVELS, PAPER, SCREEN, ink_on, level, oklab


@pytest.mark.parametrize(("ramp", "direction"), [(PAPER, -1), (SCREEN, 1)])
def test_each_step_of_a_ramp_moves_lightness_the_same_way_and_about_as_far(ramp, direction):
    steps = np.diff(oklab(np.array(ramp))[:, 0]) * direction
    assert len(ramp) == LEVELS
    assert steps.min() > 0.005
    assert steps.max() < 2 * steps.min()


def test_levels_span_the_ramp_on_a_square_root_scale():
    assert level(np.array([0.0, 0.25, 1.0])).tolist() == [0, round((LEVELS - 1) / 2), LEVELS - 1]


def test_weights_a_rounding_error_outside_zero_and_one_stay_on_the_ramp():
    assert level(np.array([-1e-7, 1 + 1e-6])).tolist() == [0, LEVELS - 1]


@pytest.mark.parametrize("ramp", [PAPER, SCREEN])
def test_numbers_can_be_read_on_every_colour(ramp):
    for colour in ramp:
        light, dark = sorted([_luminance(colour), _luminance(ink_on(colour))], reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3  # the contrast ratio of the web accessibility guidelines


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (byte / 255 for byte in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
