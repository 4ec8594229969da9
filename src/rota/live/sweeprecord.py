"""The searches of a live cluster: which there are, what their trials have told, how they ended.

Built from events alone, so that a controller that has been restarted knows the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rota.errors import NotFoundError, did_you_mean
from rota.model.events import (
    Event,
    JobSubmitted,
    JobSuspended,
    MetricReported,
    NodeLost,
    SweepEnded,
    SweepSubmitted,
)
from rota.model.job import JobState
from rota.model.state import ClusterState
from rota.model.sweep import Report, SweepTrial
from rota.model.sweepfile import shown
from rota.model.trialstanding import Standing, standing_of

RECENT = 1000  # searches whose names an unknown one is compared with
WAITING = (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)


@dataclass
class Search:
    """One search: as it was submitted, its trials' rows by number, and its end."""

    submitted: SweepSubmitted
    rows: dict[int, int] = field(default_factory=dict)
    ended: SweepEnded | None = None

    @property
    def name(self) -> str:
        """Its id."""
        return self.submitted.name

    @property
    def maximizes(self) -> bool:
        """Whether more of its metric is better."""
        return bool(self.submitted.request["sweep"]["goal"] == "maximize")


class Searches:
    """Every search so far, oldest first. :meth:`note` takes each event after the state has."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._searches: dict[str, Search] = {}
        self._by_key: dict[tuple[str, str], Search] = {}
        self._best_of: dict[int, Report | None] = {}  # by row, as far as it was asked for
        self._ran: dict[int, list[list[float | None]]] = {}  # by row: when it worked

    def note(self, event: Event) -> None:
        """Take note of what has happened."""
        if isinstance(event, SweepSubmitted):
            search = self._searches[event.name] = Search(event)
            if event.key is not None:
                self._by_key[event.user, event.key] = search
        elif isinstance(event, SweepEnded):
            self._searches[event.name].ended = event
        elif isinstance(event, JobSubmitted):
            self._note_trial(event.spec.trial)
        elif isinstance(event, MetricReported):
            self._best_of.pop(event.row, None)
        elif isinstance(event, NodeLost):
            for row in self._ran:
                self._note_run(row, event.at_s)
        about = _row_of(event)
        if about is not None and about in self._ran:
            self._note_run(about, event.at_s)
            if isinstance(event, JobSuspended) and self._ran[about]:  # it went on until then
                last = self._ran[about][-1]
                last[1] = max(last[1] or 0.0, event.stopped_s)

    def _note_trial(self, trial: SweepTrial | None) -> None:
        if trial is not None and trial.sweep.name in self._searches:
            row = len(self._state.spec) - 1
            self._searches[trial.sweep.name].rows[trial.number] = row
            self._ran[row] = []

    def _note_run(self, row: int, at_s: float) -> None:
        """Note whether the trial works from now on."""
        works, ran = self._state.since_s[row] >= 0, self._ran[row]
        if works and (not ran or ran[-1][1] is not None):
            ran.append([at_s, None])
        elif not works and ran and ran[-1][1] is None:
            ran[-1][1] = at_s

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
        """Whether there is a search of this name."""
        return name in self._searches

    def is_any_open(self) -> bool:
        """Whether there is a search that is not over."""
        return any(search.ended is None for search in self._searches.values())

    def of_key(self, user: str, key: str) -> Search | None:
        """What the user submitted under this idempotency key, if anything."""
        return self._by_key.get((user, key))

    def free_name(self, name: str) -> str:
        """The name, or with ``-2``, ``-3``, ... behind it the first one that no search has had."""
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

    def tell_all(self, now_s: float, since_s: float | None = None) -> list[dict[str, Any]]:
        """Every search in brief, oldest first; not those that had ended at ``since_s``."""
        return [
            self.tell(search, now_s, brief=True)
            for search in self._searches.values()
            if since_s is None or search.ended is None or search.ended.at_s > since_s
        ]

    def tell(self, search: Search, now_s: float, *, brief: bool = False) -> dict[str, Any]:
        """One search, JSON-able; ``brief``: of its trials how many stand where."""
        submitted, ended = search.submitted, search.ended
        trials = sorted(search.rows.items())
        return {
            "name": submitted.name,
            "user": submitted.user,
            "state": "RUNNING" if ended is None else "ENDED",
            "outcome": ended.outcome if ended is not None else None,
            "message": ended.message if ended is not None else None,
            "submit_s": submitted.at_s,
            "finish_s": ended.at_s if ended is not None else None,
            "request": shown(submitted.request),
            "gpu_s": sum(self._gpu_s(row, now_s) for _, row in trials),
            "gpus": self._state.total_gpus,
            "best": self._best(search),
            "trials": self._counts(search)
            if brief
            else [self._tell_trial(*pair, now_s) for pair in trials],
        }

    def tell_trial(self, name: str, number: int, now_s: float) -> dict[str, Any]:
        """One trial of a search, as :meth:`tell` has it. Raises NotFoundError."""
        return self._tell_trial(number, self.row(name, number), now_s)

    def _tell_trial(self, number: int, row: int, now_s: float) -> dict[str, Any]:
        state = self._state
        job, best = state.job(row, now_s), self._best_report(row)
        assert job.spec.trial is not None
        return {
            "number": number,
            "job_id": job.spec.job_id,
            "state": job.state.name,
            "params": dict(job.spec.trial.params),
            "curve": [report[:3] for report in self._reports(row)],  # there may be very many
            "value": best.value if best is not None else None,
            "why": state.needless.get(row),
            "message": job.message,
            "submit_s": job.spec.submit_s,
            "first_start_s": job.first_start_s,
            "finish_s": job.finish_s,
            "gpu_s": self._gpu_s(row, now_s),
            "ran": [list(span) for span in self._ran[row]],
        }

    def _reports(self, row: int) -> Sequence[Report]:
        curves = self._state.told_curves
        return curves.reports(row) if curves is not None else ()

    def _gpu_s(self, row: int, now_s: float) -> float:
        state = self._state
        return state.service(row, now_s) * state.num_gpus[row] + state.extra_gpu_s[row]

    def _best_report(self, row: int) -> Report | None:
        """The report with the best value; the first one of equal ones."""
        if row not in self._best_of:
            trial = self._state.spec[row].trial
            assert trial is not None
            told = [report for report in self._reports(row) if report.value is not None]
            pick = max if trial.sweep.maximize else min
            self._best_of[row] = pick(told, key=lambda report: report.value or 0.0, default=None)
        return self._best_of[row]

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
        values = [report.value for report in self._reports(row)[-1:]]
        standing = standing_of(state, row in self._state.needless, values)
        return "stopped" if standing is Standing.CANCELLED else standing.value


def _row_of(event: Event) -> int | None:
    row: int | None = getattr(event, "row", None)
    return row if row is not None else getattr(getattr(event, "command", None), "row", None)
