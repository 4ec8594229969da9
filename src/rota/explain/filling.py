"""Which background jobs fill which foreground jobs' GPUs, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from rota.model.events import FillMeasured
from rota.model.job import BACKGROUND, FOREGROUND, JobState, Suspension
from rota.model.naming import jobs_text
from rota.model.notes import Undone
from rota.model.reason import Reason
from rota.model.state.state import ClusterState

Blocker = tuple[str, str, list[str]]  # need, supply, and the jobs in the way

NOT_PLACED = "the policy places no background job: fill=off"
TURN_ON = "`rota up --set fill=on`"


def filling_of(state: ClusterState, row: int) -> dict[str, Any] | None:
    """``{"role", "with", "on", "harvest", "slowdown", "interval", "limit", "sentence"}`` as JSON.

    Of a background job: the foreground jobs beside it, where that is, the part of its own speed
    that it has there, by what factor it lengthens their steps, the interval ``[low, high]`` of that
    with 95 % confidence, and by what factor it may; a job that waits has nobody, and None for the
    rest. Of a foreground job: the background jobs that fill
    its GPUs, their harvest in sum, and the largest slowdown. None of a foreground job that nobody
    fills, and of a job that has ended. ``harvest``, ``slowdown`` and ``interval`` are None if
    nothing was told.
    """
    if JobState(state.state[row]).is_final:
        return None
    is_background = state.spec[row].is_background
    mates = beside(state, row)
    if not is_background and not mates:
        return None
    fillers = (row,) if is_background else tuple(mates)
    reports = [told for each in fillers if (told := _told(state, each)) is not None]
    slowed = [each for each in reports if mates and isfinite(each.slowdown)]
    worst = max(slowed, key=lambda each: each.slowdown, default=None)
    limits = [state.spec[each].max_slowdown for each in (mates if is_background else (row,))]
    filling: dict[str, Any] = {
        "role": BACKGROUND if is_background else FOREGROUND,
        "with": state.ids(mates),
        "on": _where(state, row, mates),
        "harvest": _sum(report.harvest for report in reports),
        "slowdown": worst.slowdown if worst is not None else None,
        "interval": [worst.low, worst.high] if worst is not None and worst.pairs else None,
        "limit": min(limits, default=None),
    }
    return filling | {"sentence": _sentence(state, row, filling)}


def beside(state: ClusterState, row: int) -> list[int]:
    """The rows of the jobs of the other layer that hold some of the GPUs that the job holds."""
    held = state.held[row]
    if held is None or not state.has_background_jobs:
        return []
    rows = state.background if not held.background else state.active.keys() | state.staying.keys()
    found = []
    for other in sorted({*rows, *state.unsettled}):
        theirs = state.held[other]
        if theirs is not None and theirs.background != held.background and theirs.meets(held):
            found.append(other)
    return found


def warning(state: ClusterState, row: int, *, fills: bool) -> str | None:
    """A sentence with the fix if the role of a job has no effect; None if it has.

    ``fills`` is True if there is a stage that places background jobs.
    """
    share = state.spec[row].share
    if share is None or JobState(state.state[row]).is_final:
        return None
    if share.role == FOREGROUND and share.max_slowdown is None:  # it says nothing but a weight
        return None
    if fills:
        if share.role == BACKGROUND or not _tells_no_steps(state, row):
            return None
        return (
            "share.max_slowdown can't be judged: the program tells nothing of its steps, so that "
            "background jobs fill its idle moments alone; rota.train.session() tells them"
        )
    if share.role == BACKGROUND:
        return (
            f"share.role has no effect: background jobs wait while fill=off; {TURN_ON} lets it run"
        )
    return f"share has no effect: nothing is run beside it while fill=off; {TURN_ON} changes that"


def _tells_no_steps(state: ClusterState, row: int) -> bool:
    """True of a live program that runs, and has no session that would tell its steps."""
    runs = state.state[row] == JobState.RUNNING and not state.spec[row].simulated
    has_session = state.suspension[row] in (Suspension.UNKNOWN, Suspension.BOUNDARY)
    return runs and not has_session and (state.progress[row] or {}).get("step") is None


def standing(state: ClusterState, row: int, now_s: float, *, fills: bool) -> Blocker:
    """The blocker of a background job that waits."""
    gpus = state.spec[row].num_gpus
    need = "a GPU that foreground jobs leave idle, or a part of one"
    if gpus > 1:
        need = f"{gpus} GPUs of one node that foreground jobs leave idle, or parts of such"
    if not fills:
        return need, NOT_PLACED, []
    fillers = [other for other in sorted(state.background) if state.held[other] is not None]
    have = state.notes.why.get(row) or "no GPU has a gap for it yet"
    undone = state.notes.undone.get(row)
    if undone is not None and state.reason[row] == Reason.FILL_UNDONE:
        whom = jobs_text(state.ids([undone.beside]))
        left_s = max(0.0, undone.again_s - now_s)
        have = (
            f"beside {whom} it made a step take {_times(undone)} as long, "
            f"{undone.limit:.3g} at most; it is tried there again in {left_s:.0f} s; {have}"
        )
    return need, have, state.ids(fillers)


def would_start_if(state: ClusterState, row: int, *, fills: bool) -> str:
    """The changes that would let a background job start."""
    if not fills:
        return f"background jobs were placed: {TURN_ON}"
    gpus = state.spec[row].num_gpus
    idle = "a GPU was idle" if gpus == 1 else f"{gpus} GPUs of a node were idle"
    if state.reason[row] == Reason.FILL_UNDONE:
        return f"{idle}, or its pause was over"
    return f"{idle}, a foreground job left more of one, or a job that fills one ended"


def _told(state: ClusterState, row: int) -> FillMeasured | None:
    """The last report on a background job, if it is of where it is now."""
    told, since_s = state.fill_measured.get(row), state.since_s[row]
    if told is None or not 0 <= since_s <= told.at_s:
        return None
    mates = beside(state, row)
    return told if told.beside in mates or (told.beside < 0 and not mates) else None


def _times(undone: Undone) -> str:
    """``1.42 times (1.3 to 1.55)``: by how much steps became longer, with the interval."""
    of = "" if undone.low is None else f" ({undone.low:.3g} to {undone.high:.3g})"
    return f"{undone.slowdown:.3g} times{of}"


def _sum(values: Iterable[float]) -> float | None:
    known = [value for value in values if isfinite(value)]
    return sum(known) if known else None


def _where(state: ClusterState, row: int, mates: Iterable[int]) -> str | None:
    """The GPUs of the job on which a background job is."""
    held = state.held[row]
    if held is None:
        return None
    if held.background:
        return state.places(held.parts)
    mine = dict(held.parts)
    masks: dict[int, int] = {}
    for other in mates:
        place = state.held[other]
        for node, mask in place.parts if place is not None else ():
            masks[node] = masks.get(node, 0) | (mask & mine.get(node, 0))
    return state.places(sorted((node, mask) for node, mask in masks.items() if mask))


def _sentence(state: ClusterState, row: int, told: dict[str, Any]) -> str:
    """``beside job 3 on here:0, at 38 % of its speed alone; kept beside job 3``."""
    whom, percent = told["with"], told["harvest"]
    if told["role"] == FOREGROUND:
        words = [f"{jobs_text(whom)} {'fills' if len(whom) == 1 else 'fill'} {told['on']}"]
        if percent is not None:
            words.append(f"at {100 * percent:.0f} % of the speed alone")
    else:
        if told["on"] is None:
            return "it has no GPU"
        words = [f"beside {jobs_text(whom)} on {told['on']}" if whom else f"alone on {told['on']}"]
        if percent is not None:
            words.append(f"at {100 * percent:.0f} % of its speed alone")
    if told["slowdown"] is not None:
        interval = told["interval"]
        of = f"{interval[0]:.3g} to {interval[1]:.3g}, " if interval else ""
        limit = f"{of}limit {told['limit']:.3g}"
        words.append(f"foreground steps take {told['slowdown']:.3g} times as long ({limit})")
    elif told["role"] == FOREGROUND:
        words.append(f"nothing is told of its steps (limit {told['limit']:.3g})")
    why = state.notes.why.get(row) if told["role"] == BACKGROUND else None
    return ", ".join(words) + (f"; {why}" if why else "")
