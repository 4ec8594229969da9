"""Steps that policies are composed of: choose who runs by count, then place them.

A policy says in which order jobs stand. :func:`walk` and :func:`finish` do the rest, under the
settings that hold for every policy alike (:class:`Stages`): priorities, quotas, fair share, a
minimum run time, placement.
"""

from collections.abc import Collection, Iterable, Sequence
from math import fsum
from typing import Any

from rota.model.notes import Notes
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.placement import Placement
from rota.policy.placement.consolidate import consolidate
from rota.policy.stages.fair_share import FairShare
from rota.policy.stages.quotas import Quotas
from rota.policy.stages.reservation import Backfill, one_node, where

COSTS = 10  # times what a start costs a job keeps its GPUs: starts take a tenth of its time at most
MOST_S = 3600.0
LOOK_S = 1.0  # until starts that nobody has measured are looked at again


def run_first_that_fit(
    what_if: WhatIf,
    order: Sequence[int],
    *,
    preempted: Reason = Reason.PREEMPTED_BY,
    waits: Reason = Reason.WAIT_RESOURCES,
) -> list[int]:
    """Walk active rows in ``order``; each whose gang still fits runs, the others wait.

    Jobs that run keep the GPUs they have; those that lose theirs are released with the reason
    ``preempted``; the rest wait with ``waits``. Returns the rows that run, in walk order.
    """
    return _Walk(what_if, (), None, False, preempted, waits, frozenset()).run(order)


def place(what_if: WhatIf, row: int, placement: Placement | None = None) -> bool:
    """Give a job GPUs: those it had or was suspended on if they are free, else as placed.

    Without a ``placement`` it gets as few nodes as can be. False, with the reason noted, if it does
    not fit: too few GPUs are there or free, it can go on only where it was, or no placement is to
    be had.
    """
    view = what_if.view
    if view.num_gpus[row] > what_if.free_gpus:
        never = view.num_gpus[row] > view.total_gpus
        waits = Reason.WAIT_TOPOLOGY if view.must_stay(row) else Reason.WAIT_RESOURCES
        what_if.wait(row, Reason.NEVER_FITS if never else waits)
        return False
    if view.target[row] is not None or view.home[row] is not None:
        stays = view.must_stay(row)  # also if it was given others before that became known
        for known in (None if stays else view.target[row], view.home[row]):
            if known is not None and what_if.free.fits(known):
                what_if.give(row, known)
                return True
        if stays:
            what_if.wait(row, Reason.WAIT_TOPOLOGY)
            return False
    if placement is None:
        allocation = consolidate(what_if.free, view.num_gpus[row])
    else:
        allocation = placement(view, what_if.free, row)
    if allocation is None:
        enough = view.num_gpus[row] <= what_if.free.count
        what_if.wait(row, Reason.WAIT_GANG_FRAGMENTED if enough else Reason.WAIT_RESOURCES)
        return False
    what_if.give(row, allocation)
    return True


