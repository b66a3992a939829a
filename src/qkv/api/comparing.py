"""Variants of a language model side by side: one data set, one budget, several seeds, one table and one page.

Every variant reads the same rows: one stream of all documents, cut at the same places, so that an attention that
cannot tell packed documents apart is compared with others fairly.
"""

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.api.choices import NewTokenizer
from qkv.api.compared_folder import must_agree, records_of, write_into
from qkv.api.compared_texts import ComparedTexts
from qkv.api.comparison import Comparison, Moment, Outcome, Run, Speed, run_of
from qkv.api.comparison_page import write_comparison
from qkv.api.language import stream, train_language_model
from qkv.api.loading import load
from qkv.api.runs import check_folder, parameters_of
from qkv.api.texts import new_text_model
from qkv.api.variants import Setup, Variant, check_variants
from qkv.data.plan import FixedShapes
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json
from qkv.generate.language import TextWriter
from qkv.models.attention_choice import AttentionChoice
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.device import device_name
from qkv.train.by_context import bits_by_context
from qkv.train.cost.prediction import Cost, predict
from qkv.train.cost.profile import find_profile
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.rehearsal import rehearse, step_speed
from qkv.train.reporter import Reporter
from qkv.train.settings import TrainSettings

MEASURED, VARIANT = "measured.json", "variant.json"
# The last weights, not the best: nothing is chosen by the held-out text that variants are compared on.
SETTINGS = TrainSettings(minutes=1, evaluations=10, average=1, save_every=500, keep=1, log_every=10)
AGAIN = "give the same command again: what is finished is kept"
# Settings of a training that say nothing about what it computes, or that a setup has of its own.
UNCOMPARED = ("seed", "device", "precision", "log_every", "keep", "save_every")


def compare(
    texts: Sequence[str],
    folder: Path | str,
    variants: Sequence[Variant],
    *,
    common: Setup = Setup(),  # noqa: B008 (frozen)
    settings: TrainSettings = SETTINGS,
    seeds: int = 1,
    valid: Sequence[str] | None = None,
    hold_out: float = 0.05,
    tokenizer: NewTokenizer | TextTokenizer = NewTokenizer("bpe", 8000),  # noqa: B008 (frozen)
    length: int = 256,
    speed_lengths: Sequence[int] = (),
    reporter: Callable[[], Reporter] = partial(Reporter, to_go_on=AGAIN),  # noqa: B008 (never changed)
    overwrite: bool = False,
    write: Callable[[Comparison, Path], None] | None = None,
) -> Comparison:
    """Train every variant with every seed within the budget of `settings`, and write what came of it into `folder`.

    The others are measured against the first variant. A run that is finished is kept when the same comparison is asked
    for again, and one that was stopped goes on; seeds and variants may be added. A variant that cannot be trained is
    told before anything is. With `speed_lengths` a training step is timed on rows of each of these lengths too. `write`
    leaves the comparison in the folder: by default its figures, a table, a page and pictures.
    """
    check_variants(variants)
    for name, value in (("seeds", seeds), ("length", length), *(("speed length", each) for each in speed_lengths)):
        if value < 1:
            raise QkvError(f"A comparison needs {name} of at least 1, but {value} was asked for.")
    folder = Path(folder)
    data = ComparedTexts(texts, valid, hold_out, tokenizer, folder, begin_anew=overwrite)
    work = _Work(folder, data, common, settings, length, overwrite, reporter)
    work.check(variants, seeds)
    outcomes = []
    for number, variant in enumerate(variants):
        runs = []
        for seed in range(seeds):
            work.say(f"{variant.name}, seed {seed} (run {number * seeds + seed + 1} of {len(variants) * seeds})")
            runs.append(work.run(variant, seed))
        speeds = [work.speed(variant, each) for each in speed_lengths]
        outcomes.append(Outcome(variant.name, work.setup(variant).described(), tuple(runs), tuple(speeds)))
    comparison = Comparison(work.about(), tuple(outcomes))
    (write or write_comparison)(comparison, folder)
    return comparison


