import pytest
import torch

from qkv.generate.continuation import FromPrompts
from qkv.generate.prepare import can_pack, prepare
from qkv.generate.straight import StraightAttention, StraightBlock, StraightMLP, StraightPreNorm, straight
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Window
from qkv.parts.context import Ledger
from tests.generate.language_models import PROMPTS, small_gpt
from tests.models.small import perturb
from tests.models.small_text import small_model

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(16, 16)), reason="packing needs a compiler or a torch with oneDNN"
)


@pytest.mark.parametrize("family", ["gpt1", "gpt2", "gpt-neo", "llama", "reformer"])
@torch.no_grad()
def test_steps_are_what_they_were(family):
    model = small_model(family)
    ready = prepare(model)
    for prompts in ([[5, 6, 7]], [[5, 6, 7], [8, 9, 10]], [[5, 6, 7], [8]]):  # alone, in company, padded
        ours, theirs = FromPrompts(ready, prompts, most=6), FromPrompts(model, prompts, most=6)
        torch.testing.assert_close(ours.begin(), theirs.begin(), rtol=1e-4, atol=1e-5)
        for new in (1, 1, 2, 1):
            tokens = torch.full((len(prompts), new), 3 + new)
            torch.testing.assert_close(ours.advance(tokens), theirs.advance(tokens), rtol=1e-4, atol=1e-5)


def test_every_part_of_a_gpt_is_straightened():
    ready = prepare(small_gpt().eval())
    blocks = len(small_gpt().stack.blocks)
    for kind, count in ((StraightAttention, 1), (StraightMLP, 1), (StraightPreNorm, 2), (StraightBlock, 1)):
        assert sum(type(module) is kind for module in ready.modules()) == count * blocks


def test_an_attention_that_hides_what_is_far_is_left_as_it_is():
    assert straight(Attention(8, 2, visibility=Causal() & Window(4))) is None
    assert straight(Attention(8, 2, visibility=Causal())) is not None


@torch.no_grad()
def test_what_is_asked_for_is_recorded():
    model = small_gpt().eval()
    ready, ids = prepare(model), torch.tensor([PROMPTS[0]])
    written = []
    for each in (model, ready):
        cache, ledger = each.new_cache(16), Ledger(each, ("weights",))
        each(ids, cache=cache)
        each(ids[:, :1], cache=cache, ledger=ledger)
        written.append([value for _, _, value in ledger.written])
    assert len(written[0]) == len(model.stack.blocks)
    torch.testing.assert_close(*written)


@torch.no_grad()
def test_a_model_whose_attention_was_chosen_writes_the_same():
    model = small_gpt()
    model = build(model.family, model.sizes, attention=AttentionChoice.of("window:3")).eval()
    perturb(model)
    ours, theirs = (FromPrompts(each, [[5, 6, 7, 8, 9]], most=4) for each in (prepare(model), model))
    torch.testing.assert_close(ours.begin(), theirs.begin(), rtol=1e-4, atol=1e-5)
    for _ in range(2):
        token = torch.tensor([[4]])
        torch.testing.assert_close(ours.advance(token), theirs.advance(token), rtol=1e-4, atol=1e-5)
