import pytest
import torch

from qkv.generate.prepare import PackedLinear, can_prepare, prepare
from tests.generate.models import sources
from tests.models.small import CASES, small_model

pytestmark = pytest.mark.skipif(
    not can_prepare(torch.nn.Linear(1, 1)), reason="packing needs a CPU and a torch with oneDNN"
)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_prepared_model_computes_the_same(case):
    model = small_model(case)
    ready = prepare(model)
    assert any(isinstance(module, PackedLinear) for module in ready.modules())
    for rows in (1, 3, 70):
        source, lengths = sources([9, *[4] * (rows - 1)], model.source_vocabulary)
        target = torch.randint(0, model.target_vocabulary, (rows, 5))
        torch.testing.assert_close(ready(source, lengths, target), model(source, lengths, target), atol=1e-5, rtol=1e-4)
        # and step by step
        memory, cache = ready.encode(source, lengths), ready.new_cache(5)
        steps = [ready.decode(target[:, step : step + 1], memory, cache) for step in range(5)]
        torch.testing.assert_close(torch.cat(steps, 1), model(source, lengths, target), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_it_is_a_copy_that_later_changes_do_not_reach():
    model = small_model("transformer")
    names = [name for name, _ in model.named_parameters()]
    source, _ = sources([4], 19)
    target = torch.tensor([[1, 5]])
    ready, before = prepare(model), model(source, None, target)
    for parameter in model.parameters():
        parameter += 1
    assert [name for name, _ in model.named_parameters()] == names  # the model itself is as it was
    torch.testing.assert_close(ready(source, None, target), before, atol=1e-5, rtol=1e-4)
