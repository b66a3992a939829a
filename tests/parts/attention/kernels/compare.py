"""One attention given to a kernel and to the specification: inputs, and everything that has to agree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.parts.attention.kernels.choose import Kernel
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.visibility import Mask
from tests.parts.attention.cases import ROWS


@dataclass(frozen=True)
class Inputs:
    q: Tensor  # [b h q d]
    k: Tensor  # [b g k d]
    v: Tensor  # [b g k e]
    bias: Tensor | None  # [1 h q k]
    pull: Tensor  # [b h q e], the gradient that comes back from above


def inputs(
    queries: int,
    keys: int,
    *,
    heads: int = 4,
    key_value_heads: int | None = None,
    width: int = 8,
    value_width: int = 8,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    rows: int = ROWS,
) -> Inputs:
    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape).to(device, dtype)

    shared = key_value_heads or heads
    return Inputs(
        q=noise(rows, heads, queries, width),
        k=noise(rows, shared, keys, width),
        v=noise(rows, shared, keys, value_width),
        bias=noise(1, heads, queries, keys) if bias else None,
        pull=noise(rows, heads, queries, value_width),
    )


def with_far_bias(given: Inputs) -> Inputs:
    """With a float32 bias of 300 and more below 0, where bfloat16 knows every other number only."""
    (_, heads, queries, _), keys = given.q.shape, given.k.shape[2]
    far = -torch.arange(300.0, 300.0 + keys, device=given.q.device)
    return replace(given, bias=far.expand(1, heads, queries, keys))


def exact_in_float32(given: Inputs, mask: Mask | None) -> dict[str, Tensor]:
    """What the specification answers when nothing on the way is rounded, in the precisions of the inputs."""
    wide = Inputs(*(None if x is None else x.float() for x in (given.q, given.k, given.v, given.bias, given.pull)))
    narrow = {"gradient of bias": given.bias.dtype} if given.bias is not None else {}
    return {name: answer.to(narrow.get(name, given.q.dtype)) for name, answer in answers(exact, wide, mask).items()}


def answers(kernel: Kernel, given: Inputs, mask: Mask | None, scale: float | None = None) -> dict[str, Tensor]:
    """The output of a kernel and the gradient of every input."""
    leaves = {
        name: getattr(given, name).detach().clone().requires_grad_()
        for name in ("q", "k", "v", "bias")
        if getattr(given, name) is not None
    }
    o = kernel(leaves["q"], leaves["k"], leaves["v"], mask, leaves.get("bias"), scale=scale)
    o.backward(given.pull)
    return {"o": o.detach()} | {f"gradient of {name}": leaf.grad for name, leaf in leaves.items()}


def output(kernel: Kernel, given: Inputs, mask: Mask | None, scale: float | None = None) -> dict[str, Tensor]:
    """The output alone, for where a kernel has no gradients."""
    return {"o": kernel(given.q, given.k, given.v, mask, given.bias, scale=scale)}


def assert_same(
    found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float, rtol: float, gradients: float = 4.0
) -> None:
    """Gradients are sums of more terms, hence `gradients` times the tolerance."""
    assert found.keys() == expected.keys()
    for name in expected:
        share = 1.0 if name == "o" else gradients
        torch.testing.assert_close(
            found[name],
            expected[name],
            atol=atol * share,
            rtol=rtol * share,
            msg=lambda text, name=name: f"{name}: {text}",
        )


NEAR = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}  # weights and their gradients are rounded


def exact_gradients(q: Tensor, k: Tensor, v: Tensor, above: Tensor, mask: Mask, scale: float) -> list[Tensor]:
    """Those of q, k and v in float64."""
    given = [x.detach().double().requires_grad_() for x in (q, k, v)]
    return list(torch.autograd.grad(exact(*given, mask, scale=scale), given, above.double()))


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        near = NEAR[mine.dtype]
        torch.testing.assert_close(mine.double(), theirs, atol=near * max(1.0, float(theirs.std())), rtol=near)