class _Work:
    """What a comparison does with each variant."""

    def __init__(
        self,
        folder: Path,
        data: ComparedTexts,
        common: Setup,
        settings: TrainSettings,
        length: int,
        overwrite: bool,
        reporter: Callable[[], Reporter],
    ) -> None:
        self.folder, self.data, self.common, self.settings = folder, data, common, settings
        self.length, self.overwrite, self.reporter = length, overwrite, reporter
        self.device = settings.torch_device()
        self.costs: dict[str, Cost] = {}

    def say(self, line: str) -> None:
        self.reporter().say(line)

    def setup(self, variant: Variant) -> Setup:
        return self.common.changed(variant.changes)

    def about(self) -> dict[str, Any]:
        """What all variants share."""
        budget = {"steps": self.settings.steps, "minutes": self.settings.minutes, "FLOPs": self.settings.flops}
        return {
            "budget": ", ".join(f"{value:.6g} {name}" for name, value in budget.items() if value is not None),
            "tokens of a row": self.length,
            "documents to train on": len(self.data.to_train),
            "held out": len(self.data.to_validate),
            "device": "CPU" if self.device.type == "cpu" else device_name(self.device),
            "memory": "measured" if self.device.type == "cuda" else "told from the shapes of all tensors of a step",
            "data": self.data.fingerprint,
        }

    def check(self, variants: Sequence[Variant], seeds: int) -> None:
        """Everything that would stop a variant is told before the first one trains."""
        for variant in variants:
            place = self.folder / variant.folder
            runs = [place / str(seed) for seed in range(seeds)]
            if (place / VARIANT).exists() and not self.overwrite:
                must_agree(read_json(place / VARIANT), self._described(variant), place)
            for run in runs:
                check_folder(run, resume=(run / "run.json").exists(), overwrite=self.overwrite)
            if all((run / MEASURED).exists() for run in runs) and not self.overwrite:
                continue
            self.say(f"Trying a step of {variant.name}.")
            try:
                self._rehearse(self.setup(variant))
            except QkvError as error:
                raise QkvError(f"The variant {variant.name} cannot be trained: {error}") from error
            except torch.OutOfMemoryError as error:
                shape = f"{self.setup(variant).batch_rows} rows of {self.length} tokens"
                raise QkvError(
                    f"The variant {variant.name} does not fit into the memory with {shape}: give fewer or shorter ones."
                ) from error
        for variant in variants:
            place = self.folder / variant.folder
            write_into(place, VARIANT, self._described(variant))
            for seed in range(seeds) if self.overwrite else ():
                (place / str(seed) / MEASURED).unlink(missing_ok=True)

    def run(self, variant: Variant, seed: int) -> Run:
        """Trained and measured now, or before."""
        place, setup = self.folder / variant.folder / str(seed), self.setup(variant)
        if (place / MEASURED).exists():
            self.say(f"{place} is finished.")
            return run_of(read_json(place / MEASURED))
        finished = any(record["kind"] == "final" for record in records_of(place)) and not self.overwrite
        writer = load(place, self.settings.device) if finished else self._train(setup, seed, place)
        run = self._measured(writer, setup, seed, records_of(place))
        del writer
        self._clear()
        write_into(place, MEASURED, asdict(run))
        return run

    def speed(self, variant: Variant, length: int) -> Speed:
        """A training step on rows of another length, as many tokens together as in training, or one row."""
        place, file, setup = self.folder / variant.folder, f"speed-{length}.json", self.setup(variant)
        if (place / file).exists() and not self.overwrite:
            return Speed(**read_json(place / file))
        rows = max(1, setup.batch_rows * self.length // length)
        self.say(f"{variant.name}: timing steps of {rows} × {length:,} tokens.")
        speed = Speed(length, rows, None, None)
        try:
            model = self._new_model(setup, length).to(self.device)
            batch = self.data.random_rows(rows, length)
            objective = with_expert_losses(model, LanguageLoss())
            found = step_speed(model, objective, batch, setup.settings(self.settings), setup.optimizer(model))
            speed = Speed(length, rows, round(found.tokens_per_second, 1), found.peak_memory)
        except torch.OutOfMemoryError:
            self.say(f"{variant.name} does not fit into the memory with rows of {length:,} tokens.")
        except QkvError as error:  # such as positions that were chosen for shorter rows
            self.say(f"{variant.name} is not timed: {error}")
        self._clear()
        write_into(place, file, asdict(speed))
        return speed

    def _train(self, setup: Setup, seed: int, place: Path) -> TextWriter:
        cost = self._cost(setup)
        return train_language_model(
            self.data.shared,
            place,
            tokenizer=self.data.tokenizer,
            family=setup.family,
            sizes=setup.sizes,
            attention=setup.attention,
            length=self.length,
            rows=stream,
            batching=FixedShapes(setup.batch_rows * (self.length + 1), (self.length,)),  # programs are made once
            settings=setup.settings(self.settings, seed),
            optimizer=setup.optimizer,
            schedule=setup.schedule(),
            flops_per_token=cost.flops / cost.counted,
            foretold=None if cost.seconds is None else cost,
            reporter=self.reporter(),
            resume=(place / "run.json").exists() and not self.overwrite,
            overwrite=self.overwrite,
        )

    def _measured(self, writer: TextWriter, setup: Setup, seed: int, records: list[dict[str, Any]]) -> Run:
        """The history of a run, and what its weights say of held-out rows by their context."""
        writer.model.eval()
        with torch.no_grad(), setup.settings(self.settings).autocast(self.device):
            contexts = bits_by_context(writer.model, self.data.held_out_batches(self.length), self.length)
        final = next(record for record in reversed(records) if record["kind"] == "final")
        costs = ("step", "tokens", "flops", "seconds")
        # On a GPU what steps held at most, without evaluations; on a CPU that cannot be told from what others hold.
        memory = final.get("peak_memory") if self.device.type == "cuda" else self._cost(setup).memory.total
        return Run(
            seed=seed,
            parameters=parameters_of(writer.model),
            **{cost: final[cost] for cost in costs},
            bits_per_byte=final["figures"]["bits_per_byte"],
            peak_memory=memory,
            moments=tuple(
                Moment(**{cost: each[cost] for cost in costs}, bits_per_byte=each["figures"]["bits_per_byte"])
                for each in records
                if each["kind"] == "evaluation" and each["figures"]["bits_per_byte"] is not None
            ),
            contexts=tuple(contexts),
            replayed=final.get("replayed", 0.0) if self._records else None,
        )

    @property
    def _records(self) -> bool:
        """Whether steps are recorded where they can be."""
        asked = self.settings.record
        return self.device.type == "cuda" and not self.settings.deterministic if asked is None else asked

    def _rehearse(self, setup: Setup) -> None:
        """A step as training will take it."""
        setup.schedule()
        model = self._new_model(setup, self.length)
        self._cost(setup, model)
        setup.optimizer(model)
        batch = self.data.random_rows(setup.batch_rows, self.length)
        rehearse(model, with_expert_losses(model, LanguageLoss()), batch, setup.settings(self.settings))
        del model
        self._clear()

    def _cost(self, setup: Setup, model: TextModel | None = None) -> Cost:
        """Of a step, as this device computes it: of tiles that are skipped no operations are counted."""
        key = json.dumps(setup.described(), sort_keys=True)
        if key in self.costs:
            return self.costs[key]
        model = model or self._new_model(setup, self.length)
        batch = self.data.random_rows(setup.batch_rows, self.length)
        # Of a GPU the times are told too, where it was measured: a training would tell them once more.
        profile = find_profile(str(self.device)) if self.device.type == "cuda" else None
        how: dict[str, Any] = {"place": self.device, "profile": profile, "device": str(self.device)}
        objective, settings = with_expert_losses(model, LanguageLoss()), setup.settings(self.settings)
        self.costs[key] = predict(model, objective, batch, settings, optimizer=setup.optimizer, **how)
        return self.costs[key]

    def _new_model(self, setup: Setup, length: int) -> TextModel:
        torch.manual_seed(0)
        choice, head = AttentionChoice.of(setup.attention), HeadChoice("language")
        model = new_text_model(setup.family, setup.sizes, head, self.data.cutter, length, choice)
        if model.longest is not None and length > model.longest:
            raise QkvError(f"Rows of {length} tokens are longer than the {model.longest} that the model reads.")
        return model

    def _described(self, variant: Variant) -> dict[str, Any]:
        """All that a finished run must agree with."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in UNCOMPARED}
        described = {
            "setup": self.setup(variant).described(),
            "settings": settings,
            "length": self.length,
            "data": self.data.fingerprint,
            "tokenizer": self.data.tokenizer.fingerprint(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(described))  # as it is on disk
        return plain

    def _clear(self) -> None:
        """Room for the next model."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
