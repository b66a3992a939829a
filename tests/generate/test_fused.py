import pytest
import torch

from qkv.generate import fused
from qkv.generate.fused import Plan, plan_of
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes
from qkv.parts.attention.visibility import Window
from tests.generate.language_models import small_gpt
from tests.generate.models import small_model
from tests.generate.stepped import hearer, reader_of


@pytest.fixture(autouse=True)
def as_if_there(monkeypatch):
    """Reading a model needs no Triton."""
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def gpt(**changed):
    told = {"vocabulary": 23, "positions": 64, "width": 32, "hidden": 48, "heads": 2, "layers": 2} | changed
    return build("gpt2", GPT2Sizes(**told), HeadChoice("language"))


def llama(**changed):
    told = {"vocabulary": 23, "positions": 64, "width": 64, "hidden": 24, "heads": 4, "key_value_heads": 2, "layers": 2}
    return build("llama", LlamaSizes(**(told | changed)), HeadChoice("language"))


def test_a_gpt_is_read_to_the_end_and_its_weights_are_its_own():
    model = gpt()
    plan = plan_of(model)
    assert isinstance(plan, Plan)
    assert len(plan.layers) == 2
    attention = model.stack.blocks[1].attention.mixer
    assert plan.layers[1].project.weight.data_ptr() == attention.project.weight.data_ptr()
    assert plan.layers[1].activation == "gelu_tanh"
    assert plan.head.weight.data_ptr() == plan.tokens.data_ptr()  # tied
    assert plan.places is not None
    held = {tensor.data_ptr() for tensor in model.parameters()}
    for layer in plan.layers:
        for each in (layer.project, layer.out, layer.inner, layer.outer):
            assert {each.weight.data_ptr(), each.bias.data_ptr()} <= held


def test_a_llama_is_read_too():
    plan = plan_of(llama())
    assert isinstance(plan, Plan)
    assert plan.layers[0].gated
    assert plan.layers[0].norm.rms
    assert plan.layers[0].project.bias is None
    assert plan.places is None


def test_a_t5_is_read_with_its_memory_and_the_bias_of_its_scores():
    model = reader_of("cpu")
    plan = plan_of(model)
    assert isinstance(plan, Plan)
    assert plan.bias is model.decoder.bias
    assert plan.norm.scale == model.head.scale == 40**-0.5
    cross = plan.layers[1].cross
    mixer = model.decoder.blocks[1].cross.mixer
    assert cross.attention is mixer
    assert cross.query.weight.data_ptr() == mixer.query.weight.data_ptr()
    assert plan.layers[1].project.weight.data_ptr() != plan.layers[0].project.weight.data_ptr()


def test_keys_without_a_bias_are_a_gap():
    plan = plan_of(hearer("cpu"))
    assert isinstance(plan, Plan)
    assert plan.layers[0].project.gap == (48, 96)
    assert len(plan.layers[0].project.bias) == 96
    assert plan.layers[0].cross.query.gap == (0, 0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: gpt(experts=2), "Experts"),
        (lambda: small_gpt(), "8 wide"),
        (lambda: llama(window=5), "sees"),
        (lambda: gpt().double(), "float64"),
        (lambda: build("bert", _bert(), HeadChoice("masked")), "embedding"),
        (lambda: small_model(), "Sinusoidal"),
        (lambda: _seen_in_part(), "memory sees"),
    ],
)
def test_what_is_not_known_is_said(model, said):
    assert said in plan_of(model())


def _seen_in_part():
    model = reader_of("cpu")
    model.decoder.blocks[1].cross.mixer.visibility = Window(3)
    return model


def _bert():
    from qkv.models.bert import BertSizes

    return BertSizes(vocabulary=23, positions=64, width=32, hidden=48, heads=2, layers=2)


def test_without_triton_there_is_no_plan(monkeypatch):
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    assert "Triton" in plan_of(gpt())
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.delenv("TRITON_INTERPRET")
    if not torch.cuda.is_available():
        assert "GPU" in plan_of(gpt())
