"""Contrastive search: a likely token whose state is unlike all states before it.

Shapes: r rows, k candidates, s slots, d width, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.choose import check_possible, top
from qkv.generate.continuation import FromPrompts
from qkv.generate.history import History, shaped
from qkv.generate.strategy import Job, Strategy
from qkv.generate.write import best_of
from qkv.parts.precision import widened


@dataclass(frozen=True)
class Contrastive(Strategy):
    """argmax over the k likeliest tokens of (1 − α)·p(v) − α·max_j cos(h_v, h_j). [su2022 eq.5]

    h_v is the state of the candidate once it is read, h_j that of every token before it, the prompt's too. With α = 0
    the search is greedy.
    """

    candidates: int = 4  # k
    weight: float = 0.6  # α

    def __post_init__(self) -> None:
        if self.candidates < 1 or not 0 <= self.weight <= 1:
            raise QkvError(
                f"Contrastive search needs 1 candidate at least and a weight from 0 to 1, not {self.candidates} and "
                f"{self.weight}."
            )

    @torch.inference_mode()
    def write(self, job: Job) -> Iterator[None]:
        if job.slide is not None:
            raise QkvError("Contrastive search compares with all states of a text: the window cannot slide.")
        rows = FromPrompts(job.model, job.prompts, most=job.most, unread=0)  # the last token is weighed by its state
        states, real = rows.prompt_states()  # [r s d] [r s]
        logits, past = rows.logits(states[:, -1:])[:, 0], F.normalize(widened(states), dim=-1)
        history = History.of_prompts([line.prompt for line in job.lines], rows.device) if job.shapers else None
        live = list(job.lines)
        while True:
            scores = logits if history is None else shaped(logits, history, job.shapers)
            check_possible(scores.amax(-1))
            probabilities, tokens = top(widened(scores).softmax(-1), self.candidates)  # [r k] [r k]
            count = tokens.shape[1]
            places = torch.arange(len(live), device=rows.device)  # [r]
            rows.select(places.repeat_interleave(count))
            read = rows.states(tokens.reshape(-1, 1))  # [r·k 1 d]
            chosen = self._best(probabilities, read.unflatten(0, (-1, count))[:, :, 0], past, real)  # [r]
            token = tokens.gather(1, chosen[:, None])[:, 0]  # [r]
            own = widened(logits).log_softmax(-1)
            others = best_of(own, job.alternatives)
            stay = [
                row
                for row, (line, new, log_probability) in enumerate(
                    zip(live, token.tolist(), own.gather(1, token[:, None])[:, 0].tolist(), strict=True)
                )
                if line.add(new, log_probability, others[row])
            ]
            yield
            live = [live[row] for row in stay]
            if not live:
                return
            kept = torch.tensor(stay, device=rows.device)
            chosen_rows = (places * count + chosen)[kept]
            rows.select(chosen_rows)
            state = read[chosen_rows]  # [r 1 d]
            logits = rows.logits(state)[:, 0]
            past = torch.cat((past[kept], F.normalize(widened(state), dim=-1)), 1)
            real = F.pad(real[kept], (0, 1), value=True)
            if history is not None:
                history.append(token)
                history.select(kept)

    def _best(self, probabilities: Tensor, states: Tensor, past: Tensor, real: Tensor) -> Tensor:
        """[r k], [r k d], [r s d], [r s] → [r]"""
        likeness = F.normalize(widened(states), dim=-1) @ past.transpose(1, 2)  # [r k s]
        likeness = likeness.masked_fill(~real[:, None], -torch.inf).amax(-1)  # [r k]
        scores = (1 - self.weight) * probabilities - self.weight * likeness
        return scores.masked_fill(probabilities == 0, -torch.inf).argmax(-1)