class Stages:
    """The stages that users can add to any ordering; each part may be absent.

    Jobs of a higher priority come first (``priority`` False leaves priorities to the policy); then
    those whose owner has used less of a ``fair_share``; then the policy's order holds. Of the jobs
    in that order, those within their queue's quota come before those that borrow. No job that
    started less than ``min_run_time_s`` ago loses GPUs; None stands for ``COSTS`` times what its
    starts have taken on average, ``MOST_S`` at most, where the policy asks for ``spare_young``.
    """

    def __init__(
        self,
        *,
        priority: bool = True,
        quotas: Quotas | None = None,
        fair_share: FairShare | None = None,
        min_run_time_s: float | None = 0.0,
        placement: Placement | None = None,
        preemptive: bool = True,
    ) -> None:
        self.priority = priority
        self.quotas = quotas
        self.fair_share = fair_share
        self.min_run_time_s = min_run_time_s
        self.placement = placement
        self.preemptive = preemptive  # True if the policy ever takes GPUs away

    def have_a_say(self, view: View) -> bool:
        """True if a walk may differ from the policy's own order, or the placement from ours."""
        by_priority = self.priority and len(view.priorities) > 1
        others = self.quotas or self.fair_share or self.min_run_time_s or self.placement
        return by_priority or bool(others)

    def walk(
        self,
        what_if: WhatIf,
        order: Sequence[int],
        *,
        keep: Collection[int] = (),
        spare_young: bool = False,
        strict: bool = False,
        preempted: Reason = Reason.PREEMPTED_BY,
        waits: Reason = Reason.WAIT_RESOURCES,
        placement: Placement | None = None,
        backfill: Backfill | None = None,
    ) -> list[int]:
        """Let all active rows, given in the policy's ``order``, run as far as they fit.

        Rows of ``keep`` that have GPUs keep them. ``strict``: nobody is preempted, and when one
        does not fit, nobody behind it starts; with quotas each queue is a line of its own. With a
        ``backfill`` nobody is preempted either, and the first that does not fit has a reservation.
        ``placement`` is the policy's own, in force unless the user chose one. Reasons as in
        :func:`run_first_that_fit`. Returns the rows that run, in walk order.
        """
        view = what_if.view
        kept = {row for row in keep if view.target[row] is not None}
        if spare_young or self.min_run_time_s:
            kept |= self._still_young(view)
        by_priority = self._by_priority(view, order)
        ranked, levels = self._by_fair_share(view, by_priority)
        within, beyond = ranked, list[int]()
        if self.quotas is not None:
            within, beyond = self.quotas.split(view, ranked, kept, in_line=strict)
        walk = _Walk(what_if, kept, self.placement or placement, strict, preempted, waits, beyond)
        walk.one_line = self.quotas is None
        if backfill is not None:
            walk.backfill, walk.placement = backfill, one_node(walk.placement)
        if self.quotas is not None and not self.quotas.borrow:
            walk.refuse(beyond)
            runs = walk.run(within)
        else:
            runs = walk.run([*within, *beyond])
        if levels:
            _tell_of_fair_share(what_if, by_priority, levels, set(beyond))
        return runs

    def ordered(self, view: View, order: Sequence[int]) -> list[int]:
        """The policy's ``order`` of all active rows as :meth:`walk` goes through it."""
        ranked, _ = self._by_fair_share(view, self._by_priority(view, order))
        if self.quotas is None:
            return ranked
        kept = {row for row in ranked if view.target[row] is not None}
        within, beyond = self.quotas.split(view, ranked, kept, in_line=False)
        return [*within, *beyond]

    def own_mark(self, view: View) -> Any:
        """The policy's own memory, beside that of the stages."""
        mark = view.policy_mark
        if self.fair_share is None or mark is None:
            return mark
        return mark["policy"]

    def finish(
        self,
        what_if: WhatIf,
        *,
        wake_at_s: float | None = None,
        policy_mark: Any = None,
        notes: Notes | None = None,
        spare_young: bool = False,
    ) -> Plan:
        """The plan; it wakes also when a minimum run time ends or owners are ranked anew."""
        view = what_if.view
        wakes = [] if wake_at_s is None else [wake_at_s]
        someone_waits = any(
            what_if.target(row) is None and view.num_gpus[row] <= view.total_gpus
            for row in view.active
        )
        if someone_waits and self.preemptive and (self.min_run_time_s or spare_young):
            wakes += self._come_of_age_s(what_if)
        if self.fair_share is not None:
            old = view.policy_mark
            usage = self.fair_share.usage(view, old and old["fair_share"])
            if someone_waits and self.fair_share.is_contested(view):
                wakes.append(usage.at_s + self.fair_share.period_s)
            if policy_mark is None and old is not None:
                policy_mark = old["policy"]
            policy_mark = {"policy": policy_mark, "fair_share": list(usage)}
            if policy_mark == old:
                policy_mark = None
        if all(what_if.target(row) is None for row in view.active):
            wakes = []  # time alone brings no room, say for a gang larger than its queue's quota
        later = [at_s for at_s in wakes if at_s > view.now_s]
        wake_at_s = min(later, default=None)
        return what_if.plan(wake_at_s=wake_at_s, policy_mark=policy_mark, notes=notes)

    def break_off(self, view: View, released: Iterable[int]) -> bool:
        """True if one of the rows that lose their GPUs is to be spared by what its starts cost."""
        return self.min_run_time_s is None and any(self._is_young(view, row) for row in released)

    def _is_young(self, view: View, row: int) -> bool:
        since_s = view.since_s[row]
        return since_s < 0 or view.now_s < since_s + self._least_run_s(view, row)

    def _least_run_s(self, view: View, row: int) -> float:
        """Seconds for which the job keeps the GPUs that it has now."""
        if self.min_run_time_s is not None:
            return self.min_run_time_s
        return min(COSTS * view.overhead_s[row] / (1 + view.preemptions[row]), MOST_S)

    def _still_young(self, view: View) -> set[int]:
        """The rows with GPUs that have not run for the minimum since they began to."""
        held = (row for row in view.active if view.target[row] is not None)
        return {row for row in held if self._is_young(view, row)}

    def _come_of_age_s(self, what_if: WhatIf) -> list[float]:
        """When each job with GPUs has run for the minimum; one that starts does so at once."""
        view, times = what_if.view, list[float]()
        usual_s = self._usual_s(view)
        for row in view.active:
            if what_if.target(row) is not None:
                starts = view.target[row] is None or view.since_s[row] < 0
                if starts:
                    times.append(view.now_s + max(usual_s, self._least_run_s(view, row)))
                else:
                    times.append(view.since_s[row] + self._least_run_s(view, row))
        return times

    def _usual_s(self, view: View) -> float:
        """The minimum, of jobs whose first start is yet to be measured that of others."""
        if self.min_run_time_s is not None:
            return self.min_run_time_s
        known = [self._least_run_s(view, row) for row in view.active if view.overhead_s[row] > 0]
        return max(LOOK_S, fsum(known) / len(known)) if known else LOOK_S

    def _by_priority(self, view: View, order: Sequence[int]) -> list[int]:
        if not self.priority or len(view.priorities) <= 1:
            return list(order)
        return sorted(order, key=lambda row: -view.priority[row])

    def _by_fair_share(self, view: View, order: list[int]) -> tuple[list[int], dict[int, float]]:
        """``order`` with the least served owners first, and each row's level."""
        if self.fair_share is None:
            return order, {}
        mark = view.policy_mark
        usage = self.fair_share.usage(view, mark and mark["fair_share"])
        levels = self.fair_share.levels(view, usage, order)
        priority = view.priority if self.priority else dict.fromkeys(order, 0)
        return sorted(order, key=lambda row: (-priority[row], levels[row])), levels


