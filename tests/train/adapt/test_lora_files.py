"""Updates as files of their own: read back exactly, and exchanged with the peft library both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.errors import QkvError
from qkv.models.catalogue import Model
from qkv.train.adapt import LoRA, add_lora, load_adapter, merge, save_adapter
from qkv.train.adapt.lora import TARGETS, updates_of
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.train.adapt.small_models import MAKES, answer, make
from tests.train.adapt.test_lora import learn_something

peft = pytest.importorskip("peft", reason="the peft library judges the exchange of updates")

EVERYTHING = LoRA(rank=3, alpha=6, targets=TARGETS)


@pytest.mark.parametrize("lora", [LoRA(rank=2, dropout=0.1), EVERYTHING], ids=["usual", "everything"])
@pytest.mark.parametrize("family", MAKES)
def test_updates_read_back_exactly(family: str, lora: LoRA, tmp_path: Path) -> None:
    model = make(family)
    add_lora(model, lora)
    learn_something(model)
    save_adapter(model, tmp_path)
    other = make(family)
    load_adapter(other, tmp_path)
    expected, found = updates_of(model), updates_of(other)
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert torch.equal(found[name].a, one.a)
        assert torch.equal(found[name].b, one.b)
        assert (found[name].scale, found[name].dropout.p) == (one.scale, one.dropout.p)
    assert torch.equal(answer(other), answer(model))


def test_a_trained_head_goes_with_the_updates(tmp_path: Path) -> None:
    model = make("bert", "classification")
    add_lora(model)
    learn_something(model)
    save_adapter(model, tmp_path)
    other = make("bert", "classification")
    with torch.no_grad():
        other.head.out.weight.normal_()
    load_adapter(other, tmp_path)
    assert torch.equal(answer(other), answer(model))
    assert other.head.out.weight.requires_grad
    assert not other.embed.tokens.weight.requires_grad


def reference_of(model: Model, folder: Path) -> Any:
    """The same model in the other library."""
    save_published(model, folder, PUBLISHED)
    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()


@torch.no_grad()
def reference_answer(reference: Any) -> Tensor:
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(7))
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    more = {"decoder_input_ids": ids[:, :6]} if reference.config.is_encoder_decoder else {}
    output = reference(input_ids=ids, attention_mask=mask.long(), **more)
    return output.logits if "logits" in output else output.last_hidden_state


def real(logits: Tensor) -> Tensor:
    """Without the slots of padding, where libraries need not agree."""
    if logits.ndim == 3 and logits.shape[1] == 9:
        return torch.cat((logits[0], logits[1, :5]))
    return logits


# Kinds of answer, and kinds of tensors: one a map, several in one matrix, matrices on their side, gates, two stacks.
EXCHANGED = [
    ("bert", "classification"),
    ("bert", "states"),
    ("gpt2", "language"),
    ("llama", "language"),
    ("t5", None),
    ("albert", "tokens"),
]


@pytest.mark.parametrize("lora", [LoRA(rank=2), EVERYTHING], ids=["usual", "everything"])
@pytest.mark.parametrize(("family", "kind"), EXCHANGED)
def test_the_other_library_reads_ours(family: str, kind: str | None, lora: LoRA, tmp_path: Path) -> None:
    model = make(family, kind)
    reference = reference_of(model, tmp_path / "model")
    before = reference_answer(reference)
    torch.testing.assert_close(real(before), real(answer(model)), rtol=1e-4, atol=1e-4)
    add_lora(model, lora)
    learn_something(model)
    if kind == "classification":
        with torch.no_grad():
            model.head.out.weight.normal_()
    save_adapter(model, tmp_path / "adapter")
    adapted = peft.PeftModel.from_pretrained(reference, tmp_path / "adapter").eval()
    found = reference_answer(adapted)
    torch.testing.assert_close(real(found), real(answer(model)), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, before, atol=1e-2)


@pytest.mark.parametrize(
    ("family", "kind", "settings"),
    [
        ("bert", "classification", {"target_modules": ["query", "dense"], "task_type": "SEQ_CLS"}),
        ("gpt2", "language", {"target_modules": ["c_attn", "c_proj"]}),
        ("gpt2", "language", {"target_modules": ["c_attn", "c_fc"], "rank_pattern": {"c_fc": 5}, "use_rslora": True}),
        ("llama", "language", {"target_modules": "all-linear", "alpha_pattern": {r"^model.layers.\d.mlp.up_proj": 3}}),
        ("t5", None, {"target_modules": ["q", "wo"]}),
    ],
)
def test_ours_reads_the_other_library(family: str, kind: str | None, settings: dict[str, Any], tmp_path: Path) -> None:
    model = make(family, kind)
    reference = reference_of(model, tmp_path / "model")
    if "dense" in settings["target_modules"]:
        settings = {**settings, "exclude_modules": ".*pooler.*", "modules_to_save": ["classifier", "pooler"]}
    adapted = peft.get_peft_model(reference, peft.LoraConfig(r=4, lora_alpha=10, **settings)).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    before = answer(model)
    load_adapter(model, tmp_path / "adapter")
    torch.testing.assert_close(real(answer(model)), real(reference_answer(adapted)), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(answer(model), before, atol=1e-2)
    merge(model)
    torch.testing.assert_close(real(answer(model)), real(reference_answer(adapted)), rtol=1e-3, atol=1e-3)


def saved(tmp_path: Path, family: str = "bert") -> Path:
    model = make(family)
    add_lora(model)
    save_adapter(model, tmp_path)
    return tmp_path


def edited(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_dora": True}, "asks for use_dora"),
        ({"bias": "all"}, "asks for bias"),
        ({"something_new": 3}, "asks for something_new"),
        ({"peft_type": "IA3"}, "does not describe low-rank updates"),
        ({"init_lora_weights": "pissa"}, "changed beforehand"),
        ({"lora_alpha": "much"}, '"lora_alpha" must be a number'),
        ({"alpha_pattern": [1]}, '"alpha_pattern" must be a number'),
    ],
)
def test_what_a_configuration_asks_for_is_never_ignored(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    edited(folder, **changes)
    model = make("bert")
    expected = answer(model)
    with pytest.raises(QkvError, match=said):
        load_adapter(model, folder)
    assert torch.equal(answer(model), expected)


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
    for changed, said in [
        ({key: value for key, value in tensors.items() if key != name}, "one half of the update"),
        ({**tensors, "base_model.model.bert.encoder.layer.9.x.lora_A.weight": torch.zeros(1)}, "layer.9.x"),
        ({**tensors, name: torch.zeros(3, 3)}, "do not fit"),
        ({**tensors, name: torch.zeros(8, 3)}, r"\[8, 3\]"),
    ]:
        save_file(changed, file)
        model = make("bert")
        with pytest.raises(QkvError, match=said):
            load_adapter(model, folder)
        assert not updates_of(model)
    with pytest.raises(QkvError, match="no update of a map that this model has"):
        load_adapter(make("gpt2"), saved(tmp_path / "other"))


def test_what_an_adapter_file_cannot_hold_is_said(tmp_path: Path) -> None:
    model = make("bert")
    with pytest.raises(QkvError, match="no low-rank updates to save"):
        save_adapter(model, tmp_path)
    add_lora(model)
    model.embed.norm.weight.requires_grad_(True)
    with pytest.raises(QkvError, match=r"trains embed\.norm\.weight"):
        save_adapter(model, tmp_path)
