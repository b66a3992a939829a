"""What a model did on its way, in the order in which it did it."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts.stack import Stack
from qkv.train.objectives.trace import traced
from tests.models.small import small_model
from tests.train.objectives.small import small_bert


def test_states_are_those_between_the_blocks():
    model, ids = small_bert("states"), torch.randint(4, 31, (2, 5))
    with traced(model, states=True, weights=False) as trace:
        final = model(ids)
    assert len(trace.states) == 3
    assert torch.equal(trace.state(2).x, final)  # BERT has no norm after its last block
    ctx = model.context(ids)
    assert torch.equal(trace.state(0).x, model.embed(ids, ctx))
    assert torch.equal(trace.state(1).x, model.stack.blocks[0](trace.state(0).x, ctx))
    assert trace.weights == []


def test_weights_need_the_ledger():
    model, ids = small_bert("states"), torch.randint(4, 31, (2, 5))
    with traced(model, states=False, weights=True) as trace:
        model(ids, ledger=trace.ledger)
    assert [weights.shape for weights in trace.weights] == [(2, 2, 5, 5)] * 2
    torch.testing.assert_close(trace.attention(2).sum(-1), torch.ones(2, 2, 5))
    assert trace.states == []


def test_blocks_that_run_again_are_counted_again():
    model, ids = small_bert("states"), torch.randint(4, 31, (2, 5))
    model.stack = Stack(model.stack.blocks, order=[0, 0, 1, 0])
    with traced(model, states=True, weights=True) as trace:
        model(ids, ledger=trace.ledger)
    assert len(trace.states) == 5
    first, second = trace.ledger.entries.values()
    expected = [first[0], first[1], second[0], first[2]]
    assert all(mine is theirs for mine, theirs in zip(trace.weights, expected, strict=True))


def test_an_encoder_comes_before_its_decoder():
    model = small_model("transformer")
    with traced(model, states=True, weights=False) as trace:
        model(torch.randint(3, 19, (2, 6)), None, torch.randint(3, 19, (2, 4)))
    assert [state.x.shape[1] for state in trace.states] == [6, 6, 6, 4, 4]


def test_nothing_is_left_on_the_model_and_wrong_layers_are_refused():
    model = small_bert("states")
    with traced(model, states=True, weights=True) as trace:
        pass
    assert not any(block._forward_hooks for block in model.stack.blocks)
    with pytest.raises(QkvError, match="no layer 0"):
        trace.state(0)
    with pytest.raises(QkvError, match="no attention 1"):
        trace.attention(1)
