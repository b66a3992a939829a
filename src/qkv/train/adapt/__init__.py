"""Adapting a loaded model: frozen parts, low-rank updates and their files, learning rates by depth."""

from qkv.train.adapt.depth import LayerwiseRates, freeze
from qkv.train.adapt.lora import LoRA, add_lora, count_trainable, merge, merged, saving_merged
from qkv.train.adapt.lora_files import load_adapter, save_adapter

__all__ = [
    "LayerwiseRates",
    "LoRA",
    "add_lora",
    "count_trainable",
    "freeze",
    "load_adapter",
    "merge",
    "merged",
    "save_adapter",
    "saving_merged",
]
