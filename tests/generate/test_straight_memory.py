import pytest
import torch

from qkv.generate.beam import beam_search
from qkv.generate.decode import LengthLimit
from qkv.generate.prepare import can_pack, prepare
from qkv.generate.straight import straight
from qkv.generate.straight_memory import (
    ONE,
    StraightBuckets,
    StraightCrossAttention,
    StraightPostNorm,
    StraightRMSNorm,
)
from qkv.parts.attention.attention import CrossAttention
from qkv.parts.attention.visibility import Causal, Tokens
from qkv.parts.context import Ledger
from qkv.parts.norm import RMSNorm
from qkv.parts.position import RelativeBuckets
from tests.generate.models import sources
from tests.models.small import small_model

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(16, 16)), reason="packing needs a compiler or a torch with oneDNN"
)


@pytest.mark.parametrize("family", ["marian", "t5"])
@pytest.mark.parametrize("lengths", [[4], [5, 5], [6, 2, 4]], ids=str)
@torch.no_grad()
def test_steps_of_several_rows_for_a_source_are_what_they_were(family, lengths):
    model = small_model(family)
    ready, beams = prepare(model), 3
    source, real = sources(lengths, model.source_vocabulary)
    written = []
    for each in (model, ready):
        memory, cache = each.encode(source, real), each.new_cache(8)
        steps = [each.decode(torch.full((len(lengths), 1), 3), memory, cache)]
        cache.select(torch.arange(len(lengths)).repeat_interleave(beams))
        for step in range(4):
            tokens = torch.arange(3 + step, 3 + step + beams * len(lengths))[:, None] % model.target_vocabulary
            steps.append(each.decode(tokens, memory, cache))
        steps.append(each.decode(tokens.expand(-1, 2), memory, cache))  # two at once: not the usual step
        written.append(torch.cat([step[:, -1] for step in steps]))
    torch.testing.assert_close(*written, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_source_of_nothing_but_padding_gives_nothing():
    model = small_model("marian")
    source, _ = sources([4, 4], model.source_vocabulary)
    lengths, written = torch.tensor([4, 0]), []
    for each in (model, prepare(model)):
        memory, cache = each.encode(source, lengths), each.new_cache(4)
        for token in (3, 4):
            logits = each.decode(torch.full((2, 1), token), memory, cache)
        written.append(logits)
    assert written[0].isfinite().all()
    torch.testing.assert_close(*written, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["marian", "t5", "transformer"])
def test_every_cross_attention_is_straightened(family):
    model = small_model(family)
    kinds = [type(module) for module in prepare(model).modules()]
    assert kinds.count(StraightCrossAttention) == len(model.decoder.blocks)
    assert kinds.count(StraightBuckets) == (2 if family == "t5" else 0)
    if family == "marian":
        assert kinds.count(StraightPostNorm) == 2 * len(model.encoder.blocks) + 3 * len(model.decoder.blocks)


def test_a_cross_attention_that_hides_is_left_as_it_is():
    assert straight(CrossAttention(8, 2, visibility=Causal())) is None
    assert straight(CrossAttention(8, 2)) is not None


@torch.no_grad()
def test_biases_of_a_step_are_those_of_the_whole_row():
    buckets = RelativeBuckets(2, looks_ahead=False)
    kept = StraightBuckets(buckets)
    for size in (1, 2, 7, 150, 3, 400, 399):
        row = Tokens(size)
        step = kept(Tokens(1, size - 1), row)
        torch.testing.assert_close(step, buckets(Tokens(1, size - 1), row), atol=0, rtol=0)
    torch.testing.assert_close(kept(Tokens(5), Tokens(5)), buckets(Tokens(5), Tokens(5)))
    torch.testing.assert_close(kept(ONE, Tokens(5)), buckets(ONE, Tokens(5)))  # looks ahead: not the usual step


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e6])
@torch.no_grad()
def test_a_norm_by_fewer_operations_is_the_norm(scale):
    norm = RMSNorm(48)
    norm.weight.normal_()
    x = scale * torch.randn(3, 2, 48)
    torch.testing.assert_close(StraightRMSNorm(norm)(x), norm(x), atol=1e-6, rtol=1e-5)
    assert not StraightRMSNorm(norm)(torch.zeros(1, 1, 48)).any()
    narrow = norm.to(torch.bfloat16)
    torch.testing.assert_close(StraightRMSNorm(narrow)(x.bfloat16()), narrow(x.bfloat16()), atol=0, rtol=0)


@torch.no_grad()
def test_what_is_asked_for_is_recorded():
    model = small_model("t5")
    source, real = sources([5, 3], model.source_vocabulary)
    written = []
    for each in (model, prepare(model)):
        memory, cache = each.encode(source, real), each.new_cache(4)
        each.decode(torch.full((2, 1), 3), memory, cache)
        ledger = Ledger(each, ("weights",))
        each.decode(torch.full((2, 1), 4), memory, cache, ledger)
        written.append([value for _, _, value in ledger.written])
    assert len(written[0]) == 2 * len(model.decoder.blocks)
    torch.testing.assert_close(*written)


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_beams_write_the_same(family):
    model = small_model(family)
    source, real = sources([6, 2, 4], model.source_vocabulary)
    limit = LengthLimit(1.0, 4)
    ours, theirs = (
        beam_search(each, source, real, start=1, end=2, beams=3, limit=limit) for each in (prepare(model), model)
    )
    assert [[one.ids for one in found] for found in ours] == [[one.ids for one in found] for found in theirs]
