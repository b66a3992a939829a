"""Attention as it began: a recurrent decoder that looks at the source anew before every word. [bahdanau2015]

Nothing here runs over the target in parallel, so what does not depend on the decoder's state is computed for all steps
at once, outside of the loop: the keys, the words' share of the gates, and (by the model) the readout.

Shapes: b rows, m memory rows (b a multiple of m), q queries, k keys, s source slots, t target steps,
a width of the alignment model, n width of a recurrent state, d and e widths of the stream and of the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.cache import Cache
from qkv.parts.attention.visibility import Everything, Tokens
from qkv.parts.context import Context
from qkv.parts.linear import JoinedLinear
from qkv.parts.precision import widened, without_autocast
from qkv.parts.spec import Depends


def initialise_small(weight: Tensor, deviation: float = 0.01) -> None:
    """Every matrix that is not recurrent starts as Gaussian noise. [bahdanau2015 app.B.1]"""
    nn.init.normal_(weight, std=deviation)


class AdditiveAttention(nn.Module):
    """Σⱼ αⱼ hⱼ with α = softmaxⱼ(vᵀ tanh(W q + U hⱼ)): a small network scores each slot. [bahdanau2015 app.A.1.2]

    A mixer from the stream (q) to the memory (h); its answer is as wide as the memory. All queries see the same slots.
    A memory row may serve several rows of the stream (the beams of one sentence): its keys are computed and kept once.
    """

    depends_on = Depends("score", "query", "key")

    def __init__(self, width: int, memory_width: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, hidden, bias=False)  # W
        self.key = nn.Linear(memory_width, hidden)  # U
        self.score = nn.Parameter(torch.zeros(hidden))  # v: at first all slots weigh the same [bahdanau2015 app.B.1]
        initialise_small(self.query.weight, 0.001)
        initialise_small(self.key.weight, 0.001)
        nn.init.zeros_(self.key.bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """[b q d] → [b q e]"""
        keys, values, hidden = self.read(ctx)
        queries = x.reshape(len(keys), -1, x.shape[-1])  # [m b/m·q d]
        context, weights = self.attend(queries, keys, values, hidden)
        self.record(weights.reshape(len(x), x.shape[1], -1), ctx)
        return context.reshape(len(x), x.shape[1], -1)

    def read(self, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None]:
        """What no query changes: keys U h [m k a], values h [m k e] and which slots are hidden [m 1 k] (None: none)."""
        memory = ctx.memory
        if memory is None:
            raise QkvError("Additive attention needs a memory: give Context(memory=...).")
        if ctx.visibility.reads_query:
            raise QkvError(f"Additive attention shows all queries the same slots, but {ctx.visibility} does not.")

        def keys_and_values() -> tuple[Tensor, Tensor]:
            keys = self.key(memory)
            return keys, memory.to(keys.dtype)  # under autocast the memory too is narrowed once, not at every step

        keys, values = keys_and_values() if ctx.cache is None else ctx.cache.of_memory(self, keys_and_values)
        slots = ctx.memory_tokens or Tokens(memory.shape[1])
        mask = ctx.mask(Everything(), ctx.tokens, slots, memory.device)
        return keys, values, None if mask.flag == "all" else ~mask.dense[:, 0]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """The context [m q e] and the weights [m q k] of queries [m q d]; a query that sees no key gets zeros."""
        scores = torch.tanh(self.query(queries)[:, :, None] + keys[:, None]) @ self.score  # [m q k]
        scores = widened(scores)
        if hidden is None:
            weights = torch.softmax(scores, -1)  # [bahdanau2015 eq.6]
        else:
            lowest = torch.finfo(scores.dtype).min  # finite, so that even a row without a visible key has a softmax
            weights = torch.softmax(scores.masked_fill(hidden, lowest), -1).masked_fill(hidden, 0.0)
        return weights.to(values.dtype) @ values, weights  # [bahdanau2015 eq.5]

    def record(self, weights: Tensor, ctx: Context) -> None:
        """Hand weights [b q k] to the ledger, as those of one head. [b 1 q k]"""
        if ctx.ledger is not None and ctx.ledger.wants("weights"):
            ctx.ledger.write(self, "weights", weights[:, None])


class BidirectionalGRU(nn.Module):
    """Annotations hⱼ = [→hⱼ; ←hⱼ]: what stands before and after each word, seen from it. [bahdanau2015 §3.2]

    Each direction reads a row's real slots only; annotations of padding are zero.

    DIFFERS [bahdanau2015 app.A.2.1]: torch's GRU, the form GPUs have a fused kernel for. It resets after the recurrent
    product, r ∘ (U h), where the paper resets before it, U (r ∘ h) [cho2014 eq.8]; its update gate is 1 − z of the
    paper's, and it has a second vector of biases.
    """

    depends_on = Depends("left_to_right", "right_to_left")

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.left_to_right = nn.GRU(width, hidden, batch_first=True)
        self.right_to_left = nn.GRU(width, hidden, batch_first=True)
        for gru in (self.left_to_right, self.right_to_left):
            word, recurrent, *biases = gru.all_weights[0]
            initialise_small(word)
            for matrix in recurrent.detach().chunk(3):
                nn.init.orthogonal_(matrix)  # [bahdanau2015 app.B.1]
            for bias in biases:
                nn.init.zeros_(bias)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x [b s d], right-padded; lengths [b], None for no padding → [b s 2n]"""
        # Autocast would run a GRU in float16, whose narrow range loses gradients; the GRU keeps its weights' precision.
        with without_autocast(x):
            x = x.to(self.left_to_right.all_weights[0][0].dtype)
            before, _ = self.left_to_right(x)  # [b s n]
            after, _ = self.right_to_left(reverse(x, lengths))  # [b s n]
            annotations = torch.cat((before, reverse(after, lengths)), -1)  # [b s 2n]
        if lengths is None:
            return annotations
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]  # [b s]
        return annotations.masked_fill(padding[..., None], 0.0)


