"""Lines that tell what was chosen, and the verdict."""

import pytest

from qkv.api.image_choice import CHANGES, Judged
from qkv.cli.train_images_chosen import LINEAR_PROBE, told_changes, told_model, told_verdict


@pytest.mark.parametrize(
    ("accuracy", "told"),
    [(0.9, "sees more in these pictures than"), (0.8, "names as many"), (0.7, "has learned less than")],
)
def test_the_verdict_is_that_of_the_linear_probe(accuracy: float, told: str) -> None:
    (line,) = told_verdict({"accuracy": accuracy, LINEAR_PROBE: 0.8})
    assert told in line


def test_without_pictures_held_out_there_is_no_verdict() -> None:
    assert told_verdict({}) == []
    assert told_verdict({"accuracy": 0.9}) == []
    assert told_verdict({"accuracy": None, LINEAR_PROBE: 0.8}) == []


def judged(plain: float, **others: float) -> Judged:
    return Judged(pictures=900, guessed=0.1, recognised={"": plain, **dict.fromkeys(CHANGES, plain), **others})


def test_what_is_refused_is_told_with_what_the_probe_recognises() -> None:
    line = told_changes(judged(0.9, shifted=0.3, mirrored=0.4))
    assert line == (
        "Pictures: turned and zoomed a little at random, not shifted or mirrored: a probe of the pixels recognises 90% "
        "as they are, 30% shifted, 40% mirrored (--change)."
    )
    assert told_changes(judged(0.9, **dict.fromkeys(CHANGES, 0.2))).startswith("Pictures: as they are, not turned, ")
    assert told_changes(judged(0.9)).endswith("mirrored a little at random; a probe recognises them still (--change).")
    assert "recognises none, so it cannot judge more" in told_changes(judged(0.1))


def test_a_model_is_told_with_its_patches_or_its_convolutions() -> None:
    sizes = {"layers": 1, "width": 16, "patch": 4}
    assert "for pictures of 8 × 8 in patches of 4 × 4, 1 layer of width 16 (--family" in told_model("vit", 8, sizes)
    assert "of 8 × 8 behind 1 convolution, 1 layer" in told_model("deit", 8, {**sizes, "patch": 1, "stem": 1})
