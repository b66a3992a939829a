"""A language model for EleutherAI's lm-evaluation-harness, which brings the tasks and counts the points.

    import lm_eval
    lm_eval.simple_evaluate(model=harness_model(qkv.load("smollm")), tasks=["hellaswag", "arc_easy"])

What the harness asks of a model is how likely one text is after another, how likely a whole text is, and how a text
goes on. Where it has a rule of its own (where a space belongs, what is cut off a long context), its rule holds, so that
figures can be compared with those of other models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.errors import QkvError
from qkv.generate.history import Shaper
from qkv.generate.language import Options, TextWriter
from qkv.generate.score import ScoredIds, score_rows
from qkv.generate.shape import MinP, RepetitionPenalty, Temperature, TopK, TopP
from qkv.generate.strategy import Greedy, Sampling, Strategy
from qkv.generate.use import at_rest

MOST = 256  # new tokens where a task does not say
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # one limit by the names that tasks give it
# What narrows a draw, in the order of the steps.
NARROWING: dict[str, type[Any]] = {"temperature": Temperature, "top_k": TopK, "top_p": TopP, "min_p": MinP}
KNOWN = {"until", "do_sample", "repetition_penalty", *LIMITS, *NARROWING}


def harness_model(writer: TextWriter, *, seed: int = 0) -> Any:
    """The model as the harness wants it: an `lm_eval.api.model.LM`, to be given to `lm_eval.simple_evaluate`.

    Samples, where a task asks for them, are drawn by `seed`.
    """
    if not isinstance(writer, TextWriter):
        raise QkvError(f"The harness evaluates models that write text; a {type(writer).__name__} does not.")
    try:
        from lm_eval.api.model import TemplateLM
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    except ImportError as error:
        raise QkvError('Evaluating with the harness needs lm-eval: pip install "qkv[harness]".') from error

    class HarnessModel(TemplateLM):
        """TemplateLM cuts each pair of texts into tokens by the harness's rules; the rest is here."""

        tokenizer_name = writer.tokenizer.fingerprint()

        def __init__(self) -> None:
            super().__init__()
            self._device = next(writer.model.parameters()).device

        @property
        def eot_token_id(self) -> int:
            return _first_of(writer, "end", "start")

        @property
        def prefix_token_id(self) -> int:
            """What stands before a text where nothing else does."""
            return _first_of(writer, "start", "end")

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            if add_special_tokens is False or not string:
                return writer.tokenizer.encode([string])[0]
            return writer.encode(string)

        def _loglikelihood_tokens(
            self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
        ) -> list[tuple[float, bool]]:
            rows = [_within_window(writer, before or [self.prefix_token_id], wanted) for _, before, wanted in requests]
            with at_rest(writer.model):
                scores = score_rows(writer.model, rows)
            return [(score.log_probability, score.greedy) for score in scores]

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Each text after nothing but the prefix token, which the tokenizer is not let to add once more."""
            windows, numbers = [], []
            for number, request in enumerate(requests):
                ids = self.tok_encode(request.args[0], add_special_tokens=False)
                for window in get_rolling_token_windows(
                    ids, self.prefix_token_id, writer.model.longest or max(1, len(ids)), 1
                ):
                    windows.append((None, *make_disjoint_window(window)))
                    numbers.append(number)
            totals = [0.0] * len(requests)
            for number, (log_probability, _) in zip(numbers, self._loglikelihood_tokens(windows), strict=True):
                totals[number] += log_probability
            return totals

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            together: dict[Options, list[int]] = {}  # requests that ask for the same
            for number, request in enumerate(requests):
                together.setdefault(writing_options(writer, request.args[1], seed + number), []).append(number)
            texts = [""] * len(requests)
            for options, numbers in together.items():
                prompts = [_beginning(writer, requests[number].args[0], options.most) for number in numbers]
                for number, writing in zip(numbers, writer.run(prompts, options), strict=True):
                    texts[number] = _text(writer, writing.ids, options.stop_texts)
            return texts

    return HarnessModel()


def writing_options(writer: TextWriter, asked: Mapping[str, Any], seed: int) -> Options:
    """How to write, from what a task asks for; greedily unless it asks for samples.

    A draw has a seed of its own, since a task may ask for several outputs of one prompt. What only narrows a draw does
    nothing to greedy decoding, and tasks often say both.
    """
    unknown = sorted(asked.keys() - KNOWN)
    if unknown:
        raise QkvError(f"A task asks for text with {', '.join(unknown)}; qkv knows {', '.join(sorted(KNOWN))}.")
    until = asked.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    window = writer.model.longest
    most = next((int(asked[name]) for name in LIMITS if asked.get(name) is not None), None)
    most = most or (MOST if window is None else min(MOST, max(1, window // 2)))
    if window is not None and most >= window:
        raise QkvError(
            f"A task asks for {most} new tokens, but this model reads at most {window}, the prompt included."
        )
    samples = asked.get("do_sample")
    samples = bool(asked.get("temperature")) if samples is None else bool(samples)
    shapers: list[Shaper] = []
    if asked.get("repetition_penalty", 1.0) != 1.0:
        shapers.append(RepetitionPenalty(float(asked["repetition_penalty"])))
    if samples:
        shapers += [narrow(asked[name]) for name, narrow in NARROWING.items() if asked.get(name)]
    strategy: Strategy = Sampling(seed=seed) if samples else Greedy()
    return Options(strategy=strategy, shapers=tuple(shapers), most=most, stop_texts=tuple(filter(None, stops)))


def _first_of(writer: TextWriter, *roles: str) -> int:
    """The token of the first of these roles that the tokenizer has."""
    return writer.tokenizer.role(next((role for role in roles if writer.tokenizer.has(role)), roles[0]))


def _within_window(writer: TextWriter, before: list[int], wanted: list[int]) -> ScoredIds:
    """Of a context that is too long the end is kept, as the harness has it."""
    window = writer.model.longest
    if window is not None:
        if len(wanted) > window:
            raise QkvError(f"A task scores a text of {len(wanted)} tokens, but this model reads at most {window}.")
        before = before[-(window + 1 - len(wanted)) :]  # the last token is predicted and not read
    return ScoredIds(before, wanted, 0)


def _beginning(writer: TextWriter, text: str, most: int) -> list[int]:
    """Of a prompt that is too long the end is kept, with room for `most` tokens after it."""
    ids = writer.encode(text) if text else [_first_of(writer, "start", "end")]
    window = writer.model.longest
    return ids if window is None else ids[-(window - most) :]


def _text(writer: TextWriter, ids: Sequence[int], stops: Sequence[str]) -> str:
    """The text of the new tokens alone: some tokenizers then leave out a space before the first word."""
    text = writer.tokenizer.decode(ids)
    for stop in stops:
        text = text.split(stop)[0]
    return text