def reverse(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The real slots of x [b s d] from last to first; padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    slots = torch.arange(x.shape[1], device=x.device)
    mirrored = lengths[:, None] - 1 - slots  # [b s]
    source = torch.where(mirrored < 0, slots, mirrored)
    return x.gather(1, source[..., None].expand_as(x))


class RecurrentCache(Cache):
    """What a recurrent decoder keeps between steps: its last state, and keys and values of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None  # [r n]

    def select(self, rows: Tensor, memory_rows: Tensor | None = None) -> None:
        super().select(rows, memory_rows)
        if self.state is not None:
            self.state = self.state[rows]

    def truncate(self, length: int) -> None:
        if length != self.length:
            raise QkvError("A recurrent decoder keeps its last state only, so it cannot go back to an earlier step.")


class AttentiveGRU(nn.Module):
    """The gated decoder: a step looks at the memory with the last state and makes the next. [bahdanau2015 app.A.2.2]"""

    depends_on = Depends("width", "attention", "first", "word", "context", "gates", "candidate")

    def __init__(self, word_width: int, width: int, memory_width: int, alignment: int) -> None:
        super().__init__()
        if memory_width < width:
            raise QkvError(f"The first state reads {width} features of a memory slot, which has only {memory_width}.")
        self.width = width
        self.attention = AdditiveAttention(width, memory_width, alignment)
        gates = {"update": width, "reset": width}
        self.first = nn.Linear(width, width)  # W_s
        self.word = JoinedLinear(word_width, {**gates, "candidate": width})  # W_z, W_r, W
        self.context = JoinedLinear(memory_width, {**gates, "candidate": width}, bias=False)  # C_z, C_r, C
        self.gates = JoinedLinear(width, gates, bias=False)  # U_z, U_r
        self.candidate = nn.Linear(width, width, bias=False)  # U
        for weight in (self.first.weight, self.word.weight, self.context.weight):
            initialise_small(weight)
        nn.init.zeros_(self.first.bias)
        for recurrent in (*self.gates.parts(self.gates.weight), self.candidate.weight):
            nn.init.orthogonal_(recurrent)  # [bahdanau2015 app.B.1]

    def forward(self, words: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """For each step the state before it and its context: words [b t d] → s_{i-1} [b t n] and c_i [b t e]."""
        keys, values, hidden = self.attention.read(ctx)
        states = [self._state_before(len(words), ctx)]
        contexts, weights = [], []
        # All words' shares of all gates in one product, laid out step by step.
        shares = self.word.together(words.transpose(0, 1))  # [t b 3n]
        for share in shares.unbind():
            state, context, weight = self.step(states[-1], share, keys, values, hidden)
            states.append(state)
            contexts.append(context)
            weights.append(weight)
        if isinstance(ctx.cache, RecurrentCache):
            ctx.cache.state = states[-1]
        self.attention.record(torch.stack(weights, 1), ctx)
        return torch.stack(states[:-1], 1), torch.stack(contexts, 1)

    def step(
        self, state: Tensor, word: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From s_{i-1} [b n] and the word's share of the gates [b 3n] to s_i, c_i [b e] and the weights [b k].

        A function of tensors alone, and all that is sequential: this is what `torch.compile` gains most from.
        """
        context, weights = self.attention.attend(state.reshape(len(keys), -1, self.width), keys, values, hidden)
        context, weights = context.flatten(0, 1), weights.flatten(0, 1)  # [b e] [b k]
        share = word + self.context.together(context)  # [b 3n]
        gates, candidate = share.split((2 * self.width, self.width), -1)
        update, reset = torch.sigmoid(gates + self.gates.together(state)).chunk(2, -1)  # [b n] each
        candidate = torch.tanh(candidate + self.candidate(reset * state))
        # (1 − z) ∘ s_{i-1} + z ∘ s̃_i, with one product less. [bahdanau2015 app.A.2.2]
        return state + update * (candidate - state), context, weights

    def _state_before(self, rows: int, ctx: Context) -> Tensor:
        """Where these steps start: at the cache's state, or at s_0 = tanh(W_s ←h_1). [bahdanau2015 app.A.2.2]"""
        if ctx.cache is not None:
            if not isinstance(ctx.cache, RecurrentCache):
                raise QkvError("A recurrent decoder keeps its state in a RecurrentCache: make it with new_cache().")
            if ctx.cache.state is not None:
                return ctx.cache.state
        assert ctx.memory is not None  # read() has said so
        first = self.first(ctx.memory[:, 0, -self.width :])  # [m n]
        first = torch.tanh(first.repeat_interleave(rows // len(first), 0))  # [b n]
        # Under autocast the state stays as wide as the memory: what is carried over many steps is not rounded at each.
        return first.to(ctx.memory.dtype)
