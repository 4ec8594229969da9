"""The searches of a live cluster: their trials' reports, and their ends.

Built from events alone, so that a restarted controller knows the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from rota.errors import NotFoundError, did_you_mean
from rota.model.allocation import Allocation
from rota.model.events import (
    Event,
    JobSubmitted,
    JobSuspended,
    NodeClosed,
    NodeJoined,
    NodeLost,
    NodeOpened,
    SweepEnded,
    SweepSubmitted,
    WorkerReported,
)
from rota.model.job import JobState
from rota.model.measured.curves import ToldCurves
from rota.model.state.state import ClusterState
from rota.model.sweep import Report, SweepTrial
from rota.model.trial_standing import Standing, standing_of
from rota.request.array import is_array
from rota.request.sweepfile import shown

RECENT = 1000  # searches whose names an unknown one is compared with
NO_CURVES = ToldCurves()  # of a cluster that has had no trial
WAITING = (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)


@dataclass
class Search:
    """One search: its request, its trials' rows by number, and its end."""

    submitted: SweepSubmitted
    rows: dict[int, int] = field(default_factory=dict)
    ended: SweepEnded | None = None
    changed: int = 0  # the number of its last news,
    notes: int = 0  # and how many notes of reports there were then

    @property
    def name(self) -> str:
        """Its id."""
        return self.submitted.name

    @property
    def is_array(self) -> bool:
        """True if its trials are the tasks of an array."""
        return is_array(self.submitted.request["sweep"])

    @property
    def maximizes(self) -> bool:
        """True if more of its metric is better."""
        return bool(self.submitted.request["sweep"].get("goal") == "maximize")


class Cursor(NamedTuple):
    """A client's position in the news of a search: ``news`` and ``notes``, in an ``epoch``.

    The controller of another epoch counts anew, and sends everything.
    """

    epoch: int
    news: int
    notes: int

    @classmethod
    def parse(cls, text: str) -> "Cursor | None":
        """The cursor in a text; None if the text is none."""
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            return None
        return cls(*map(int, parts))

    def __str__(self) -> str:
        return ".".join(map(str, self))


class Best(NamedTuple):
    """A trial's best report, None if it has no value, and its place, after so many notes."""

    notes: int = 0
    place: int = 0
    report: Report | None = None


@dataclass
class _Turn:
    """A time in which a trial worked on the same GPUs; without an end it is still working."""

    from_s: float
    held: Allocation
    to_s: float | None = None


