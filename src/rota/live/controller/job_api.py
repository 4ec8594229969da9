"""Users' requests about jobs: checked, written down, and only then carried out."""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from rota.errors import (
    JobFileError,
    NeverFitsError,
    NotFoundError,
    StoreError,
    TransitionError,
    closest,
)
from rota.live.controller.clock import local_time
from rota.live.controller.job_files import JobFiles
from rota.live.controller.journal import Journal
from rota.live.controller.record import Record
from rota.live.controller.recovery import seats
from rota.live.controller.snapshots import Snapshots
from rota.model.allocation import gpus_text
from rota.model.decide.live_limits import all_gpus, most_gpus
from rota.model.events import (
    Event,
    JobSubmitted,
    ResumeRequested,
    StopRequested,
    SuspendRequested,
)
from rota.model.job import BACKGROUND, MET_BY, Dependency, JobSpec, JobState
from rota.model.state.ledger import unmet_text
from rota.model.state.state import ClusterState
from rota.model.sweep import SweepTrial
from rota.request.jobfile import JobRequest, program_of
from rota.request.values import refuse
from rota.store.events import Submission

log = logging.getLogger("rota.controller")


def check_open(state: ClusterState, row: int, verb: str, now_s: float) -> None:
    """Raise TransitionError with advice if the job has ended or is about to.

    ``verb`` is the requested action: ``suspended``.
    """
    job_id, now = state.spec[row].job_id, JobState(state.state[row])
    about = f"job {job_id} ({state.spec[row].name}) can't be {verb}: it"
    if now.is_final:
        raise TransitionError(
            f"{about} ended as {now.name} at {local_time(state.finish_s[row], now_s)}; "
            f"`rota show {job_id}` tells about it, and to run it again submit it anew"
        )
    if now == JobState.STOPPING:
        raise TransitionError(
            f"{about} has been stopping since {local_time(state.changed_s[row], now_s)}; "
            f"wait for its end with `rota wait {job_id}`"
        )


class Entry(NamedTuple):
    """A job that a user submits."""

    request: JobRequest
    user: str
    key: str | None
    body_hash: str
    trial: SweepTrial | None = None

    def spec(self, job_id: str, submit_s: float) -> JobSpec:
        """The job as submitted under this id."""
        request = self.request
        return JobSpec(
            job_id=job_id,
            num_gpus=request.num_gpus,
            submit_s=submit_s,
            priority=request.priority,
            name=request.name,
            user=self.user,
            vc=request.queue,
            time_limit_s=request.time_limit_s,
            elastic=request.elastic,
            adapt=request.adapt,
            memory_gb=request.gpu_memory_gb,
            program=program_of(request),
            trial=self.trial,
            retries=request.retries,
            depends_on=request.depends_on,
            tags=request.tags,
            gpu_types=request.gpu_types,
            cpus_per_gpu=request.cpus_per_gpu,
            share=request.share,
            notices=request.notices,
        )


