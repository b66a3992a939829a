"""What kernels that never form attention weights cannot do, told alike by all of them."""

from __future__ import annotations

from qkv.errors import QkvError


def refuse_recording(kernel: str, record: object) -> None:
    if record is not None:
        raise QkvError(f"The {kernel} kernel never forms attention weights: record them with the exact kernel.")


def refuse_dropout(kernel: str, dropout: float) -> None:
    if dropout:
        raise QkvError(
            f"The {kernel} kernel has no dropout on attention weights: set it to 0 or use the exact or fused kernel."
        )
