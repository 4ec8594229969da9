"""Sentences on why a background job has the GPU that it has, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from rota.model.naming import jobs_text
from rota.model.view import View
from rota.policy.fill.gaps import Gap
from rota.policy.fill.refusal import Refusal
from rota.policy.fill.seating import Where, wheres
from rota.policy.fill.trial import ALONE, KEPT, PROBE, Trial

MOST_NAMED = 3  # gaps of which a waiting job is told why it has none of them
LATER = "others that have run less, or came earlier, have the next gaps"
NO_GPUS = "no node takes jobs"
COARSE = 10  # parts of a hundred: shares are told so, to be news only when they have changed


def seated_text(view: View, trial: Trial, trial_s: float) -> str:
    """Why a job is on its GPU."""
    if trial.verdict == ALONE:
        return f"no foreground job has its GPU{'s' if len(trial.gpus) > 1 else ''}"
    whom = _named(view, trial.beside)
    if trial.verdict == PROBE:
        return (
            f"on trial beside {whom} for {trial_s:g} s, and until it is known whether its steps "
            "are within the limit"
        )
    if trial.verdict == KEPT:
        return f"kept beside {whom}, whose steps are not shown to be beyond the limit"
    return f"{whom} tells too little of its steps to be judged"


def waiting_text(
    view: View,
    gaps: Iterable[Gap],
    taken: Mapping[Where, int],
    refusal: Callable[[Gap], Refusal | None],
    wanted: int,
) -> str:
    """Why a job that wants so many GPUs has none of ``gaps``; other jobs fill those of ``taken``.

    A gap is that of one GPU.
    """
    could = "about to be filled" if wanted == 1 else "it could have that one"
    told = []
    for gap in islice(gaps, MOST_NAMED):
        filler = taken.get(wheres(gap)[0])
        if filler is not None:
            why = f"{_named(view, (filler,))} fills it"
        else:
            refused = refusal(gap)
            why = _refusal_text(view, refused) if refused is not None else could
        told.append(f"{_gap_text(view, gap)}: {why}")
    if not told:
        return NO_GPUS
    many = f"no node has {wanted} gaps for it at once; " if wanted > 1 else ""
    return f"{many}the largest gaps: {'; '.join(told)}"


def _gap_text(view: View, gap: Gap) -> str:
    place = f"{view.nodes[gap.node].name}:{gap.gpus[0]}"
    if not gap.beside:
        return f"{place}, idle"
    percent = round(100 * gap.share / COARSE) * COARSE
    known = "about" if gap.is_known else "perhaps"
    return f"{place}, {known} {percent} % beside {_named(view, gap.beside)}"


def _refusal_text(view: View, refused: Refusal) -> str:
    others = (refused.other,) if refused.other >= 0 else ()
    return refused.why.value.format(other=_named(view, others))


def _named(view: View, rows: Iterable[int]) -> str:
    return jobs_text([view.spec[row].job_id for row in rows])
