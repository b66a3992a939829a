"""Arrays as the MNIST sets are published: a header of sizes, then the numbers, perhaps packed by gzip.

The header is two zeros, the kind of the numbers, how many sizes there are, and each size in four bytes.
"""

import math
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from qkv.data.records import open_bytes
from qkv.errors import QkvError

KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_BYTES = 2**32
BLOCK = 2**22


def up_to(stream: BinaryIO, most: int) -> bytes:
    """What is left of a file, or so many bytes of it, which are not asked for before they are there."""
    blocks: list[bytes] = []
    while most and (block := stream.read(min(most, BLOCK))):
        blocks.append(block)
        most -= len(block)
    return b"".join(blocks)


def read_idx(file: Path | str) -> NDArray[np.generic]:
    """The array of a file; what the file holds must be what its header says, no more and no less."""
    with open_bytes(str(file)) as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in KINDS:
            raise QkvError(f"{file} is no IDX file: it should begin with two zeros and a kind of numbers.")
        dtype, dimensions = np.dtype(KINDS[head[2]]), head[3]
        sizes = stream.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise QkvError(f"{file} ends within its header: it was cut short.")
        shape = struct.unpack(f">{dimensions}I", sizes)
        wanted = math.prod(shape) * dtype.itemsize
        if wanted > MOST_BYTES:
            raise QkvError(f"{file} says that it holds {wanted:,} bytes, more than the {MOST_BYTES:,} that are read.")
        content = up_to(stream, wanted + 1)
    if len(content) != wanted:
        found = "more than" if len(content) > wanted else f"{len(content):,} of"
        raise QkvError(f"{file} holds {found} the {wanted:,} bytes that its header says: it is broken.")
    try:
        array = np.frombuffer(content, dtype).reshape(shape)
    except ValueError as error:  # sizes that only hold nothing together, or too many of them
        raise QkvError(f"{file} says that it has the sizes {list(shape)}, which no array has.") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
