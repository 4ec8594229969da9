"""The profile store: measurements of jobs, and of all jobs of a signature, from the event log.

It is a fold over the events of live jobs. Only what lies between two reports of one job counts, if
neither its GPUs nor those who use them with it changed meanwhile: what is measured while a trial
begins or ends is of no placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from rota.model.allocation import Allocation
from rota.model.commands import Launch, Stop, Suspend
from rota.model.events import (
    AttemptLost,
    CommandFailed,
    CommandSent,
    CpusSet,
    Event,
    JobFinished,
    JobLaunched,
    JobResized,
    JobResumed,
    JobSuspended,
    ModelReported,
    NodeLost,
    StopRequested,
    WorkerReported,
)
from rota.model.measured.cpu_points import CpuPlace, Used, used_between
from rota.model.measured.job_signature import Recent, Signatures, StepWork, signature_of
from rota.model.measured.phase_times import EVALUATE, PHASES, TRAIN, times_in
from rota.model.measured.phases import Phases
from rota.model.measured.profile import OTHERS, Placement, Profile

if TYPE_CHECKING:
    from rota.model.measured.rows import Rows

MOST_SIGNATURES = 1000  # kinds with profiles; those with the latest reports stay
MOST_JOBS = 1000  # likewise
LEAST_S = 0.1  # shorter times are not measured by themselves
PLACED_ANEW = (
    JobLaunched,
    JobResumed,
    JobResized,
    JobSuspended,
    StopRequested,
    CommandFailed,
    AttemptLost,
    CpusSet,
)
MIXED = 0.1  # part of a validation that may have had other cores


@dataclass(slots=True)
class JobProfile:
    """One job: its measurements, and the time since which its conditions have not changed."""

    profile: Profile = field(default_factory=Profile)
    signature: str = ""  # once it is certain
    model_bytes: int = 0
    trains: bool = False  # True once this attempt has done a step
    since_s: float = 0.0  # its GPUs, and who shares them, are the same since then
    began: dict[str, Any] | None = None  # the report at which measuring began,
    placement: Placement | None = None  # where that is, if it is clear,
    until_s: float = inf  # and until when conditions were the same
    phase: str = TRAIN
    phases: Phases = field(default_factory=Phases)  # if its program does not tell its phase
    cpu_place: CpuPlace | None = None  # at the report at which measuring began, if it is clear
    timed_s: float = 0.0  # time of the last report whose step times were counted,
    validated_s: float = 0.0  # and the beginning of the last validation that was
    workers: int | None = None  # of its loader while it trained last
    last: tuple[CpuPlace, Used] | None = None  # use that counts to the phase that shows next

    def disturbed(self, at_s: float) -> None:
        """Something has changed, or begins to change."""
        self.since_s = max(self.since_s, at_s)
        self.until_s = min(self.until_s, self.since_s)
        if self.began is not None and self.began["at_s"] >= self.until_s:
            self.began = None


@dataclass
class Profiles:
    """Profiles by signature and by job, of live jobs: simulated ones cost nothing."""

    by_signature: Recent[str, Profile] = field(default_factory=lambda: Recent(MOST_SIGNATURES))
    jobs: Recent[int, JobProfile] = field(default_factory=lambda: Recent(MOST_JOBS))
    _names: Signatures = field(default_factory=Signatures)
    _placed: dict[int, Allocation] = field(default_factory=dict)  # jobs with GPUs, as known here
    _on_node: dict[int, dict[int, int]] = field(default_factory=dict)  # node -> row -> GPU mask

    # -- reading -------------------------------------------------------------------------------

    def signature(self, rows: Rows, row: int) -> str:
        """The signature of a live job, or the expected one; "" if nothing is known."""
        job, program = self.jobs.get(row), rows.spec[row].program
        if job is not None and job.signature:
            return job.signature
        return self._names.expected(program) if program is not None else ""

    def is_certain(self, row: int) -> bool:
        """True if the job has reported enough to determine its signature."""
        job = self.jobs.get(row)
        return job is not None and bool(job.signature)

    def of_signature(self, rows: Rows, row: int) -> Profile | None:
        """Measurements of jobs with the signature of this one."""
        return self.by_signature.get(self.signature(rows, row))

    def of_job(self, row: int) -> Profile | None:
        """Measurements of the job itself."""
        job = self.jobs.get(row)
        return job.profile if job is not None else None

    def sharers(self, allocation: Allocation | None, row: int) -> list[int]:
        """The other rows that have any of these GPUs."""
        found = []
        for node, mask in allocation.parts if allocation is not None else ():
            for other, theirs in self._on_node.get(node, {}).items():
                if theirs & mask and other != row and other not in found:
                    found.append(other)
        return found

    def awaits(self, row: int, at_s: float) -> bool:
        """True if a report made at ``at_s`` would begin a measurement, as none has since then."""
        job = self.jobs.get(row)
        if job is None or at_s < job.since_s:
            return False
        return job.began is None or at_s > job.until_s

    def unchanged_since_s(self, row: int) -> float:
        """When a job last got other GPUs or CPU cores, or other jobs beside it; 0 if it never did.

        Seconds since 1970.
        """
        job = self.jobs.get(row)
        return 0.0 if job is None else job.since_s

    def phase(self, row: int) -> str:
        """The phase that a job is in; the first one until it tells, or shows, another."""
        job = self.jobs.get(row)
        return job.phase if job is not None else TRAIN

    # -- what happens --------------------------------------------------------------------------

    def note(self, rows: Rows, event: Event) -> None:
        """Record an event that has changed the rows.

        A switch of a job's phase calls for a decision if CPU cores are controlled.
        """
        if isinstance(event, WorkerReported):
            before = self.phase(event.row)
            self._reported(rows, event)
            if rows.target_cpus and self.phase(event.row) != before:
                rows.note_change(event.row)  # another phase makes other use of CPU cores
        elif isinstance(event, CommandSent):
            self._command_sent(rows, event)
        elif isinstance(event, PLACED_ANEW):
            self._place(rows, event.row, event.at_s)
        elif isinstance(event, JobFinished):
            self._finished(rows, event)
        elif isinstance(event, ModelReported):
            self._model_reported(event)
        elif isinstance(event, NodeLost):
            self._node_lost(rows, event)

    def _command_sent(self, rows: Rows, e: CommandSent) -> None:
        row = e.command.row
        if isinstance(e.command, Suspend | Stop):  # the job continues until its boundary
            self._disturb(self.sharers(self._placed.get(row), row), e.at_s)
        else:
            if isinstance(e.command, Launch):
                job = self._job(row)
                job.trains, job.phase, job.phases, job.last = False, TRAIN, Phases(), None
            self._place(rows, row, e.at_s)

    def _finished(self, rows: Rows, e: JobFinished) -> None:
        self._place(rows, e.row, e.at_s)
        job = self.jobs.get(e.row)
        program = rows.spec[e.row].program
        if (
            job is None
            or program is None
            or job.signature
            or job.model_bytes
            or not job.profile.told_s
        ):
            return
        if self._names.expected(program) in ("", signature_of(program, StepWork())):
            self._settle(rows, e.row, job, StepWork())  # its command tells of no steps

    def _node_lost(self, rows: Rows, e: NodeLost) -> None:
        for row, allocation in list(self._placed.items()):
            if rows.held[row] is not allocation:
                self._place(rows, row, e.at_s)

    def _place(self, rows: Rows, row: int, at_s: float) -> None:
        """The job has its present GPUs from now on, or in a moment."""
        before, now = self._placed.pop(row, None), rows.held[row]
        near = {*self.sharers(before, row), *self.sharers(now, row)}
        for node, _ in before.parts if before is not None else ():
            del self._on_node[node][row]
        if now is not None:
            self._placed[row] = now
            for node, mask in now.parts:
                self._on_node.setdefault(node, {})[row] = mask
        self._job(row).phases.cores_changed()
        self._disturb([row, *sorted(near)], at_s)

    def _disturb(self, rows: Iterable[int], at_s: float) -> None:
        for row in rows:
            self._job(row).disturbed(at_s)

    def _model_reported(self, e: ModelReported) -> None:
        job = self._job(e.row)
        if job.model_bytes != e.model_bytes:
            job.model_bytes, job.signature = e.model_bytes, ""  # another signature, if it had one
            job.profile = Profile()

    # -- measuring -----------------------------------------------------------------------------

    def _reported(self, rows: Rows, e: WorkerReported) -> None:
        row, told, job = e.row, e.progress, self._job(e.row)
        at_s, step = told.get("at_s"), told.get("step")
        if told.get("phase") in PHASES:
            job.phase = told["phase"]
        if at_s is None:
            return
        if step and not job.trains:  # the job computes only from now on
            job.trains, job.began = True, None
            now_s = min(at_s, e.at_s)
            self._disturb([row, *self.sharers(self._placed.get(row), row)], now_s)
        if step and job.signature not in self.by_signature:
            known = job.profile.work
            batch = known.batch if job.signature else told.get("batch") or 0
            self._settle(rows, row, job, StepWork(job.model_bytes, batch))
        self.jobs[row] = job
        for profile in self._profiles(job):
            profile.told_s = e.at_s
            profile.took_memory(told.get("memory_least_bytes"), told.get("memory_most_bytes"))
        self._time(rows, row, job, told)
        if job.began is not None and job.began["at_s"] + LEAST_S <= at_s <= job.until_s:
            before = job.began.get("step")
            if step is None or step > (before or 0):
                self._measure(job, job.began, told)
            elif step == before:
                return  # the job is still in the step
        elif job.began is not None and job.began["at_s"] <= at_s <= job.until_s:
            return  # too early to tell
        self._begin(rows, row, job, told)

    def _begin(self, rows: Rows, row: int, job: JobProfile, told: dict[str, Any]) -> None:
        """Measure from this report on, if it was made under the present conditions."""
        job.began, job.placement, job.cpu_place, job.until_s = None, None, None, inf
        if told["at_s"] >= job.since_s:
            job.began, job.placement = told, self._placement(rows, row)
            job.cpu_place = self._cpu_place(rows, row, job.placement)

    def _settle(self, rows: Rows, row: int, job: JobProfile, work: StepWork) -> None:
        """The job's signature is known: its measurements so far count there, too."""
        program = rows.spec[row].program
        if program is None:
            return
        job.signature = self._names.settle(program, work)
        job.profile.command, job.profile.work = program.run, work
        profile = self.by_signature.get(job.signature) or Profile()
        profile.command, profile.work = program.run, work
        profile.jobs += 1
        profile.merge(job.profile)
        self.by_signature[job.signature] = profile

    def _measure(self, job: JobProfile, before: dict[str, Any], told: dict[str, Any]) -> None:
        """Add the work done between two reports."""
        placement = job.placement
        if placement is None:
            return
        steps = (told.get("step") or 0) - (before.get("step") or 0)
        used = used_between(before, told)
        for profile in self._profiles(job):
            if steps > 0:
                profile.timed(placement, steps, told["at_s"] - before["at_s"])
            if not placement.beside:
                used.add_to(profile.device_util, profile.cpu_cores)
        if job.cpu_place is not None:
            self._used(job, job.cpu_place, used, before, told)

    def _time(self, rows: Rows, row: int, job: JobProfile, told: dict[str, Any]) -> None:
        """Add the step times that a report has by phase, measured under the present conditions."""
        if not job.timed_s < told["at_s"] or told["at_s"] < job.since_s:
            return
        place = self._cpu_place(rows, row, self._placement(rows, row))
        if place is None:
            return
        for time in times_in(told):
            if time.phase == EVALUATE and time.since_s <= job.validated_s:
                continue  # a report tells the last validation, however long ago it was
            mixed_s = MIXED * time.steps * time.step_s if time.phase == EVALUATE else 0.0
            if time.since_s + mixed_s >= job.since_s:
                where = place._replace(phase=time.phase, workers=time.workers)
                for profile in self._profiles(job):
                    profile.cpu_point(where).timed(time)
                if time.phase == TRAIN:
                    job.timed_s, job.workers = told["at_s"], time.workers
                else:
                    job.validated_s = time.since_s

    def _used(
        self,
        job: JobProfile,
        place: CpuPlace,
        used: Used,
        before: dict[str, Any],
        told: dict[str, Any],
    ) -> None:
        """Add a job's use between two reports to its phase.

        If the program tells its phase, use that spans both counts to none. Else the phase is
        detected, and what a switch began with is known only with the next report.
        """
        if told.get("phase") is None:
            if job.phases.add(used.sample()):
                job.phase = PHASES[job.phases.phase]
            if job.last is not None:
                self._count(job, *job.last)
            job.last = place, used
        elif told["phase"] == before.get("phase") and not any(
            time.phase == EVALUATE and time.since_s + time.step_s >= before["at_s"]
            for time in times_in(told)
        ):
            self._count(job, place._replace(workers=job.workers), used)

    def _count(self, job: JobProfile, place: CpuPlace, used: Used) -> None:
        for profile in self._profiles(job):
            profile.cpu_point(place._replace(phase=job.phase)).used(used)

    def _cpu_place(self, rows: Rows, row: int, placement: Placement | None) -> CpuPlace | None:
        """Conditions that decide what CPU cores are worth; None if the job shares its GPUs."""
        held = rows.held[row]
        if placement is None or placement.beside or held is None:
            return None
        size = placement.gpu_type, placement.num_gpus, placement.num_nodes
        return CpuPlace(*size, TRAIN, rows.held_cpus.get(row), None, held.batch)

    def _placement(self, rows: Rows, row: int) -> Placement | None:
        """The job's present GPUs, and the job beside it; None if they are unclear."""
        allocation = self._placed.get(row)
        beside = self._beside(row) if allocation is not None else None
        if allocation is None or beside is None:
            return None
        types = {rows.nodes[node].gpu_type for node in allocation.nodes()}
        nodes = len(allocation.parts)
        return Placement("+".join(sorted(types)), allocation.num_gpus, nodes, beside)

    def _beside(self, row: int) -> str | None:
        """The job that shares the job's GPUs, as in a placement; None if that is unclear."""
        others = self.sharers(self._placed[row], row)
        if not all(self._job(other).trains for other in others):
            return None
        if not others:
            return ""
        signature = self._job(others[0]).signature
        same = self._placed[others[0]].parts == self._placed[row].parts
        return signature if len(others) == 1 and same and signature else OTHERS

    def _profiles(self, job: JobProfile) -> list[Profile]:
        """Profiles to which a job's measurements count: its own, and that of its signature."""
        profile = self.by_signature.get(job.signature)
        if profile is None:
            return [job.profile]
        self.by_signature[job.signature] = profile  # moves it to the end: the latest report
        return [job.profile, profile]

    def _job(self, row: int) -> JobProfile:
        job = self.jobs.get(row)
        if job is None:
            self.jobs[row] = job = JobProfile()
        return job
