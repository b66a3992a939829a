"""GPT-2 as one would write it by hand in plain torch: the peer that a fast library has to beat.

To train: one joined projection, torch's fused attention, a vocabulary padded to a multiple of 64, the whole model
compiled. To decode: caches of a fixed size, each block compiled, and the whole step recorded once as a CUDA graph.

Shapes: b rows, s tokens given, t tokens that the caches hold, d width, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models.gpt2 import GPT2Sizes

PADDED = 64  # products with a multiple of so many columns are quicker


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads_of(x)
        return self.rest(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def step(self, x: Tensor, keys: Tensor, values: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Some more tokens, at `places` [s] of the caches [b h t d/h]."""
        q, k, v = self.heads_of(x)
        keys.index_copy_(2, places, k)
        values.index_copy_(2, places, v)
        return self.rest(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, s, d = x.shape
        q, k, v = self.attend(self.norm_1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def rest(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.outer(F.gelu(self.inner(self.norm_2(x)), approximate="tanh"))


class PlainGPT2(nn.Module):
    def __init__(self, sizes: GPT2Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.vocabulary = -(-sizes.vocabulary // PADDED) * PADDED
        self.tokens, self.places = (nn.Embedding(n, sizes.width) for n in (self.vocabulary, sizes.positions))
        self.blocks = nn.ModuleList(PlainBlock(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, ids: Tensor) -> Tensor:
        """[b s] → [b s v]"""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Of rows [b s+1], every token but the first predicted."""
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def filled(self, published: Mapping[str, Tensor]) -> PlainGPT2:
        """With weights by the names they are published under, where matrices lie the other way round."""
        names = {"norm_1": "ln_1", "norm_2": "ln_2", "attend": "attn.c_attn", "out": "attn.c_proj", "inner": "mlp.c_fc",
                 "outer": "mlp.c_proj"}  # fmt: skip
        for number, block in enumerate(self.blocks):
            for ours, theirs in names.items():
                part = block.get_submodule(ours)
                weight = published[f"transformer.h.{number}.{theirs}.weight"]
                part.weight.copy_(weight.T if isinstance(part, nn.Linear) else weight)
                part.bias.copy_(published[f"transformer.h.{number}.{theirs}.bias"])
        self.tokens.weight.zero_()
        self.tokens.weight[: self.sizes.vocabulary] = published["transformer.wte.weight"]
        self.places.weight.copy_(published["transformer.wpe.weight"])
        self.norm.weight.copy_(published["transformer.ln_f.weight"])
        self.norm.bias.copy_(published["transformer.ln_f.bias"])
        return self


class PlainDecoder:
    """Greedy decoding of one prompt length, with all shapes fixed beforehand."""

    def __init__(self, model: PlainGPT2, prompt: int, new: int, *, compiled: bool) -> None:
        weight, sizes = model.tokens.weight, model.sizes
        self.model, self.prompt, self.new = model, prompt, new
        shape = (sizes.layers, 2, 1, sizes.heads, prompt + new, sizes.width // sizes.heads)
        self.caches = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.all_places = torch.arange(prompt + new, device=weight.device)
        self.ids = torch.zeros(1, prompt, dtype=torch.long, device=weight.device)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
        self.place = torch.zeros(1, dtype=torch.long, device=weight.device)
        self.written = torch.zeros(prompt + new, dtype=torch.long, device=weight.device)
        self.steps = [torch.compile(block.step, dynamic=False) if compiled else block.step for block in model.blocks]
        self.begin = recorded(self._begin)
        self.advance = recorded(self._advance)

    def run(self, prompt: Tensor) -> list[int]:
        """What is written after a prompt [1 s]."""
        self.ids.copy_(prompt)
        self.place.fill_(self.prompt)
        self.begin()
        for _ in range(self.new - 1):
            self.advance()
        return self.written[self.prompt :].tolist()

    def _begin(self) -> None:
        self._write(self._likeliest(self.ids, self.all_places[: self.prompt]), self.all_places[self.prompt][None])

    def _advance(self) -> None:
        """The token at `place` is read, and the one after it written."""
        token = self._likeliest(self.token, self.place)
        self.place += 1
        self._write(token, self.place)

    def _write(self, token: Tensor, place: Tensor) -> None:
        self.token.copy_(token)
        self.written.index_copy_(0, place, token[0])

    def _likeliest(self, ids: Tensor, places: Tensor) -> Tensor:
        model = self.model
        x = model.tokens(ids) + model.places(places)
        mask = self.all_places <= places[:, None]  # [s t]
        for step, (keys, values) in zip(self.steps, self.caches, strict=True):
            x = step(x, keys, values, places, mask)
        logits = F.linear(model.norm(x[:, -1:]), model.tokens.weight[: model.sizes.vocabulary])
        return logits.argmax(-1)


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The same work as one CUDA graph, recorded at its second call; on a CPU the work itself."""
    if not torch.cuda.is_available():
        return work
    calls, graph = 0, torch.cuda.CUDAGraph()

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:  # compiled, and its memory taken, before it is recorded
            work()
        elif calls == 3:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                work()
            graph.replay()
        else:
            graph.replay()

    return call
