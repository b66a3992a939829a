"""Activations inside of programs, in few instructions: they are computed where a product has just been made.

What erf, tanh and division cost there shows. A GELU is x where x > 0, and below that small: max(x, 0) − a P(a) with
a = |x|, where P(a), the share of a normal distribution beyond a or what a tanh makes of it, is 2 to the power of a
polynomial. That is one exponential and a handful of products, and right in the tail too.
"""

import triton
import triton.language as tl


@triton.jit
def activated(y, ACTIVATION: tl.constexpr):
    """In float32; no further than 5e-7 from the formulas of `feedforward`."""
    if ACTIVATION == "gelu":
        a = tl.minimum(tl.abs(y), 5.5, propagate_nan=tl.PropagateNan.ALL)
        p = 3.240682781324722e-05 * a - 0.000754765176679939
        p = p * a + 0.008003950119018555
        p = p * a - 0.053243488073349
        p = p * a - 0.4589402675628662
        p = p * a - 1.1511284112930298
        p = p * a - 1.0000033378601074
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tl.exp2(p)
    elif ACTIVATION == "gelu_tanh":
        a = tl.minimum(tl.abs(y), 5.0, propagate_nan=tl.PropagateNan.ALL)
        p = -2.201170900661964e-05 * a + 0.00035156458034180105
        p = p * a - 0.0018074767431244254
        p = p * a + 0.0015914436662569642
        p = p * a + 0.007841621525585651
        p = p * a - 0.053453993052244186
        p = p * a - 0.45760318636894226
        p = p * a - 1.1515896320343018
        p = p * a - 0.9999561309814453
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tl.exp2(p)
    elif ACTIVATION == "gelu_quick":
        y = y / (1 + tl.exp2(-2.4554669595930157 * y))  # 1.702 log2(e)
    elif ACTIVATION == "silu":
        y = y / (1 + tl.exp2(-1.4426950408889634 * y))
    elif ACTIVATION == "relu":
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return y


@triton.jit
def slope(z, ACTIVATION: tl.constexpr):
    """The derivative of the activation at z, in float32; no further than 1e-5 from it.

    That of a GELU is d(a) below 0 and 1 − d(a) above, where d is an exponential of −a² times a polynomial.
    """
    if ACTIVATION == "gelu":
        a = tl.minimum(tl.abs(z), 9.0, propagate_nan=tl.PropagateNan.ALL)
        p = -0.00010079752973979339 * a + 0.0017239992739632726
        p = p * a - 0.01144403126090765
        p = p * a + 0.033918168395757675
        p = p * a - 0.04950364679098129
        p = p * a + 0.1988687664270401
        p = p * a - 0.7977513670921326
        p = p * a + 0.49999743700027466
        d = p * tl.exp2(-0.5770780163555854 * a * a)  # e^(-0.4 a²)
        s = tl.where(z > 0, 1 - d, d)
    elif ACTIVATION == "gelu_tanh":
        a = tl.minimum(tl.abs(z), 9.0, propagate_nan=tl.PropagateNan.ALL)
        p = -0.0004582331166602671 * a + 0.0056281606666743755
        p = p * a - 0.025348899886012077
        p = p * a + 0.06558238714933395
        p = p * a - 0.13585926592350006
        p = p * a + 0.2518092095851898
        p = p * a - 0.7981462478637695
        p = p * a + 0.5000059604644775
        d = p * tl.exp2(-0.7213475204444817 * a * a)  # e^(-0.5 a²)
        s = tl.where(z > 0, 1 - d, d)
    elif ACTIVATION == "gelu_quick":
        share = 1 / (1 + tl.exp2(-2.4554669595930157 * z))
        s = share + 1.702 * z * share * (1 - share)
    elif ACTIVATION == "silu":
        share = 1 / (1 + tl.exp2(-1.4426950408889634 * z))
        s = share + z * share * (1 - share)
    else:
        tl.static_assert(ACTIVATION == "relu")
        s = tl.where(z > 0, 1.0, 0.0)
    return s
