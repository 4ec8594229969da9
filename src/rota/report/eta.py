"""ETA of a waiting job's start and of a running job's end: a range, with the error of past ones.

Four fifths should come within their range. A range leaves out a tenth of the past on either side,
and less the more ranges of its kind were missed of late, as in adaptive conformal inference (Gibbs
and Candes, NeurIPS 2021): the present is not as the past where load or policy change. The past are
waits, pauses and run times of jobs like this one, of those that took longer than it has taken so
far: bounds from a queue's own history, as in QBETS (Nurmi, Brevik and Wolski, JSSPP 2007). A user's
own jobs tell more of run times than others (Tsafrir, Etsion and Feitelson, TPDS 2007). The end of a
job that tells its progress follows from that: it runs alone from now on, or keeps the share of time
that it has had. Either end moves outwards by the error that progress had of jobs that have ended,
as in split conformal prediction (Lei and others, JASA 2018).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from rota.model import events
from rota.model.events import Event
from rota.model.job import JobSpec, JobState
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.turns import Turns
from rota.report.statistic import median, percentile

# Thousandths of the past that a range leaves out on either side: at most, and how much less after
# each range that was missed, more after each that held. With one miss in five they stay.
TAIL, MISSED, HELD = 100, 4, 1
LEAST_MISS_S = 1.0  # that is worth a word
LEAST = 10  # past ones without which nothing is foretold
KEPT = 500  # of each group of jobs that are alike, the latest
CHECKED = 200  # of which the error is told, the latest
MOST_GROUPS = 2000  # of users' jobs
MOST_SAMPLES = 1e15  # in a batch; more is no size
MOST_NUMBER = 1e100  # of what a job tells; more would overflow, and NaN is no number
LEAST_SHARE = 0.001  # of its life in which a job has run; less foretells nothing
START, RESUME, END, PROGRESS = "start", "resume", "end", "end_by_progress"
KINDS = (START, RESUME, END, PROGRESS)
MEANINGS = {
    START: "first start of a job that waits",
    RESUME: "next turn of a suspended job",
    END: "end of a job that tells no progress",
    PROGRESS: "end of a job that tells its progress",
}


class Range(NamedTuple):
    """Four fifths of ``past`` durations or more lie in here; no upper end if too few tell one."""

    low_s: float
    high_s: float | None
    past: int

    def miss_s(self, actual_s: float) -> float:
        """By how much a duration lies outside; 0 within."""
        beyond = 0.0 if self.high_s is None else actual_s - self.high_s
        return max(0.0, self.low_s - actual_s, beyond)


class _Durations:
    """Past durations of one group of jobs, the latest ``KEPT``."""

    def __init__(self) -> None:
        self._rising: list[float] = []
        self._latest: deque[float] = deque()

    def add(self, value_s: float) -> None:
        insort(self._rising, value_s)
        self._latest.append(value_s)
        if len(self._latest) > KEPT:
            del self._rising[bisect_right(self._rising, self._latest.popleft()) - 1]

    def beyond(self, so_far_s: float, tail: int) -> Range | None:
        """The range of durations from now on, of something that has taken ``so_far_s``.

        It leaves out ``tail`` thousandths on either side. None with fewer than ``LEAST`` past ones,
        or if none of them took longer.
        """
        rising = self._rising
        begin = bisect_right(rising, so_far_s) if so_far_s > 0 else 0
        longer = len(rising) - begin
        if len(rising) < LEAST or not longer:
            return None
        # Nearest ranks, as statistic.percentile has them.
        low_s = rising[begin + max(1, (tail * longer + 999) // 1000) - 1] - so_far_s
        high_s = rising[begin + ((1000 - tail) * longer + 999) // 1000 - 1] - so_far_s
        return Range(low_s, high_s if longer >= LEAST else None, longer)


class _Kind:
    """Past durations of one kind by groups of jobs, and how well they foretold the next ones."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Durations] = {}
        self._misses_s: deque[float] = deque(maxlen=CHECKED)
        self.tail = TAIL  # thousandths that ranges leave out on either side now

    def add(self, keys: Iterable[Hashable], value_s: float) -> None:
        groups = self._groups
        for key in keys:
            group = groups.pop(key, None) or _Durations()
            group.add(value_s)
            groups[key] = group  # last: it was used last
        while len(groups) > MOST_GROUPS:
            del groups[next(iter(groups))]

    def beyond(self, keys: Iterable[Hashable], so_far_s: float = 0.0) -> Range | None:
        """The range by the narrowest group that can tell one."""
        groups = (self._groups[key] for key in keys if key in self._groups)
        found = (group.beyond(so_far_s, self.tail) for group in groups)
        return next((each for each in found if each is not None), None)

    def check(self, told: Range | None, actual_s: float) -> None:
        """Hold a range against what came."""
        if told is None:
            return
        miss_s = told.miss_s(actual_s)
        self._misses_s.append(miss_s)
        self.tail = max(0, self.tail - MISSED) if miss_s > 0 else min(TAIL, self.tail + HELD)

    def error(self) -> dict[str, Any]:
        misses = sorted(miss_s for miss_s in self._misses_s if miss_s > 0)
        told = len(self._misses_s)
        within = 1 - len(misses) / told if told else None
        return {"told": told, "within": within, "missed_s": median(misses)}


