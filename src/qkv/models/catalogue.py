"""The families by name: the only place where a string becomes a model, for saved files and the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from qkv.errors import QkvError, nearest_or_all
from qkv.models import (
    albert,
    ast,
    bert,
    big_bird,
    clip,
    deit,
    detr,
    distilbert,
    gpt1,
    gpt2,
    gpt3,
    gpt_neo,
    llama,
    longformer,
    marian,
    mixtral,
    reformer,
    rnn,
    roformer,
    switch,
    t5,
    transformer,
    vit,
    vitpose,
    wav2vec2,
    whisper,
)
from qkv.models.attention_choice import AttentionChoice
from qkv.models.detection_model import DetectionModel
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.models.image_text_model import ImageTextModel
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.sound_model import SoundModel
from qkv.models.text_model import TextModel
from qkv.models.unfilled import Unfilled

Model = SequenceToSequence | TextModel | ImageModel | DetectionModel | SoundModel | ImageTextModel


# The heads that other libraries publish checkpoints with; an embedding is made from any of them.
DECODER_HEADS = ("language", "states", "classification", "tokens", "spans", "embedding")
BERT_HEADS = ("pretraining", "masked", "pooled", "states", "classification", "tokens", "spans", "embedding")
ENCODER_HEADS = ("masked", "states", "classification", "tokens", "spans", "embedding")

_FAMILIES = [
    Family(
        "transformer",
        "the 2017 Transformer, norm after each sub-layer as published",
        transformer.TransformerSizes,
        transformer.transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-prenorm",
        "the same with the norm before each sub-layer",
        transformer.TransformerSizes,
        transformer.prenorm_transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-admin",
        "the same with Admin's balanced residuals",
        transformer.TransformerSizes,
        transformer.admin_transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-rezero",
        "the same without norms, beginning as the identity",
        transformer.TransformerSizes,
        transformer.rezero_transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-deepnorm",
        "the same with the stream weighed by depth, for very deep stacks",
        transformer.TransformerSizes,
        transformer.deepnorm_transformer,
        transformer.SIZES,
    ),
    Family("marian", "the Transformer as published for translation", marian.MarianSizes, marian.marian, marian.SIZES),
    Family("t5", "an encoder and a decoder with bucketed distances for positions", t5.T5Sizes, t5.t5, t5.SIZES),
    Family(
        "switch",
        "a T5 with many feed-forwards in some blocks, one for each token",
        switch.SwitchSizes,
        switch.switch,
        switch.SIZES,
    ),
    Family("rnn", "its predecessor: recurrent networks with additive attention", rnn.RNNSizes, rnn.rnn, rnn.SIZES),
    Family("gpt1", "the first GPT, norm after each sub-layer", gpt1.GPT1Sizes, gpt1.gpt1, gpt1.SIZES, DECODER_HEADS),
    Family("bert", "an encoder alone, which looks both ways", bert.BertSizes, bert.bert, bert.SIZES, BERT_HEADS),
    Family(
        "albert",
        "a BERT of one layer that runs again and again",
        albert.AlbertSizes,
        albert.albert,
        albert.SIZES,
        BERT_HEADS,
    ),
    Family(
        "distilbert",
        "half a BERT, taught by the whole",
        distilbert.DistilBertSizes,
        distilbert.distilbert,
        distilbert.SIZES,
        ENCODER_HEADS,
    ),
    Family(
        "roformer",
        "a BERT with rotary positions",
        roformer.RoFormerSizes,
        roformer.roformer,
        roformer.SIZES,
        ENCODER_HEADS,
    ),
    Family(
        "longformer",
        "an encoder of long texts, which looks around nearby and at a few tokens that all see",
        longformer.LongformerSizes,
        longformer.longformer,
        longformer.SIZES,
        longformer.HEADS,
    ),
    Family(
        "big-bird",
        "a BERT of long texts, whose blocks look nearby, at both ends and at some at random",
        big_bird.BigBirdSizes,
        big_bird.big_bird,
        big_bird.SIZES,
        big_bird.HEADS,
    ),
    Family("gpt2", "a decoder alone, norm before each sub-layer", gpt2.GPT2Sizes, gpt2.gpt2, gpt2.SIZES, DECODER_HEADS),
    Family(
        "gpt3",
        "GPT-2 made larger, every other layer looking back no further than a band",
        gpt3.GPT3Sizes,
        gpt3.gpt3,
        gpt3.SIZES,
        DECODER_HEADS,
    ),
    Family(
        "gpt-neo",
        "a GPT-3 in the open, layers looking far and near in turn",
        gpt_neo.GPTNeoSizes,
        gpt_neo.gpt_neo,
        gpt_neo.SIZES,
        DECODER_HEADS,
    ),
    Family(
        "llama",
        "RMS norms, rotary positions, gated feed-forward, grouped queries",
        llama.LlamaSizes,
        llama.llama,
        llama.SIZES,
        DECODER_HEADS,
    ),
    Family(
        "mixtral",
        "a Llama with experts, two for each token",
        mixtral.MixtralSizes,
        mixtral.mixtral,
        mixtral.SIZES,
        DECODER_HEADS,
    ),
    Family(
        "reformer",
        "a decoder of very long texts, which reads what is near and what is hashed alike",
        reformer.ReformerSizes,
        reformer.reformer,
        reformer.SIZES,
        reformer.HEADS,
    ),
    Family("vit", "an encoder of the patches of a picture", vit.ViTSizes, vit.vit, vit.SIZES, vit.HEADS, "images"),
    Family(
        "deit",
        "a ViT with a second token, which learns from a teacher",
        deit.DeiTSizes,
        deit.deit,
        deit.SIZES,
        deit.HEADS,
        "images",
    ),
    Family(
        "clip",
        "pictures and texts in one space, where captions lie near what they describe",
        clip.CLIPSizes,
        clip.clip,
        clip.SIZES,
        reads="images and text",
    ),
    Family(
        "clip-text",
        "the encoder of texts in CLIP, which Stable Diffusion reads with",
        clip.CLIPTextSizes,
        clip.clip_text,
        clip.TEXT_SIZES,
        clip.TEXT_HEADS,
    ),
    Family(
        "clip-image",
        "the encoder of pictures in CLIP",
        clip.CLIPImageSizes,
        clip.clip_image,
        clip.IMAGE_SIZES,
        clip.IMAGE_HEADS,
        "images",
    ),
    Family(
        "whisper",
        "an encoder of speech and a decoder that writes what was said",
        whisper.WhisperSizes,
        whisper.whisper,
        whisper.SIZES,
        reads="sound",
    ),
    Family(
        "whisper-encoder",
        "the half of Whisper that hears, to decide about sounds",
        whisper.WhisperEncoderSizes,
        whisper.whisper_encoder,
        whisper.ENCODER_SIZES,
        whisper.ENCODER_HEADS,
        "sound",
    ),
    Family("ast", "a DeiT that reads the filter bank of a sound", ast.ASTSizes, ast.ast, ast.SIZES, ast.HEADS, "sound"),
    Family(
        "wav2vec2",
        "speech from samples, learned by telling what hidden frames were",
        wav2vec2.Wav2Vec2Sizes,
        wav2vec2.wav2vec2,
        wav2vec2.SIZES,
        wav2vec2.HEADS,
        "sound",
    ),
    Family(
        "detr",
        "all objects of a picture at once, as a set",
        detr.DetrSizes,
        detr.detr,
        detr.SIZES,
        detr.HEADS,
        "images",
    ),
    Family(
        "vitpose",
        "a ViT that draws a map of each keypoint",
        vitpose.ViTPoseSizes,
        vitpose.vitpose,
        vitpose.SIZES,
        vitpose.HEADS,
        "images",
    ),
]
FAMILIES = {family.name: family for family in _FAMILIES}


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise QkvError(f"There is no family called {name}: {nearest_or_all(name, FAMILIES)}")
    return FAMILIES[name]


def build(family: str, sizes: Any, head: HeadChoice | None = None, attention: AttentionChoice | None = None) -> Any:
    """A new model with random weights, which remembers what it was built from; by default with the usual head and the
    family's own attention."""
    chosen = find_family(family)
    if attention is not None and chosen.reads != "text":
        raise QkvError(f"Family {family} reads {chosen.reads}: another attention can be chosen for models of text.")
    if not chosen.heads:
        if head is not None:
            raise QkvError(f"A model of the family {family} has no choice of heads.")
        model: Model = chosen.build(sizes)
    else:
        head = head or HeadChoice(chosen.heads[0])
        model = chosen.build(sizes, head)
        model.head_choice = head
    model.family, model.sizes, model.attention_choice = family, sizes, attention
    return model if attention is None else attention.put_into(model)


def config_of(model: Model) -> dict[str, Any]:
    """What `config.json` says of a model."""
    config: dict[str, Any] = {"format": "qkv-1", "family": model.family, "sizes": asdict(model.sizes)}
    head, attention = head_of(model), attention_of(model)
    config |= {} if head is None else {"head": head.config()}
    return config if attention is None else {**config, "attention": str(attention)}


def head_of(model: Model) -> HeadChoice | None:
    """The head that a model was given; None for one of a family without a choice."""
    return model.head_choice if isinstance(model, TextModel | ImageModel | DetectionModel | SoundModel) else None


def attention_of(model: Model) -> AttentionChoice | None:
    """The attention that a model was given in place of its family's own."""
    found: AttentionChoice | None = getattr(model, "attention_choice", None)
    return found


def count_parameters(
    family: str, sizes: Any, head: HeadChoice | None = None, attention: AttentionChoice | None = None
) -> int:
    """The number of parameters, counted on a model that occupies no memory."""
    with torch.device("meta"), Unfilled():
        model = build(family, sizes, head, attention)
    return sum(parameter.numel() for parameter in model.parameters())
