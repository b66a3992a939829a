"""What every text model promises, whatever it is made of. A family that enters the catalogue is held to it at once."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, build, config_of, count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import SameDocument, Tokens
from qkv.parts.position import positions_in_documents
from qkv.weights.load import load_model, with_head
from qkv.weights.save import save_model
from tests.models.small import perturb, shrunk
from tests.models.small_text import DECODERS, LABELS, TEXT_FAMILIES, choice, small_model, small_sizes

CASES = [(name, kind) for name in TEXT_FAMILIES for kind in FAMILIES[name].heads]
LENGTHS, SLOTS = [7, 4, 1], 7


@pytest.fixture(params=CASES, ids=" ".join)
def model(request: pytest.FixtureRequest) -> TextModel:
    return small_model(*request.param)


@pytest.fixture(params=TEXT_FAMILIES)
def usual(request: pytest.FixtureRequest) -> TextModel:
    """The model of each family with its usual head."""
    return small_model(request.param)


def random_ids(model: TextModel, rows: int = len(LENGTHS), slots: int = SLOTS) -> Tensor:
    return torch.randint(0, model.vocabulary, (rows, slots))


def answers(model: TextModel, ids: Tensor, **beside: Any) -> tuple[Tensor, ...]:
    """What the head says, as the tensors it consists of: [b s …] of tokens, [b …] of rows."""
    found = model(ids, **beside)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], real: Tensor | None = None) -> None:
    """Equal for whole rows and for the `real` tokens [b s] of both; None: all."""
    for one, other in zip(found, expected, strict=True):
        if one.ndim == 3 and real is not None:
            one, other = one[real], other[real]
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_an_answer_has_the_shape_that_its_head_says(model: TextModel) -> None:
    one = torch.zeros(1, 1, dtype=torch.long)
    rows, width = len(LENGTHS), model.states(one, model.context(one)).shape[-1]
    expected = {
        "language": [(rows, SLOTS, model.vocabulary)],
        "masked": [(rows, SLOTS, model.vocabulary)],
        "pretraining": [(rows, SLOTS, model.vocabulary), (rows, 2)],
        "states": [(rows, SLOTS, width)],
        "pooled": [(rows, SLOTS, width), (rows, width)],
        "classification": [(rows, len(LABELS))],
        "tokens": [(rows, SLOTS, len(LABELS))],
        "spans": [(rows, SLOTS, 2)],
        "embedding": [(rows, width)],
        "projection": [(rows, getattr(model.sizes, "projection", 0))],
    }
    found = answers(model, random_ids(model))
    assert [tuple(each.shape) for each in found] == expected[model.head_choice.kind]
    assert all(each.isfinite().all() and each.std() > 1e-3 for each in found)


@torch.no_grad()
def test_a_token_matters_to_all_that_see_it_and_to_no_other(model: TextModel) -> None:
    """A decoder's tokens are seen by those after them, an encoder's by all."""
    ids, looks_back = random_ids(model), model.looks_back
    before = answers(model, ids)
    for slot in range(SLOTS):
        other = ids.clone()
        other[:, slot] = (other[:, slot] + 1) % model.vocabulary
        for old, new in zip(before, answers(model, other), strict=True):
            moved = (new - old).abs().amax(-1)  # [b s] or [b]
            if moved.ndim == 1:
                assert (moved > 1e-5).all()
                continue
            first = slot if looks_back else 0
            assert (moved[:, first:] > 1e-5).all()
            torch.testing.assert_close(new[:, :first], old[:, :first], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_documents_in_line_are_read_as_in_rows_of_their_own(model: TextModel) -> None:
    ids, lengths = random_ids(model), torch.tensor(LENGTHS)
    real = torch.arange(SLOTS) < lengths[:, None]
    line = InLine.of(LENGTHS)
    if not model.in_line:
        with pytest.raises(QkvError, match="a row of its own"):
            model(ids[real][None], tokens=line)
        return
    expected = tuple(each[real][None] if each.ndim == 3 else each for each in answers(model, ids, lengths=lengths))
    assert_close(answers(model, ids[real][None], tokens=line), expected)


@torch.no_grad()
def test_padding_on_the_right_changes_nothing(model: TextModel) -> None:
    lengths = torch.tensor(LENGTHS)
    real = torch.arange(SLOTS) < lengths[:, None]
    ids, other = random_ids(model), random_ids(model)
    expected = answers(model, ids, lengths=lengths)
    assert_close(answers(model, torch.where(real, ids, other), lengths=lengths), expected, real)
    wider = answers(model, torch.cat((ids, other[:, :4]), 1), lengths=lengths)
    assert_close(tuple(each[:, :SLOTS] if each.ndim == 3 else each for each in wider), expected, real)
    for row, length in enumerate(LENGTHS):
        alone = answers(model, ids[row : row + 1, :length])
        assert_close(
            alone, tuple(each[row : row + 1, :length] if each.ndim == 3 else each[row, None] for each in expected)
        )


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(model: TextModel) -> None:
    documents = (torch.arange(SLOTS) >= SLOTS - torch.tensor(LENGTHS)[:, None]).long()
    ids = random_ids(model)
    tokens, positions = Tokens(SLOTS, documents=documents), positions_in_documents(documents)
    found = answers(model, ids, tokens=tokens, positions=positions)
    for row, length in enumerate(LENGTHS):
        alone = answers(model, ids[row : row + 1, SLOTS - length :])
        assert_close(alone, tuple(each[row, None, -length:] if each.ndim == 3 else each[row, None] for each in found))


@torch.no_grad()
def test_documents_of_a_packed_row_are_read_as_if_alone(usual: TextModel) -> None:
    if usual.head_choice.kind == "pretraining":  # it asks about a row, and here a row is three texts
        usual = with_head(usual, choice("masked")).eval()
    documents = torch.tensor([[1, 1, 1, 2, 2, 3, 0]])
    ids = random_ids(usual, 1)
    packed = Tokens(SLOTS, documents=documents)
    (found,) = answers(
        usual, ids, tokens=packed, positions=positions_in_documents(documents), visibility=SameDocument()
    )
    for start, end in ((0, 3), (3, 5), (5, 6)):
        assert_close(answers(usual, ids[:, start:end]), (found[:, start:end],))


@torch.no_grad()
def test_a_row_is_answered_the_same_in_any_company(model: TextModel) -> None:
    ids, order = random_ids(model), torch.tensor([2, 0, 1])
    assert_close(answers(model, ids[order]), tuple(each[order] for each in answers(model, ids)))


@pytest.mark.parametrize("steps", [(1,) * SLOTS, (3, 1, 3), (SLOTS,)], ids=str)
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_reading_by_steps_is_reading_at_once(family: str, steps: tuple[int, ...]) -> None:
    model = small_model(family)
    ids, cache = random_ids(model), model.new_cache(SLOTS)
    found = torch.cat([model(part, cache=cache) for part in ids.split(steps, 1)], 1)
    assert_close((found,), answers(model, ids))
    assert cache.length == SLOTS


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_rows_padded_on_the_left_are_read_by_steps_too(family: str) -> None:
    model = small_model(family)
    documents = (torch.arange(SLOTS) >= SLOTS - torch.tensor(LENGTHS)[:, None]).long()
    positions, ids, cache = positions_in_documents(documents), random_ids(model), model.new_cache(SLOTS)
    parts, start = [], 0
    for size in (5, 1, 1):
        slots = slice(start, start + size)
        tokens = Tokens(size, start, documents[:, slots])
        parts.append(model(ids[:, slots], tokens=tokens, positions=positions[:, slots], cache=cache))
        start += size
    whole = answers(model, ids, tokens=Tokens(SLOTS, documents=documents), positions=positions)
    assert_close((torch.cat(parts, 1),), whole, documents > 0)


@torch.no_grad()
def test_a_saved_model_is_loaded_as_it_was(model: TextModel, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    again, ids = load_model(tmp_path), random_ids(model)
    assert (again.family, again.sizes, again.head_choice) == (model.family, model.sizes, model.head_choice)
    for found, expected in zip(answers(again, ids), answers(model, ids), strict=True):
        assert torch.equal(found, expected)


def test_a_saved_configuration_says_what_to_build(model: TextModel) -> None:
    config = config_of(model)
    assert find_family(config["family"]).sizes(config["sizes"]) == model.sizes
    assert HeadChoice.from_config(config["head"]) == model.head_choice


def test_every_parameter_learns(model: TextModel) -> None:
    model.zero_grad()
    marks = None
    if model.heeds_marks:  # none in the first row: what reads a marked token alone leaves other projections unread
        marks = torch.arange(SLOTS) < torch.arange(len(LENGTHS))[:, None]
    found = answers(model, random_ids(model), tokens=Tokens(SLOTS, marks=marks))
    sum((each * torch.randn_like(each)).sum() for each in found).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-7, name


def test_the_count_without_memory_is_the_count(model: TextModel) -> None:
    counted = count_parameters(model.family, model.sizes, model.head_choice)
    assert counted == sum(parameter.numel() for parameter in model.parameters())


def test_dropout_falls_in_training_alone(usual: TextModel) -> None:
    dropouts = [field.name for field in fields(usual.sizes) if field.name.endswith("dropout")]
    model = build(usual.family, replace(usual.sizes, **dict.fromkeys(dropouts, 0.3)), usual.head_choice).eval()
    perturb(model)
    ids = random_ids(model)
    assert_close(answers(model, ids), answers(model, ids))
    model.train()
    assert not torch.allclose(answers(model, ids)[0], answers(model, ids)[0])


@torch.no_grad()
def test_segments_are_told_apart_or_refused(usual: TextModel) -> None:
    ids, segments = random_ids(usual), torch.tensor([0, 0, 0, 1, 1, 1, 1]).expand(len(LENGTHS), -1)
    if not usual.embed.tells_segments:
        with pytest.raises(QkvError, match="does not tell segments apart"):
            usual(ids, segments=segments)
        return
    told, untold = answers(usual, ids, segments=segments)[0], answers(usual, ids)[0]
    assert ((told - untold).abs().amax(-1) > 1e-5).all()
    assert_close(answers(usual, ids, segments=torch.zeros_like(segments)), answers(usual, ids))


@torch.no_grad()
def test_marks_are_heeded_or_refused(usual: TextModel) -> None:
    ids, marks = random_ids(usual), torch.arange(SLOTS).expand(len(LENGTHS), -1) == 3
    if not usual.heeds_marks:
        with pytest.raises(QkvError, match="treats all tokens alike"):
            usual(ids, tokens=Tokens(SLOTS, marks=marks))
        return
    told, untold = answers(usual, ids, tokens=Tokens(SLOTS, marks=marks))[0], answers(usual, ids)[0]
    assert ((told - untold).abs().amax(-1) > 1e-5).all()
    nobody = Tokens(SLOTS, marks=torch.zeros_like(marks))
    assert_close(answers(usual, ids, tokens=nobody), answers(usual, ids))


@torch.no_grad()
def test_a_text_that_is_too_long_is_refused(usual: TextModel) -> None:
    if usual.longest is None:
        answers(usual, random_ids(usual, 1, 200))
        return
    answers(usual, random_ids(usual, 1, usual.longest))
    with pytest.raises(QkvError, match=f"reads at most {usual.longest}"):
        usual(random_ids(usual, 1, usual.longest + 1))


@torch.no_grad()
def test_another_head_keeps_what_the_model_has_learned(usual: TextModel) -> None:
    ids = random_ids(usual)
    other = with_head(usual, choice("states")).eval()
    found = other(ids)
    torch.testing.assert_close(found, usual.states(ids, usual.context(ids)))


COMPILED = sorted({(name, FAMILIES[name].heads[0]) for name in TEXT_FAMILIES} | {("longformer", "classification")})


@pytest.mark.parametrize(("family", "kind"), COMPILED)
def test_it_compiles(family: str, kind: str) -> None:
    """Traced as one graph and run as traced, no code generated."""
    model = small_model(family, kind)
    ids, lengths = random_ids(model), torch.tensor(LENGTHS)
    torch._dynamo.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(ids, lengths=lengths)
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    sum(each.sum() for each in found).backward()
    assert_close(
        tuple(each.detach() for each in found), tuple(e.detach() for e in answers(model, ids, lengths=lengths))
    )


@pytest.mark.slow
def test_it_runs_as_generated_code(usual: TextModel) -> None:
    ids, lengths = random_ids(usual), torch.tensor(LENGTHS)
    torch._dynamo.reset()
    found = torch.compile(usual)(ids, lengths=lengths)
    found = (found,) if isinstance(found, Tensor) else tuple(found)
    assert_close(
        tuple(each.detach() for each in found), tuple(e.detach() for e in answers(usual, ids, lengths=lengths))
    )


# As counted in the published files, the usual head included.
COUNTS = {
    "gpt1": {"base": 116_534_784},
    "gpt2": {"base": 124_439_808, "medium": 354_823_168, "large": 774_030_080, "xl": 1_557_611_200},
    "gpt-neo": {"125m": 125_198_592, "1.3b": 1_315_575_808, "2.7b": 2_651_307_520},
    "mixtral": {"8x7b": 46_702_792_704, "8x22b": 140_620_634_112},
    "qwen3": {
        "0.6b": 596_049_920, "1.7b": 1_720_574_976, "4b": 4_022_468_096, "8b": 8_190_735_360,
        "14b": 14_768_307_200, "32b": 32_762_123_264,
    },
    "llama": {
        "1-7b": 6_738_415_616, "1-13b": 13_015_864_320, "1-33b": 32_528_943_616, "1-65b": 65_285_660_672,
        "2-7b": 6_738_415_616, "2-13b": 13_015_864_320, "2-70b": 68_976_648_192,
        "3-8b": 8_030_261_248, "3-70b": 70_553_706_496, "smollm2-135m": 134_515_008, "stories15m": 15_191_712,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_parameters_of_every_published_size(family: str) -> None:
    for name, sizes in FAMILIES[family].published.items():
        assert count_parameters(family, shrunk(sizes)) < 100_000
        if family in COUNTS:
            assert count_parameters(family, sizes) == COUNTS[family][name], name


@pytest.mark.parametrize("family", [name for name in TEXT_FAMILIES if FAMILIES[name].heads[0] != "states"])
def test_matrices_start_with_a_small_spread(family: str) -> None:
    """Wide initial matrices make the first logits large and the first loss far worse than a guess."""
    torch.manual_seed(0)
    sizes = replace(small_sizes(family), vocabulary=300)
    model = build(family, sizes)
    logits = answers(model.eval(), torch.randint(0, 300, (4, SLOTS)))[0]
    assert logits.std() < 1
