"""Launches the program that norms a stream whose biases are still waiting."""

from __future__ import annotations

import triton
from torch import Tensor

from qkv.parts import norm_programs as programs
from qkv.parts.attention.kernels.launch_triton import launch

AT_ONCE = 2048  # numbers of a program
EACH = 32  # of them that a thread holds


def norm_into(
    y: Tensor,
    x: Tensor,
    gain: Tensor,
    shift: Tensor | None,
    epsilon: float,
    *,
    rms: bool,
    places: Tensor | None = None,
    waiting: Tensor | None = None,
    bias: Tensor | None = None,
    carried: Tensor | None = None,
) -> None:
    """y = norm(x + places + waiting + bias), and carried = waiting + bias; those that are None are left out. [… d]

    y may be x. `places` [… d] are added again and again, if there are fewer of them than of x. `waiting` and `carried`
    are float32 [d], and are two.
    """
    width = x.shape[-1]
    rows, wide = x.numel() // width, triton.next_power_of_2(width)
    together = max(1, AT_ONCE // wide)
    launch(
        programs.norm,
        (-(-rows // together), 1),
        (
            x, x if places is None else places, x if waiting is None else waiting, x if bias is None else bias,
            gain, gain if shift is None else shift, y, x if carried is None else carried,
        ),
        (rows, rows if places is None else places.numel() // width, epsilon),
        {
            "PLACED": places is not None, "WAITING": waiting is not None, "BIASED": bias is not None,
            "CARRIES": carried is not None, "SHIFTED": shift is not None, "RMS": rms, "WIDTH": width,
            "R": together, "D": wide, "EARLY": True,
        },
        num_warps=min(16, max(1, together * wide // (32 * EACH))),
    )  # fmt: skip
