"""Every family that others publish, by the `model_type` of its `config.json`."""

from __future__ import annotations

from qkv.weights.maps.albert import ALBERT
from qkv.weights.maps.ast import AST
from qkv.weights.maps.bert import BERT
from qkv.weights.maps.big_bird import BIG_BIRD
from qkv.weights.maps.clip import CLIP, CLIP_IMAGE, CLIP_TEXT
from qkv.weights.maps.detr import DETR
from qkv.weights.maps.distilbert import DISTILBERT
from qkv.weights.maps.gpt1 import GPT1
from qkv.weights.maps.gpt2 import GPT2
from qkv.weights.maps.gpt_neo import GPT_NEO
from qkv.weights.maps.llama import LLAMA, MISTRAL, QWEN2
from qkv.weights.maps.longformer import LONGFORMER
from qkv.weights.maps.marian import MARIAN
from qkv.weights.maps.mixtral import MIXTRAL
from qkv.weights.maps.reformer import REFORMER
from qkv.weights.maps.roformer import ROFORMER
from qkv.weights.maps.switch import SWITCH
from qkv.weights.maps.t5 import T5
from qkv.weights.maps.vit import DEIT, VIT
from qkv.weights.maps.vitpose import VITPOSE
from qkv.weights.maps.wav2vec2 import WAV2VEC2
from qkv.weights.maps.whisper import WHISPER, WHISPER_ENCODER
from qkv.weights.published import PublishedFamily

PUBLISHED: dict[str, PublishedFamily] = {
    each.model_type: each
    for each in (
        ALBERT,
        BERT,
        DISTILBERT,
        ROFORMER,
        LONGFORMER,
        BIG_BIRD,
        GPT1,
        GPT2,
        GPT_NEO,
        LLAMA,
        MISTRAL,
        QWEN2,
        MIXTRAL,
        REFORMER,
        MARIAN,
        T5,
        SWITCH,
        VIT,
        DEIT,
        DETR,
        VITPOSE,
        CLIP,
        CLIP_TEXT,
        CLIP_IMAGE,
        AST,
        WAV2VEC2,
        WHISPER,
    )
}
PUBLISHED["whisper-encoder"] = WHISPER_ENCODER  # by its architecture: its type is Whisper's
