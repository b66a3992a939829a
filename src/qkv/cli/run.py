"""`qkv run`: whatever the model is for, its input in and its output out."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from qkv.cli.groups import flag, given, with_groups
from qkv.cli.inputs import Input, InputOptions, read_inputs, text_or_file
from qkv.cli.process import opening
from qkv.cli.run_images import (
    IMAGES_AT_ONCE,
    ClassOptions,
    compare_with_texts,
    embed_pictures,
    guess_patches,
    name_pictures,
    states_of_pictures,
)
from qkv.cli.run_language import WritingOptions, write_texts
from qkv.cli.run_reading import ReadingOptions, answer, classify, embed, fill, rate, read_states, tag
from qkv.cli.run_scenes import SceneOptions, find_objects, find_points
from qkv.cli.run_speech import SOUNDS_AT_ONCE, SpeechOptions, write_down, write_letters
from qkv.cli.run_translator import TRANSLATING, SearchOptions, translate
from qkv.errors import QkvError


class Request(NamedTuple):
    """All that a person asked for, beside the model and its inputs."""

    search: SearchOptions
    writing: WritingOptions
    reading: ReadingOptions
    speech: SpeechOptions
    scenes: SceneOptions
    classes: ClassOptions
    as_json: bool
    device: str
    alone: bool  # one text on the command line


class Kind(NamedTuple):
    """What is done with one kind of model, and the options that fit it."""

    name: str  # a ...
    many: str
    run: Callable[[Any, list[Input], int, Any], Iterator[str]]  # model, some inputs, how many came before, request
    options: tuple[str, ...]
    at_once: int = 512  # inputs that are read before anything is written


KINDS = {
    "TextToText": Kind("a translator", "translators", translate, TRANSLATING),
    "TextWriter": Kind(
        "a language model",
        "language models",
        write_texts,
        ("beams", "n_best", "length_penalty", *WritingOptions.__dataclass_fields__),
        at_once=64,
    ),
    "Classifier": Kind("a classifier", "classifiers", classify, ("second", "split")),
    "Rater": Kind("a model that gives numbers", "models that give numbers", rate, ("second", "split")),
    "Tagger": Kind("a tagger", "taggers", tag, ("split",)),
    "Answerer": Kind("an answerer", "answerers", answer, ("context", "threshold", "split")),
    "MaskFiller": Kind("a masked model", "masked models", fill, ("n_best", "split")),
    "SentenceEncoder": Kind("an embedding model", "embedding models", embed, ("similar", "split")),
    "Describer": Kind("a model that embeds descriptions", "models that embed descriptions", embed, ()),
    "StateReader": Kind("a model without a head", "models without a head", read_states, ("split",)),
    "Transcriber": Kind(
        "a model that writes down speech",
        "models that write down speech",
        write_down,
        ("beams", *SpeechOptions.__dataclass_fields__),
        SOUNDS_AT_ONCE,
    ),
    "Listener": Kind(
        "a model that writes down speech letter by letter",
        "models that write down speech letter by letter",
        write_letters,
        ("beams", "times"),
        SOUNDS_AT_ONCE,
    ),
    "SoundClassifier": Kind("a sound classifier", "sound classifiers", name_pictures, ("n_best",), SOUNDS_AT_ONCE),
    "SoundEncoder": Kind(
        "a model that embeds sounds", "models that embed sounds", embed_pictures, ("similar",), SOUNDS_AT_ONCE
    ),
    "SoundStateReader": Kind(
        "a sound model without a head", "sound models without a head", states_of_pictures, (), SOUNDS_AT_ONCE
    ),
    "ImageClassifier": Kind("an image classifier", "image classifiers", name_pictures, ("n_best",), IMAGES_AT_ONCE),
    "ImageEncoder": Kind(
        "a model that embeds pictures", "models that embed pictures", embed_pictures, ("similar",), IMAGES_AT_ONCE
    ),
    "ImageTextReader": Kind(
        "a model of pictures and texts",
        "models of pictures and texts",
        compare_with_texts,
        ("similar", "n_best", *ClassOptions.__dataclass_fields__),
        IMAGES_AT_ONCE,
    ),
    "Detector": Kind("a model that finds objects", "models that find objects", find_objects, ("least", "draw"), 8),
    "KeypointFinder": Kind("a model of keypoints", "models of keypoints", find_points, ("least", "draw"), 8),
    "PatchGuesser": Kind("a model of hidden patches", "models of hidden patches", guess_patches, (), IMAGES_AT_ONCE),
    "ImageStateReader": Kind(
        "an image model without a head", "image models without a head", states_of_pictures, (), IMAGES_AT_ONCE
    ),
}


@with_groups
def run(
    model: Annotated[str, typer.Argument(help="Model folder, GGUF file, or owner/name[@revision].")],
    inputs: InputOptions,
    search: SearchOptions,
    writing: WritingOptions,
    reading: ReadingOptions,
    speech: SpeechOptions,
    scenes: SceneOptions,
    classes: ClassOptions,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts, each an input of its own.", metavar="TEXT")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with scores.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Type of the weights: float32, bfloat16, int8 (on a CPU) or auto, as published.")
    ] = "auto",
    compile: Annotated[bool, typer.Option(help="Compile a model that reads: worth it for many inputs.")] = False,
) -> None:
    """Give a model its input, get its output: one line for each, in the same order.

    Inputs are the texts given, the lines of a file, a column of a table, or the lines of standard input. What comes out
    is what the model is for: a translation, a text that goes on, a label with its probability, words with tags, an
    answer, the likeliest words for a hidden place, a vector. For a model of pictures the texts are the names of image
    files, for one that hears those of sound files. An option that does not fit the model is an error.

    With --n-best or --samples above 1 a line is the number of its input, the score and the output, with tabs between
    them. Line breaks inside an output become spaces, but for a single text of a language model.

    The model `pronounce` is packaged with qkv: English words in, phonemes out.

    \b
    Example (after the ones that `qkv train text-to-text --help` and `qkv train lm --help` show):
      qkv run runs/words cat dog
      echo tag | qkv run runs/words --beams 4 --n-best 2
      qkv run runs/verses 'And God' 'In the' --max-tokens 20 --temperature 0.8 --seed 1
    """
    texts = texts or []
    contexts = [each if inputs.source else text_or_file(each) for each in reading.context or []]
    if reading.second and contexts:
        raise QkvError("--second belongs to a classifier and --context to an answerer: give one of the two.")
    found = read_inputs(texts, inputs, reading.second or contexts)
    with opening():
        from qkv.api.loading import load

        loaded = load(model, device, split=reading.split, precision=precision, compile=compile)
    kind = KINDS.get(type(loaded).__name__)
    if kind is None:
        raise QkvError(f"{model} does not read text: qkv run is for models of text.")
    check_fit(model, kind, given(search, writing, reading, speech, scenes, classes))
    request = Request(search, writing, reading, speech, scenes, classes, as_json, device, alone=len(texts) == 1)
    number = 0
    while chunk := list(islice(found, kind.at_once)):
        for line in kind.run(loaded, chunk, number, request):
            print(line)
        number += len(chunk)
        sys.stdout.flush()
    if not number:
        empty = "standard input" if inputs.input in (None, "-") else inputs.input
        raise QkvError(f"There is no input: {empty} is empty.")


def check_fit(model: str, kind: Kind, options: list[str]) -> None:
    """Nothing that a person asks for is passed over."""
    for name in options:
        if name not in kind.options:
            fitting = " and ".join(each.many for each in KINDS.values() if name in each.options)
            raise QkvError(f"The option {flag(name)} is for {fitting}, and {model} is {kind.name}: leave it out.")
