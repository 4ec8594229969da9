"""The synchronous client of the controller's HTTP API."""

import base64
import os
import re
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from urllib.parse import quote

from anyio import move_on_after, sleep, to_thread

from rota.client.changes import Changes, concerns
from rota.client.connection import FOLLOW_PATIENCE_S, PATIENCE_S, POLL_S, Connection
from rota.client.events import Events, Logged, Told
from rota.client.log_stream import Following
from rota.client.outputs import LogLine, LogPiece, OutputReader, lines_of
from rota.errors import NotFoundError, ServerError, UnreachableError
from rota.folder import Folder
from rota.model.job import JobState
from rota.model.sweep import Value
from rota.request.jobfile import JobRequest, with_inherited
from rota.request.notify import HOOK_NAME, SECRET_PREFIX
from rota.request.sweepfile import SweepRequest
from rota.request.values import JOB, refuse

if TYPE_CHECKING:
    from rota.client.snapshot import Snapshot

END_TIMEOUT_S = 90.0
UPLOAD_TIMEOUT_S = 120.0  # without a word from a controller that takes a snapshot
TEST_TIMEOUT_S = 90.0  # a command has a minute
DRIVER_S = 5.0  # between two looks at whether a search's driver is well, which no event tells
MOST_NAMED = 5  # jobs that a cluster waits for

# What may be asked for by name: its noun, the names that it can have, and the way to one.
_NAMED = {
    "jobs": ("job", JOB, "write an id, a job's name or @last; `rota ps --all` lists them"),
    "sweeps": ("sweep", JOB, "write a sweep's name or @last; `rota sweep list` lists them"),
    "nodes": (
        "node",
        re.compile(r"(?!\.{1,2}\Z)[^/]{1,255}\Z"),
        "write a node's name; `rota nodes --all` lists them",
    ),
    "hooks": ("hook", HOOK_NAME, "write a hook's name; `rota notify list` lists them"),
}


class JobPage(NamedTuple):
    """Some jobs of a list. ``cursor`` leads to the next page; None: this is the last one."""

    jobs: list[dict[str, Any]]
    cursor: str | None


