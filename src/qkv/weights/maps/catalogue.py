"""Every family that others publish, by the `model_type` of its `config.json`.

What is known of one stands in its file, which is opened when it is needed.
"""

from __future__ import annotations

from importlib import import_module

from qkv.models.when_asked import WhenAsked
from qkv.weights.published import PublishedFamily

_PLACES = {
    "albert": ("albert", "ALBERT"),
    "bert": ("bert", "BERT"),
    "distilbert": ("distilbert", "DISTILBERT"),
    "roformer": ("roformer", "ROFORMER"),
    "longformer": ("longformer", "LONGFORMER"),
    "big_bird": ("big_bird", "BIG_BIRD"),
    "openai-gpt": ("gpt1", "GPT1"),
    "gpt2": ("gpt2", "GPT2"),
    "gpt_neo": ("gpt_neo", "GPT_NEO"),
    "llama": ("llama", "LLAMA"),
    "mistral": ("llama", "MISTRAL"),
    "qwen2": ("llama", "QWEN2"),
    "qwen3": ("qwen3", "QWEN3"),
    "mixtral": ("mixtral", "MIXTRAL"),
    "reformer": ("reformer", "REFORMER"),
    "marian": ("marian", "MARIAN"),
    "t5": ("t5", "T5"),
    "switch_transformers": ("switch", "SWITCH"),
    "vit": ("vit", "VIT"),
    "deit": ("vit", "DEIT"),
    "detr": ("detr", "DETR"),
    "vitpose": ("vitpose", "VITPOSE"),
    "clip": ("clip", "CLIP"),
    "clip_text_model": ("clip", "CLIP_TEXT"),
    "clip_vision_model": ("clip", "CLIP_IMAGE"),
    "audio-spectrogram-transformer": ("ast", "AST"),
    "wav2vec2": ("wav2vec2", "WAV2VEC2"),
    "whisper": ("whisper", "WHISPER"),
    "whisper-encoder": ("whisper", "WHISPER_ENCODER"),  # by its architecture: its type is Whisper's
}


def _in_file(model_type: str, place: tuple[str, str]) -> PublishedFamily:
    file, name = place
    found: PublishedFamily = getattr(import_module(f"qkv.weights.maps.{file}"), name)
    return found


PUBLISHED = WhenAsked(_PLACES, _in_file)
