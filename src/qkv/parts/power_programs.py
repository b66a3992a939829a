"""Powers of two by which rows are brought into the range of 8 bits, inside of programs."""

import triton
import triton.language as tl


@triton.jit
def powers(largest, strange):
    """1 over the power of two of each row, and the power: not a number, where something in a row is strange."""
    # 448 is 1.75 · 2⁸: a mantissa above 1.75 takes the next power. The least is 2⁻⁵⁸.
    power = ((largest.to(tl.int32, bitcast=True) + 0x1FFFFF) & 0x7F800000) - (8 << 23)
    power = tl.maximum(power, (127 - 58) << 23)
    scale = tl.where(strange, float("nan"), power.to(tl.float32, bitcast=True))
    return (0x7F000000 - power).to(tl.float32, bitcast=True), scale