class JobApi:
    """Users' requests about jobs: each is checked, written down, and only then carried out.

    ``most_nodes`` tells how many nodes there can be, 0 if none can be asked for.
    """

    def __init__(
        self,
        record: Record,
        journal: Journal,
        files: JobFiles,
        snapshots: Snapshots,
        most_nodes: Callable[[], int],
    ) -> None:
        self._record, self._journal, self._state = record, journal, record.state
        self._files, self.snapshots, self._most_nodes = files, snapshots, most_nodes
        self._entering: dict[object, tuple[Entry, asyncio.Future[int]]] = {}  # by user and key

    def check(self, request: JobRequest) -> None:
        """Refuse a job that can never run here. Raises NeverFitsError or JobFileError."""
        most_nodes = self._most_nodes()
        have, could_have = all_gpus(self._state), all_gpus(self._state, most_nodes)
        is_known = any(node.alive for node in self._state.nodes)  # else nodes may be awaited
        if is_known and request.num_gpus > could_have:
            more = f", and {could_have} on {most_nodes} nodes" if could_have > have else ""
            raise NeverFitsError(
                f"NEVER_FITS: resources.gpus is {request.num_gpus} and this cluster has "
                f"{have}{more}; ask for {could_have} or fewer"
            )
        share = request.share
        spans = request.processes == "gpu" and (share is None or share.role != BACKGROUND)
        most = most_gpus(self._state, spans=spans, most_nodes=most_nodes)
        if is_known and request.num_gpus > most:
            raise NeverFitsError(
                f"NEVER_FITS: resources.gpus is {request.num_gpus}, such a gang is on one node, "
                f"and the largest node has {most}; ask for {most} or fewer"
            )
        self._check_types(request)
        self._check_host(request)
        self._check_notices(request)
        self.dependencies(request)

    def _check_types(self, request: JobRequest) -> None:
        """Refuse a job for whose types of GPUs no node is large enough. Raises NeverFitsError."""
        nodes = [node for node in self._state.nodes if node.alive]
        wanted = ", ".join(request.gpu_types)
        sizes = [node.num_gpus for node in nodes if node.gpu_type in request.gpu_types]
        if not request.gpu_types or not nodes:
            return
        if not sizes:
            types = ", ".join(sorted({node.gpu_type for node in nodes} - {""}))
            fix = f"ask for {types}" if types else "leave it out, or name them: rota up --gpu-types"
            have = types or "GPUs whose type nobody named"
            raise NeverFitsError(
                f"NEVER_FITS: resources.gpu_type is {wanted} and this cluster has {have}; {fix}"
            )
        if request.num_gpus > max(sizes):
            raise NeverFitsError(
                f"NEVER_FITS: resources.gpus is {request.num_gpus}, and the largest node of "
                f"{wanted} has {max(sizes)}; ask for {max(sizes)} or fewer"
            )

    def _check_host(self, request: JobRequest) -> None:
        """Refuse a job that asks for more cores or memory than any node has that could hold it.

        A node whose agent has not told what it has could hold any job. Raises NeverFitsError.
        """
        wanted, gpus = request.gpu_types, request.num_gpus
        nodes = [
            node
            for node in self._state.nodes
            if node.alive and node.num_gpus >= gpus and (not wanted or node.gpu_type in wanted)
        ]
        most_gb = max((node.host_memory_gb or inf for node in nodes), default=inf)
        if request.host_memory_gb is not None and request.host_memory_gb > most_gb:
            raise NeverFitsError(
                f"NEVER_FITS: resources.memory is {request.host_memory_gb:g} GB, and the largest "
                f"node has {most_gb:.1f} GB; ask for less"
            )
        cores = max((node.millicores / 1000 or inf for node in nodes), default=inf)
        if request.cpus > cores:
            raise NeverFitsError(
                f"NEVER_FITS: resources.cpus is {request.cpus}, and the largest node has "
                f"{cores:g}; ask for {max(1, int(cores))} or fewer"
            )
        least, _ = request.cpus_per_gpu or (0, 0)
        if least * gpus > cores:
            fits = int(cores / gpus)
            fix = f"ask for {fits} or fewer" if fits else "leave it out, or ask for fewer GPUs"
            raise NeverFitsError(
                f"NEVER_FITS: resources.cpus_per_gpu is {least} at least, {least * gpus} cores for "
                f"{gpus_text(gpus)}, and the largest node has {cores:g}; {fix}"
            )

    def _check_notices(self, request: JobRequest) -> None:
        """Refuse a job that names a hook which is not there. Raises JobFileError."""
        if not request.notices:
            return
        kinds = {hook.name: hook.kind for hook in self._record.deliveries.hooks()}
        for notice in request.notices:
            known = [name for name, kind in kinds.items() if kind == notice.kind]
            if notice.hook not in known:
                hint = closest(notice.hook, known)
                fix = f"did you mean {hint}?" if hint else "`rota notify list` shows what there is"
                refuse(f"notify.{notice.kind}", notice.hook, f"there is none of this name; {fix}")

    def dependencies(self, request: JobRequest) -> tuple[Dependency, ...]:
        """The jobs that the job is to wait for, by id.

        Raises JobFileError for one that is not there, or has ended so that the job never starts.
        """
        found = []
        for job_id, when in request.depends_on:
            try:
                row = self._record.row(job_id, newest=True)
            except NotFoundError as error:
                refuse("depends_on", job_id, str(error))
            spec, outcome = self._state.spec[row], JobState(self._state.state[row])
            if outcome.is_final and outcome not in MET_BY[when]:
                refuse("depends_on", job_id, unmet_text(spec, outcome, when))
            found.append(Dependency(spec.job_id, when))
        return tuple(dict.fromkeys(found))

    async def resumed_from(self, request: JobRequest) -> str:
        """The id of the job whose checkpoints this one is to begin with; empty if of none.

        Raises JobFileError if it can't, and AgentAwayError if nobody can tell.
        """
        value = request.resume_from
        if not value:
            return ""
        try:
            row = self._record.row(value, newest=True)
        except NotFoundError as error:
            refuse("resume_from", value, str(error))
        job_id, name = self._state.spec[row].job_id, self._state.spec[row].name
        state = JobState(self._state.state[row])
        if not state.is_final:
            fix = f"wait with `rota wait {job_id}`, or end it with `rota cancel {job_id}`"
            refuse("resume_from", value, f"job {job_id} ({name}) is {state.name}: {fix}")
        found = await self._files.checkpoints(row)
        if self._record.being_cleaned[row]:
            refuse("resume_from", value, f"job {job_id} ({name}) is being cleaned up")
        if found is None or not found.holds_any:
            where = f"left no checkpoint in {found.path}" if found else "never started"
            fix = "leave it out, to begin at the beginning"
            refuse("resume_from", value, f"job {job_id} ({name}) has {where}: {fix}")
        return job_id

    async def submit(
        self, request: JobRequest, *, user: str, key: str | None, body_hash: str
    ) -> int:
        """Accept a job. Returns its row. The same idempotency key gives the same job.

        When this returns the job is on disk. Raises NeverFitsError, StoreFullError if there is no
        room for it, and JobFileError if the key was used for another job or its snapshot is not
        here.
        """
        known = self.submitted(user, key, body_hash)
        if known is None:
            self.check(request)
            self.snapshots.check(request)
        if known is None and request.resume_from:
            request = request._replace(resume_from=await self.resumed_from(request))  # by id
            known = self.submitted(user, key, body_hash)  # it may have come again meanwhile
        if known is not None:
            return known
        request = request._replace(depends_on=self.dependencies(request))
        return await self.enter(Entry(request, user, key, body_hash))

    def preview_spec(self, request: JobRequest, user: str) -> JobSpec:
        """The job as it would be if it were submitted now.

        Raises NeverFitsError for one that can never run; see also :meth:`resumed_from`.
        """
        self.check(request)
        request = request._replace(depends_on=self.dependencies(request))
        spec = Entry(request, user, None, "").spec
        return spec(str(self._record.next_id), self._record.now_s())

    def submitted(self, user: str, key: str | None, body_hash: str) -> int | None:
        """The row of the job submitted with this key. Raises JobFileError for another request."""
        known = self.find(user, key) if key is not None else None
        if known is not None and known.body_hash == body_hash:
            return known.row
        if known is not None or (
            key is not None and self._record.searches.of_key(user, key) is not None
        ):
            raise JobFileError(f"Idempotency-Key {key!r} was used for another job; use a new key")
        return None

    def find(self, user: str, key: str) -> Submission | None:
        """The user's submission under this key, if any."""
        if (user, key) in self._entering:
            self.write_entries()
        with self._journal.giving_up():
            return self._record.store.find_submission(user, key)

    def enter(self, entry: Entry) -> asyncio.Future[int]:
        """Queue a job to be written with others submitted at the same time. Returns its row.

        One durable write takes as long for many jobs as for one. Raises StoreFullError if there is
        no room; the other StoreErrors come through the future.
        """
        self._journal.room.check()
        loop = asyncio.get_running_loop()
        if not self._entering:
            loop.call_soon(self.write_entries)
        row: asyncio.Future[int] = loop.create_future()
        self._entering[object() if entry.key is None else (entry.user, entry.key)] = entry, row
        return row

    def write_entries(self) -> None:
        """Write the queued jobs durably, and notify the requests that wait for them."""
        entries, self._entering = list(self._entering.values()), {}
        if not entries:
            return
        first, events, submissions = len(self._state.spec), list[Event](), []
        for number, (entry, _) in enumerate(entries):
            spec = entry.spec(str(self._record.next_id + number), self._record.now_s())
            events.append(JobSubmitted(spec.submit_s, spec))
            if entry.key is not None:
                keyed = (entry.user, entry.key, entry.body_hash, first + number)
                submissions.append(Submission(*keyed))
        error = None
        try:
            self._journal.write_first(*events, submissions=submissions, durable=True)
            self._record.next_id += len(entries)
            self._record.keep_last_id()
        except StoreError as failure:
            error = failure
        for number, (_, row) in enumerate(entries):
            if row.cancelled():  # its caller is gone
                continue
            if error is None:
                row.set_result(first + number)
            else:
                row.set_exception(type(error)(str(error)))

    async def cancel(self, row: int, user: str = "", *, now: bool = False) -> bool:
        """End a job; False if it is ending, or was cancelled before. TransitionError if over.

        ``now`` leaves its processes no grace, also if they are in it.
        """
        ends = self._state.state[row] == JobState.STOPPING
        if self._state.state[row] == JobState.CANCELLED or (ends and not now):
            return False
        if not ends:
            check_open(self._state, row, "cancelled", self._record.now_s())
            self._journal.write_first(StopRequested(self._record.now_s(), row, user=user))
        if now and self._state.has_processes(row):
            about = {"job_id": self._state.spec[row].job_id, "attempt": self._state.attempt[row]}
            for index in seats(self._state, row):
                name = self._state.nodes[index].name
                self._record.outboxes.tell(name, {"type": "kill", **about, "cancelled": True})
        return True

    async def suspend(self, row: int, user: str = "") -> bool:
        """Take a job's GPUs away until it is resumed; False if that was asked for before.

        An idle job is then no longer brought back by its own calls.
        Raises TransitionError if the job is over.
        """
        check_open(self._state, row, "suspended", self._record.now_s())
        if row in self._state.held_back and row not in self._state.idle_jobs:
            return False
        self._journal.write_first(SuspendRequested(self._record.now_s(), row, user))
        return True

    async def resume(self, row: int, user: str = "") -> bool:
        """Let a job that its owner suspended, or that is idle, go on; False if it is neither.

        Raises TransitionError if the job is over.
        """
        check_open(self._state, row, "resumed", self._record.now_s())
        if row not in self._state.held_back:
            return False
        self._journal.write_first(ResumeRequested(self._record.now_s(), row, user))
        return True