DEFAULT = Stages()
SPARING = Stages(min_run_time_s=None)  # of policies that preempt at any moment


def has_a_say(stages: Stages | None, view: View) -> bool:
    """True if a policy must :func:`walk`: else its own order, with our placement, is the plan."""
    if stages is None:
        return len(view.priorities) > 1
    return stages.have_a_say(view)


def walk(stages: Stages | None, what_if: WhatIf, order: Sequence[int], **how: Any) -> list[int]:
    """:meth:`Stages.walk` under ``stages``; None stands for priorities alone."""
    return (stages or DEFAULT).walk(what_if, order, **how)


def ordered(stages: Stages | None, view: View, order: Sequence[int]) -> list[int]:
    """:meth:`Stages.ordered` under ``stages``; None stands for priorities alone."""
    return (stages or DEFAULT).ordered(view, order)


def break_off(stages: Stages | None, view: View, released: Iterable[int]) -> bool:
    """:meth:`Stages.break_off` under ``stages``; under None nobody is spared."""
    return stages is not None and stages.break_off(view, released)


def own_mark(stages: Stages | None, view: View) -> Any:
    """:meth:`Stages.own_mark` under ``stages``: what the policy gave :func:`finish` last."""
    return view.policy_mark if stages is None else stages.own_mark(view)


def finish(
    stages: Stages | None,
    what_if: WhatIf,
    *,
    wake_at_s: float | None = None,
    policy_mark: Any = None,
    notes: Notes | None = None,
    spare_young: bool = False,
) -> Plan:
    """:meth:`Stages.finish` under ``stages``; None adds nothing."""
    memory: dict[str, Any] = {"wake_at_s": wake_at_s, "policy_mark": policy_mark, "notes": notes}
    if stages is None:
        return what_if.plan(**memory)
    return stages.finish(what_if, **memory, spare_young=spare_young)


