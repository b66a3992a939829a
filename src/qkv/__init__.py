"""qkv: every transformer, from one set of parts.

    import qkv

    pairs = qkv.read_pairs("words.tsv", source="word", target="phonemes")
    model = qkv.train_text_to_text(pairs, "runs/words")
    print(model.run(["cough"])[0].text)
    qkv.look_at(model, ["cough"], html="cough.html")

Importing qkv imports nothing else: a name is fetched, and torch with it, when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.api.attention import with_attention
    from qkv.api.caption_training import CaptionTraining, train_image_text
    from qkv.api.choices import DataSettings, NewTokenizer
    from qkv.api.comparing import compare
    from qkv.api.comparison import Comparison
    from qkv.api.cost import cost
    from qkv.api.cost_ranks import cost_of_ranks
    from qkv.api.detection_training import DetectionTraining, train_detector
    from qkv.api.distilling import Distillation, student_of
    from qkv.api.encoders import pretrain_encoder
    from qkv.api.families import family_sizes
    from qkv.api.fine_tuning import (
        FineTuning,
        fine_tune_answerer,
        fine_tune_classifier,
        fine_tune_embeddings,
        fine_tune_tagger,
    )
    from qkv.api.harness import harness_model
    from qkv.api.image_training import ImageTraining, pretrain_image_model, train_image_classifier
    from qkv.api.language import train_language_model
    from qkv.api.loading import load
    from qkv.api.looking import look_at
    from qkv.api.looking_layers import look_at_layers
    from qkv.api.looking_pictures import look_at_pictures
    from qkv.api.looking_sounds import look_at_sounds
    from qkv.api.pairs import hold_out, read_pairs
    from qkv.api.rating import fine_tune_rater
    from qkv.api.scores import Scores
    from qkv.api.sound_pretraining import SoundPretraining, pretrain_on_sounds
    from qkv.api.sound_training import SoundTraining, train_sound_classifier
    from qkv.api.span_filling import pretrain_text_to_text
    from qkv.api.speech_training import SpeechTraining, train_listener
    from qkv.api.streamed_texts import StreamedTexts, stream_texts
    from qkv.api.teaching import labels_of, pairs_of, texts_of
    from qkv.api.training import read_result, train_text_to_text
    from qkv.api.variants import Setup, Variant
    from qkv.data.boxes import read_box_table, read_coco
    from qkv.data.captioned import Captioned, read_captions
    from qkv.data.composing import Composer
    from qkv.data.image_files import read_image_folder
    from qkv.data.image_sets import read_image_set, rows_of_images
    from qkv.data.stored_boxes import StoredBoxes, store_boxes
    from qkv.data.stored_sounds import SpokenWaves, stored_waves
    from qkv.data.tokenizer import TextTokenizer
    from qkv.errors import QkvError
    from qkv.generate.detect import Detector
    from qkv.generate.hearing import Hearing
    from qkv.generate.image_readers import ImageClassifier
    from qkv.generate.image_text import ImageTextReader
    from qkv.generate.language import Options, TextWriter
    from qkv.generate.listen import Listener
    from qkv.generate.readers import Answerer, Classifier, MaskFiller, Rater, SentenceEncoder, Tagger
    from qkv.generate.sound_readers import SoundClassifier
    from qkv.generate.text import TextToText
    from qkv.generate.transcribe import Transcriber
    from qkv.generate.untuned import UntunedSound
    from qkv.models.attention_choice import AttentionChoice
    from qkv.models.head_choice import HeadChoice
    from qkv.train.adapt import LoRA
    from qkv.train.settings import TrainSettings

__all__ = [
    "Answerer",
    "AttentionChoice",
    "CaptionTraining",
    "Captioned",
    "Classifier",
    "Comparison",
    "Composer",
    "DataSettings",
    "DetectionTraining",
    "Detector",
    "Distillation",
    "FineTuning",
    "HeadChoice",
    "Hearing",
    "ImageClassifier",
    "ImageTextReader",
    "ImageTraining",
    "Listener",
    "LoRA",
    "MaskFiller",
    "NewTokenizer",
    "Options",
    "QkvError",
    "Rater",
    "Scores",
    "SentenceEncoder",
    "Setup",
    "SoundClassifier",
    "SoundPretraining",
    "SoundTraining",
    "SpeechTraining",
    "SpokenWaves",
    "StoredBoxes",
    "StreamedTexts",
    "Tagger",
    "TextToText",
    "TextTokenizer",
    "TextWriter",
    "TrainSettings",
    "Transcriber",
    "UntunedSound",
    "Variant",
    "compare",
    "cost",
    "cost_of_ranks",
    "family_sizes",
    "fine_tune_answerer",
    "fine_tune_classifier",
    "fine_tune_embeddings",
    "fine_tune_rater",
    "fine_tune_tagger",
    "harness_model",
    "hold_out",
    "labels_of",
    "load",
    "look_at",
    "look_at_layers",
    "look_at_pictures",
    "look_at_sounds",
    "pairs_of",
    "pretrain_encoder",
    "pretrain_image_model",
    "pretrain_on_sounds",
    "pretrain_text_to_text",
    "read_box_table",
    "read_captions",
    "read_coco",
    "read_image_folder",
    "read_image_set",
    "read_pairs",
    "read_result",
    "rows_of_images",
    "store_boxes",
    "stored_waves",
    "stream_texts",
    "student_of",
    "texts_of",
    "train_detector",
    "train_image_classifier",
    "train_image_text",
    "train_language_model",
    "train_listener",
    "train_sound_classifier",
    "train_text_to_text",
    "with_attention",
]

_HOMES = {
    "Answerer": "qkv.generate.readers",
    "AttentionChoice": "qkv.models.attention_choice",
    "CaptionTraining": "qkv.api.caption_training",
    "Captioned": "qkv.data.captioned",
    "Classifier": "qkv.generate.readers",
    "Comparison": "qkv.api.comparison",
    "Composer": "qkv.data.composing",
    "DataSettings": "qkv.api.choices",
    "DetectionTraining": "qkv.api.detection_training",
    "Detector": "qkv.generate.detect",
    "Distillation": "qkv.api.distilling",
    "FineTuning": "qkv.api.fine_tuning",
    "HeadChoice": "qkv.models.head_choice",
    "Hearing": "qkv.generate.hearing",
    "ImageClassifier": "qkv.generate.image_readers",
    "ImageTextReader": "qkv.generate.image_text",
    "ImageTraining": "qkv.api.image_training",
    "Listener": "qkv.generate.listen",
    "LoRA": "qkv.train.adapt",
    "MaskFiller": "qkv.generate.readers",
    "NewTokenizer": "qkv.api.choices",
    "Options": "qkv.generate.language",
    "QkvError": "qkv.errors",
    "Rater": "qkv.generate.readers",
    "Scores": "qkv.api.scores",
    "SentenceEncoder": "qkv.generate.readers",
    "Setup": "qkv.api.variants",
    "SoundClassifier": "qkv.generate.sound_readers",
    "SoundPretraining": "qkv.api.sound_pretraining",
    "SoundTraining": "qkv.api.sound_training",
    "SpeechTraining": "qkv.api.speech_training",
    "SpokenWaves": "qkv.data.stored_sounds",
    "StoredBoxes": "qkv.data.stored_boxes",
    "StreamedTexts": "qkv.api.streamed_texts",
    "Tagger": "qkv.generate.readers",
    "TextToText": "qkv.generate.text",
    "TextTokenizer": "qkv.data.tokenizer",
    "TextWriter": "qkv.generate.language",
    "TrainSettings": "qkv.train.settings",
    "Transcriber": "qkv.generate.transcribe",
    "UntunedSound": "qkv.generate.untuned",
    "Variant": "qkv.api.variants",
    "compare": "qkv.api.comparing",
    "cost": "qkv.api.cost",
    "cost_of_ranks": "qkv.api.cost_ranks",
    "family_sizes": "qkv.api.families",
    "fine_tune_answerer": "qkv.api.fine_tuning",
    "fine_tune_classifier": "qkv.api.fine_tuning",
    "fine_tune_embeddings": "qkv.api.fine_tuning",
    "fine_tune_rater": "qkv.api.rating",
    "fine_tune_tagger": "qkv.api.fine_tuning",
    "harness_model": "qkv.api.harness",
    "hold_out": "qkv.api.pairs",
    "labels_of": "qkv.api.teaching",
    "load": "qkv.api.loading",
    "look_at": "qkv.api.looking",
    "look_at_layers": "qkv.api.looking_layers",
    "look_at_pictures": "qkv.api.looking_pictures",
    "look_at_sounds": "qkv.api.looking_sounds",
    "pairs_of": "qkv.api.teaching",
    "pretrain_encoder": "qkv.api.encoders",
    "pretrain_image_model": "qkv.api.image_training",
    "pretrain_on_sounds": "qkv.api.sound_pretraining",
    "pretrain_text_to_text": "qkv.api.span_filling",
    "read_box_table": "qkv.data.boxes",
    "read_captions": "qkv.data.captioned",
    "read_coco": "qkv.data.boxes",
    "read_image_folder": "qkv.data.image_files",
    "read_image_set": "qkv.data.image_sets",
    "read_pairs": "qkv.api.pairs",
    "read_result": "qkv.api.training",
    "rows_of_images": "qkv.data.image_sets",
    "store_boxes": "qkv.data.stored_boxes",
    "stored_waves": "qkv.data.stored_sounds",
    "stream_texts": "qkv.api.streamed_texts",
    "student_of": "qkv.api.distilling",
    "texts_of": "qkv.api.teaching",
    "train_detector": "qkv.api.detection_training",
    "train_image_classifier": "qkv.api.image_training",
    "train_image_text": "qkv.api.caption_training",
    "train_language_model": "qkv.api.language",
    "train_listener": "qkv.api.speech_training",
    "train_sound_classifier": "qkv.api.sound_training",
    "train_text_to_text": "qkv.api.training",
    "with_attention": "qkv.api.attention",
}
_ROOMS = ("errors", "files", "data", "parts", "models", "weights", "train", "generate", "look", "api", "cli")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("qkv")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"qkv.{name}")
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "__version__", *__all__, *_ROOMS])
