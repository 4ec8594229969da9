"""Chooses the batches of jobs that have their GPUs, and explains both to their users."""

from __future__ import annotations

from math import isfinite
from typing import Any

from rota.model.allocation import Allocation, gpus_text
from rota.model.notes import Notes
from rota.model.view import View, WhatIf
from rota.policy.pollux.models import Knowledge, Shape
from rota.predict.goodput import BatchChoice, Goodput
from rota.predict.goodput_table import TableCache

RETUNE_GAIN = 1.05  # least ratio of goodputs for a change of batch on unchanged GPUs


def settle(
    view: View,
    what_if: WhatIf,
    known: dict[int, Knowledge],
    tables: TableCache,
    horizon_s: float,
    told: Notes,
) -> None:
    """Choose jobs' batches where they are now, and record explanations for users.

    A live job that stays on its GPUs keeps a change for ``horizon_s``, because its measurements are
    uncertain.
    """
    asked: list[tuple[Goodput, Shape]] = []
    settled = []
    for row, each in known.items():
        target = what_if.target(row)
        if target is not None:
            settled.append((row, target))
            if each.model is not None:
                asked += [(each.model, (target.num_gpus, len(target.parts)))]
                asked += [(each.model, (1, 1))]
    choices = iter(tables.choices(asked))
    for row, target in settled:
        before, model = view.target[row], known[row].model
        moved = before is None or target.parts != before.parts
        if model is None:
            why = f"{gpus_text(target.num_gpus)}{_why_unknown(view, row)}"
        else:
            best, alone = next(choices), next(choices)
            why = _why(target, best, alone)
            if moved or not _takes_back(view, row, target, best, horizon_s):
                target = _with_batch(what_if, row, model, target, best, moved)
        if moved or target != before:
            told.why[row] = why
            mark: dict[str, Any] = {"restarts": restarts_of(view, row) + moved}
            live = not view.spec[row].simulated
            if live and not moved and before is not None:
                mark["retuned"] = [view.now_s, _samples(target) > _samples(before)]
            what_if.mark(row, mark)
    for row, each in known.items():
        told.warnings[row] = each.warnings


def _with_batch(
    what_if: WhatIf,
    row: int,
    model: Goodput,
    target: Allocation,
    best: BatchChoice,
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
        what_if.change(row, tuned)
    return tuned


def _takes_back(
    view: View, row: int, target: Allocation, best: BatchChoice, horizon_s: float
) -> bool:
    """True if the batch would shrink soon after it has grown, or grow soon after it has shrunk.

    A batch that the job may not have any more is changed without waiting.
    """
    told = (view.marks[row] or {}).get("retuned")
    limits = view.batch_range(row)
    if told is None or target.batch is None or limits is None:
        return False
    at_s, grew = told
    if view.now_s >= at_s + horizon_s or target.batch[0] > limits.most_per_gpu:
        return False
    grows = best.batch * (best.accumulation + 1) * target.num_gpus > _samples(target)
    return grows != bool(grew)


def _samples(allocation: Allocation) -> int:
    """Samples of a whole batch; 0 if the job chooses its own."""
    size, accumulation = allocation.batch or (0, 0)
    return allocation.num_gpus * size * (accumulation + 1)


def restarts_of(view: View, row: int) -> int:
    """Number of times that the job has started or changed its GPUs."""
    mark = view.marks[row]
    return int(mark.get("restarts", 0)) if mark else 0


def _why_unknown(view: View, row: int) -> str:
    """For the user: why a job has GPUs although its goodput is unknown."""
    spec = view.spec[row]
    if not spec.simulated and spec.adapt is None:
        return (
            ": its batches are its own, so that its goodput is not known; with batch: "
            "{mode: adapt} in its job file they are chosen, and its GPUs by goodput"
        )
    return ", to be measured: nothing is known of its kind yet"


def _why(target: Allocation, best: BatchChoice, alone: BatchChoice) -> str:
    """For the user: why a job has its GPUs. Names the time, since goodputs may change later."""
    times = ""
    if alone.goodput and target.num_gpus > 1:
        times = f", {best.goodput / alone.goodput:.2f} times one GPU's"
    does = f"{best.goodput:.4g} useful samples a second{times}, when this was decided"
    return f"{gpus_text(target.num_gpus)}: {does}"