class _Walk:
    """One walk along an order: by count first, then each that starts is placed."""

    def __init__(
        self,
        what_if: WhatIf,
        kept: Collection[int],
        placement: Placement | None,
        strict: bool,
        preempted: Reason,
        waits: Reason,
        beyond: Collection[int],
    ) -> None:
        self.what_if = what_if
        self.kept = kept
        self.placement = placement
        self.strict = strict
        self.preempted = preempted
        self.waits = waits
        self.beyond = frozenset(beyond)  # rows beyond their queue's quota
        self.one_line = True
        self.backfill: Backfill | None = None
        self._closed: set[str] = set()  # the lines whose head does not fit

    def refuse(self, rows: Sequence[int]) -> None:
        """Let these rows have no GPUs."""
        for row in rows:
            self._wait(row)

    def run(self, order: Sequence[int]) -> list[int]:
        """Let rows run as far as they fit; those that do, in walk order."""
        kept = self.kept
        if (
            self.strict
            or self.backfill is not None
            or (kept and all(row in kept for row in order if self.what_if.target(row) is not None))
        ):
            return self._fill(order)
        what_if, num_gpus = self.what_if, self.what_if.view.num_gpus
        starts = self._choose(order)
        # Those that can go on only where they were choose first; what they can't use goes on.
        starts.sort(key=what_if.view.must_stay, reverse=True)
        refused = {row for row in starts if not place(what_if, row, self.placement)}
        if refused:
            for row in order:
                waits = what_if.target(row) is None and row not in refused
                if waits and num_gpus[row] <= what_if.free.count:
                    place(what_if, row, self.placement)
        return [row for row in order if what_if.target(row) is not None]

    def _fill(self, order: Sequence[int]) -> list[int]:
        """Nobody is preempted: one after the other takes what is free."""
        what_if, backfill = self.what_if, self.backfill
        num_gpus, total = what_if.view.num_gpus, what_if.view.total_gpus
        waiting = what_if.waiting(order)
        for row in waiting:
            if num_gpus[row] <= total and self._line(row) in self._closed:
                what_if.wait(row, self._reason(row, Reason.WAIT_PRIORITY))
                continue
            if num_gpus[row] > what_if.free_gpus:
                self._wait(row)
            elif self._place(row):
                continue
            if num_gpus[row] > total:
                continue
            if self.strict:
                self._closed.add(self._line(row))
            elif backfill is not None and backfill.reservation is None:
                assert self.placement is not None
                backfill.reserve(what_if, row, self.placement)
        waits = set(what_if.waiting(waiting))
        return [row for row in order if row not in waits]

    def _place(self, row: int) -> bool:
        """Give a job free GPUs, if need be such as are not set aside for another one."""
        reservation = None if self.backfill is None else self.backfill.reservation
        if reservation is None or self.placement is None:
            return place(self.what_if, row, self.placement)
        what_if = self.what_if
        wanted = where(what_if.view, what_if.free, row, self.placement)
        if wanted is None:
            return place(what_if, row, self.placement)  # says why not
        found = reservation.beside(what_if, row, wanted)
        if found is None:
            what_if.wait(row, self._reason(row, Reason.WAIT_RESERVATION))
            return False
        what_if.give(row, found)
        return True

    def _choose(self, order: Sequence[int]) -> list[int]:
        """Go by count: release who does not fit any more, and tell who starts."""
        what_if, kept = self.what_if, self.kept
        num_gpus, free = what_if.view.num_gpus, what_if.view.total_gpus
        for row in kept:
            free -= num_gpus[row]
        starts: list[int] = []
        for row in order:
            if row in kept:
                continue
            if num_gpus[row] <= free:
                free -= num_gpus[row]
                if what_if.target(row) is None:
                    starts.append(row)
            else:
                self._wait(row)
        return starts

    def _line(self, row: int) -> str:
        return "" if self.one_line else self.what_if.view.queue(row)

    def _wait(self, row: int) -> None:
        what_if = self.what_if
        if what_if.target(row) is not None:
            what_if.release(row, self._reason(row, self.preempted))
        elif what_if.view.num_gpus[row] > what_if.view.total_gpus:
            what_if.wait(row, Reason.NEVER_FITS)
        else:
            what_if.wait(row, self._reason(row, self.waits))

    def _reason(self, row: int, otherwise: Reason) -> Reason:
        return Reason.WAIT_QUOTA if row in self.beyond else otherwise


def _tell_of_fair_share(
    what_if: WhatIf, order: list[int], levels: dict[int, float], beyond: set[int]
) -> None:
    """Say so of those that wait while one from behind them runs, whose owner had less."""
    view = what_if.view
    least = float("inf")
    for row in reversed(order):
        if what_if.target(row) is not None:
            least = min(least, levels[row])
        elif least < levels[row] and view.num_gpus[row] <= view.total_gpus and row not in beyond:
            what_if.wait(row, Reason.WAIT_FAIRSHARE)
