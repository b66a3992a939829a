"""activation(x W + b) as one program, which leaves nothing to be read again for the sake of a bias or an activation.

And the way back, whose product is multiplied by the slope of the activation before it is stored.

Each program makes one tile after another. Tiles of x and W come by the copy engine of Hopper GPUs, several ahead.

Shapes: M rows, K inputs, N outputs; x [M K], W [N K], y [M N].
"""

import triton
import triton.language as tl

from qkv.parts.activation_programs import activated, slope


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
def store_activated(
    z, bias_ptr, y_tiles, z_tiles, row, column, N, WIDE: tl.constexpr, BIASED: tl.constexpr, ACTIVATION: tl.constexpr
):
    if BIASED:
        n = column + tl.arange(0, WIDE)
        z += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if z_tiles is not None:
        z_tiles.store([row, column], z.to(z_tiles.dtype))
    y_tiles.store([row, column], activated(z, ACTIVATION).to(y_tiles.dtype))


@triton.jit(do_not_specialize=["M", "K"])
def activated_map(
    bias_ptr, x_tiles, w_tiles, y_tiles, z_tiles, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """y = activation(z) with z = x Wᵀ + bias, by tiles of BM rows and BN columns; z too, where it has tiles."""
    HALF: tl.constexpr = BN // 2
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = place_of(tile, M, N, BM, BN, GROUP)
        total = tl.zeros([BM, BN], tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(x_tiles.load([row, k]), w_tiles.load([column, k]).T, total)
        left, right = halves_of(total, BM, BN)
        store_activated(left, bias_ptr, y_tiles, z_tiles, row, column, N, HALF, BIASED, ACTIVATION)
        store_activated(right, bias_ptr, y_tiles, z_tiles, row, column + HALF, N, HALF, BIASED, ACTIVATION)


@triton.jit
def store_sloped(
    dy, dz_tiles, z_tiles, sums_ptr, row, column, N, BM: tl.constexpr, WIDE: tl.constexpr, ACTIVATION: tl.constexpr
):
    dz = dy * slope(z_tiles.load([row, column]).to(tl.float32), ACTIVATION)
    dz_tiles.store([row, column], dz.to(dz_tiles.dtype))
    n = column + tl.arange(0, WIDE)
    tl.store(sums_ptr + (row // BM).to(tl.int64) * N + n, tl.sum(dz, 0), mask=n < N)


@triton.jit(do_not_specialize=["M", "K"])
def map_times_slope(
    sums_ptr, x_tiles, w_tiles, z_tiles, dz_tiles, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """dz = (x W) · activation'(z), with W [K N], and its sums over the rows of each tile, [tiles N] in float32."""
    HALF: tl.constexpr = BN // 2
    QUARTER: tl.constexpr = BN // 4
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = place_of(tile, M, N, BM, BN, GROUP)
        total = tl.zeros([BM, BN], tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(x_tiles.load([row, k]), w_tiles.load([k, column]), total)
        left, right = halves_of(total, BM, BN)
        first, second = halves_of(left, BM, HALF)
        third, fourth = halves_of(right, BM, HALF)
        store_sloped(first, dz_tiles, z_tiles, sums_ptr, row, column, N, BM, QUARTER, ACTIVATION)
        store_sloped(second, dz_tiles, z_tiles, sums_ptr, row, column + QUARTER, N, BM, QUARTER, ACTIVATION)
        store_sloped(third, dz_tiles, z_tiles, sums_ptr, row, column + HALF, N, BM, QUARTER, ACTIVATION)
        store_sloped(fourth, dz_tiles, z_tiles, sums_ptr, row, column + HALF + QUARTER, N, BM, QUARTER, ACTIVATION)
