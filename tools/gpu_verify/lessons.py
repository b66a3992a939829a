"""What is trained by the command line and asked afterwards: one lesson for each family and for each way to read.

Families come from the catalogue and commands from `qkv train`, so that none is forgotten: a test holds that each has a
lesson.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qkv.api.sound_training import FAMILIES as OF_SOUNDS
from qkv.models.catalogue import FAMILIES
from qkv.models.family import Family
from tools.gpu_verify.materials import PROMPTS, SENTENCES

# Families that no command trains, and why; `qkv run` is tried with untrained ones of them.
WITHOUT_COMMAND = {
    "clip-text": "it has no head that a task needs",
    "whisper": "no command teaches it to write",
    "vitpose": "no command teaches keypoints",
}
FURTHER = {"clip-image": "made-picture-vectors", "whisper-encoder": "made-sound-states"}  # trained further, never anew
OF_PICTURES_AND_TEXTS, OF_OBJECTS = "clip", "detr"  # which have a command of their own
SPEECH = "wav2vec2"
PICTURES = 512
STEPS = 30
TIMES = 20  # that one training has to end well


@dataclass(frozen=True)
class Lesson:
    """A training, what is asked of what came of it, and what answers."""

    name: str
    group: str  # of lessons that make a part
    family: str
    reader: str  # by its class, which `qkv run` knows
    train: tuple[str, ...]  # behind `qkv train`; nothing: an untrained model is made
    ask: tuple[str, ...]  # behind `qkv run FOLDER`
    large: tuple[str, ...] = ()  # on a GPU: enough to do for programs of our own
    small: tuple[str, ...] = ()  # for a dry run
    after: str = ""  # the lesson whose model is trained further
    numbers: bool = True  # whether numbers of an answer are compared too
    pictures: int = PICTURES
    steps: int = STEPS

    def commands(self, python: list[str], work: Path, device: str) -> tuple[list[str], list[str], list[str]]:
        """The training, and two runs: on the device, and on a CPU in float32. On a CPU all is small."""
        gpu, out = device != "cpu", str(work / self.name)
        given = [each.format(data=work / "data", after=work / self.after) for each in (*self.train, *self.asked(gpu))]
        precision = "bfloat16" if gpu else "float32"
        if self.train:
            training = [*python, "-m", "qkv", "train", *given, "--device", device, "--precision", precision,
                        "--steps", str(self.steps if gpu else 2), "--out", out, "--overwrite"]  # fmt: skip
        else:
            training = [*python, "-m", "tools.gpu_verify.made", self.reader, out]
        asked = [each.format(data=work / "data") for each in self.ask]
        ask = [*python, "-m", "qkv", "run", out, *asked, "--json"]
        there, here = ["--device", device, "--precision", precision], ["--device", "cpu", "--precision", "float32"]
        return training, [*ask, *there], [*ask, *here]

    def asked(self, gpu: bool) -> tuple[str, ...]:
        return self.large if gpu else self.small


WRITING = (*PROMPTS, "--max-tokens", "16")
PHOTOS = tuple("{data}/pictures/" + place for place in ("red/00000.png", "green/00001.png", "blue/00002.png"))
TONES = tuple("{data}/sounds/" + place for place in ("low/00.wav", "middle/01.wav", "high/02.wav"))
TEXTS = ("--data", "{data}/texts.txt", "--blank-lines")
SMALL_TEXTS = ("--length", "64", "--batch-rows", "4")


def lessons() -> list[Lesson]:
    return [*of_families(), *of_tasks(), *untrained(), *large_ones()]


def lesson_called(name: str) -> Lesson:
    return next(each for each in lessons() if each.name == name)


def of_families() -> Iterator[Lesson]:
    for name, family in FAMILIES.items():
        if name in FURTHER:
            yield further(name, FURTHER[name])
        elif name not in WITHOUT_COMMAND:
            yield of_family(name, family)


def of_family(name: str, family: Family) -> Lesson:
    """By what it reads and by its heads. A family that nothing is known of is an error."""
    if name == OF_PICTURES_AND_TEXTS:
        return of_captions(name)
    if name == OF_OBJECTS:
        return of_objects(name)
    if family.reads == "text" and not family.heads:
        return Lesson(
            name, "text to text", name, "TextToText",
            ("text-to-text", "--family", name, "--data", "{data}/turned.tsv", "--source", "source", "--target",
             "target"),
            (*SENTENCES, "--max-tokens", "24"), ("--batch-tokens", "16384"),
            ("--batch-tokens", "512", "--size", small_size(name)),
        )  # fmt: skip
    if family.reads == "text" and "language" in family.heads:
        return Lesson(
            name, "language", name, "TextWriter", ("lm", "--family", name, *TEXTS, "--tokenizer", "bpe:1000"), WRITING,
            ("--length", "256", "--batch-rows", "64"), (*SMALL_TEXTS, "--size", small_size(name)),
        )  # fmt: skip
    if family.reads == "text" and "masked" in family.heads:
        return Lesson(
            name, "hidden words", name, "MaskFiller",
            ("mlm", "--family", name, *TEXTS, "--tokenizer", "wordpiece:1000"),
            (*[f"{prompt} <mask> a cold stone ." for prompt in PROMPTS], "--n-best", "1"),
            ("--length", "256", "--batch-rows", "64"), (*SMALL_TEXTS, "--size", small_size(name)),
        )  # fmt: skip
    if family.reads == "images" and "classification" in family.heads:
        return Lesson(
            name, "pictures", name, "ImageClassifier", ("images", "--family", name, "--data", "{data}/pictures"),
            PHOTOS, ("--side", "32", "--batch-rows", "256"),
            ("--side", "16", "--batch-rows", "8", "--size", small_size(name)),
        )  # fmt: skip
    if name in OF_SOUNDS:
        return Lesson(
            name, "sounds", name, "SoundClassifier", ("sounds", "--family", name, "--data", "{data}/sounds"), TONES,
            ("--batch-rows", "32"), ("--batch-rows", "4", "--seconds", "0.5", "--size", small_size(name)),
        )  # fmt: skip
    raise LookupError(f"Nobody has said how the family {name} is trained by the command line.")


def further(family: str, after: str) -> Lesson:
    """Of a model that is made untrained first."""
    pictures = FAMILIES[family].reads == "images"
    return Lesson(
        family, "pictures" if pictures else "sounds", family, "ImageClassifier" if pictures else "SoundClassifier",
        ("images" if pictures else "sounds", "--model", "{after}", "--data",
         "{data}/pictures" if pictures else "{data}/sounds"),
        PHOTOS if pictures else TONES, ("--batch-rows", "256" if pictures else "16"), ("--batch-rows", "2"),
        after=after,
    )  # fmt: skip


def small_size(family: str) -> str:
    """For a dry run."""
    from qkv.api.choices import DESK_SIZES

    known = DESK_SIZES[family]
    wanted = {
        "width": 32, "hidden": 64, "layers": 1, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_heads": 2, "decoder_heads": 2, "encoder_hidden": 64, "decoder_hidden": 64, "key_width": 16,
        "head_width": 16, "key_value_heads": 1, "experts": 2, "embedding": 32, "alignment": 32, "maxout": 32,
        "position_kernel": 8, "position_groups": 2, "entries": 8, "quantised": 16, "space": 16, "block": 8,
        "randoms": 1, "window": 8,
        "text_width": 32, "text_hidden": 64, "text_heads": 2, "text_layers": 1, "image_width": 32, "image_hidden": 64,
        "image_heads": 2, "image_layers": 1, "projection": 32, "queries": 3, "lines": 8, "columns": 8, "line_width": 16,
    }  # fmt: skip
    sizes = {key: value for key, value in wanted.items() if key in known}
    if family == SPEECH:
        sizes["position_groups"] = 2
    if family == "reformer":
        sizes["positions"] = 64
    return ",".join(f"{key}={value}" for key, value in sizes.items())


def of_captions(family: str) -> Lesson:
    return Lesson(
        family, "pictures", family, "ImageTextReader",
        ("captions", "--data", "{data}/captions.csv", "--tokenizer", "word"),
        (*PHOTOS, "--classes", "red,green,blue", "--template", "a {{}} square"), ("--batch-rows", "256"),
        ("--side", "16", "--batch-rows", "8", "--size", small_size(family)),
    )  # fmt: skip


def of_objects(family: str) -> Lesson:
    return Lesson(
        family, "pictures", family, "Detector", ("objects", "--data", "{data}/boxes.jsonl"), (*PHOTOS, "--least", "0"),
        ("--batch-rows", "32"), ("--side", "32", "--batch-rows", "4", "--size", small_size(family)),
        numbers=False,  # boxes come by how likely they are, which is nearly equal in the beginning
    )  # fmt: skip


def of_tasks() -> Iterator[Lesson]:
    """What a model is fine-tuned for, and what is learned beforehand."""
    fine = {
        "classify": ("Classifier", ("{data}/labels.tsv",), SENTENCES),
        "sentiment": ("Classifier", ("{data}/labels.tsv",), SENTENCES),
        "pairs": ("Classifier", ("{data}/pairs.tsv",), (*SENTENCES, "--second", "the fox hears a star .")),
        "rate": ("Rater", ("{data}/numbers.tsv",), SENTENCES),
        "tag": ("Tagger", ("{data}/tags.tsv",), SENTENCES),
        "answer": ("Answerer", ("{data}/asked.jsonl",), ("what sees it ?", "--context", SENTENCES[0])),
        "embed": ("SentenceEncoder", ("{data}/alike.tsv",), SENTENCES),
    }
    for command, (reader, data, ask) in fine.items():
        yield Lesson(
            command, "fine-tuning", "bert", reader, (command, "--model", "{after}", "--data", *data), ask,
            ("--batch-rows", "64"), ("--batch-rows", "4"), after="bert",
        )  # fmt: skip
    yield Lesson(
        "gaps", "text to text", "t5", "TextToText", ("t5", *TEXTS, "--tokenizer", "unigram:500"),
        ("the red fox <extra_id_0> a cold stone .", "--max-tokens", "12"), ("--length", "256", "--batch-rows", "64"),
        (*SMALL_TEXTS, "--size", small_size("t5")),
    )  # fmt: skip
    yield Lesson(
        "patches", "pictures", "vit", "PatchGuesser", ("patches", "--data", "{data}/pictures"), PHOTOS,
        ("--side", "32", "--batch-rows", "256"), ("--side", "16", "--batch-rows", "8", "--size", small_size("vit")),
    )  # fmt: skip
    heard = ("--batch-rows", "4", "--size", small_size(SPEECH))
    yield Lesson(
        "frames", "sounds", SPEECH, "", ("frames", "--data", "{data}/sounds", "--seconds", "2"), (),
        ("--batch-rows", "16"), heard,
    )  # fmt: skip
    yield Lesson(
        "speech", "sounds", SPEECH, "Listener", ("speech", "--data", "{data}/said.tsv"), TONES, ("--batch-rows", "16"),
        heard,
    )  # fmt: skip


def untrained() -> Iterator[Lesson]:
    """Readers of models that no command trains."""
    for name, (family, reader, ask) in {
        "made-states": ("bert", "StateReader", SENTENCES),
        "made-descriptions": ("clip-text", "Describer", SENTENCES),
        "made-transcriber": ("whisper", "Transcriber", TONES),
        "made-sound-vectors": ("ast", "SoundEncoder", TONES),
        "made-sound-states": ("whisper-encoder", "SoundStateReader", TONES),
        "made-picture-vectors": ("clip-image", "ImageEncoder", PHOTOS),
        "made-picture-states": ("vit", "ImageStateReader", PHOTOS),
        "made-points": ("vitpose", "KeypointFinder", (*PHOTOS, "--least", "0")),
    }.items():
        yield Lesson(name, "readers", family, reader, (), ask)


def large_ones() -> Iterator[Lesson]:
    yield Lesson(
        "vit-base", "vit base", "vit", "ImageClassifier",
        ("images", "--family", "vit", "--data", "{data}/pictures"), PHOTOS,
        ("--size", "base-16", "--side", "224", "--batch-rows", "256"),
        ("--size", small_size("vit"), "--side", "32", "--batch-rows", "8"),
    )  # fmt: skip
    writing = ("lm", "--family", "gpt2", *TEXTS, "--tokenizer", "bpe:1000")
    for number in range(1, TIMES + 1):
        yield Lesson(
            f"gpt2-base-{number:02}", "endings", "gpt2", "", writing, (), ("--size", "base", "--batch-rows", "16"),
            (*SMALL_TEXTS, "--size", small_size("gpt2")),
        )  # fmt: skip