class _Going:
    """A job that has not ended, as far as its events tell."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.is_kept_back = bool(spec.depends_on)  # now or before: its wait is not the queue's
        self.started_s = self.since_s = self.paused_s = -1.0
        self.ran_s = 0.0
        self.told_start: Range | None = None
        self.told_pause: Range | None = None
        self.told_end: Range | None = None
        self.halfway: tuple[float, Range] | None = None  # when half was done, and what was told

    def stand_still(self, at_s: float) -> None:
        if self.since_s >= 0:
            self.ran_s += max(0.0, at_s - self.since_s)
        self.since_s = -1.0

    def share(self, now_s: float) -> float:
        ran_s = self.ran_s + (now_s - self.since_s if self.since_s >= 0 else 0.0)
        age_s = now_s - self.spec.submit_s
        return ran_s / age_s if age_s > 0 else 0.0


class Past:
    """The past that ETAs come from, and their errors. Background jobs have none.

    :meth:`note` is told of every event of a log, in order; the same log makes the same past.
    """

    def __init__(self) -> None:
        self._kinds = {kind: _Kind() for kind in (START, RESUME, END)}
        self._going: dict[int, _Going] = {}
        self._rows = 0
        # Of jobs that told progress, how long the rest took over both ends of what was foretold.
        self._over: tuple[deque[float], deque[float]] = (deque(maxlen=KEPT), deque(maxlen=KEPT))
        self._by_progress = _Kind()

    def note(self, event: Event) -> None:
        """Learn from an event."""
        handle = _HANDLERS.get(type(event))
        if handle is not None:
            handle(self, event)

    def noting(self, log: Iterable[Event]) -> Iterator[Event]:
        """The events of a log, each of which is noted as it passes."""
        for event in log:
            self.note(event)
            yield event

    def start(self, spec: JobSpec, waited_s: float) -> Range | None:
        """In how many seconds a job starts that has waited so long; None: no past tells."""
        return self._kinds[START].beyond(_sizes(spec), waited_s)

    def resume(self, spec: JobSpec, paused_s: float) -> Range | None:
        """In how many seconds a job goes on that was suspended so long ago."""
        return self._kinds[RESUME].beyond(_sizes(spec), paused_s)

    def end(self, spec: JobSpec, since_start_s: float) -> Range | None:
        """In how many seconds a job ends that started so long ago, suspensions included."""
        return self._kinds[END].beyond(_owners(spec), since_start_s)

    def end_by_progress(self, progress: Mapping[str, Any], share: float) -> Range | None:
        """In how many seconds a job ends that has told this, and has run for ``share`` of its life.

        Until ``LEAST`` jobs that told progress have ended, neither end is moved; ``past`` says how
        many have.
        """
        steps, step_time_s = steps_left(progress), progress.get("step_time_s")
        if steps is None or not _is_number(step_time_s) or share <= LEAST_SHARE:
            return None
        left_s = max(0.0, steps * step_time_s)
        low_s, high_s = left_s, left_s / min(1.0, share)
        past = len(self._over[0])
        if past >= LEAST:
            tail = self._by_progress.tail / 10
            low_s *= min(1.0, percentile(sorted(self._over[0]), tail) or 1.0)
            high_s *= max(1.0, percentile(sorted(self._over[1]), 100 - tail) or 1.0)
        return Range(low_s, high_s, past)

    def paused_s(self, row: int) -> float | None:
        """When the job was suspended, if it is and waits for its turn."""
        going = self._going.get(row)
        return None if going is None or going.paused_s < 0 else going.paused_s

    def is_kept_back(self, row: int) -> bool:
        """True if the job waits, or has waited, for others or for its owner."""
        going = self._going.get(row)
        return going is not None and going.is_kept_back

    def error(self, kind: str) -> dict[str, Any]:
        """How the latest ETAs of a kind came true.

        ``told`` is their number, 200 at most, ``within`` the part that came within its range, None
        without any, and ``missed_s`` by how many seconds the others missed theirs, the median.
        A range is checked that was told as the wait, the pause or the run began, or as half of the
        work was done.
        """
        return (self._by_progress if kind == PROGRESS else self._kinds[kind]).error()

    def errors(self) -> dict[str, dict[str, Any]]:
        """The error of each of ``KINDS``."""
        return {kind: self.error(kind) for kind in KINDS}

    # -- events --------------------------------------------------------------------------------

    def _submitted(self, e: events.JobSubmitted) -> None:
        row, self._rows = self._rows, self._rows + 1
        if not e.spec.is_background:
            going = self._going[row] = _Going(e.spec)
            if not going.is_kept_back:
                going.told_start = self.start(e.spec, 0.0)

    def _kept_back(self, e: events.SuspendRequested) -> None:
        if (going := self._going.get(e.row)) is not None:
            going.is_kept_back = True
            going.paused_s = -1.0

    def _running(self, e: events.JobLaunched | events.JobResumed) -> None:
        going = self._going.get(e.row)
        if going is None:
            return
        spec, going.since_s = going.spec, e.at_s
        if going.started_s < 0:
            if not going.is_kept_back:
                waited_s = max(0.0, e.at_s - spec.submit_s)
                self._kinds[START].check(going.told_start, waited_s)
                self._kinds[START].add(_sizes(spec), waited_s)
            going.started_s, going.told_end = e.at_s, self.end(spec, 0.0)
        elif going.paused_s >= 0:
            paused_s = max(0.0, e.at_s - going.paused_s)
            self._kinds[RESUME].check(going.told_pause, paused_s)
            self._kinds[RESUME].add(_sizes(spec), paused_s)
        going.paused_s, going.is_kept_back = -1.0, False

    def _suspended(self, e: events.JobSuspended) -> None:
        if (going := self._going.get(e.row)) is not None:
            going.stand_still(e.stopped_s)
            if not going.is_kept_back:
                going.paused_s, going.told_pause = e.at_s, self.resume(going.spec, 0.0)

    def _lost(self, e: events.AttemptLost) -> None:
        if (going := self._going.get(e.row)) is not None:
            going.stand_still(e.at_s)
            going.paused_s = -1.0

    def _reported(self, e: events.WorkerReported) -> None:
        going = self._going.get(e.row)
        if going is None or going.halfway is not None or not _is_half_done(e.progress):
            return
        told = self.end_by_progress(e.progress, going.share(e.at_s))
        if told is not None:
            going.halfway = e.at_s, told

    def _finished(self, e: events.JobFinished) -> None:
        going = self._going.pop(e.row, None)
        if going is None or e.outcome not in (JobState.SUCCEEDED, JobState.FAILED):
            return
        if going.started_s >= 0:
            took_s = max(0.0, e.at_s - going.started_s)
            self._kinds[END].check(going.told_end, took_s)
            self._kinds[END].add(_owners(going.spec), took_s)
        if going.halfway is not None and e.outcome == JobState.SUCCEEDED:
            at_s, told = going.halfway
            rest_s = max(0.0, e.at_s - at_s)
            self._by_progress.check(told, rest_s)
            for over, end_s in zip(self._over, (told.low_s, told.high_s), strict=True):
                over.append(rest_s / end_s if end_s else 1.0)


_HANDLERS: dict[type, Callable[[Past, Any], None]] = {
    events.JobSubmitted: Past._submitted,
    events.SuspendRequested: Past._kept_back,
    events.JobLaunched: Past._running,
    events.JobResumed: Past._running,
    events.JobSuspended: Past._suspended,
    events.AttemptLost: Past._lost,
    events.WorkerReported: Past._reported,
    events.JobFinished: Past._finished,
}


def eta_of(
    past: Past,
    state: ClusterState,
    row: int,
    now_s: float,
    progress: Mapping[str, Any],
    turns: Turns | None = None,
) -> dict[str, Any] | None:
    """What comes next of a job and when, JSON-able; None of one that has ended.

    ``{"what", "low_s", "high_s", "basis", "past", "why", "error"}``: ``what`` is ``start``,
    ``resume`` or ``end``; from ``low_s`` to ``high_s`` seconds from now,
    None where that end is not known. ``basis`` is ``past`` (so many jobs, ``past``), ``progress``,
    ``turns`` or ``reservation``, None if nothing tells; then ``why`` says why, a sentence.
    ``error`` is :meth:`Past.error` of ETAs that are made like this one. ``progress`` is the job's
    latest report, ``turns`` what the policy says of them: a turn comes no sooner. A job with a
    reservation starts no later.
    """
    job_state, spec = JobState(state.state[row]), state.spec[row]
    if job_state.is_final:
        return None
    started_s = state.first_start_s[row]
    if job_state == JobState.RUNNING:
        what = END
        found, kind = past.end_by_progress(progress, _share(state, row, now_s)), PROGRESS
        if found is None:
            found, kind = past.end(spec, max(0.0, now_s - started_s)), END
        basis = "progress" if kind == PROGRESS else "past"
    else:
        what = kind = START if started_s < 0 else RESUME
        basis, paused_s = "past", past.paused_s(row)
        found = None
        if row in state.active and not spec.is_background and not past.is_kept_back(row):
            if what == START:
                found = past.start(spec, max(0.0, now_s - spec.submit_s))
            elif paused_s is not None:
                found = past.resume(spec, max(0.0, now_s - paused_s))
        found, basis = _bounded(found, basis, state, row, now_s, turns)
    return {
        "what": what,
        "low_s": found and found.low_s,
        "high_s": found and found.high_s,
        "basis": found and basis,
        "past": found.past if found is not None else 0,
        "why": None if found is not None else _why_not(past, state, row, kind),
        "error": past.error(kind),
    }


def _share(state: ClusterState, row: int, now_s: float) -> float:
    age_s = now_s - state.submit_s[row]
    return state.service(row, now_s) / age_s if age_s > 0 else 0.0


def _bounded(
    found: Range | None,
    basis: str,
    state: ClusterState,
    row: int,
    now_s: float,
    turns: Turns | None,
) -> tuple[Range | None, str]:
    """The range, no sooner than the job's turn and no later than its reservation."""
    reserved = state.notes.reserved
    if reserved is not None and reserved.row == row and reserved.at_s is not None:
        most_s = max(0.0, reserved.at_s - now_s)
        if found is None:
            found, basis = Range(0.0, most_s, 0), "reservation"
        elif found.high_s is None or found.high_s > most_s:
            found = found._replace(low_s=min(found.low_s, most_s), high_s=most_s)
    if turns is not None and turns.position(row):
        least_s = turns.left_s(now_s)
        if found is None:
            return Range(least_s, None, 0), "turns"
        if found.low_s < least_s:
            ends = found.high_s is not None and found.high_s >= least_s
            found = found._replace(low_s=least_s, high_s=found.high_s if ends else None)
    return found, basis


