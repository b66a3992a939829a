"""Keys and values of a row whose slots are held by several ranks.

Shapes: b rows, g key/value heads, s slots of this rank, n slots of a row, d width of a key, e of a value.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Shard

from qkv.errors import QkvError
from qkv.parts.attention.cache import Cache
from qkv.parts.attention.visibility import Tokens
from qkv.train.parallel.share_of_row import ShareOfRow


class GatheredKeys(Cache):
    """Where a decoder finds the keys of earlier steps, one of many ranks finds those of the others.

    Every rank gives the keys and values of its slots and gets those of the whole row [grattafiori2024 §3.3.2]; on the
    way back each gives the gradients of all slots and gets the sum of those of its own. Nothing is kept.
    """

    def __init__(self, row: Tokens, share: ShareOfRow, mesh: DeviceMesh) -> None:
        super().__init__()
        self.row, self.share, self.mesh = row, share, mesh

    def extend(self, owner: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k [b g s d], v [b g s e] → [b g n d] [b g n e]"""
        both = torch.cat((k, v), -1)[None]  # one message
        held = DTensor.from_local(both, self.mesh, [Shard(0)], run_check=False)
        gathered = held.full_tensor(grad_placements=[Partial()])  # [ranks b g s d+e]
        keys, values = gathered.split((k.shape[-1], v.shape[-1]), -1)
        return self.share.in_row_order(keys, self.row.size), self.share.in_row_order(values, self.row.size)

    def keys(self, new: Tokens) -> Tokens:
        return self.row

    def advance(self, new: Tokens) -> None:
        raise QkvError("Ranks that share a row read it at once: no tokens follow those that were read.")
