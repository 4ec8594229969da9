"""Optimus (Peng et al., EuroSys 2018): GPUs go where one more shortens the most time that is left.

Every job gets its least, in order of arrival; each further GPU goes to the job whose remaining time
it shortens most, until none does. Two variants: one fits Optimus' speed model to what the job has
measured and reckons with the epochs that its user declared; the other is the oracle that Pollux
(OSDI 2021) was compared with. Batches stay as users tuned them.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf, nan

from rota.model.allocation import Allocation
from rota.model.measured.reports import StepPoint
from rota.model.plan import Plan
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.base import Policy, Setting, one_of, turn_s
from rota.policy.information import DECLARED
from rota.policy.placement.emptiest import emptiest
from rota.predict.goodput import Noise
from rota.predict.step_fit import StepFit, fit_steps
from rota.predict.step_points import is_usable

UNDECLARED_S = 3600.0  # assumed work at its least size of a job without declared epochs
GROWTH = 2  # a job gets at most so many times the GPUs that it has measured itself on

EVERY_S = Setting(turn_s, 60.0, "Seconds after which sizes are looked at anew.")


class MarginalGain(Policy):
    """The algorithm of both variants, given a job's remaining time at each size."""

    resizes = True

    def __init__(self, every_s: float = 60.0) -> None:
        self.every_s = self.turn_s = every_s

    def left_s(self, view: View, row: int) -> Callable[[int], float]:
        """A function of GPUs: the seconds that the job has left on so many."""
        raise NotImplementedError

    def most_gpus(self, view: View, row: int) -> int:
        """Upper limit of the job's GPUs."""
        return view.total_gpus

    def decide(self, view: View) -> Plan:
        """Choose all sizes anew, leave those in place that keep theirs, and place the others."""
        rows = sorted(view.active)
        sizes = self._choose(view, rows)
        what_if = view.what_if()
        moving = [row for row in rows if not _stays(view, row, sizes[row])]
        for row in moving:
            if view.target[row] is not None:
                what_if.release(row, Reason.PREEMPTED_BY)
        # Those that can go on only where they were come first; then the smallest.
        moving.sort(key=lambda row: (not view.must_stay(row), sizes[row]))
        for row in moving:
            _place(view, what_if, row, sizes[row])
        runs = any(what_if.target(row) is not None for row in rows)
        return what_if.plan(wake_at_s=view.now_s + self.every_s if runs else None)

    def _choose(self, view: View, rows: list[int]) -> dict[int, int]:
        """Number of GPUs of each job; 0 for jobs that get none."""
        free, chosen = view.total_gpus, dict.fromkeys(rows, 0)
        gains: list[tuple[float, int, int]] = []  # (-gain per GPU, place in line, row)
        choices: dict[int, tuple[list[int], Callable[[int], float]]] = {}
        line = sorted(rows, key=lambda row: self._sizes(view, row)[0])
        for place, row in enumerate(line):
            sizes = self._sizes(view, row)
            if sizes[0] > free:
                continue
            free -= sizes[0]
            chosen[row] = sizes[0]
            if len(sizes) > 1:
                choices[row] = (sizes, self.left_s(view, row))
                _offer(gains, place, row, *choices[row], 0)
        while free > 0 and gains:
            _, place, row = heappop(gains)
            sizes, left_s = choices[row]
            at = sizes.index(chosen[row]) + 1
            if sizes[at] - chosen[row] <= free:
                free -= sizes[at] - chosen[row]
                chosen[row] = sizes[at]
                _offer(gains, place, row, sizes, left_s, at)
        return chosen

    def _sizes(self, view: View, row: int) -> list[int]:
        """The sizes that the job can be given now, its least first.

        One that can't restart at another size keeps the one it has.
        """
        elastic, target = view.spec[row].elastic, view.target[row]
        if elastic is None or elastic.by_restart or target is None:
            sizes = list(view.sizes(row))
        else:
            sizes = [target.num_gpus]
        most = self.most_gpus(view, row)
        return [sizes[0], *(size for size in sizes[1:] if size <= most)]