class Client:
    """Calls to one controller, on one connection. Use it in one thread, and close it.

    The controller is at ``url``, else ``$ROTA_SERVER``, else where ``server.json`` in ``folder``
    says; the token is ``token``, else ``$ROTA_TOKEN``, else that of the folder. Every call raises
    UnreachableError if nobody answers, AuthError for a token that is not right, and the error of
    :mod:`rota.errors` that the controller names. Calls that can be repeated are, for a few
    seconds, so that a restart of the controller goes unnoticed.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        folder: Folder | str | Path | None = None,
        ca: str | None = None,
    ) -> None:
        self._connection = Connection(url, token, folder, ca)
        self._call = self._connection.call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @property
    def ahead_s(self) -> float:
        """Seconds by which the cluster's clock is ahead of this machine's."""
        return self._connection.ahead_s

    @property
    def user(self) -> str:
        """The name that calls give as that of the user who asks; empty if there is none."""
        return self._connection.user

    @property
    def cursor(self) -> str | None:
        """The place in the event log that the last answer is of; None before the first one.

        ``client.events(after=client.cursor)`` goes on from what that answer has.
        """
        return self._connection.cursor

    def now_s(self) -> float:
        """The cluster's time, by the controller's last answer."""
        return self._connection.now_s()

    # -- jobs ----------------------------------------------------------------------------------

    def submit(
        self, job: JobRequest | Mapping[str, Any], *, key: str | None = None
    ) -> dict[str, Any]:
        """Submit a job. The same key again gives the same job; by default each call has its own.

        A mapping holds the fields of a job file, with an absolute workdir. With ``snapshot: true``
        that is packed here; raises InputError if it can't be.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._call("POST", "/jobs", json_body=self._sent(job), headers=headers)

    def check(self, job: JobRequest | Mapping[str, Any]) -> dict[str, Any]:
        """Check a job as submit does, without submitting it. Raises what submit would raise."""
        return self._call("POST", "/jobs", params={"dry_run": "true"}, json_body=_checked(job))

    def plan(self, job: JobRequest | Mapping[str, Any]) -> dict[str, Any]:
        """Preview a job's start: where, when, and which jobs it would displace; submits nothing.

        It is one decision on a copy of the cluster's state. ``start`` is ``now``, ``after`` (others
        have given their GPUs up), ``waits`` or ``never``. Raises what submit would raise.
        """
        return self._call("POST", "/plans", json_body=_checked(job))

    def jobs(
        self, *, states: Sequence[str] | None = None, everything: bool = False, **chosen: Any
    ) -> list[dict[str, Any]]:
        """Active jobs and those that ended within the hour, oldest first; or all, or by state.

        ``chosen`` are the other filters of :meth:`job_page`.
        """
        page = self.job_page(states=states, everything=everything, limit=None, **chosen)
        return page.jobs

    def job_page(
        self,
        *,
        states: Sequence[str] | None = None,
        everything: bool = False,
        queue: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        name: str | None = None,
        sweep: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int | None = 200,
        cursor: str | None = None,
        newest_first: bool = False,
        fields: Sequence[str] | None = None,
    ) -> JobPage:
        """At most ``limit`` jobs of a list, and the cursor of the next page.

        The jobs are those of a queue, user, tag, name or search, where one is given, in the order
        of their submission; ``newest_first`` turns it round. With ``ids``, up to 500, they are
        those of these that there are. With ``fields`` they have these alone.
        """
        asked = {"queue": queue, "user": user, "tag": tag, "name": name, "sweep": sweep}
        flags = {"all": everything, "newest": newest_first}
        found = self._call(
            "GET",
            "/jobs",
            params={
                **asked,
                **{flag: "true" if value else None for flag, value in flags.items()},
                "state": ",".join(states) if states else None,
                "id": None if ids is None else ",".join(ids),
                "limit": limit,
                "cursor": cursor,
                "fields": None if fields is None else ",".join(fields),
            },
        )
        return JobPage(found["jobs"], found["cursor"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Everything about one job. Here and below a job is its id, ``@last`` or a unique name."""
        return self._call("GET", _path("jobs", job_id))

    def cancel(self, job_id: str, *, now: bool = False) -> dict[str, Any]:
        """Cancel a job; cancelling it twice does no harm. ``now`` leaves it no grace to end."""
        asked = {"now": "true" if now else None}
        return self._call("POST", _path("jobs", job_id, "cancel"), params=asked)

    def suspend(self, job_id: str) -> dict[str, Any]:
        """Take a job off its GPUs until it is resumed."""
        return self._call("POST", _path("jobs", job_id, "suspend"))

    def resume(self, job_id: str) -> dict[str, Any]:
        """Let a suspended job continue."""
        return self._call("POST", _path("jobs", job_id, "resume"))

    def clean(
        self, job_id: str, *, keep_checkpoints: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove the output and the checkpoints of a job that has ended; twice does no harm.

        Returns the job with ``num_bytes``, that these took on the disk; with ``dry_run`` they stay.
        Raises NotOwnerError unless the job or the cluster is the user's, and TransitionError for a
        job that has not ended, or whose checkpoints an active job may need.
        """
        params = {"keep_checkpoints": keep_checkpoints, "dry_run": dry_run}
        asked = {name: "true" if value else None for name, value in params.items()}
        return self._call("POST", _path("jobs", job_id, "clean"), params=asked)

    def explain(self, job_id: str) -> dict[str, Any]:
        """The reasons for which a job does not run: see :func:`rota.explain.why.explain`."""
        return self._call("GET", _path("jobs", job_id, "explain"))

    def story(self, job_id: str) -> list[dict[str, Any]]:
        """A job's story: ``{"at_s", "line"}``, oldest first."""
        return list(self._call("GET", _path("jobs", job_id, "events"))["events"])

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        after: str | None = None,
        told: Callable[[Logged], object] | None = None,
    ) -> dict[str, Any]:
        """The job once it has ended. Raises TimeoutError if it has not after ``timeout_s``.

        ``told`` is called in another thread with each event of the job meanwhile; with those after
        the cursor ``after`` if that is given.
        """
        until_s = _until_s(timeout_s)
        job = self.job(job_id)
        if JobState[job["state"]].is_final:
            return job
        job_id = job["id"]  # @last means the same job to the end

        def is_of_job(event: Told) -> bool:
            if told is not None and isinstance(event, Logged) and event.job_id == job_id:
                told(event)
            return concerns(job_id, event)

        with Changes(self.events(after, busy=True), is_of_job) as changes:
            while changes.wait(_left_s(until_s)):
                job = self._job(job_id)
                if JobState[job["state"]].is_final:
                    return job
        job = self._job(job_id)  # this process may have been stopped meanwhile
        if JobState[job["state"]].is_final:
            return job
        raise TimeoutError(f"job {job_id} is still {job['state']} after {timeout_s} s")

    async def wait_async(self, job_id: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """As :meth:`wait`, for one task of many; calls are made in threads."""
        job = await to_thread.run_sync(self.job, job_id)
        job_id = job["id"]
        if JobState[job["state"]].is_final:
            return job
        with move_on_after(timeout_s):
            async for told in self.events(busy=True):
                if concerns(job_id, told):
                    job = await to_thread.run_sync(self._job, job_id)
                    if JobState[job["state"]].is_final:
                        return job
        raise TimeoutError(f"job {job_id} is still {job['state']} after {timeout_s} s")

    def _job(self, job_id: str) -> dict[str, Any]:
        return self._call("GET", _path("jobs", job_id), patience_s=FOLLOW_PATIENCE_S)

    def events(
        self,
        after: int | str | None = None,
        *,
        patience_s: float | None = FOLLOW_PATIENCE_S,
        busy: bool = False,
    ) -> Events:
        """Events of the cluster, as they happen: for ``for``, and for ``async for``.

        ``after`` is the number of an event or the ``cursor`` of a :class:`~rota.client.events.Told`
        value; without it, what is told begins with the next event. None is missed or told twice, a
        restart of the controller notwithstanding; news of progress may be. The first connection
        raises CursorError for a place that is not in this cluster's log. Without a controller for
        ``patience_s`` (None: for ever) it raises UnreachableError, and BusyError where as many
        streams are open as there may be; with ``busy`` it tells
        :class:`~rota.client.events.Busy` then, again and again until it has a place.
        """
        return Events(self._connection, after, patience_s, busy=busy)

    def notice(self, tell: Callable[[str], object]) -> None:
        """Have ``tell`` called with a sentence the first time that a stream finds no place."""
        self._connection.notice = tell

    # -- logs ----------------------------------------------------------------------------------

    def log_piece(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        process: int | None = None,
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> LogPiece:
        """Output of a process from ``offset`` on, or its last ``tail`` lines; maybe not all.

        Without ``process`` it is the first that had the rank; see :meth:`logs`. ``times``: with the
        times of its lines.
        """
        params: dict[str, Any] = {"rank": rank, "process": process, "attempt": attempt}
        params |= {"offset": offset, "tail": tail, "since_s": since_s}
        params["times"] = "true" if times else None
        path = _path("jobs", job_id, "logs")
        answer = self._call("GET", path, params=params, patience_s=patience_s)
        return LogPiece(*(answer[name] for name in LogPiece._fields))

    def logs(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        process: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
    ) -> Iterator[str]:
        """The output of one rank, in pieces; a line stands for a part left out of a long output.

        It is rank 0 unless the job has failed in another rank: then it is that one. If several
        processes of an elastic job were rank 0 one after another, their outputs follow each other.
        ``process`` selects one process by its number, in order of their start, whatever its rank.
        ``since_s`` leaves out lines that were printed before that time of the cluster's clock, to
        about a second: ``client.now_s() - 600``. Raises NotFoundError, also for an output that was
        removed.

        The output ends where it ended at the call, however fast it grows. With ``follow`` it
        continues until the job ends, through restarts of the controller and, unless an ``attempt``
        is given, through all attempts from the latest on.
        """
        job_id = self.job(job_id)["id"]
        which: dict[str, Any] = {"rank": rank, "process": process, "attempt": attempt}
        if follow:
            for piece in self.follow(job_id, **which, tail=tail, since_s=since_s):
                if isinstance(piece, LogPiece):
                    yield piece.text
            return
        reader = OutputReader(self, job_id, **which, tail=tail, since_s=since_s)
        while not reader.done:
            if text := reader.read().text:
                yield text

    def follow(
        self,
        job_id: str,
        *,
        rank: int | Literal["all"] | None = None,
        process: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        times: bool = False,
        system: bool = False,
        place: str = "",
    ) -> Following:
        """Pieces of an output as they are printed: for ``for``, and for ``async for``.

        They are those of :meth:`logs` with ``follow``; rank ``all``: of all ranks, each piece with
        its rank. With ``system`` lines of the job's story are among them, and with ``times`` pieces
        have those of their lines. ``place`` is the id of an event of an earlier stream.
        """
        params: dict[str, Any] = {"rank": rank, "process": process, "attempt": attempt}
        params |= {"tail": tail, "since_s": since_s}
        params |= {"times": "true" if times else None, "system": "true" if system else None}
        return Following(self._connection, _path("jobs", job_id, "logs/stream"), params, place)

    def log_lines(
        self,
        job_id: str,
        *,
        rank: int | Literal["all"] | None = None,
        process: int | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        system: bool = False,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """The output of :meth:`logs` in whole lines with their times; rank ``all``: of all ranks.

        With ``system`` the job's story is among them. They come in the order of their times, which
        are right to about a second; lines of a job that an older Rota has run have none, and come
        rank by rank. With ``follow`` it goes on as :meth:`logs` does, with lines as they come over
        one connection.
        """
        job_id = self.job(job_id)["id"]
        which: dict[str, Any] = {"rank": rank, "process": process, "attempt": attempt}
        which |= {"tail": tail, "since_s": since_s, "system": system, "follow": follow}
        return lines_of(self, job_id, **which)

    def rank_logs(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        since_s: float | None = None,
        follow: bool = False,
    ) -> Iterator[tuple[int, str]]:
        """``(rank, line)`` of all ranks of a job, as :meth:`log_lines` yields them."""
        which: dict[str, Any] = {"attempt": attempt, "tail": tail, "since_s": since_s}
        lines = self.log_lines(job_id, rank="all", **which, follow=follow)
        return ((line.rank or 0, line.text) for line in lines)

    # -- searches: a sweep is its name, or @last for the newest ---------------------------------

    def submit_sweep(
        self, sweep: SweepRequest | Mapping[str, Any], *, key: str | None = None
    ) -> dict[str, Any]:
        """Submit a search; the same key again gives the same one.

        A mapping holds the fields of a job file with a ``sweep``, with an absolute workdir. The
        answer's ``name`` has a number at its end if the name was taken.
        """
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._call("POST", "/sweeps", json_body=self._sent(sweep), headers=headers)

    def check_sweep(self, sweep: SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
        """Check a search as submit_sweep does, without submitting it; raises the same errors."""
        return self._call("POST", "/sweeps", params={"dry_run": "true"}, json_body=_checked(sweep))

    def sweeps(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Open searches and those that ended within the hour, oldest first; or all.

        Each has the number of its trials by state.
        """
        return self._list("sweeps", everything)

    def sweep(self, name: str, *, brief: bool = False, since: str | None = None) -> dict[str, Any]:
        """One search with all its trials; ``brief`` with the number of its trials by state alone.

        ``since`` is the ``cursor`` of an earlier answer: then the search comes only with trials
        that have changed since, and their curves without the first ``known`` reports.
        """
        return self._sweep(name, PATIENCE_S, brief, since)

    def cancel_sweep(self, name: str) -> dict[str, Any]:
        """Cancel a search and its trials; cancelling it twice does no harm."""
        return self._call("POST", _path("sweeps", name, "cancel"))

    def end_sweep(self, name: str, outcome: str, message: str = "") -> dict[str, Any]:
        """End a search with an outcome; its running trials are stopped.

        ``outcome`` is TARGET, DONE, BUDGET, FAILED or CANCELLED. An ended search keeps its outcome.
        """
        body = {"outcome": outcome, "message": message}
        return self._call("POST", _path("sweeps", name, "end"), json_body=body)

    def submit_trial(
        self,
        name: str,
        params: Mapping[str, Value],
        *,
        number: int | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Start a trial with these parameters. Returns its job.

        A ``number`` that the search has gives the existing trial; without one the trial is the
        next, and the same key again gives the same trial. Raises TransitionError if the search is
        over.
        """
        body = {"number": number, "params": dict(params)}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex} if number is None else {}
        return self._call("POST", _path("sweeps", name, "trials"), json_body=body, headers=headers)

    def trial(self, name: str, number: int, *, since: str | None = None) -> dict[str, Any]:
        """One trial of a search, as in :meth:`sweep`, with its curve or the new part of it."""
        path = _path("sweeps", name, f"trials/{number}")
        return self._call("GET", path, params={"since": since}, patience_s=FOLLOW_PATIENCE_S)

    def stop_trial(self, name: str, number: int, why: str) -> dict[str, Any]:
        """End a trial for the reason ``why``; an ended one keeps its outcome."""
        return self._call(
            "POST", _path("sweeps", name, f"trials/{number}/stop"), json_body={"why": why}
        )

    def follow_sweep(
        self, name: str, *, timeout_s: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """The search in brief, again and again until it has ended; the last item is its end.

        Raises TimeoutError if it has not ended after ``timeout_s``.
        """
        until_s = _until_s(timeout_s)
        told = self.sweep(name, brief=True)
        yield told
        if told["state"] == "ENDED":
            return
        name = told["name"]  # @last means the same sweep to the end
        with Changes(self.events(busy=True), partial(concerns, None)) as changes:
            while time.monotonic() < until_s:
                changes.wait(min(DRIVER_S, _left_s(until_s)))
                told = self._sweep(name, FOLLOW_PATIENCE_S, brief=True)
                yield told
                if told["state"] == "ENDED":
                    return
                time.sleep(min(POLL_S, _left_s(until_s)))  # its trials have many events
        # This process may have been stopped meanwhile.
        told = self._sweep(name, FOLLOW_PATIENCE_S, brief=True)
        yield told
        if told["state"] == "ENDED":
            return
        raise TimeoutError(f"sweep {name} has not ended after {timeout_s} s")

    def wait_sweep(self, name: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The search with all its trials once it has ended.

        Raises TimeoutError if it has not after ``timeout_s``.
        """
        for told in self.follow_sweep(name, timeout_s=timeout_s):
            name = told["name"]
        return self._sweep(name, FOLLOW_PATIENCE_S)

    async def wait_sweep_async(
        self, name: str, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """As :meth:`wait_sweep`, for one task of many; calls are made in threads."""
        told = await to_thread.run_sync(partial(self.sweep, name, brief=True))
        name = told["name"]
        look = partial(self._sweep, name, FOLLOW_PATIENCE_S)
        if told["state"] == "ENDED":
            return await to_thread.run_sync(look)
        with move_on_after(timeout_s):
            async for each in self.events(busy=True):
                if concerns(None, each):
                    told = await to_thread.run_sync(partial(look, brief=True))
                    if told["state"] == "ENDED":
                        return await to_thread.run_sync(look)
                    await sleep(POLL_S)
        raise TimeoutError(f"sweep {name} has not ended after {timeout_s} s")

    def _sweep(
        self, name: str, patience_s: float, brief: bool = False, since: str | None = None
    ) -> dict[str, Any]:
        params = {"brief": "true" if brief else None, "since": since}
        return self._call("GET", _path("sweeps", name), params=params, patience_s=patience_s)

    # -- the cluster ---------------------------------------------------------------------------

    def queue(self) -> list[str]:
        """The ids of jobs that wait for GPUs, in the order in which the policy would start them."""
        found: list[str] = self._call("GET", "/queue")["jobs"]
        return found

    def nodes(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Nodes that exist, were lost within the hour, or that a job waits for; or all."""
        return self._list("nodes", everything)

    def awaited_nodes(self) -> list[dict[str, Any]]:
        """Nodes that were asked for and are not there yet: each one's name, and why."""
        found: list[dict[str, Any]] = self._call("GET", "/nodes")["awaited"]
        return found

    def cordon(self, node: str) -> dict[str, Any]:
        """Keep new jobs off a node; its jobs continue. Returns the node, and ``changed``."""
        return self._call("POST", _path("nodes", node, "cordon"))

    def drain(self, node: str, *, within_s: float | None = None) -> dict[str, Any]:
        """Keep new jobs off a node, and have its jobs leave. Returns the node, and ``changed``.

        A job that can't leave without a loss stays until it ends, or for ``within_s`` seconds; then
        it is stopped, and starts anew.
        """
        return self._call("POST", _path("nodes", node, "drain"), json_body={"within_s": within_s})

    def invite(self) -> dict[str, Any]:
        """Invite a machine to join: ``token``, ``until_s``, ``url``, the CA's ``certificate``."""
        return self._call("POST", "/invitations")

    def remove_node(self, node: str, *, force: bool = False) -> dict[str, Any]:
        """Revoke the token of a machine that has joined. Returns the node, as it was last.

        Raises TransitionError if it has jobs, unless by ``force``: they are ended, start anew
        elsewhere, and the node is gone, in ``removed_in_s`` seconds at the latest, when the lease
        of the machine is over.
        """
        return self._call("POST", _path("nodes", node, "remove"), params={"force": force})

    def enable(self, node: str) -> dict[str, Any]:
        """Let a cordoned or drained node take jobs again. Returns the node, and ``changed``."""
        return self._call("POST", _path("nodes", node, "enable"))

    # -- hooks, which are told of events -------------------------------------------------------

    def hooks(self) -> list[dict[str, Any]]:
        """The hooks by name, each with the numbers of its deliveries by state."""
        return self._list("hooks")

    def add_hook(
        self,
        name: str,
        *,
        webhook: str | None = None,
        command: str | None = None,
        on: Sequence[str] = (),
        allow_private: bool = False,
        secret: str | None = None,
    ) -> dict[str, Any]:
        """Add a webhook, by its URL, or a command, by its name in the state folder.

        It is told of the news ``on``, and of those that job files want it to be told of. Returns
        the hook; that of a webhook has the ``secret`` that signs what it is sent, by default a new
        one, which no other call returns. Raises TransitionError if another one has the name.
        """
        body: dict[str, Any] = {"name": name, "on": list(on)}
        if command is not None:
            return self._call("POST", "/hooks", json_body=body | {"command": command})
        secret = secret or new_secret()
        body |= {"webhook": webhook, "allow_private": allow_private, "secret": secret}
        return self._call("POST", "/hooks", json_body=body) | {"secret": secret}

    def remove_hook(self, name: str) -> dict[str, Any]:
        """Remove a hook, and what it has yet to be told. Returns the hook as it was."""
        return self._call("DELETE", _path("hooks", name))

    def test_hook(self, name: str) -> dict[str, Any]:
        """Send a hook something, once. Returns if it ``arrived``, and its ``answer`` in words."""
        return self._call("POST", _path("hooks", name, "test"), timeout_s=TEST_TIMEOUT_S)

    def deliveries(
        self, *, hook: str | None = None, state: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Deliveries to hooks, made and to be made, the newest last.

        ``state`` is ``waiting``, ``delivered`` or ``given_up``.
        """
        params = {"hook": hook, "state": state, "limit": limit}
        return list(self._call("GET", "/deliveries", params=params)["deliveries"])

    # -- figures and the end -------------------------------------------------------------------

    def profiles(self) -> list[dict[str, Any]]:
        """Measurements of each kind of jobs; kinds with the latest news come first."""
        return self._list("profiles")

    def policies(self) -> list[dict[str, Any]]:
        """The policy in force, with its settings."""
        return self._list("policies")

    def gauges(self) -> dict[str, Any]:
        """Free and stranded GPUs, shares of queues and users, and how past ETAs came true."""
        return self._call("GET", "/gauges")

    def may(self) -> frozenset[str]:
        """The actions that the caller's role allows: those of :mod:`rota.server.roles`."""
        return frozenset(self._call("GET", "/may")["may"])

    def report(self, *, last_s: float | None = None) -> dict[str, Any]:
        """Figures of the jobs that ran or ended in the last ``last_s`` seconds; or of all."""
        return self._call("GET", "/report", params={"last_s": last_s})

    def shut_down(
        self,
        *,
        timeout_s: float | None = END_TIMEOUT_S,
        told: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        """End the cluster; returns when its controller no longer answers. Jobs stay queued.

        Meanwhile ``told`` is called with what has yet to end: ``{"jobs": [{"id", "name", "node"}],
        "agents": [node]}``. Raises ServerError, with their names, after ``timeout_s``; None waits
        for ever. The cluster continues to end even if the wait is given up.
        """
        left = self._call("POST", "/shutdown")
        self._connection.met = False
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if told is not None and left["jobs"]:  # most agents are gone in a moment
            told(left)
        while deadline is None or time.monotonic() < deadline:
            time.sleep(POLL_S)
            try:
                left = self._call("GET", "/shutdown", patience_s=0.0)
            except UnreachableError:
                return
            if told is not None:
                told(left)
        raise ServerError(
            f"the cluster has not ended after {timeout_s:g} s: it waits for {who_is_left(left)}; "
            "`rota down --now` kills what is left of it"
        )

    def _sent(self, asked: JobRequest | SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request whose snapshot, if it wants one, the controller has."""
        fields = _fields(asked)
        if fields.get("snapshot") is not True:
            return fields
        snapshot = _packed(fields)
        path = f"/snapshots/{snapshot.digest}"
        try:
            self._call("GET", path)
        except NotFoundError:
            self._call("PUT", path, body=snapshot.archive, timeout_s=UPLOAD_TIMEOUT_S)
        return fields | {"snapshot": snapshot.digest}

    def _list(
        self, what: str, everything: bool = False, **params: str | None
    ) -> list[dict[str, Any]]:
        params["all"] = "true" if everything else None
        return list(self._call("GET", f"/{what}", params=params)[what])


def _until_s(timeout_s: float | None) -> float:
    """The time of the monotonic clock at which a wait is given up."""
    return time.monotonic() + (threading.TIMEOUT_MAX if timeout_s is None else timeout_s)


def _left_s(until_s: float) -> float:
    return min(threading.TIMEOUT_MAX, max(0.0, until_s - time.monotonic()))


def new_secret() -> str:
    """A secret for a webhook, made at random."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def who_is_left(ending: Mapping[str, Any]) -> str:
    """The jobs and agents that have yet to end, such as ``job 3 (train) and the agent of here``."""
    jobs = [f"job {job['id']} ({job['name']})" for job in ending["jobs"]]
    if len(jobs) > MOST_NAMED:
        jobs[MOST_NAMED:] = [f"{len(jobs) - MOST_NAMED} more jobs"]
    agents = ending["agents"]
    names = jobs + [f"the agent{'s'[: len(agents) != 1]} of {', '.join(agents)}"] * bool(agents)
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "its controller"


def _fields(asked: JobRequest | SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(asked, Mapping):
        return dict(with_inherited(asked, os.environ))
    return asked.to_fields()


def _checked(asked: JobRequest | SweepRequest | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that is only looked at: a snapshot stays here."""
    fields = _fields(asked)
    if fields.get("snapshot") is not True:
        return fields
    return fields | {"snapshot": _packed(fields).digest}


def _packed(fields: Mapping[str, Any]) -> "Snapshot":
    from rota.client.snapshot import pack  # here: few jobs have one

    workdir = fields.get("workdir")
    if not isinstance(workdir, str) or not os.path.isabs(workdir):
        refuse("workdir", workdir, "give an absolute path, of which a snapshot is made")
    return pack(workdir)


def _path(kind: str, name: str, action: str = "") -> str:
    """The path to what has a name. Raises NotFoundError for a name that nothing can have."""
    noun, possible, fix = _NAMED[kind]
    if not possible.match(name):
        raise NotFoundError(f"there is no {noun} {name!r:.80}; {fix}")
    path = f"/{kind}/{quote(name, safe='')}"
    return f"{path}/{action}" if action else path
