"""What the fork server imports before it makes ranks: all that is slow to import."""

import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import qkv.models.catalogue
import qkv.train.loop

__all__ = ["qkv", "torch"]
