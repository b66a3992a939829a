"""What is chosen by the texts, the budget and the machine where nobody says otherwise."""

import json
import math
from pathlib import Path

import pytest
import torch

from qkv.api import text_choice
from qkv.api.text_choice import (
    FAMILY,
    HIDDEN,
    LAYERS,
    MOST_EPOCHS,
    PLAIN_FAMILY,
    TOKENS_PER_PARAMETER,
    Given,
    TextChoice,
    bytes_per_token,
    choose_text_model,
    lzma_bits_per_byte,
    proportions,
    recorded,
    vocabulary_for,
)
from qkv.errors import QkvError
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.train.rehearsal import StepSpeed
from qkv.train.settings import TrainSettings
from tests.api.corpus import VERSES

LARGE = 10**12  # bytes of text
LETTERS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


def by_steps(text_bytes: float, steps: int, **given: int | str) -> TextChoice:
    return choose_text_model(int(text_bytes), TrainSettings(steps=steps, device="cpu"), Given(**given))


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A machine that does so many operations a second; what was timed is noted."""
    told = {"operations": 1e9, "timed": 0}

    def step_speed(model: object, *_: object) -> StepSpeed:
        told["timed"] += 1
        weights = sum(parameter.numel() for parameter in model.parameters())
        return StepSpeed(told["operations"] / weights, None)

    monkeypatch.setattr(text_choice, "step_speed", step_speed)
    return told


@pytest.mark.parametrize("family", [FAMILY, "llama", PLAIN_FAMILY])
def test_every_size_can_be_built_and_grows(family: str) -> None:
    weights = []
    for width, layers in LAYERS.items():
        sizes = {**proportions(family, width), "layers": layers, "vocabulary": 512, "positions": 16}
        assert sizes["heads"] * (width // sizes["heads"]) == width
        assert sizes["hidden"] == HIDDEN[family] * width
        if width <= 192:
            model = build(family, find_family(family).sizes(sizes), HeadChoice("language"))
            weights.append(sum(parameter.numel() for parameter in model.stack.parameters()))
    assert weights == sorted(set(weights))


def test_more_updates_make_a_larger_model_until_texts_are_read_too_often() -> None:
    widths = [by_steps(LARGE, steps).sizes["width"] for steps in (1, 1_000, 10_000, 100_000, 10**7)]
    assert widths == sorted(widths)
    assert widths[0] == min(LAYERS)
    assert widths[-1] == max(LAYERS)
    few = by_steps(2e5, 10**7)
    assert few.sizes["width"] < max(LAYERS)
    assert few.epochs > MOST_EPOCHS  # who asks for so many updates gets them
    assert not few.capped


def test_a_model_has_fewer_weights_than_tokens_it_sees() -> None:
    found = by_steps(LARGE, 5_000)
    sizes = find_family(found.family).sizes({**found.sizes, "vocabulary": found.vocabulary, "positions": found.length})
    model = build(found.family, sizes, HeadChoice("language"))
    weights = sum(parameter.numel() for parameter in model.stack.parameters())
    assert found.updates * found.rows * found.length >= TOKENS_PER_PARAMETER * weights


def test_minutes_count_by_steps_that_are_timed(speed: dict[str, float]) -> None:
    def chosen(minutes: float) -> TextChoice:
        return choose_text_model(LARGE, TrainSettings(minutes=minutes, device="cpu"), Given())

    short, long = chosen(1), chosen(1_000)
    assert short.sizes["width"] < long.sizes["width"]
    speed["operations"] *= 1_000
    assert chosen(1).sizes == long.sizes
    assert not long.capped


def test_few_texts_bear_a_larger_model_than_a_short_budget(speed: dict[str, float]) -> None:
    def width(text_bytes: int, minutes: float) -> int:
        return choose_text_model(text_bytes, TrainSettings(minutes=minutes, device="cpu"), Given()).sizes["width"]

    speed["operations"] = 1e12
    assert width(20_000, 1_000) == 64
    assert width(200_000, 1_000) == 96
    assert width(2_000_000, 1_000) > width(200_000, 1_000)
    speed["operations"] = 1e6
    assert width(2_000_000, 1_000) == 64


def test_no_model_is_timed_that_cannot_be_chosen(speed: dict[str, float]) -> None:
    speed["operations"] = 1.0
    choose_text_model(LARGE, TrainSettings(minutes=1, device="cpu"), Given())
    assert speed["timed"] == 1


@pytest.mark.parametrize("fits", [0, 250_000])
def test_what_does_not_fit_the_device_is_not_chosen(monkeypatch: pytest.MonkeyPatch, fits: int) -> None:
    def step_speed(model: torch.nn.Module, *_: object) -> StepSpeed:
        if sum(parameter.numel() for parameter in model.stack.parameters()) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return StepSpeed(1e9, None)

    monkeypatch.setattr(text_choice, "step_speed", step_speed)
    found = choose_text_model(LARGE, TrainSettings(minutes=10, device="cpu"), Given())
    assert found.sizes["width"] == 64
    assert (found.updates == 1) == (fits == 0)


def test_few_texts_end_a_long_budget_and_drop_out(speed: dict[str, float]) -> None:
    found = choose_text_model(20_000, TrainSettings(minutes=60, device="cpu"), Given())
    assert found.capped
    assert found.epochs == MOST_EPOCHS
    assert found.sizes["dropout"] > 0
    tokens = MOST_EPOCHS * 20_000 / bytes_per_token(found.vocabulary)
    assert found.updates == round(tokens / (found.rows * found.length))
    assert choose_text_model(LARGE, TrainSettings(minutes=60, device="cpu"), Given()).sizes["dropout"] == 0


def test_what_is_asked_for_is_taken() -> None:
    found = by_steps(1e6, 10, family="gpt2", vocabulary=300, rows=3, length=24)
    assert (found.family, found.vocabulary, found.rows, found.length) == ("gpt2", 300, 3, 24)
    assert found.epochs == pytest.approx(10 * 3 * 24 / (1e6 / bytes_per_token(300)))
    assert by_steps(1e6, 10, family="gpt-neo").sizes["width"] == 256  # the only one that is not published
    with pytest.raises(QkvError, match="pairs of texts"):
        by_steps(1e6, 10, family="transformer")


def test_more_text_has_a_larger_vocabulary_but_not_for_a_narrow_model() -> None:
    counts = [vocabulary_for(size, 768) for size in (0, 10**5, 10**6, 10**7, 10**12)]
    assert counts == sorted(counts)
    assert all(math.log2(count).is_integer() for count in counts)
    assert vocabulary_for(10**12, 64) == 4_096
    assert vocabulary_for(None, 64) == 4_096
    assert vocabulary_for(0, 64) == 2**text_choice.LEAST_VOCABULARY


def test_a_run_that_goes_on_is_what_it_was(tmp_path: Path) -> None:
    found = by_steps(1e6, 10)
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"chosen": found.record()}}))
    assert recorded(tmp_path) == found
    settings = TrainSettings(steps=10**6, device="cpu")
    assert choose_text_model(10**9, settings, Given(), tmp_path) == found
    for other in ("{}", '{"settings": {"chosen": {"family": "gpt2"}}}', "no JSON"):
        (tmp_path / "run.json").write_text(other)
        assert recorded(tmp_path) is None
    assert recorded(tmp_path / "nowhere") is None


def test_a_packer_knows_what_it_was_shown() -> None:
    verses = [*VERSES, *(f"{number} {word}" for number in range(40) for word in LETTERS)]
    known = lzma_bits_per_byte(verses, verses[:50])
    strange = lzma_bits_per_byte(["nothing of it"], verses[:50])
    assert 0 <= known < strange < 8
