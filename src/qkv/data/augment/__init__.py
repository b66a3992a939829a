"""Pictures and sounds changed at random while a model is trained on them."""

from qkv.data.augment.colour import ColourJitter
from qkv.data.augment.erasing import RandomErasing
from qkv.data.augment.geometry import Flip, Moved, RandomResizedCrop, Shift
from qkv.data.augment.mixing import Mixing
from qkv.data.augment.rand_augment import RandAugment
from qkv.data.augment.sounds import Noise, Roll, SpecAugment, WaveMixing
from qkv.data.augment.steps import Augmentation, InTurn

__all__ = [
    "Augmentation",
    "ColourJitter",
    "Flip",
    "InTurn",
    "Mixing",
    "Moved",
    "Noise",
    "RandAugment",
    "RandomErasing",
    "RandomResizedCrop",
    "Roll",
    "Shift",
    "SpecAugment",
    "WaveMixing",
]