def _why_not(past: Past, state: ClusterState, row: int, kind: str) -> str:
    if state.spec[row].is_background:
        return "a background job waits for gaps, which nobody can foretell"
    if row in state.waits_for:
        return "it waits for other jobs to end first"
    if state.reason[row] == Reason.IDLE:
        return "its next call brings it back, which nobody can foretell"
    if row in state.staying:
        return "it waits for the node that holds it"
    if state.pauses(row):
        return "its last try failed, and the next one is yet to begin"
    if row in state.held_back:
        return "its owner keeps it back"
    if past.is_kept_back(row):
        return "it was kept back for a while, and others' waits tell nothing of its own"
    return {
        START: f"too few jobs have started here, or none after so long a wait; it takes {LEAST}",
        RESUME: f"too few jobs went on here, or none after so long a pause; it takes {LEAST}",
    }.get(
        kind,
        f"it has told no progress, and too few jobs have ended here, or none after so long; it "
        f"takes {LEAST}",
    )


def eta_sentence(told: Mapping[str, Any]) -> str:
    """What :func:`eta_of` tells, for people: the range, what it comes from, the error so far.

    Without a range it is the reason for that.
    """
    if told["basis"] is None:
        return f"not known: {told['why']}"
    low, high = told["low_s"], told["high_s"]
    if high is None:
        when = f"in {_span(low)} or more"
    elif _span(low) == _span(high):
        when = f"in {_span(low)}"
    else:
        when = f"in {_span(low)} to {_span(high)}"
    verb = {START: "starts", RESUME: "goes on", END: "ends"}[told["what"]]
    jobs = "1 job" if told["past"] == 1 else f"{told['past']} jobs"
    basis = {
        "past": f"by {jobs} of the past",
        "progress": f"by its progress, and how {jobs} fared by theirs"
        if told["past"] >= LEAST
        else "by its progress",
        "turns": "when the present turn ends, at the earliest",
        "reservation": "by the time limits of the jobs before it",
    }[told["basis"]]
    return f"{verb} {when}, {basis}; {error_sentence(told['error'])}"


