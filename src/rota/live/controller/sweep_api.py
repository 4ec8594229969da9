"""Requests about sweeps by users and by the driver of searches."""

from typing import Any

from rota.errors import JobFileError, TransitionError
from rota.live.controller.clock import local_time
from rota.live.controller.job_api import Entry, JobApi
from rota.live.controller.journal import Journal
from rota.live.controller.record import Record
from rota.model.events import Event, StopRequested, SweepEnded, SweepSubmitted, TrialStopped
from rota.model.state.ledger import FIRST_FINAL, STOPPING
from rota.model.sweep import SweepTrial
from rota.request.searchspace import check_params
from rota.request.sweepfile import SweepRequest, parse_sweep, trial_job
from rota.request.values import refuse, text_of

OUTCOMES = ("TARGET", "DONE", "BUDGET", "FAILED", "CANCELLED")
MOST_TRIALS = 1_000_000
MAX_TEXT = 2000  # characters of a reason or a message


class SweepApi:
    """Requests by users and the driver of searches. Once a method returns, its effect is stored."""

    def __init__(self, record: Record, journal: Journal, jobs: JobApi) -> None:
        self._record, self._journal, self._jobs = record, journal, jobs
        self._state = record.state
        self._requests: dict[str, SweepRequest] = {}

    # -- searches ------------------------------------------------------------------------------

    async def submit_sweep(
        self, request: SweepRequest, *, user: str, key: str | None, body_hash: str
    ) -> str:
        """Accept a search. Returns its name, with ``-2`` or the like at its end if it was taken.

        The same idempotency key gives the same search. Raises NeverFitsError if no trial can ever
        run here, and JobFileError if the key was used for something else.
        """
        if key is not None:
            known = self._record.searches.of_key(user, key)
            if known is not None and known.submitted.body_hash == body_hash:
                return known.name
            if known is not None or self._jobs.find(user, key) is not None:
                raise JobFileError(
                    f"Idempotency-Key {key!r} was used for something else; use a new key"
                )
        self._jobs.check(request.job)
        self._jobs.snapshots.check(request.job)
        awaited = self._jobs.dependencies(request.job)  # by id
        request = request._replace(job=request.job._replace(depends_on=awaited))
        self._journal.room.check()
        name, now_s = self._record.searches.free_name(request.job.name), self._record.now_s()
        event = SweepSubmitted(now_s, name, user, request.to_fields(), key, body_hash)
        self._journal.write_first(event, durable=True)
        return name

    async def end_sweep(self, name: str, outcome: str, message: str) -> bool:
        """End a search and all of its open trials; False if it was over before.

        Raises NotFoundError, and JobFileError for an unknown outcome.
        """
        search = self._record.searches.find(name)
        if outcome not in OUTCOMES:
            refuse("outcome", outcome, f"use one of {', '.join(OUTCOMES)}")
        message = _text("message", message)
        if search.ended is not None:
            return False
        now_s = self._record.now_s()
        what = "array" if search.is_array else "search"
        why = f"the {what} is over ({outcome}){': ' if message else ''}{message}"
        events: list[Event] = []
        for row in search.rows.values():
            if self._is_open(row):
                events += [TrialStopped(now_s, row, why), StopRequested(now_s, row)]
        self._journal.write_first(
            *events, SweepEnded(now_s, search.name, outcome, message), durable=True
        )
        return True

    # -- trials --------------------------------------------------------------------------------

    async def submit_trial(
        self,
        name: str,
        number: int | None,
        params: dict[str, Any],
        *,
        key: str | None = None,
        body_hash: str = "",
    ) -> int:
        """Accept a trial of a search as a job. Returns its row.

        A number that exists gives its row, whatever the parameters are; None is the next one. The
        same idempotency key gives the same trial. Raises NotFoundError, TransitionError if the
        search is over, and JobFileError for parameters outside of its space.
        """
        search = self._record.searches.find(name)
        name, user = search.name, search.submitted.user
        known = self._jobs.submitted(user, key, body_hash)
        if known is not None:
            return known
        if number is None:
            number = 1 + max(search.rows, default=-1)
            if number == MOST_TRIALS:
                refuse("number", None, f"trial {number - 1} is there, the last one; give a number")
        elif type(number) is not int or not 0 <= number < MOST_TRIALS:
            refuse("number", number, f"use a whole number from 0 to {MOST_TRIALS - 1}, or null")
        if number in search.rows:
            return search.rows[number]
        if search.ended is not None:
            raise TransitionError(
                f"sweep {name} takes no more trials: it ended as {search.ended.outcome} at "
                f"{local_time(search.ended.at_s, self._record.now_s())}; to go on submit it anew"
            )
        request = self._request(name)
        values = check_params(request.space, params)
        job = trial_job(request, name, number, dict(values))
        trial = SweepTrial(request.sweep(name), number, values)
        row = self._jobs.enter(Entry(job, user, key, body_hash, trial))
        self._jobs.write_entries()  # at once: the next one may not have its number
        return row.result()

    async def stop_trial(self, name: str, number: int, why: str) -> bool:
        """End a trial that the search no longer needs; False if it has ended or is about to.

        ``why`` is shown to its user. Raises NotFoundError.
        """
        row = self._record.searches.row(name, number)
        why = _text("why", why)
        if not self._is_open(row):
            return False
        now_s = self._record.now_s()
        self._journal.write_first(
            TrialStopped(now_s, row, why), StopRequested(now_s, row), durable=True
        )
        return True

    # -- inside --------------------------------------------------------------------------------

    def _is_open(self, row: int) -> bool:
        return self._state.state[row] < FIRST_FINAL and self._state.state[row] != STOPPING

    def _request(self, name: str) -> SweepRequest:
        if name not in self._requests:
            fields = self._record.searches.find(name).submitted.request
            self._requests[name] = parse_sweep(fields, workdir=fields["workdir"])
        return self._requests[name]


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        refuse(field, value, f"use text of at most {MAX_TEXT} characters")
    return text_of(field, value, 4 * MAX_TEXT)  # text that is no Unicode could not be sent
