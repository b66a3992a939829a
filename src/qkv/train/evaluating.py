"""Validation in the middle of a run: the figures, what they say about the weights, and no trace in the training."""

from contextlib import AbstractContextManager, nullcontext

import torch

from qkv.errors import QkvError
from qkv.train.evaluation import Evaluate, finite_or_none, shared_by
from qkv.train.random_state import preserved_random_state
from qkv.train.session import Session


def evaluate_now(session: Session, evaluate: Evaluate) -> bool:
    """Record the validation figures; says whether they are the best so far."""
    settings, state = session.settings, session.state
    figures = figures_of(session, evaluate, session.moving.inside() if session.moving is not None else nullcontext())
    if settings.watch not in figures:
        raise QkvError(f"Evaluation gave {', '.join(figures)}, but the setting watch asks for {settings.watch}.")
    improved = settings.improves(figures[settings.watch], state.best_score)
    if improved:
        state.best_score, state.best_step = figures[settings.watch], state.step
        state.best_figures = finite_or_none(figures)
    state.evaluations_since_best = 0 if improved else state.evaluations_since_best + 1
    state.evaluated_at, state.evaluations = state.step, settings.evaluations_due(session.progress())
    session.record("evaluation", figures, best=improved)
    session.reporter.evaluation(state.step, figures, improved)
    return improved


def figures_of(session: Session, evaluate: Evaluate, weights: AbstractContextManager[None]) -> dict[str, float]:
    """Evaluation leaves no trace: not in the random numbers, the weights, the mode, the training time."""
    session.publish(session.meter.collect())
    uncompiled = torch.compiler.set_stance("force_eager")
    with session.stopwatch.paused(), preserved_random_state(), torch.no_grad(), weights, uncompiled:
        session.model.eval()
        with session.settings.autocast(session.device), shared_by(session.team):
            measured = session.team.inside(lambda: evaluate(session.model))
            figures = session.team.figures({name: float(value) for name, value in measured.items()})
        session.model.train()
    return figures
