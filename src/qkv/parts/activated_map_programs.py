"""activation(x W + b) as one program, which leaves nothing to be read again for the sake of a bias or an activation.

Each program makes one tile after another. Tiles of x and W come by the copy engine of Hopper GPUs, several ahead.

Shapes: M rows, K inputs, N outputs; x [M K], W [N K], y [M N].
"""

import triton
import triton.language as tl

from qkv.parts.activation_programs import activated


@triton.jit
def place_of(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile: column by column of GROUP tiles, so that neighbours in time share inputs."""
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = tile // (GROUP * columns) * GROUP
    tall = tl.minimum(rows - first, GROUP)
    within = tile % (GROUP * columns)
    return (first + within % tall) * BM, within // tall * BN


@triton.jit
def halves_of(tile, BM: tl.constexpr, BN: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(tile, [BM, 2, BN // 2]), [0, 2, 1]))


@triton.jit
def bias_of(bias_ptr, column, N, WIDE: tl.constexpr, BIASED: tl.constexpr):
    n = column + tl.arange(0, WIDE)
    return tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :] if BIASED else 0.0


@triton.jit(do_not_specialize=["M", "K"])
def activated_map(
    bias_ptr, x_tiles, w_tiles, y_tiles, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """y = activation(x Wᵀ + bias), in tiles of BM rows and BN columns, stored half by half."""
    HALF: tl.constexpr = BN // 2
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = place_of(tile, M, N, BM, BN, GROUP)
        total = tl.zeros([BM, BN], tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(x_tiles.load([row, k]), w_tiles.load([column, k]).T, total)
        left_bias = bias_of(bias_ptr, column, N, HALF, BIASED)
        right_bias = bias_of(bias_ptr, column + HALF, N, HALF, BIASED)
        left, right = halves_of(total, BM, BN)
        y_tiles.store([row, column], activated(left + left_bias, ACTIVATION).to(y_tiles.dtype))
        y_tiles.store([row, column + HALF], activated(right + right_bias, ACTIVATION).to(y_tiles.dtype))
