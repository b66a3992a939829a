"""One token after another: the loop that greedy decoding and sampling share.

Shapes: m sources or prompts, r live rows, v vocabulary, n alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qkv.generate.choose import Chooser, TheLikeliest, likeliest, top
from qkv.generate.continuation import Continuation
from qkv.generate.history import Forbidden, History, Shaper, shaped
from qkv.generate.line import Alternative, Line
from qkv.generate.standing import Standing, standing
from qkv.parts.precision import widened


@torch.inference_mode()
def write(
    continuation: Continuation,
    lines: Sequence[Line],
    chooser: Chooser,
    shapers: Sequence[Shaper] = (),
    *,
    alternatives: int = 0,
    forbidden: Tensor | None = None,
    note_shaped: bool = False,
) -> Iterator[None]:
    """Carry on each line until it ends; yields after each step.

    Several lines may begin alike: line i is written from source i // (lines / sources). A line leaves the batch as soon
    as it ends, so a step costs only its live rows. The log-probabilities noted are the model's own, whatever shapers
    and `forbidden` then do to the choice; with `note_shaped`, those that shapers leave to be chosen from.
    """
    if not lines:
        return
    continuation = standing(continuation, max(line.limit for line in lines), alone=len(lines) == 1)
    try:
        yield from _written(continuation, lines, chooser, shapers, alternatives, forbidden, note_shaped)
    finally:
        continuation.close()


def _written(
    continuation: Continuation,
    lines: Sequence[Line],
    chooser: Chooser,
    shapers: Sequence[Shaper],
    alternatives: int,
    forbidden: Tensor | None,
    note_shaped: bool,
) -> Iterator[None]:
    logits = continuation.begin()  # [m v]
    if isinstance(chooser, TheLikeliest) and not alternatives and not note_shaped:
        forbidden, shapers = _forbidden(forbidden, shapers, continuation)
    if len(lines) > len(logits):
        rows = torch.arange(len(logits), device=continuation.device).repeat_interleave(len(lines) // len(logits))
        continuation.select(rows, rows)
        logits = logits[rows]
    history = History.of_prompts([line.prompt for line in lines], continuation.device) if shapers else None
    live = list(lines)  # by row
    while live:
        tokens, own, others = _choose(logits, history, live, chooser, shapers, alternatives, forbidden, note_shaped)
        stay = [
            row
            for row, (line, token, log_probability) in enumerate(zip(live, tokens.tolist(), own, strict=True))
            if line.add(token, log_probability, others[row])
        ]
        yield
        if history is not None:
            history.append(tokens)
        if len(stay) < len(live):
            live = [live[row] for row in stay]
            if not live:
                return
            rows = torch.tensor(stay, device=continuation.device)
            tokens = tokens[rows]
            continuation.select(rows, rows)
            if history is not None:
                history.select(rows)
        if isinstance(continuation, Standing) and history is None and isinstance(chooser, TheLikeliest):
            rounds = None if alternatives else continuation.rounds(tokens, max(line.left for line in live), forbidden)
            if rounds is not None:
                yield from _taken(rounds, live)
                return
        logits = continuation.advance(tokens[:, None])


def _taken(rounds: Iterator[tuple[list[int], list[float]]], lines: Sequence[Line]) -> Iterator[None]:
    """Tokens that a device chose by itself, some of them for lines that have ended meanwhile."""
    for tokens, own in rounds:
        for line, token, log_probability in zip(lines, tokens, own, strict=True):
            if line.live:
                line.add(token, log_probability)
        yield
        if not any(line.live for line in lines):
            return


def _forbidden(
    ids: Tensor | None, shapers: Sequence[Shaper], continuation: Continuation
) -> tuple[Tensor | None, Sequence[Shaper]]:
    """All that is never written, where shapers do nothing else but forbid; then none of them is left."""
    tokens = {token for shaper in shapers if isinstance(shaper, Forbidden) for token in shaper.tokens}
    only = all(isinstance(shaper, Forbidden) for shaper in shapers)
    if not tokens or not only or not 0 <= min(tokens) <= max(tokens) < continuation.vocabulary:
        return ids, shapers
    tokens.update([] if ids is None else ids.tolist())
    return torch.tensor(sorted(tokens), device=continuation.device), ()


def _choose(
    logits: Tensor,
    history: History | None,
    lines: Sequence[Line],
    chooser: Chooser,
    shapers: Sequence[Shaper],
    alternatives: int,
    forbidden: Tensor | None,
    note_shaped: bool,
) -> tuple[Tensor, list[float], list[list[Alternative]]]:
    """The next token of each row, its log-probability, and its alternatives."""
    if history is None and isinstance(chooser, TheLikeliest) and not alternatives:
        best, tokens = likeliest(logits, 1, forbidden)
        return tokens[:, 0], best[:, 0].tolist(), [[]] * len(lines)
    # What is forbidden goes first: a shaper that keeps the likeliest few must not keep nothing else.
    scores = logits if forbidden is None else logits.index_fill(-1, forbidden, -torch.inf)
    if history is not None:
        scores = shaped(scores, history, shapers)
    tokens = chooser.choose(scores, [line.chance for line in lines])  # [r]
    own = widened(scores if note_shaped else logits).log_softmax(-1)  # [r v]
    return tokens, own.gather(1, tokens[:, None])[:, 0].tolist(), best_of(own, alternatives)


def best_of(log_probabilities: Tensor, count: int) -> list[list[Alternative]]:
    """The `count` likeliest tokens of each row. [r v]"""
    if not count:
        return [[]] * len(log_probabilities)
    best, tokens = top(log_probabilities, count)
    return [
        [Alternative(token, value) for token, value in zip(row_tokens, row_best, strict=True)]
        for row_tokens, row_best in zip(tokens.tolist(), best.tolist(), strict=True)
    ]