class Searches:
    """Every search so far, oldest first. :meth:`note` gets each event after the state has.

    ``on_news`` is called when an open search has changed.
    """

    def __init__(self, state: ClusterState, now_s: Callable[[], float]) -> None:
        self.on_news: Callable[[], None] | None = None
        self._state, self._now_s = state, now_s
        self._news = 0
        self._changed: dict[int, int] = {}  # by row of a trial: the number of its last news
        self._searches: dict[str, Search] = {}
        self._by_key: dict[tuple[str, str], Search] = {}
        self._best_of: dict[int, Best] = {}  # by row, as far as it was asked for
        self._ran: dict[int, list[_Turn]] = {}  # by row: when it worked, and where

    def note(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, SweepSubmitted):
            search = self._searches[event.name] = Search(event)
            if event.key is not None:
                self._by_key[event.user, event.key] = search
            self._has_news(search)
        elif isinstance(event, SweepEnded):
            search = self._searches[event.name]
            search.ended = event
            self._has_news(search)
        elif isinstance(event, JobSubmitted):
            self._note_trial(event.spec.trial)
        elif isinstance(event, NodeJoined | NodeLost | NodeClosed | NodeOpened):
            for row in self._ran:
                self._note_run(row, event.at_s)
            for search in self._searches.values():
                if search.ended is None:
                    self._has_news(search, *search.rows.values())
        about = _row_of(event)
        if about is not None and about in self._ran:
            self._note_run(about, event.at_s)
            if isinstance(event, JobSuspended) and self._ran[about]:  # the trial ran until then
                last = self._ran[about][-1]
                last.to_s = max(last.to_s or 0.0, event.stopped_s)
            if not isinstance(event, WorkerReported):  # not news for clients
                self._has_news(self._of(about), about)

    def open_requests(self) -> list[dict[str, Any]]:
        """The requests of searches that may have further trials."""
        found = (search for search in self._searches.values() if search.ended is None)
        return [search.submitted.request for search in found]

    def _of(self, row: int) -> Search:
        trial = self._state.spec[row].trial
        assert trial is not None
        return self._searches[trial.sweep.name]

    def _has_news(self, search: Search, *rows: int) -> None:
        """Record that a search has changed, and these of its trials."""
        self._news += 1
        search.changed, search.notes = self._news, self._curves.notes
        self._changed.update(dict.fromkeys(rows, self._news))
        if self.on_news is not None:
            self.on_news()

    def _note_trial(self, trial: SweepTrial | None) -> None:
        if trial is not None and trial.sweep.name in self._searches:
            row = len(self._state.spec) - 1
            search = self._searches[trial.sweep.name]
            search.rows[trial.number] = row
            self._ran[row] = []
            self._has_news(search, row)

    def _note_run(self, row: int, at_s: float) -> None:
        """Record that the trial works from now on, or stops, and on which GPUs."""
        state, ran = self._state, self._ran[row]
        held = state.resizing.get(row, state.held[row])  # until it has its new size
        works = held if state.since_s[row] >= 0 else None
        last = ran[-1] if ran and ran[-1].to_s is None else None
        if last is not None and (works is None or works.parts != last.held.parts):
            last.to_s, last = at_s, None
        if works is not None and last is None:
            ran.append(_Turn(at_s, works))

    # -- looking up ----------------------------------------------------------------------------

    def find(self, name: str) -> Search:
        """A search by its name, or the newest by ``@last``. Raises NotFoundError."""
        if name == "@last" and self._searches:
            return next(reversed(self._searches.values()))
        if name not in self._searches:
            hint = did_you_mean(name, islice(reversed(self._searches), RECENT))
            raise NotFoundError(
                f"there is no sweep {name!r:.80}{hint}; `rota sweep list` lists them"
            )
        return self._searches[name]

    def is_name(self, name: str) -> bool:
        """True if there is a search of this name."""
        return name in self._searches

    @property
    def is_any_open(self) -> bool:
        """True if there is a search that is not over."""
        return any(search.ended is None for search in self._searches.values())

    def of_key(self, user: str, key: str) -> Search | None:
        """The user's search under this idempotency key, if any."""
        return self._by_key.get((user, key))

    def free_name(self, name: str) -> str:
        """The name, or the first of its forms with ``-2``, ``-3``, ... that no search has had."""
        number, free = 1, name
        while free in self._searches:
            number += 1
            free = f"{name}-{number}"
        return free

    def row(self, name: str, number: int) -> int:
        """The row of a trial. Raises NotFoundError."""
        rows = self.find(name).rows
        if number not in rows:
            raise NotFoundError(
                f"sweep {name} has no trial {number!r:.80}; `rota sweep show {name}` lists them"
            )
        return rows[number]

    # -- telling -------------------------------------------------------------------------------

    def tell_page(
        self, since_s: float | None = None, *, after: int = 0, limit: int | None = None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Searches in brief, oldest first, without those that had ended at ``since_s``.

        ``after`` counts searches that are passed over, and the answer has at most ``limit``. The
        number is the ``after`` of the next page; None if there is none.
        """
        told: list[dict[str, Any]] = []
        for number, search in enumerate(self._searches.values()):
            is_listed = since_s is None or search.ended is None or search.ended.at_s > since_s
            if number >= after and is_listed:
                if limit is not None and len(told) == limit:
                    return told, number
                told.append(self.tell(search.name, brief=True))
        return told, None

    def tell(self, name: str, *, brief: bool = False, since: str | None = None) -> dict[str, Any]:
        """One search, JSON-able; ``brief`` has only the number of trials by state. NotFoundError.

        ``since`` is an earlier ``cursor``: then only changed trials are included, and the new parts
        of their curves.
        """
        search, now_s = self.find(name), self._now_s()
        submitted, ended = search.submitted, search.ended
        trials, known = sorted(search.rows.items()), self._known(since)
        news = known.news if known is not None else 0
        return {
            "name": submitted.name,
            "user": submitted.user,
            "state": "RUNNING" if ended is None else "ENDED",
            "outcome": ended.outcome if ended is not None else None,
            "message": ended.message if ended is not None else None,
            "submit_s": submitted.at_s,
            "finish_s": ended.at_s if ended is not None else None,
            "array": search.is_array,
            "request": shown(submitted.request),
            "gpu_s": sum(self._gpu_s(row, now_s) for _, row in trials),
            "gpus": self._state.total_gpus,
            "best": self._best(search),
            "cursor": str(Cursor(self._state.epoch, search.changed, search.notes)),
            "trials": self._counts(search)
            if brief
            else [
                self._tell_trial(number, row, now_s, known)
                for number, row in trials
                if self._changed[row] > news
            ],
        }

    def tell_trial(self, name: str, number: int, *, since: str | None = None) -> dict[str, Any]:
        """One trial of a search, as in :meth:`tell`, and a ``cursor``. Raises NotFoundError."""
        row = self.row(name, number)
        told = self._tell_trial(number, row, self._now_s(), self._known(since))
        cursor = Cursor(self._state.epoch, self._changed[row], self._curves.notes)
        return told | {"cursor": str(cursor)}

    def _known(self, since: str | None) -> Cursor | None:
        """The position of a cursor; None for a cursor of another epoch."""
        cursor = Cursor.parse(since) if since is not None else None
        return cursor if cursor is not None and cursor.epoch == self._state.epoch else None

    @property
    def _curves(self) -> ToldCurves:
        return self._state.told_curves or NO_CURVES

    def _tell_trial(
        self, number: int, row: int, now_s: float, known: Cursor | None
    ) -> dict[str, Any]:
        state = self._state
        left_out = self._curves.known(row, known.notes) if known is not None else 0
        new = self._curves.reports(row)[left_out:]
        job, best = state.job(row, now_s), self._best_report(row)
        assert job.spec.trial is not None
        return {
            "number": number,
            "job_id": job.spec.job_id,
            "state": job.state.name,
            "params": dict(job.spec.trial.params),
            "known": left_out,
            "curve": [report[:3] for report in new],  # maybe very many
            "value": best.value if best is not None else None,
            "why": state.needless.get(row),
            "message": job.message,
            "submit_s": job.spec.submit_s,
            "first_start_s": job.first_start_s,
            "finish_s": job.finish_s,
            "gpu_s": self._gpu_s(row, now_s),
            "ran": [[turn.from_s, turn.to_s] for turn in self._ran[row]],
            "ran_on": [
                [
                    {"node": state.nodes[node].name, "gpus": list(gpus)}
                    for node, gpus in turn.held.gpus()
                ]
                for turn in self._ran[row]
            ],
        }

    def _gpu_s(self, row: int, now_s: float) -> float:
        state = self._state
        return state.service(row, now_s) * state.num_gpus[row] + state.extra_gpu_s[row]

    def _best_report(self, row: int) -> Report | None:
        """The report with the best value; of equal ones the first.

        Reports seen before are looked at again only if the best of them is gone.
        """
        before = self._best_of.get(row, Best())
        if before.notes == self._curves.notes:
            return before.report
        reports, first = self._curves.reports(row), self._curves.known(row, before.notes)
        if before.place >= first:
            before, first = Best(), 0
        place, best = before.place, before.report
        sign = 1 if self._of(row).maximizes else -1
        most = sign * (best.value or 0.0) if best is not None else -inf
        for i in range(first, len(reports)):
            value = reports[i].value
            if value is not None and (best is None or sign * value > most):
                place, best, most = i, reports[i], sign * value
        self._best_of[row] = Best(self._curves.notes, place, best)
        return best

    def _best(self, search: Search) -> dict[str, Any] | None:
        """The best report of all trials; of equal ones the first."""
        found = [
            (report, number)
            for number, row in search.rows.items()
            if (report := self._best_report(row)) is not None
        ]
        if not found:
            return None
        sign = 1 if search.maximizes else -1
        report, number = min(found, key=lambda f: (-sign * (f[0].value or 0.0), f[0].at_s, f[1]))
        trial = self._state.spec[search.rows[number]].trial
        assert trial is not None
        return {
            "number": number,
            "value": report.value,
            "at_s": report.at_s,
            "params": dict(trial.params),
        }

    def _counts(self, search: Search) -> dict[str, int]:
        counts = dict.fromkeys(("done", "running", "waiting", "failed", "stopped"), 0)
        for row in search.rows.values():
            counts[self._counted(row)] += 1
        return counts

    def _counted(self, row: int) -> str:
        state = JobState(self._state.state[row])
        if not state.is_final:
            return "waiting" if state in WAITING else "running"
        values = [report.value for report in self._curves.reports(row)[-1:]]
        trial = self._state.spec[row].trial
        has_metric = trial is None or bool(trial.sweep.metric)
        stopped = row in self._state.needless
        standing = standing_of(state, stopped, values, has_metric=has_metric)
        return "stopped" if standing is Standing.CANCELLED else standing.value


def _row_of(event: Event) -> int | None:
    row: int | None = getattr(event, "row", None)
    return row if row is not None else getattr(getattr(event, "command", None), "row", None)
