"""The recurrent parts against the paper's equations written out slowly, and against torch's GRU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.cache import Cache
from qkv.parts.attention.recurrent import AdditiveAttention, AttentiveGRU, BidirectionalGRU, RecurrentCache, reverse
from qkv.parts.attention.visibility import Causal, NotPadding, Tokens
from qkv.parts.context import Context, Ledger

WORD, WIDTH, MEMORY, ALIGNMENT = 5, 4, 8, 6
LENGTHS = torch.tensor([7, 3, 1])


def noisy(module: nn.Module) -> nn.Module:
    """Doubles with visible noise in every parameter: the paper's start is too small, and in part zero, to test with."""
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def reading(memory: Tensor, lengths: Tensor | None, steps: int, cache: Cache | None = None) -> Context:
    slots = memory.shape[1]
    tokens = Tokens(slots) if lengths is None else Tokens.padded(lengths, slots)
    return Context(tokens=Tokens(steps), visibility=NotPadding(), memory=memory, memory_tokens=tokens, cache=cache)


def slow_attention(attention: AdditiveAttention, state: Tensor, annotations: Tensor) -> tuple[Tensor, Tensor]:
    """One state [n], one row's real annotations [k e]: e_j, then alpha_j, then c, slot by slot."""
    key = attention.key
    energies = [
        attention.score @ torch.tanh(attention.query.weight @ state + key.weight @ annotation + key.bias)
        for annotation in annotations
    ]
    exponentials = torch.stack(energies).exp()
    weights = exponentials / exponentials.sum()
    return sum(weight * annotation for weight, annotation in zip(weights, annotations, strict=True)), weights


