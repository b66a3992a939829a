"""Several linear maps as one matrix in memory, under their own names on disk."""

import pytest
import torch
from torch import nn

from qkv.parts.linear import JoinedLinear

PARTS = {"query": 4, "key": 2, "value": 3}


def joined(bias: bool = True) -> JoinedLinear:
    module = JoinedLinear(5, PARTS, bias=bias)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def test_each_part_is_a_linear_map_of_its_own() -> None:
    module, x = joined(), torch.randn(2, 3, 5)
    state = module.state_dict()
    for (name, rows), y in zip(PARTS.items(), module(x), strict=True):
        assert state[f"{name}.weight"].shape == (rows, 5)
        torch.testing.assert_close(y, nn.functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"]))


@pytest.mark.parametrize("bias", [True, False])
def test_saved_under_the_names_of_the_parts_and_loaded_back(bias: bool) -> None:
    first, second = joined(bias), joined(bias)
    kinds = ("weight", "bias") if bias else ("weight",)
    state = nn.Sequential(first).state_dict()
    assert list(state) == [f"0.{name}.{kind}" for kind in kinds for name in PARTS]
    nn.Sequential(second).load_state_dict(state)
    assert torch.equal(first.weight, second.weight)
    assert not bias or torch.equal(first.bias, second.bias)


def test_loading_leaves_the_callers_dictionary_as_it_was() -> None:
    state = joined().state_dict()
    names = list(state)
    joined().load_state_dict(state)
    assert list(state) == names


def test_loading_into_a_model_without_memory_assigns() -> None:
    module = joined()
    with torch.device("meta"):
        empty = JoinedLinear(5, PARTS)
    empty.load_state_dict(module.state_dict(), assign=True)
    assert torch.equal(empty.weight, module.weight)


@pytest.mark.parametrize("missing", ["value.weight", "query.bias"])
def test_a_missing_part_is_reported_by_its_name(missing: str) -> None:
    state = nn.Sequential(joined()).state_dict()
    del state[f"0.{missing}"]
    with pytest.raises(RuntimeError) as raised:
        nn.Sequential(joined()).load_state_dict(state)
    assert f'"0.{missing}"' in str(raised.value)
    assert str(raised.value).count('"0.') == 1  # that name and no other


def test_a_missing_part_keeps_its_values_where_that_is_allowed() -> None:
    module, given = joined(), joined()
    old = module.state_dict()["key.weight"].clone()
    state = given.state_dict()
    del state["key.weight"]
    report = module.load_state_dict(state, strict=False)
    assert report.missing_keys == ["key.weight"]
    assert torch.equal(module.state_dict()["key.weight"], old)
    assert torch.equal(module.state_dict()["value.weight"], given.state_dict()["value.weight"])


def test_parts_of_wrong_sizes_are_reported_even_where_their_sum_is_right() -> None:
    state = joined().state_dict()
    state["query.weight"], state["key.weight"] = torch.randn(3, 5), torch.randn(3, 5)
    with pytest.raises(RuntimeError, match=r"size mismatch for query\.weight.*\[3, 5\].*\[4, 5\]"):
        joined().load_state_dict(state)


def test_a_bias_that_the_model_has_not_is_unexpected() -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*query\.bias"):
        joined(bias=False).load_state_dict(joined().state_dict())


def test_each_part_starts_within_the_bounds_of_its_own_size() -> None:
    """Xavier's bound √(6 / (in + out)) is that of the part, not that of the joined matrix."""
    module = JoinedLinear(50, {"small": 10, "large": 400})
    state = module.state_dict()
    for name, rows in (("small", 10), ("large", 400)):
        bound = (6 / (50 + rows)) ** 0.5
        assert 0.9 * bound < state[f"{name}.weight"].abs().max() <= bound


def test_some_parts_may_have_a_bias_and_others_none() -> None:
    module = JoinedLinear(5, PARTS, bias=("query", "value"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    state, x = module.state_dict(), torch.randn(2, 5)
    assert "key.bias" not in state
    for name, y in zip(PARTS, module(x), strict=True):
        torch.testing.assert_close(y, nn.functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias")))
    twin = JoinedLinear(5, PARTS, bias=("query", "value"))
    twin.load_state_dict(state)
    assert torch.equal(twin.bias, module.bias)
    module.bias.sum().backward()
    with pytest.raises(RuntimeError, match=r"key\.bias"):
        twin.load_state_dict({**state, "key.bias": torch.zeros(2)})
