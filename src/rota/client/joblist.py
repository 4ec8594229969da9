"""The list of jobs, kept current: read once, then only those jobs again that events name."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from rota.client.client import Client
from rota.client.events import Busy, Logged, Resync, Told

PAGE = 500  # jobs that are read at once
LISTED_S = 3600.0  # for how long an ended job is listed

Job = dict[str, Any]


class Due(NamedTuple):
    """The jobs to read: those with these ids, or all that are listed."""

    ids: tuple[str, ...] | None

    def __bool__(self) -> bool:
        return self.ids is None or len(self.ids) > 0


class Found(NamedTuple):
    """Jobs as they were read, and the event after which a whole list was; None: a part was read."""

    jobs: list[Job]
    seq: int | None


def read(client: Client, due: Due) -> Found:
    """Read what is due, in pages. Raises RotaError."""
    found: list[Job] = []
    if due.ids is not None:
        for first in range(0, len(due.ids), PAGE):
            found += client.job_page(ids=due.ids[first : first + PAGE], limit=None).jobs
        return Found(found, None)
    client.job_page(limit=1, fields=("id",))
    seq, cursor = int((client.cursor or "0").rpartition("-")[2]), None
    while True:
        page = client.job_page(limit=PAGE, cursor=cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return Found(found, seq)


class JobList:
    """Active jobs and those that ended within the hour, by id, oldest first.

    :meth:`note` learns from the event stream which jobs have changed, :meth:`take` names them, for
    :func:`read`, and :meth:`put` takes the answer. A job that has not changed is the same object as
    before. ``shape`` makes an entry of a job as the API tells it.
    """

    def __init__(self, shape: Callable[[Job], Job] = dict) -> None:
        self.jobs: dict[str, Job] = {}
        self._shape = shape
        self._all = True  # all are due
        self._seq = 0  # of the last event that was in the list when all of it was read
        self._stale: dict[str, float] = {}  # by job, the last event that has changed it

    def note(self, told: Told) -> bool:
        """Take in what the stream tells. True if something is due."""
        if isinstance(told, Resync | Busy):
            self._all = True
        elif isinstance(told, Logged) and told.seq > self._seq:
            if told.kind.startswith("Node"):  # it may change jobs that it does not name
                self._all = True
            elif told.job_id is not None:
                self._stale[told.job_id] = told.seq
            elif told.kind == "DecisionTaken":
                for changes in ("allocations", "reasons", "cores"):
                    self._stale.update(dict.fromkeys(told.data[changes], told.seq))
        return self._all or len(self._stale) > 0

    def age(self, now_s: float) -> None:
        """Forget jobs that ended long ago; those whose shares and times grow are due again."""
        for job_id, job in list(self.jobs.items()):
            if job["finish_s"] is not None:
                if job["finish_s"] < now_s - LISTED_S:
                    del self.jobs[job_id]
            elif job["state"] != "PENDING":
                self._stale[job_id] = inf

    def take(self) -> Due:
        """The jobs that are due; they are so no longer, unless :meth:`put` gets None for them."""
        due = Due(None if self._all else tuple(self._stale))
        self._all = False
        self._stale.clear()
        return due

    def put(self, due: Due, found: Found | None, now_s: float) -> bool:
        """Take what was read, or None if nothing could be. True if that changes the list."""
        if found is None:
            self._all |= due.ids is None
            self._stale |= dict.fromkeys(due.ids or (), inf)
            return False
        before = self.jobs
        if found.seq is not None:
            self._seq, self.jobs = found.seq, {}
            self._stale = {job: seq for job, seq in self._stale.items() if seq > found.seq}
        is_changed = False
        for each in found.jobs:
            job, old = self._shape(each), before.get(each["id"])
            if job["finish_s"] is not None and job["finish_s"] < now_s - LISTED_S:
                is_changed |= self.jobs.pop(each["id"], None) is not None
                continue
            if found.seq is None:
                self._mark_sharers(old, job)
            is_changed |= old != job
            self.jobs[each["id"]] = old if old is not None and old == job else job
        return is_changed or len(self.jobs) != len(before)

    def place(self, queue: Sequence[str]) -> bool:
        """Take in the order of the waiting jobs. True if that changes the list."""
        positions = {job_id: position for position, job_id in enumerate(queue, 1)}
        is_changed = False
        for job_id, job in self.jobs.items():
            if job["position"] != (position := positions.get(job_id)):
                self.jobs[job_id] = job | {"position": position}
                is_changed = True
        return is_changed

    def _mark_sharers(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        """Have jobs read again that share GPUs with one that has changed, or did."""
        before = set(old["shared_with"]) if old is not None else set()
        for other in before ^ set(new["shared_with"]):
            if other in self.jobs:
                self._stale[other] = inf
