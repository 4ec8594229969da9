"""Background jobs in the gaps of GPUs (DeepPool, MLSys 2022, section 5).

Each job gets GPUs of a node that are idle, or else those of which foreground jobs leave most, those
jobs that have run least first. A gang has all of its GPUs or none, and the least share of any of
them. Beside a foreground job it is on trial until that one's steps are known to be within their
limit. A trial that is known to slow them more is undone at once, and the pair is left alone for a
pause that doubles each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from math import isfinite
from typing import Any

from rota.model.allocation import Allocation, background_on_node, indices
from rota.model.events import FillMeasured
from rota.model.job import MAX_SLOWDOWN
from rota.model.notes import Undone
from rota.model.plan import FillPlan, Plan
from rota.model.probe import Probe
from rota.model.reason import Reason
from rota.model.view import View
from rota.policy.base import to_instant
from rota.policy.cpus.stage import Residents
from rota.policy.fill.gaps import Gap, Gaps, joined
from rota.policy.fill.pairs import Pairs, pause_s
from rota.policy.fill.refusal import Refusal, Why
from rota.policy.fill.seating import (
    GAIN,
    LEAST_SHARE,
    Offer,
    Place,
    Seat,
    Turn,
    Where,
    best,
    in_order,
    longest_served,
    pays,
    wheres,
)
from rota.policy.fill.stage import FillStage
from rota.policy.fill.trial import (
    ALONE,
    KEPT,
    PROBE,
    UNDONE,
    UNTOLD,
    Trial,
    due_s,
    is_starved,
    judged,
    read,
)
from rota.policy.fill.words import LATER, seated_text, waiting_text

DWELL_S = 300.0  # for which a job stays where it is before it moves to a larger gap
WHAT = "fill"  # the name of its probes
MOST_TOLD = 10  # waiting jobs that are told of gaps: those that come next


class GapFill(FillStage):
    """Background jobs in the largest gaps, judged by the steps of the foreground.

    Ties: of jobs those that have run as long go by arrival and id, of gaps as large by node and
    GPU. Of what it remembers, ``BACKGROUND beside FOREGROUND`` is what came of two kinds of jobs
    (:class:`rota.policy.fill.pairs.Pair`); a row has its ``trial``, what came of it beside other
    rows (``pairs``), how many of its trials were ``undone`` in a row, and until when it is not
    tried beside anybody (``calm_s``).
    """

    def __init__(self, *, trial_s: float, pause_s: float) -> None:
        self.trial_s = trial_s
        self.pause_s = pause_s
        self._residents = Residents()
        self._goes_on: tuple[object, int] = (None, -1)  # rows, and decision, that the next is about

    def place(self, view: View, plan: Plan) -> FillPlan:
        goes_on = self._goes_on[0] is view.active and self._goes_on[1] == view.decision_seq
        self._residents.follow(view, plan, goes_on=goes_on)
        self._goes_on = view.active, view.decision_seq + 1
        return _Filling(self, view, self._residents).made()


class _Filling:
    """The background jobs of one decision."""

    def __init__(self, stage: GapFill, view: View, residents: Residents) -> None:
        self.view, self.trial_s = view, stage.trial_s
        self.gaps = Gaps(view, residents)
        self.marks: Mapping[str, Any] = view.stage_marks.get("fill", {})
        self.pairs = Pairs(view, self.marks, stage.pause_s)
        self.own = {row: dict(self.marks.get(str(row), {})) for row in sorted(view.background)}
        self.trials: dict[int, Trial] = {}  # of those that have a GPU
        self.gap: dict[int, Gap] = {}  # likewise
        self.taken: dict[Where, int] = {}  # the background row that has that GPU
        self.undone: set[int] = set()  # in this decision
        self._free: list[Gap] = []  # single GPUs that nobody fills, while so many are taken
        self._num_taken = -1
        self.probes: dict[int, tuple[Probe, ...]] = {}
        self.told_undone: dict[int, Undone] = {}
        self.wakes: list[float] = []

    def made(self) -> FillPlan:
        rows = in_order(self.own, self.view.attained_s)
        # 1. Judge the trials; who can stay, stays.
        waiting = [row for row in rows if not self._stays(row)]
        stayed = list(self.trials)
        # 2. Gaps for the others, those that have run least first.
        waiting = [row for row in waiting if not self._finds_gap(row)]
        # 3. Turns: who still waits takes the place of one that has run for longer.
        waiting = self._take_turns(waiting, stayed)
        # 4. Moves of those that get nothing, or much less than they would elsewhere.
        for row in sorted(set(stayed) & self.trials.keys()):
            self._move(row)
        return self._plan(waiting)

    @cached_property
    def open(self) -> list[Gap]:
        """The gaps of single GPUs, the largest first, whoever fills them."""
        return self.gaps.all()

    # -- who stays ----------------------------------------------------------------------------

    def _stays(self, row: int) -> bool:
        """True if the job keeps its GPUs; its trial is judged, and goes on."""
        target = self.view.target[row]
        if target is None or not self.view.nodes[target.parts[0][0]].alive:
            return False
        node, mask = target.parts[0]
        gap = self.gaps.on(node, indices(mask))
        refused = self._refusal(row, gap)
        if refused is not None:
            if refused.is_undone:
                self.undone.add(row)
            return False
        before = self._last_trial(row, gap) or self._trial(row, gap)
        trial = self._judged(row, before)
        if trial.verdict == UNDONE:  # also if the foreground leaves the GPU just now
            self._undo(row, trial)
            return False
        if trial.verdict != before.verdict:
            self._conclude(row, trial)
        if trial.beside != gap.beside:
            trial = self._trial(row, gap)
        self._sit(row, gap, trial)
        return True

    def _sit(self, row: int, gap: Gap, trial: Trial) -> None:
        self._num_taken = -1
        self.trials[row], self.gap[row] = trial, gap
        self.taken |= dict.fromkeys(wheres(gap), row)

    def _rise(self, row: int) -> None:
        self._num_taken = -1
        del self.trials[row]
        for at in wheres(self.gap.pop(row)):
            del self.taken[at]

    def _last_trial(self, row: int, gap: Gap) -> Trial | None:
        """The job's trial on these GPUs as it was remembered; None if it is new there."""
        mark = self.own[row].get("trial")
        trial = read(mark) if mark else None
        return trial if trial is not None and trial[:2] == gap[:2] else None

    def _trial(self, row: int, gap: Gap) -> Trial:
        """The job's trial on GPUs; a new one if it is new there, or others are beside it now."""
        trial = self._last_trial(row, gap)
        if trial is not None and trial.beside == gap.beside:
            return trial
        verdict = ALONE
        if gap.beside:
            pairs = [self.pairs.of(row, other, self.own[row]) for other in gap.beside]
            known = all(pair is not None and pair.goes_well for pair in pairs)
            verdict = KEPT if known else PROBE
        share = self._share(row, gap)
        return Trial(gap.node, gap.gpus, gap.beside, self.view.now_s, share, verdict)

    def _judged(self, row: int, trial: Trial) -> Trial:
        view, told = self.view, self.view.fill_measured(row)
        limit = MAX_SLOWDOWN
        if told is not None and told.beside in trial.beside:
            limit = view.spec[told.beside].max_slowdown
        return judged(trial, told, limit, self._runs_s(row), view.now_s, self.trial_s)

    def _runs_s(self, row: int) -> float:
        """Since when the job has run on the GPU that it is to have; below 0: it does not yet."""
        view = self.view
        return view.since_s[row] if view.held[row] == view.target[row] else -1.0

    def _undo(self, row: int, trial: Trial) -> None:
        """Remember that a foreground job is too slow beside the job."""
        told, mark = self._told(row), self.own[row]
        pair = self.pairs.undo(row, told.beside, mark, told.slowdown)
        limit = self.view.spec[told.beside].max_slowdown
        about = told.beside, told.slowdown, limit, pair.again_s
        self.told_undone[row] = Undone(*about, told.low, told.high)
        mark["undone"] = times = mark.get("undone", 0) + 1
        mark["calm_s"] = self.view.now_s + pause_s(self.trial_s, times)
        self.undone.add(row)
        self._note(row, trial, told, kept=False)

    def _conclude(self, row: int, trial: Trial) -> None:
        """Remember that the job stays beside the foreground jobs."""
        if trial.verdict == UNTOLD:
            self._note(row, trial, None, kept=True)
            return
        told, mark = self._told(row), self.own[row]
        self.pairs.keep(row, told.beside, mark, told.slowdown, told.harvest)
        mark.pop("undone", None)
        mark.pop("calm_s", None)
        self._note(row, trial, told, kept=True)

    def _told(self, row: int) -> FillMeasured:
        told = self.view.fill_measured(row)
        assert told is not None  # else there would be no verdict
        return told

    def _note(self, row: int, trial: Trial, told: FillMeasured | None, *, kept: bool) -> None:
        """Tell of a trial that has ended: speeds of all jobs in sum, relative to each alone."""
        measured = None
        if told is not None and isfinite(told.harvest):
            measured = 1.0 / told.slowdown + told.harvest
        now_s, on = self.view.now_s, ((trial.node, _mask(trial.gpus)),)
        probe = Probe(now_s, WHAT, 1.0 + trial.predicted, measured, kept, trial.beside, on)
        self.probes[row] = (probe,)

    # -- which gaps ---------------------------------------------------------------------------

    def _refusal(self, row: int, gap: Gap) -> Refusal | None:
        """The reason for which a job can't be in a gap, also if it is there; None: it can."""
        if len(gap.gpus) == 1:  # of most jobs
            return self._refusal_on(row, gap)
        found = (self._refusal_on(row, each) for each in self.gaps.each(gap))
        return next((each for each in found if each is not None), None)

    def _refusal_on(self, row: int, gap: Gap) -> Refusal | None:
        """The same for one GPU."""
        view = self.view
        wanted = view.spec[row].gpu_types
        if wanted and view.is_live and view.nodes[gap.node].gpu_type not in wanted:
            return Refusal(Why.TYPE)
        if not view.has_room(gap.node, (row, *gap.beside)):
            return Refusal(Why.MEMORY)
        for other in gap.beside:
            if view.spec[other].max_slowdown <= 1.0:
                return Refusal(Why.STRICT, other)
            pair = self.pairs.of(row, other, self.own[row])
            if pair is not None and pair.again_s > view.now_s:
                why = Why.STARVED if pair.is_starved else Why.APART
                return Refusal(why, other, pair.again_s)
        return None

    def _new_refusal(self, row: int, gap: Gap) -> Refusal | None:
        """The reason for which a job can't come to a GPU; None: it can."""
        refused = self._refusal(row, gap)
        if refused is not None:
            return refused
        mark, view = self.own[row], self.view
        if not self._can_go_on(row, gap):
            return Refusal(Why.PLACE)
        if gap.beside and mark.get("calm_s", 0.0) > view.now_s:
            return Refusal(Why.CALM, again_s=mark["calm_s"])
        if gap.beside and self._share(row, gap) < LEAST_SHARE:
            return Refusal(Why.SMALL)
        return None

    def _can_go_on(self, row: int, gap: Gap) -> bool:
        """True if the job's state, where it has some, can go on with that GPU."""
        view = self.view
        place = view.home[row] or view.held[row]
        if place is None:
            return True
        if not view.movable[row]:
            node, mask = place.parts[0]
            return node == gap.node and not _mask(gap.gpus) & ~mask
        return bool(view.portable[row]) or place.nodes() == (gap.node,)

    def _share(self, row: int, gap: Gap) -> float:
        """The part of GPUs that a job is to get: as measured of such a pair, else as predicted."""
        if len(gap.beside) == 1:
            pair = self.pairs.of(row, gap.beside[0], self.own[row])
            if pair is not None and pair.goes_well and pair.harvest is not None:
                return pair.harvest
        return gap.share

    def _offers(self, row: int, least: float = 0.0, *, known: bool = False) -> Iterator[Offer]:
        """The gaps of a share that nobody fills and the job can come to; ``known`` ones, or all."""
        if self._wanted(row) > 1:
            yield from self._offers_of_nodes(row, least, known=known)
            return
        for gap in self._unfilled():
            if gap.share < least:
                return
            if (gap.is_known or not known) and self._new_refusal(row, gap) is None:
                yield Offer(gap, self._share(row, gap))
                if not gap.beside and (self.view.home[row] or self.view.held[row]) is None:
                    return  # none that follows is better

    def _offers_of_nodes(self, row: int, least: float, *, known: bool) -> Iterator[Offer]:
        """The same for a gang: the best GPUs of each node that has enough, and its former ones.

        Its present GPUs count as unfilled, but for those beside a job beside which it gets nothing.
        """
        own = self.gap.get(row)
        fillable = self._unfilled() + ([] if own is None else self._own_gaps(row, own))
        by_node: dict[int, list[Gap]] = {}
        for gap in sorted(fillable, key=_largest_first):
            if gap.share >= least and (gap.is_known or not known):
                by_node.setdefault(gap.node, []).append(gap)
        wanted, home = self._wanted(row), self._home(row)
        for node, gaps in sorted(by_node.items()):
            usable = [gap for gap in gaps if self._new_refusal(row, gap) is None]
            if len(usable) < wanted:
                continue
            places = [joined(usable[:wanted])]
            if home is not None and home[0] == node:
                former = [gap for gap in usable if gap.gpus[0] in home[1]]
                places += [joined(former)] if len(former) == wanted else []
            for place in places:
                if own is None or place[:2] != own[:2]:
                    yield Offer(place, self._share(row, place))

    def _own_gaps(self, row: int, own: Gap) -> list[Gap]:
        """The GPUs of a gang that it would keep, as gaps, when it moves to others."""
        told = self.view.fill_measured(row)
        leaves = -1 if told is None else told.beside
        return [gap for gap in self.gaps.each(own) if leaves not in gap.beside]

    def _wanted(self, row: int) -> int:
        return self.view.spec[row].num_gpus

    def _home(self, row: int) -> Place | None:
        """Where the job is, or its state lies."""
        place = self.view.home[row] or self.view.held[row]
        if place is None:
            return None
        node, mask = place.parts[0]
        return node, indices(mask)

    def _unfilled(self) -> list[Gap]:
        """The gaps of single GPUs that nobody fills, the largest first."""
        if self._num_taken != len(self.taken):
            self._free = [gap for gap in self.open if wheres(gap)[0] not in self.taken]
            self._num_taken = len(self.taken)
        return self._free

    def _finds_gap(self, row: int) -> bool:
        """True if there is a gap for the job, which it has from now on."""
        found = best(self._offers(row), self._home(row))
        if found is None:
            return False
        self._sit(row, found.gap, self._trial(row, found.gap))
        return True

    # -- turns and moves ----------------------------------------------------------------------

    def _take_turns(self, waiting: list[int], stayed: list[int]) -> list[int]:
        """Those that still wait, after some have taken the places of others."""
        if not waiting:
            return waiting
        view, left = self.view, list[int]()
        gang_left = False  # and GPUs of it may be free now
        seats = [Seat(row, view.attained_s(row), self.gap[row]) for row in stayed]
        seats.sort(key=lambda seat: (-seat.attained_s, -seat.row))
        for number, row in enumerate(waiting):
            if gang_left and self._finds_gap(row):
                continue
            turn = self._turn_of(row, seats)
            if turn is None:
                left.append(row)
                continue
            if turn.left_s:
                self.wakes.append(view.now_s + turn.left_s)
                if turn.seats == seats[:1]:  # nor is it the turn of those that have run longer
                    return left + waiting[number:]
                left.append(row)
                continue
            for seat in turn.seats:
                seats.remove(seat)
                self._rise(seat.row)
            gang_left = gang_left or any(len(seat.gap.gpus) > 1 for seat in turn.seats)
            gap = joined(sorted(turn.gaps, key=_largest_first)[: self._wanted(row)])
            self._sit(row, gap, self._trial(row, gap))
            left += [seat.row for seat in turn.seats if not self._finds_gap(seat.row)]
        return left

    def _turn_of(self, row: int, seats: list[Seat]) -> Turn | None:
        """The jobs on one node that have run for so long that the job is to have their GPUs."""
        wanted, attained_s = self._wanted(row), self.view.attained_s(row)
        if wanted == 1:
            return longest_served(seats, attained_s, partial(self._usable, row))
        turns = []
        for node in sorted({seat.gap.node for seat in seats}):
            there = [gap for gap in self._unfilled() if gap.node == node]
            free = [gap for gap in there if self._new_refusal(row, gap) is None]
            near = [seat for seat in seats if seat.gap.node == node]
            usable = partial(self._usable, row)
            turn = longest_served(near, attained_s, usable, wanted - len(free))
            if turn is not None:
                turns.append(turn._replace(gaps=turn.gaps + free))
        return min(turns, key=lambda turn: turn.left_s, default=None)

    def _usable(self, row: int, gap: Gap) -> list[Gap]:
        """The GPUs of another job's gap that the job can have."""
        gaps = [gap] if len(gap.gpus) == 1 else self.gaps.each(gap)
        return [each for each in gaps if self._new_refusal(row, each) is None]

    def _move(self, row: int) -> None:
        """Move the job if it gets nothing where it is, or if it would get much more elsewhere."""
        view, trial = self.view, self.trials[row]
        told, starved = view.fill_measured(row), is_starved(trial, self.view.now_s)
        if told is None or told.beside not in trial.beside or self._runs_s(row) < 0:
            return
        if not starved and (trial.verdict == PROBE or not pays(told.harvest, 1.0)):
            return
        least = LEAST_SHARE if starved else told.harvest + GAIN
        found = best(self._offers(row, least, known=not starved), None)
        if found is None:
            return
        if not starved and view.now_s < trial.began_s + DWELL_S:
            self.wakes.append(trial.began_s + DWELL_S)
            return
        if starved:
            self.pairs.starve(row, told.beside, self.own[row], told.harvest)
        self._rise(row)
        self._sit(row, found.gap, self._trial(row, found.gap))

    # -- the plan -----------------------------------------------------------------------------

    def _plan(self, waiting: list[int]) -> FillPlan:
        view, why = self.view, dict[int, str]()
        allocations: dict[int, Allocation | None] = {}
        reasons: dict[int, int] = {}
        for row, trial in sorted(self.trials.items()):
            place = background_on_node(trial.node, _mask(trial.gpus))
            if view.target[row] != place:
                allocations[row] = place
            why[row] = seated_text(view, trial, self.trial_s)
            due = due_s(trial, self._runs_s(row), view.now_s, self.trial_s)
            if due is not None:
                self.wakes.append(due)
        for number, row in enumerate(waiting):
            if view.target[row] is not None:
                allocations[row] = None
            reason = Reason.FILL_UNDONE if self._was_undone(row) else Reason.WAIT_GAPS
            if view.reason[row] != reason or row in allocations:
                reasons[row] = reason
            why[row] = LATER
            if number < MOST_TOLD:
                refusal = partial(self._new_refusal, row)
                why[row] = waiting_text(view, self.open, self.taken, refusal, self._wanted(row))
        wake_at_s = min((at for at in map(to_instant, self.wakes) if at > view.now_s), default=None)
        changes = self._changes()
        told = why, self.probes, self.told_undone
        return FillPlan(allocations, reasons, changes, wake_at_s, *told)

    def _was_undone(self, row: int) -> bool:
        """True if an undone trial keeps a waiting job from a gap; notes when that ends."""
        found = row in self.undone
        for gap in self._unfilled():
            refused = self._new_refusal(row, gap)
            if refused is not None and refused.again_s is not None:
                self.wakes.append(refused.again_s)
                found = found or refused.is_undone
        return found

    def _changes(self) -> dict[str, Any]:
        """The marks of this decision that are not those of before."""
        self.pairs.forget()
        changes = dict(self.pairs.changes)
        for row, mark in self.own.items():
            told = {"trial": self.trials[row].mark()} if row in self.trials else {}
            known = {"pairs": pairs} if (pairs := self.pairs.own(row, mark)) else {}
            rest = {key: mark[key] for key in ("undone", "calm_s") if key in mark}
            now, before = told | known | rest, self.marks.get(str(row))
            if now != (before or {}):
                changes[str(row)] = now or None
        return changes


def _mask(gpus: tuple[int, ...]) -> int:
    return sum(1 << gpu for gpu in gpus)


def _largest_first(gap: Gap) -> tuple[bool, float, tuple[int, ...]]:
    return bool(gap.beside), -gap.share, gap.gpus
