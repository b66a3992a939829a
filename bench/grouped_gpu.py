"""The products of one layer of Switch-base-8's experts: torch's grouped kernel, our blocks, and one dense product.

    python bench/grouped_gpu.py

As many rows as a batch of 32 texts of 512 tokens has, in bfloat16; both is forwards and backwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from gpu import milliseconds, report
from switch_gpu import ROWS, SOURCE, on_cpu

from qkv.parts.grouped import Groups, block_product, kernel_product


def products(small: bool, device: str, clock: Callable[..., float]) -> list[dict[str, Any]]:
    """One product of a layer of experts, forwards and backwards."""
    rows, experts, width, hidden = (64, 4, 16, 32) if small else (ROWS * SOURCE, 8, 768, 3072)
    torch.manual_seed(0)
    x = torch.randn(rows, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(experts, width, hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
    one = weight[0].detach().clone().requires_grad_()
    pull = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16)
    found = []
    for spread, group in (
        ("evenly", torch.arange(rows, device=device) % experts),
        (
            "half to one",
            torch.where(torch.arange(rows, device=device) % 2 == 0, 0, torch.arange(rows, device=device) % experts),
        ),
    ):
        groups = Groups(group, experts)
        ways: dict[str, tuple[Callable[[], torch.Tensor], torch.Tensor]] = {
            "grouped kernel": (lambda groups=groups: kernel_product(x, weight, groups), weight),
            "blocks": (lambda groups=groups: block_product(x, weight, groups), weight),
            "dense": (lambda: x @ one, one),
        }
        for name, (product, matrix) in ways.items():
            forward = clock(torch.no_grad()(product))
            both = clock(lambda product=product, matrix=matrix: torch.autograd.grad(product(), (x, matrix), pull))
            flops = 2 * rows * width * hidden
            found.append(
                {
                    "tokens spread": spread,
                    "product": name,
                    "forward ms": round(forward, 3),
                    "TFLOP/s": round(flops / forward / 1e9),
                    "both ms": round(both, 3),
                    "both TFLOP/s": round(3 * flops / both / 1e9),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)  # on a CPU, to see that it runs
    if parser.parse_args().small:
        print(*products(True, "cpu", on_cpu), sep="\n")
        return
    report("grouped_gpu", products(False, "cuda", milliseconds), {"precision": "bfloat16"})


if __name__ == "__main__":
    main()