class Optimus(MarginalGain):
    """Optimus as far as a scheduler can know: a fitted speed model, and declared epochs.

    A job that has measured nothing gets its least, and one that has at most twice as many GPUs as
    it has measured itself on. One that declares no epochs counts as having one hour of work at its
    least size.
    """

    name = "optimus"
    information = DECLARED
    SETTINGS = {"every_s": EVERY_S}

    def left_s(self, view: View, row: int) -> Callable[[int], float]:
        """The fitted time of a step times the steps that the declared epochs come to."""
        fitted = self._fit(view, row)
        if fitted is None:
            return lambda gpus: 0.0
        steps, model = _steps_left(view, row, fitted), fitted
        return lambda gpus: steps * model.step_s(gpus)

    def most_gpus(self, view: View, row: int) -> int:
        """Twice the GPUs it has been measured on, and no more than can share its batch."""
        points = view.measured(row)
        if points is None:
            return view.total_gpus
        seen = max((point.gpus for point in points if is_usable(point)), default=0)
        return min(max(1, GROWTH * seen), _shares(view, row))

    def _fit(self, view: View, row: int) -> StepFit | None:
        batch, told = view.spec[row].batch, view.measured(row) or ()
        points = [point for point in told if is_usable(point)]
        if not points or batch is None:
            return None
        return fit_steps(tuple((point.gpus, _whole_s(point, batch)) for point in points))


class OptimusOracle(MarginalGain):
    """An oracle: it knows the true time of a step at any size, and how many are left."""

    name = "optimus-oracle"
    needs_duration = True
    SETTINGS = {
        "every_s": EVERY_S,
        "remaining": Setting(
            one_of("exact", "whole-epochs"),
            "exact",
            "What is left: exact, or whole-epochs after the present one, as published.",
        ),
    }

    def __init__(self, every_s: float = 60.0, remaining: str = "exact") -> None:
        super().__init__(every_s)
        self.remaining = remaining

    def left_s(self, view: View, row: int) -> Callable[[int], float]:
        """The true time."""
        steps = view.true_steps_left(row, whole_epochs=self.remaining == "whole-epochs")
        return lambda gpus: steps * view.true_step_s(row, gpus)

    def most_gpus(self, view: View, row: int) -> int:
        """The most GPUs that can share the job's batch."""
        return _shares(view, row)


def _offer(
    gains: list[tuple[float, int, int]],
    place: int,
    row: int,
    sizes: list[int],
    left_s: Callable[[int], float],
    at: int,
) -> None:
    """Put on the heap what the job gains by the size that follows its present one, if anything."""
    if at + 1 < len(sizes):
        gain = (left_s(sizes[at]) - left_s(sizes[at + 1])) / (sizes[at + 1] - sizes[at])
        if gain > 0:
            heappush(gains, (-gain, place, row))


def _stays(view: View, row: int, size: int) -> bool:
    target = view.target[row]
    return target is not None and target.num_gpus == size


def _place(view: View, what_if: WhatIf, row: int, size: int) -> None:
    """Give a job that has no GPUs so many: where it was if it must, else of the emptiest nodes."""
    if not size:
        never = view.sizes(row)[0] > view.total_gpus
        if view.target[row] is None:
            what_if.wait(row, Reason.NEVER_FITS if never else Reason.WAIT_RESOURCES)
        return
    allocation: Allocation | None = emptiest(what_if.free, size)
    if view.must_stay(row):
        home = view.home[row]
        allocation = home if home is not None and what_if.free.fits(home) else None
    if allocation is None:
        what_if.wait(row, Reason.WAIT_TOPOLOGY)
    else:
        what_if.give(row, allocation)


def _shares(view: View, row: int) -> int:
    """The most GPUs of the cluster that can share the job's batch; all if its batch is unknown."""
    batch, limits = view.spec[row].batch, view.batch_range(row)
    if batch is None or limits is None:
        return view.total_gpus
    return min(view.total_gpus, max(1, batch // max(1, limits.least_per_gpu)))


def _whole_s(point: StepPoint, batch: int) -> float:
    """Seconds of a step of the whole batch, of which the point measured one part."""
    parts = max(1, ceil(batch / (point.gpus * point.batch) - 1e-8))
    return point.step_s + (parts - 1) * point.compute_s


def _steps_left(view: View, row: int, fitted: StepFit) -> float:
    """Steps that the job has left with its own batch, by its declared epochs and present noise."""
    spec, learned, noise = view.spec[row], view.learned(row), view.noise(row)
    limits, left = view.batch_range(row), nan
    if learned is not None and learned.total is not None and spec.batch and limits is not None:
        gain = spec.batch / max(1, limits.initial)
        known = None if noise is None else Noise.measured(*noise)
        if known is not None and gain > 0:
            gain = (known.var + known.sqr) / (known.var / gain + known.sqr)
        left = (learned.total - learned.done) / gain if gain > 0 else nan
    if not abs(left) < inf:
        return UNDECLARED_S / fitted.step_s(view.sizes(row)[0])
    return max(1.0, left)