def error_sentence(error: Mapping[str, Any]) -> str:
    """How past ETAs came true, such as ``39 of the last 40 estimates were right``."""
    if not error["told"]:
        return "no past estimate to judge it by"
    kept = round(error["told"] * error["within"])
    text = f"{kept} of the last {error['told']} estimates were right"
    missed_s = error["missed_s"]
    if missed_s is not None and missed_s >= LEAST_MISS_S:
        text += f"; half of the others were off by {_span(missed_s)} at most"
    return text


def _span(seconds: float) -> str:
    """Such as ``40 s``, ``12 min``, ``3.5 h``, ``4 days``."""
    for unit_s, unit, most in ((1, "s", 100), (60, "min", 100), (3600, "h", 48)):
        if seconds < most * unit_s:
            value = seconds / unit_s
            return f"{value:.1f} {unit}" if unit == "h" and value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def steps_left(progress: Mapping[str, Any]) -> float | None:
    """Steps left as reported; where batches vary, remaining samples over the present batch."""
    step, total, samples, total_samples = (
        value if _is_number(value) else None
        for value in map(progress.get, ("step", "total", "samples", "total_samples"))
    )
    if step is not None and total is not None:
        return float(total - step)
    if not step or not samples or total_samples is None:
        return None
    told = progress.get("adaptation")
    size = told.get("size") if isinstance(told, dict) else None
    if not _is_number(size) or not 1 <= size <= MOST_SAMPLES:
        size = samples / step
    return float((total_samples - samples) / size)


def _is_half_done(progress: Mapping[str, Any]) -> bool:
    for done, of in (("step", "total"), ("samples", "total_samples")):
        value, total = progress.get(done), progress.get(of)
        if _is_number(value) and _is_number(total) and total > 0:
            return bool(2 * value >= total)
    return False


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and abs(value) < MOST_NUMBER


def _sizes(spec: JobSpec) -> tuple[Hashable, ...]:
    """Groups of jobs that wait alike, the narrowest first: by queue and size, by size, all."""
    size = 1 << (spec.num_gpus - 1).bit_length()
    return ((spec.vc, size), size, "all")


def _owners(spec: JobSpec) -> tuple[Hashable, ...]:
    """Groups of jobs that run alike, the narrowest first: by name, by owner, all."""
    name = spec.trial.sweep.name if spec.trial is not None else spec.name
    return ((spec.user, spec.num_gpus, name), (spec.user,), "all")
