"""The batches of jobs that have their GPUs, and what their users are told of both."""

from __future__ import annotations

from math import isfinite
from typing import Any

from rota.model.allocation import Allocation, gpus_text
from rota.model.reason import Reason
from rota.model.view import Trial, View
from rota.policy.pollux_models import Knowledge, Models, Shape
from rota.predict.goodput import Choice, Goodput

RETUNE_GAIN = 1.05  # of goodput, for which a batch is changed that has its GPUs already


def settle(view: View, trial: Trial, known: dict[int, Knowledge], models: Models) -> None:
    """Choose jobs' batches where they are now, and remember what users may want to know."""
    asked: list[tuple[Goodput, Shape]] = []
    settled, marks = [], dict[int, dict[str, Any]]()
    for row, each in known.items():
        target = trial.target(row)
        if target is not None:
            settled.append((row, target))
            if each.model is not None:
                asked += [(each.model, (target.num_gpus, len(target.parts)))]
                asked += [(each.model, (1, 1))]
    choices = iter(models.choices(asked))
    for row, target in settled:
        before, model = view.target[row], known[row].model
        moved = before is None or target.parts != before.parts
        why = f"{gpus_text(target.num_gpus)}, to be measured: nothing is known of its kind yet"
        if model is not None:
            best, alone = next(choices), next(choices)
            why = _why(target, best, alone)
            target = _with_batch(trial, row, model, target, best, moved)
        if moved or target != before:
            marks[row] = {"restarts": restarts_of(view, row) + moved, "why": why}
    for row, each in known.items():
        mark = _with_warnings(marks.get(row), view.marks[row], each.warnings)
        if mark is not None:
            trial.mark(row, mark)


def _with_batch(
    trial: Trial,
    row: int,
    model: Goodput,
    target: Allocation,
    best: Choice,
    moved: bool,
) -> Allocation:
    if not best.goodput > 0:  # nor if it is no number
        return target
    if not moved and target.batch is not None:
        now = model.goodput(target.num_gpus, len(target.parts), *target.batch)
        if isfinite(now) and best.goodput <= RETUNE_GAIN * now:
            return target
    tuned = target.with_batch((best.batch, best.accumulation))
    if tuned != target:
        trial.release(row, Reason.NONE)
        trial.give(row, tuned)
    return tuned


def restarts_of(view: View, row: int) -> int:
    """How often the job has begun or changed its GPUs."""
    mark = view.marks[row]
    return int(mark.get("restarts", 0)) if mark else 0


def _with_warnings(
    new: dict[str, Any] | None, old: dict[str, Any] | None, warnings: tuple[str, ...]
) -> dict[str, Any] | None:
    """A job's mark with what it is to be warned of; None if the old one will do."""
    if new is None and list(warnings) == (old or {}).get("warnings", []):
        return None
    mark = dict((old if new is None else new) or {})
    mark.pop("warnings", None)
    return mark | {"warnings": list(warnings)} if warnings else mark


def _why(target: Allocation, best: Choice, alone: Choice) -> str:
    """Why a job has its GPUs, for its user."""
    times = f", {best.goodput / alone.goodput:.2f} times one GPU's" if alone.goodput else ""
    return f"{gpus_text(target.num_gpus)}: {best.goodput:.4g} useful samples a second{times}"
