"""Metrics by name, and an evaluation that decodes held-out sources and scores what comes out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from qkv.api.pairs import Pair
from qkv.errors import QkvError, nearest_or_all
from qkv.generate.text import TextToText
from qkv.train.metrics import (
    References,
    bleu,
    character_error_rate,
    chrf,
    phoneme_error_rate,
    sequence_error_rate,
    word_error_rate,
)
from qkv.train.metrics_of_summaries import rouge_l, rouge_n


@dataclass(frozen=True)
class Metric:
    """A figure of outputs against references, and which way is better."""

    summary: str
    score: Callable[[Sequence[str], References], float]
    better: Literal["lower", "higher"] = "lower"


METRICS: Mapping[str, Metric] = {
    "bleu": Metric("BLEU by sacrebleu, 0 to 100", lambda said, right: bleu(said, right).value, "higher"),
    "chrf": Metric("chrF by sacrebleu, 0 to 100", lambda said, right: chrf(said, right).value, "higher"),
    "rouge1": Metric("ROUGE-1, words of the reference that are said", lambda s, r: rouge_n(s, r, 1), "higher"),
    "rouge2": Metric("ROUGE-2, pairs of words of the reference that are said", lambda s, r: rouge_n(s, r, 2), "higher"),
    "rougeL": Metric("ROUGE-L, words of the reference that are said in order", rouge_l, "higher"),
    "wer": Metric("word error rate", word_error_rate),
    "cer": Metric("character error rate", character_error_rate),
    "per": Metric("phoneme error rate, of symbols between spaces", phoneme_error_rate),
    "ser": Metric("sequence error rate: share of outputs that are not right as a whole", sequence_error_rate),
}


def find_metric(name: str) -> Metric:
    if name not in METRICS:
        raise QkvError(f"There is no metric called {name}: {nearest_or_all(name, METRICS)}")
    return METRICS[name]


class Scores:
    """For `train_text_to_text(evaluate=...)`: named metrics of the outputs for held-out sources.

    Each source is decoded once, and all its targets count as right. A metric that cannot be had (sacrebleu is missing)
    is reported here and not an hour later.
    """

    def __init__(self, pairs: Sequence[Pair], metrics: Sequence[str], *, beams: int = 1, limit: int | None = 500):
        """`limit` is how many sources are decoded at most, None for all: decoding takes time at every evaluation."""
        references: dict[str, list[str]] = {}
        for source, target in pairs:
            references.setdefault(source, []).append(target)
        self.sources = list(references)[:limit]
        self.references = [references[source] for source in self.sources]
        self.metrics = {name: find_metric(name) for name in metrics}
        self.beams = beams
        for metric in self.metrics.values():
            metric.score(["a"], ["a"])

    def __call__(self, text_to_text: TextToText) -> dict[str, float]:
        outputs = [result.text for result in text_to_text.run(self.sources, beams=self.beams)]
        return self.of(outputs)

    def of(self, outputs: Sequence[str]) -> dict[str, float]:
        """The figures of outputs that were already made, one for each of `sources`."""
        return {name: metric.score(outputs, self.references) for name, metric in self.metrics.items()}

    def verdict(
        self, figures: Mapping[str, float | None], without_model: Mapping[str, Sequence[str]]
    ) -> tuple[bool, str]:
        """Whether a model with these figures learned anything, and a sentence that says so, by the first metric.

        It did where it is better than every output that needs no model: a blank one, and those given by name.
        """
        name, metric = next(iter(self.metrics.items()))
        given = {"an empty output": [""] * len(self.sources), **without_model}
        scored = {way: metric.score(outputs, self.references) for way, outputs in given.items()}
        way = (min if metric.better == "lower" else max)(scored, key=lambda each: scored[each])
        own, bar = figures.get(name), scored[way]
        learned = own is not None and (own < bar if metric.better == "lower" else own > bar)
        shown = "none" if own is None else f"{own:.3g}"
        if learned:
            return True, f"It has learned: {name} {shown}, where {way} has {bar:.3g}."
        return False, f"It has not learned: {name} {shown} is no better than the {bar:.3g} of {way}. Train for longer."
