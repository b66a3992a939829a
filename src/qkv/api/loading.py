"""From a folder, a file or a hub id to a model that is ready to use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.data.published_tokenizer import read_tokenizer, read_tokenizers
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.models.catalogue import find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.models.when_asked import WhenAsked
from qkv.parts.device import device_called
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model
from qkv.weights.save import CONFIG_FILE
from qkv.weights.sentence_folder import is_sentence_folder, read_sentence_folder, read_text_settings

if TYPE_CHECKING:
    from qkv.data.tokenizer import TextTokenizer
    from qkv.generate.reader import TextReader
    from qkv.generate.text import TextToText
    from qkv.models.sequence_to_sequence import SequenceToSequence

# What uses a model is opened once it is known what kind of model it is: the others would be waited for in vain.
SPARE = 127  # published vocabularies are often rounded up to a multiple of 128


def _in_file(kind: str, place: tuple[str, str]) -> type[TextReader]:
    file, name = place
    found: type[TextReader] = getattr(import_module(f"qkv.generate.{file}"), name)
    return found


USES = WhenAsked(
    {
        "language": ("language", "TextWriter"),
        "masked": ("readers", "MaskFiller"),
        "pretraining": ("readers", "MaskFiller"),
        "classification": ("readers", "Classifier"),
        "tokens": ("readers", "Tagger"),
        "spans": ("readers", "Answerer"),
        "embedding": ("readers", "SentenceEncoder"),
        "projection": ("zero_shot", "Describer"),
        "states": ("readers", "StateReader"),
        "pooled": ("readers", "StateReader"),
    },
    _in_file,
)


def load(
    folder: Path | str,
    device: str = "auto",
    head: HeadChoice | None = None,
    *,
    offline: bool | None = None,
    split: str | None = None,
    precision: str = "auto",
    compile: bool = False,
) -> Any:
    """The model and tokenizer of a folder, our own or a published one, ready to run.

    What comes back is made for what the model does: `TextToText`, `TextWriter`, `Classifier`, `Rater`, `Tagger`,
    `Answerer`, `SentenceEncoder`, `Describer`, `MaskFiller` or `StateReader`; for pictures `ImageClassifier`,
    `ImageEncoder`, `ImageStateReader`, `Detector`, `KeypointFinder` or, with texts, `ImageTextReader`; for sounds
    `Listener`, `Transcriber`, `SoundClassifier`, `SoundEncoder` or `SoundStateReader`. With a `head` a model of one row
    gets that one in place of its own, new where the folder has nothing for it. `folder` may be a GGUF file,
    or a model's name on the hub, of which `offline` takes only what was fetched before, or `pronounce`, which is
    packaged and has phonemes for English words. `auto` takes CUDA where there is one. Texts are cut by `split` where a
    vocabulary needs it and its files do not say so: "smiles".

    Weights are held in `precision`: "float32", "bfloat16", or on a CPU "int8", in which large linear maps are rounded
    to whole numbers. "auto" gives nothing away: float32, or on a GPU bfloat16 where weights were published so. Ask for
    bfloat16 where answers may differ in the third digit and should come several times sooner on a GPU. With `compile`
    a model that reads is compiled, for which the first answers wait up to a minute.
    """
    place = device_called(device)
    folder = local_folder(folder, offline=offline)
    if head is None and is_sentence_folder(folder):
        head = read_sentence_folder(folder).head
    model = load_model(folder, place, head, precision=precision)
    if compile:
        from qkv.generate.compiling import compiled

        model = compiled(model)
    if isinstance(model, TextModel):
        return _reader(folder, model, split)
    if split is not None:
        raise QkvError(f"The texts of {folder} cannot be split by {split}: only models of one row of text can.")
    if find_family(model.family).reads == "text":
        return _translator(folder, model)
    return _use_of_pictures_or_sounds(folder, model)


def _reader(folder: Path, model: TextModel, split: str | None) -> TextReader:
    """A model of one row of text with its tokenizer, and with what else its folder says."""
    if model.head_choice.kind == "embedding":
        from qkv.generate.readers import SentenceEncoder

        return SentenceEncoder(model, tokenizer_of(folder, split), *read_text_settings(folder))
    if model.head_choice.kind == "language":
        from qkv.generate.language import TextWriter, read_ends

        return TextWriter(model, tokenizer_of(folder, split), read_ends(folder))
    return use_of(model, tokenizer_of(folder, split))


def _use_of_pictures_or_sounds(folder: Path, model: Any) -> Any:
    from qkv.data.preprocessing_files import read_preprocessing
    from qkv.generate.detect import Detector
    from qkv.generate.image_readers import use_of_images
    from qkv.generate.image_text import ImageTextReader
    from qkv.generate.keypoints import KeypointFinder
    from qkv.generate.sound_readers import use_of_sounds
    from qkv.generate.transcribe import Transcriber
    from qkv.models.detection_model import DetectionModel
    from qkv.models.image_model import ImageModel
    from qkv.models.image_text_model import ImageTextModel
    from qkv.models.sequence_to_sequence import SequenceToSequence

    if isinstance(model, DetectionModel):
        return Detector(model, read_preprocessing(folder))
    if isinstance(model, ImageModel) and model.head_choice.kind == "keypoints":
        return KeypointFinder(model, read_preprocessing(folder))
    if isinstance(model, ImageModel) and find_family(model.family).reads == "images":
        return use_of_images(model, read_preprocessing(folder))
    if isinstance(model, ImageTextModel):
        return ImageTextReader(model, tokenizer_of(folder), read_preprocessing(folder))
    if isinstance(model, SequenceToSequence):
        return Transcriber.of_folder(folder, model)
    return use_of_sounds(model, folder)


def use_of(model: TextModel, tokenizer: TextTokenizer) -> TextReader:
    """What a model with this head is used by."""
    from qkv.generate.readers import Rater, rates

    if rates(model):
        return Rater(model, tokenizer)
    return USES[model.head_choice.kind](model, tokenizer)


def tokenizer_of(place: Path, split: str | None = None) -> TextTokenizer:
    """The tokenizer of a text model's folder; of a single file the one it holds, or the one that stands beside it."""
    found = _tokenizer_of(place)
    if split is None:
        return found
    from qkv.data.splitting import split_by

    return split_by(found, split)


def _tokenizer_of(place: Path) -> TextTokenizer:
    if not place.is_file():
        return read_tokenizer(place)
    with place.open("rb") as stream:
        if stream.read(4) == b"GGUF":
            from qkv.data.gguf_tokenizer import tokenizer_of_gguf
            from qkv.weights.gguf import read_gguf

            return tokenizer_of_gguf(read_gguf(place).metadata)
    return read_tokenizer(place.parent)


def _translator(folder: Path, model: SequenceToSequence) -> TextToText:
    """An encoder-decoder with its tokenizers; published ones say in their configuration what outputs begin with."""
    from qkv.generate.text import TextToText, kept_files

    config = read_json(folder / CONFIG_FILE)
    if "model_type" not in config:
        return TextToText.of_folder(folder, model)
    source, target = read_tokenizers(folder)
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    if not isinstance(start, int) or not 0 <= start < target.size:
        raise QkvError(f"{folder / CONFIG_FILE} must say with which token outputs begin: decoder_start_token_id.")
    begins = target.with_roles(start=target.spelling(start))
    shared = source is target
    files = kept_files(folder, shared=shared)
    return TextToText(model, begins if shared else source, begins, spare=SPARE, files=files)