def slow_decoder(decoder: AttentiveGRU, words: Tensor, annotations: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """States s_0 ... s_t and contexts c_1 ... c_t of one row, by the equations of appendix A.2.2."""
    wz, wr, w = decoder.word.weight.chunk(3)
    bz, br, b = decoder.word.bias.chunk(3)
    cz, cr, c = decoder.context.weight.chunk(3)
    uz, ur = decoder.gates.weight.chunk(2)
    u = decoder.candidate.weight
    state = torch.tanh(decoder.first.weight @ annotations[0, -decoder.width :] + decoder.first.bias)
    states, contexts = [state], []
    for word in words:
        context, _ = slow_attention(decoder.attention, state, annotations)
        z = torch.sigmoid(wz @ word + bz + uz @ state + cz @ context)
        r = torch.sigmoid(wr @ word + br + ur @ state + cr @ context)
        proposal = torch.tanh(w @ word + b + u @ (r * state) + c @ context)
        state = (1 - z) * state + z * proposal
        states.append(state)
        contexts.append(context)
    return states, contexts


def test_additive_attention_is_its_equation() -> None:
    attention = noisy(AdditiveAttention(WIDTH, MEMORY, ALIGNMENT))
    x, memory = torch.randn(3, 2, WIDTH).double(), torch.randn(3, 7, MEMORY).double()
    ledger = Ledger(attention, keep={"weights"})
    answer = attention(x, replace(reading(memory, LENGTHS, 2), ledger=ledger))
    (recorded,) = ledger.entries["/weights"]
    assert recorded.shape == (3, 1, 2, 7)
    for row, length in enumerate(LENGTHS):
        for query in range(2):
            context, weights = slow_attention(attention, x[row, query], memory[row, :length])
            torch.testing.assert_close(answer[row, query], context)
            torch.testing.assert_close(recorded[row, 0, query, :length], weights)
            assert not recorded[row, 0, query, length:].any()


def test_weights_sum_to_one_and_are_even_at_the_start() -> None:
    attention = AdditiveAttention(WIDTH, MEMORY, ALIGNMENT)
    memory, hidden = torch.randn(2, 7, MEMORY), torch.arange(7)[None, None] >= 5
    _, weights = attention.attend(torch.randn(2, 3, WIDTH), attention.key(memory), memory, hidden)
    torch.testing.assert_close(weights[..., :5], torch.full((2, 3, 5), 0.2))
    nn.init.normal_(attention.score, std=5.0)
    _, weights = attention.attend(torch.randn(2, 3, WIDTH), attention.key(memory), memory, hidden)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients() -> None:
    attention = noisy(AdditiveAttention(WIDTH, MEMORY, ALIGNMENT))
    memory = torch.randn(2, 3, MEMORY, dtype=torch.double, requires_grad=True)
    answer = attention(torch.randn(2, 1, WIDTH).double(), reading(memory, torch.tensor([2, 0]), 1))
    assert not answer[1].any()
    assert answer[0].any()
    answer.sum().backward()
    assert memory.grad is not None
    assert memory.grad.isfinite().all()
    assert not memory.grad[1].any()


def test_rows_that_share_a_memory_row_read_it_as_if_it_were_repeated() -> None:
    attention = noisy(AdditiveAttention(WIDTH, MEMORY, ALIGNMENT))
    x, memory = torch.randn(6, 2, WIDTH).double(), torch.randn(2, 5, MEMORY).double()
    lengths = torch.tensor([5, 2])
    shared = attention(x, reading(memory, lengths, 2))
    repeated = attention(x, reading(memory.repeat_interleave(3, 0), lengths.repeat_interleave(3), 2))
    torch.testing.assert_close(shared, repeated)


def test_additive_attention_refuses_what_it_cannot_honour() -> None:
    attention = AdditiveAttention(WIDTH, MEMORY, ALIGNMENT)
    with pytest.raises(QkvError, match="needs a memory"):
        attention(torch.randn(1, 2, WIDTH), Context(tokens=Tokens(2)))
    with pytest.raises(QkvError, match="same slots"):
        attention(
            torch.randn(1, 2, WIDTH), Context(tokens=Tokens(2), visibility=Causal(), memory=torch.randn(1, 2, MEMORY))
        )


def test_reverse_turns_only_the_real_slots() -> None:
    x = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0], [0, 0, 0, 0]])[..., None]
    turned = reverse(x, torch.tensor([4, 2, 0]))
    assert turned[..., 0].tolist() == [[4, 3, 2, 1], [2, 1, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(reverse(x, None), x.flip(1))


@pytest.mark.parametrize("padded", [True, False])
def test_the_encoder_is_a_gru_each_way_over_each_unpadded_row(padded: bool) -> None:
    encoder = noisy(BidirectionalGRU(WORD, WIDTH))
    x = torch.randn(3, 7, WORD).double()
    lengths = LENGTHS if padded else torch.full((3,), 7)
    annotations = encoder(x, LENGTHS if padded else None)
    for row, length in enumerate(lengths):
        alone = x[row : row + 1, :length]
        before, _ = encoder.left_to_right(alone)
        after, _ = encoder.right_to_left(alone.flip(1))
        torch.testing.assert_close(annotations[row, :length], torch.cat((before, after.flip(1)), -1)[0])
        assert not annotations[row, length:].any()


@pytest.mark.parametrize("filler", [0.0, float("nan"), 1e30])
def test_what_stands_in_padding_reaches_nothing(filler: float) -> None:
    encoder = noisy(BidirectionalGRU(WORD, WIDTH))
    x = torch.randn(3, 7, WORD).double()
    clean = encoder(x, LENGTHS)
    for row, length in enumerate(LENGTHS):
        x[row, length:] = filler
    torch.testing.assert_close(encoder(x, LENGTHS), clean, atol=0, rtol=0)


def test_the_decoder_is_the_papers_equations_step_by_step() -> None:
    decoder = noisy(AttentiveGRU(WORD, WIDTH, MEMORY, ALIGNMENT))
    words, memory = torch.randn(3, 5, WORD).double(), torch.randn(3, 7, MEMORY).double()
    cache = RecurrentCache()
    states, contexts = decoder(words, reading(memory, LENGTHS, 5, cache))
    assert cache.state is not None
    for row, length in enumerate(LENGTHS):
        slow_states, slow_contexts = slow_decoder(decoder, words[row], memory[row, :length])
        torch.testing.assert_close(states[row], torch.stack(slow_states[:-1]))
        torch.testing.assert_close(contexts[row], torch.stack(slow_contexts))
        torch.testing.assert_close(cache.state[row], slow_states[-1])


def test_gradients_are_the_slopes() -> None:
    decoder = noisy(AttentiveGRU(2, 2, 3, 2))
    words = torch.randn(2, 2, 2, dtype=torch.double, requires_grad=True)
    memory = torch.randn(2, 3, 3, dtype=torch.double, requires_grad=True)
    names, parameters = zip(*decoder.named_parameters(), strict=True)

    def decode(words: Tensor, memory: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        ctx = reading(memory, torch.tensor([3, 2]), 2)
        return torch.func.functional_call(decoder, dict(zip(names, values, strict=True)), (words, ctx))

    assert torch.autograd.gradcheck(decode, (words, memory, *parameters))


def test_the_encoders_gradients_are_the_slopes() -> None:
    encoder = noisy(BidirectionalGRU(2, 2))
    x = torch.randn(2, 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: encoder(x, torch.tensor([3, 1])), (x,))


def test_the_start_is_the_papers() -> None:
    decoder, encoder = AttentiveGRU(300, 300, 600, 300), BidirectionalGRU(300, 300)
    recurrent = [*decoder.gates.weight.chunk(2), decoder.candidate.weight]
    for gru in (encoder.left_to_right, encoder.right_to_left):
        recurrent += gru.weight_hh_l0.chunk(3)
        assert not gru.bias_ih_l0.any()
        assert not gru.bias_hh_l0.any()
    for matrix in recurrent:
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(300), atol=1e-4, rtol=0)
    for weight in (
        decoder.word.weight,
        decoder.context.weight,
        decoder.first.weight,
        encoder.left_to_right.weight_ih_l0,
    ):
        assert weight.std().item() == pytest.approx(0.01, rel=0.02)
    for weight in (decoder.attention.query.weight, decoder.attention.key.weight):
        assert weight.std().item() == pytest.approx(0.001, rel=0.02)
    for zero in (decoder.attention.score, decoder.attention.key.bias, decoder.word.bias, decoder.first.bias):
        assert not zero.any()


def test_a_decoder_refuses_a_foreign_cache_and_a_narrow_memory() -> None:
    decoder = AttentiveGRU(WORD, WIDTH, MEMORY, ALIGNMENT)
    with pytest.raises(QkvError, match="RecurrentCache"):
        decoder(torch.randn(1, 1, WORD), reading(torch.randn(1, 3, MEMORY), None, 1, Cache()))
    with pytest.raises(QkvError, match="only 3"):
        AttentiveGRU(WORD, WIDTH, 3, ALIGNMENT)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # what torch says when oneDNN is switched
def test_under_autocast_the_encoder_and_the_state_keep_their_precision() -> None:
    encoder, decoder = BidirectionalGRU(WORD, WIDTH), AttentiveGRU(WORD, WIDTH, 2 * WIDTH, ALIGNMENT)
    x = torch.randn(2, 3, WORD)
    exact = encoder(x)
    cache = RecurrentCache()
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        memory = encoder(x)
        keys, values, _ = decoder.attention.read(reading(memory, None, 2))
        decoder(torch.randn(2, 2, WORD), reading(memory, None, 2, cache))
    assert torch.equal(memory, exact)
    assert keys.dtype == values.dtype == torch.bfloat16
    assert cache.state is not None
    assert cache.state.dtype == torch.float32


def test_a_recurrent_cache_cannot_go_back() -> None:
    cache = RecurrentCache()
    cache.advance(Tokens(3))
    cache.truncate(3)
    with pytest.raises(QkvError, match="earlier step"):
        cache.truncate(2)
