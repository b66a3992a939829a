"""Numbers stored in blocks of a few bits, as GGUF files hold them, back to floats.

A block holds 32 or 256 neighbouring values of a row: small whole numbers q, a scale d, and in some kinds an offset m,
so that x = d·q + m. Blocks of 256 have 8 or 16 groups, each with a small scale of its own. `DTYPES` is the layout of a
block on disk, so that numpy does the reading; `VALUES` turns n blocks into their values.

Letters: n blocks, g groups in a block, v values in a group.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qkv.errors import QkvError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

VALUES_AT_ONCE = 2**17  # bounds what decoding needs beside the result, and stays in the processor's cache
NIBBLES = np.array([0, 4], np.uint8)  # where the two halves of a byte start
PAIRS = np.array([0, 2, 4, 6], np.uint8)  # where the four quarters start
BITS = np.arange(8, dtype=np.uint8)

# The sixteen values of the uneven four-bit scale: dense around zero, where weights are.
UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

HALF = "<f2"
# fmt: off
DTYPES = {
    "Q4_0":   np.dtype([("d", HALF), ("low", "u1", 16)]),
    "Q4_1":   np.dtype([("d", HALF), ("m", HALF), ("low", "u1", 16)]),
    "Q5_0":   np.dtype([("d", HALF), ("high", "u1", 4), ("low", "u1", 16)]),
    "Q5_1":   np.dtype([("d", HALF), ("m", HALF), ("high", "u1", 4), ("low", "u1", 16)]),
    "Q8_0":   np.dtype([("d", HALF), ("q", "i1", 32)]),
    "Q2_K":   np.dtype([("scales", "u1", 16), ("low", "u1", (2, 1, 32)), ("d", HALF), ("m", HALF)]),
    "Q3_K":   np.dtype([("high", "u1", 32), ("low", "u1", (2, 1, 32)), ("scales", "u1", 12), ("d", HALF)]),
    "Q4_K":   np.dtype([("d", HALF), ("m", HALF), ("scales", "u1", (3, 4)), ("low", "u1", (4, 1, 32))]),
    "Q5_K":   np.dtype([("d", HALF), ("m", HALF), ("scales", "u1", (3, 4)), ("high", "u1", (1, 32)),
                        ("low", "u1", (4, 1, 32))]),
    "Q6_K":   np.dtype([("low", "u1", (2, 1, 64)), ("high", "u1", (2, 1, 32)), ("scales", "i1", 16), ("d", HALF)]),
    "IQ4_NL": np.dtype([("d", HALF), ("low", "u1", 16)]),
    "IQ4_XS": np.dtype([("d", HALF), ("scales_high", "<u2"), ("scales_low", "u1", (4, 1)), ("low", "u1", (8, 1, 16))]),
}
VALUES_IN_BLOCK = dict.fromkeys(DTYPES, 256) | dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"), 32)
# fmt: on


def values_of(kind: str, data: Bytes) -> Floats:
    """The values in `data`, whole blocks of `kind`, in their order."""
    if kind not in DTYPES:
        raise QkvError(f"Blocks of kind {kind} are not read here; those that are: {', '.join(DTYPES)}.")
    blocks, size = data.view(DTYPES[kind]), VALUES_IN_BLOCK[kind]
    values = np.empty((len(blocks), size), np.float32)
    step = VALUES_AT_ONCE // size
    with np.errstate(all="ignore"):  # a scale that is infinite gives what it gives
        for start in range(0, len(blocks), step):
            some = blocks[start : start + step]
            values[start : start + step] = VALUES[kind](some).reshape(len(some), size)
    return values.reshape(-1)


def _column(halves: npt.NDArray[np.float16]) -> Floats:
    return halves.astype(np.float32)[:, None]  # [n 1]


def _nibbles(low: Bytes) -> Bytes:
    """The lower halves of 16 bytes, then the upper ones."""
    halves: Bytes = (low[:, None] >> NIBBLES[:, None]) & np.uint8(15)
    return halves.reshape(len(low), 32)


def _fifth_bits(high: Bytes) -> Bytes:
    """32 bits, the lowest of the first byte first, each as 0 or 16."""
    bits: Bytes = ((high[:, :, None] >> BITS) & np.uint8(1)) << np.uint8(4)
    return bits.reshape(len(high), 32)


def _q4_0(b: npt.NDArray[np.void]) -> Floats:
    return _column(b["d"]) * (_nibbles(b["low"]).astype(np.float32) - 8)


def _q4_1(b: npt.NDArray[np.void]) -> Floats:
    return _column(b["d"]) * _nibbles(b["low"]) + _column(b["m"])


def _q5_0(b: npt.NDArray[np.void]) -> Floats:
    q = _nibbles(b["low"]) | _fifth_bits(b["high"])
    return _column(b["d"]) * (q.astype(np.float32) - 16)


def _q5_1(b: npt.NDArray[np.void]) -> Floats:
    q = _nibbles(b["low"]) | _fifth_bits(b["high"])
    return _column(b["d"]) * q + _column(b["m"])


def _q8_0(b: npt.NDArray[np.void]) -> Floats:
    return _column(b["d"]) * b["q"]


def _iq4_nl(b: npt.NDArray[np.void]) -> Floats:
    return _column(b["d"]) * UNEVEN[_nibbles(b["low"])]


def _iq4_xs(b: npt.NDArray[np.void]) -> Floats:
    low = ((b["scales_low"] >> NIBBLES) & 15).reshape(-1, 8)
    high = (b["scales_high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = (low | (high.astype(np.uint8) << 4)).astype(np.float32) - 32  # [n g]
    q = (b["low"] >> NIBBLES[:, None]) & 15
    return (_column(b["d"]) * scales)[:, :, None] * UNEVEN[q].reshape(len(b), 8, 32)


def _q2_k(b: npt.NDArray[np.void]) -> Floats:
    scales = _column(b["d"]) * (b["scales"] & 15)  # [n g]
    lowest = _column(b["m"]) * (b["scales"] >> 4)
    q = ((b["low"] >> PAIRS[:, None]) & 3).reshape(len(b), 16, 16)  # [n g v]
    return scales[:, :, None] * q - lowest[:, :, None]


def _q3_k(b: npt.NDArray[np.void]) -> Floats:
    packed = b["scales"]
    low = ((packed[:, None, :8] >> NIBBLES[:, None]) & 15).reshape(-1, 16)
    high = ((packed[:, None, 8:] >> PAIRS[:, None]) & 3).reshape(-1, 16)
    scales = (low | (high << 4)).astype(np.float32) - 32  # [n g]
    q = ((b["low"] >> PAIRS[:, None]) & 3).reshape(len(b), 16, 16).astype(np.float32)  # [n g v]
    unset = 1 - ((b["high"][:, None] >> BITS[:, None]) & 1).reshape(len(b), 16, 16)
    return (_column(b["d"]) * scales)[:, :, None] * (q - 4 * unset.astype(np.float32))


def _scales_and_lowest(b: npt.NDArray[np.void]) -> tuple[Floats, Floats]:
    """Eight scales and eight lowest values [n g 1] of six bits each, packed into twelve bytes."""
    first, second, third = (b["scales"][:, row] for row in range(3))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    lowest = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return (_column(b["d"]) * scales)[:, :, None], (_column(b["m"]) * lowest)[:, :, None]


def _q4_k(b: npt.NDArray[np.void]) -> Floats:
    scales, lowest = _scales_and_lowest(b)
    q = ((b["low"] >> NIBBLES[:, None]) & 15).reshape(len(b), 8, 32)  # [n g v]
    return scales * q - lowest


def _q5_k(b: npt.NDArray[np.void]) -> Floats:
    scales, lowest = _scales_and_lowest(b)
    low = ((b["low"] >> NIBBLES[:, None]) & 15).reshape(len(b), 8, 32)  # [n g v]
    high = (b["high"] >> BITS[:, None]) & 1
    return scales * (low | (high << 4)) - lowest


def _q6_k(b: npt.NDArray[np.void]) -> Floats:
    low = ((b["low"] >> NIBBLES[:, None]) & 15).reshape(len(b), 2, 4, 32)
    high = (b["high"] >> PAIRS[:, None]) & 3
    q = (low | (high << 4)).reshape(len(b), 16, 16).astype(np.float32) - 32  # [n g v]
    return (_column(b["d"]) * b["scales"])[:, :, None] * q


VALUES: dict[str, Callable[[npt.NDArray[np.void]], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
