"""Cleans up after jobs that have ended, at their users' request."""

import asyncio
import getpass

from rota.errors import NotOwnerError, TransitionError
from rota.live.controller.job_files import JobFiles
from rota.live.controller.journal import Journal
from rota.live.controller.record import Record
from rota.live.controller.snapshots import Snapshots
from rota.model.events import JobCleaned
from rota.model.job import JobState
from rota.model.naming import jobs_text


def process_owner() -> str:
    """The user of the operating system whose process this is; ``unknown`` without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class Cleaner:
    """Removes logs and checkpoints of jobs that have ended; ``owner`` runs the cluster.

    Files are removed first, and then that is written down: after a failure between the two, another
    request finds nothing, and writes it down.
    """

    def __init__(
        self, record: Record, journal: Journal, files: JobFiles, snapshots: Snapshots
    ) -> None:
        self._record, self._journal, self._files = record, journal, files
        self._snapshots = snapshots
        self.owner = process_owner()

    async def clean(
        self, row: int, user: str, *, keeps_checkpoints: bool = False, dry_run: bool = False
    ) -> int:
        """Remove what a job has left. Returns how many bytes of the disks that has taken.

        With ``dry_run`` nothing is removed. Raises NotOwnerError unless ``user`` may do so,
        TransitionError for a job that has not ended or whose checkpoints another one may need, and
        AgentAwayError if a node that has some of it can't be asked.
        """
        record = self._record
        self._check(row, user)
        record.being_cleaned[row] += 1  # no job begins with its checkpoints from now on
        try:
            await asyncio.sleep(0)  # those that were submitted before are there now
            if not keeps_checkpoints:
                self._check_needless(row)
            num_bytes = await self._files.clean(
                row, keeps_checkpoints=keeps_checkpoints, dry_run=dry_run
            )
            if not dry_run and (num_bytes or not self._is_cleaned(row, keeps_checkpoints)):
                event = JobCleaned(record.now_s(), row, user, keeps_checkpoints)
                self._journal.write_first(event)
                program = record.state.spec[row].program
                if program is not None and program.snapshot:
                    self._snapshots.remove_needless()
            return num_bytes
        finally:
            record.being_cleaned[row] -= 1

    def _is_cleaned(self, row: int, keeps_checkpoints: bool) -> bool:
        """True if it is written down that as much of the job was removed before."""
        before = self._record.state.cleaned.get(row)
        return before is not None and (keeps_checkpoints or not before.keeps_checkpoints)

    def _check(self, row: int, user: str) -> None:
        state = self._record.state
        spec, now = state.spec[row], JobState(state.state[row])
        about = f"job {spec.job_id} ({spec.name})"
        if user not in (spec.user, self.owner):
            raise NotOwnerError(
                f"{about} is of {spec.user}: only {spec.user} can clean up after it, or "
                f"{self.owner}, who runs this cluster"
            )
        if not now.is_final:
            raise TransitionError(
                f"{about} is {now.name}, and only jobs that have ended are cleaned up: wait with "
                f"`rota wait {spec.job_id}`, or end it with `rota cancel {spec.job_id}`"
            )

    def _check_needless(self, row: int) -> None:
        """Raise TransitionError if an active job may need the checkpoints."""
        state = self._record.state
        job_id, needed_by = state.spec[row].job_id, []
        for other, spec in enumerate(state.spec):
            if not JobState(state.state[other]).is_final:
                resumes = spec.program is not None and spec.program.resume_from == job_id
                if resumes or any(awaited.job_id == job_id for awaited in spec.depends_on):
                    needed_by.append(spec)
        if needed_by:
            names = jobs_text([f"{spec.job_id} ({spec.name})" for spec in needed_by])
            raise TransitionError(
                f"job {job_id} ({state.spec[row].name}) is named in resume_from or depends_on of "
                f"{names}, which may need its checkpoints: wait for the end, or keep them with "
                "--keep-checkpoints"
            )
