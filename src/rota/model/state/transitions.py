"""The steps that events are made of: how a job's columns move together, and who must be told."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from itertools import islice
from typing import NoReturn

from rota.errors import TransitionError
from rota.model.allocation import Allocation, indices
from rota.model.cluster import FreeGpus, Node
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.state.columns import Columns

# As plain integers: columns are compared with them at every event.
PENDING, STARTING, RUNNING = int(JobState.PENDING), int(JobState.STARTING), int(JobState.RUNNING)
SUSPENDING, SUSPENDED = int(JobState.SUSPENDING), int(JobState.SUSPENDED)
MIGRATING, STOPPING, HELD = int(JobState.MIGRATING), int(JobState.STOPPING), int(JobState.HELD)
FIRST_FINAL = int(JobState.SUCCEEDED)
NO_REASON = int(Reason.NONE)
MOST_NAMED = 10  # in a sentence


class Transitions(Columns):
    """The columns of all jobs, the nodes and the free GPUs, and the steps that keep them in line.

    ``changed`` lists rows of which something that a view shows has changed since the last
    decision, with repeats, whether or not it calls for a decision; ``decision_needed`` says that.
    """

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__()
        self.ending: dict[int, tuple[int | None, str]] = {}  # exit code and message of ended jobs
        self.stop_outcome: dict[int, JobState] = {}
        self.user_suspended: set[int] = set()
        self.backoff: dict[int, float] = {}

        self.nodes: list[Node] = []
        self.node_index: dict[str, int] = {}
        self.assumed = FreeGpus()  # free when the last plan has been carried out
        self.idle = FreeGpus()  # free right now
        # Free after the decision that is about to be applied, if its maker knows; ours to keep.
        self.foreseen: FreeGpus | None = None
        self.total_gpus = 0
        self.one_node_gangs = False  # so it is on live nodes: an agent starts whole gangs
        self.priorities: set[int] = set()  # those that any job has had
        self.completed_gpu_s: array[float] = array("d")  # of jobs that ended by themselves

        self.active: dict[int, None] = {}  # rows that the policy decides on
        self.resizing: dict[int, Allocation] = {}  # row -> what it had when its resize was sent
        self.unsettled: dict[int, None] = {}  # rows whose target is not what they hold
        self.changed: list[int] = []
        self.decision_needed = False
        self._stories: list[list[tuple[float, str]]] | None = [] if keep_stories else None
        self._mates: dict[int, list[int]] = {}  # with whom jobs share, as their stories tell

    def require_open(self, row: int, verb: str) -> None:
        """Raise TransitionError, with the job's story, if the job has ended or is about to."""
        if self.state[row] >= FIRST_FINAL or self.state[row] == STOPPING:
            self._refuse(row, verb)

    def places(self, parts: Iterable[tuple[int, int]]) -> str:
        """``node-0:0,1 node-1:3`` for (node index, mask of GPUs) pairs; of no GPUs the node."""
        return " ".join(
            self.nodes[node].name + (f":{','.join(map(str, indices(mask)))}" if mask else "")
            for node, mask in parts
        )

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The ids of these jobs."""
        return [self.spec[row].job_id for row in rows]

    def sharers(self, row: int) -> list[int]:
        """The rows of the other jobs that hold some of the GPUs that the job holds."""
        held = self.held[row]
        if held is None or not held.shared:
            return []
        rows = sorted(self.active.keys() | self.unsettled.keys())
        return [r for r in rows if r != row and _overlap(self.held[r], held)]

    def story(self, row: int) -> list[tuple[float, str]]:
        """What has happened to a job, as (seconds, sentence); short if stories are not kept."""
        if self._stories is not None:
            return list(self._stories[row])
        lines = [(self.submit_s[row], "submitted")]
        if self.first_start_s[row] >= 0:
            lines.append((self.first_start_s[row], "started"))
        if self.finish_s[row] >= 0:
            lines.append((self.finish_s[row], JobState(self.state[row]).name.lower()))
        return lines

    def _assume(self, allocations: dict[int, Allocation | None]) -> None:
        """Make these the targets of their jobs."""
        target, held = self.target, self.held
        if self.foreseen is None:
            for row in allocations:
                old = target[row]
                if old is not None:
                    self.assumed.give(old)
            for allocation in allocations.values():
                if allocation is not None:
                    self.assumed.take(allocation)
        else:
            self.assumed, self.foreseen = self.foreseen, None
        for row, allocation in allocations.items():
            if allocation is not None:
                self.reason[row] = NO_REASON
            elif target[row] is not None and held[row] is not None:
                self.preemptions[row] += 1
            target[row] = allocation
            if allocation is not None and held[row] is not None:
                self._share(row)
            if (held[row] is None) != (allocation is None):
                self.unsettled[row] = None
            else:
                self._settle(row)

    def _share(self, row: int) -> None:
        """Let a job that is to share the GPUs that it has, or not any more, do so if it can.

        Its processes have no part in that. Having them for itself takes that the others are gone.
        """
        held, target = self.held[row], self.target[row]
        if held is None or target is None or held.parts != target.parts:
            return
        if held.shared != target.shared:
            same = target.with_batch(held.batch)
            self.idle.give(held)
            self.held[row] = same if self.idle.take(same) else held
            if self.held[row] is held:
                self.idle.take(held)

    def _tell_sharing(self, at_s: float, reasons: dict[int, int]) -> None:
        """Have stories tell with whom jobs are to share their GPUs from now on, where that changes.

        A turn that ends and another that begins with the same jobs change nothing.
        """
        target, known = self.target, self._mates
        sharing = [row for row in self.active if (t := target[row]) is not None and t.shared]
        for row in sorted({*sharing, *known}):
            mine = target[row]
            if mine is None:
                undone = reasons.get(row) == Reason.PACK_UNDONE
                if undone:
                    self._tell(row, at_s, "shares its GPU no longer")
                if undone or row not in self.active:
                    known.pop(row, None)
                continue
            mates = [r for r in sharing if r != row and _overlap(target[r], mine)]
            if mates != known.get(row, []):
                self._tell(row, at_s, self._sharing_line(mine, mates))
            if mates:
                known[row] = mates
            else:
                known.pop(row, None)

    def _sharing_line(self, allocation: Allocation, mates: list[int]) -> str:
        where = self.places(allocation.parts)
        return (
            f"shares {where} with {jobs_text(self.ids(mates))}" if mates else f"has {where} alone"
        )

    def _size(self, row: int, num_gpus: int) -> None:
        """Count the job's GPUs anew, and its GPU-seconds so far as they were."""
        before = self.num_gpus[row]
        if num_gpus != before:
            self.extra_gpu_s[row] += self.service_s[row] * (before - num_gpus)
            self.extra_overhead_gpu_s[row] += self.overhead_s[row] * (before - num_gpus)
            self.num_gpus[row] = num_gpus

    def _enter(self, row: int, state: int, at_s: float) -> None:
        self.state[row] = state
        self.changed_s[row] = at_s

    def _end(
        self, row: int, at_s: float, outcome: JobState, exit_code: int | None, message: str
    ) -> None:
        target = self.target[row]
        if target is not None:
            self.assumed.give(target)
        self.target[row] = self.home[row] = None
        self._release(row)
        self.outstanding[row] = self.marks[row] = None
        self.active.pop(row, None)
        self.changed.append(row)
        self.decision_needed = True
        if self.reason[row] != NO_REASON:
            self.reason[row] = NO_REASON
        self.finish_s[row] = at_s
        if self.unsettled:
            self.unsettled.pop(row, None)
        if self.stop_outcome:
            self.stop_outcome.pop(row, None)
        if self.resizing:
            self.resizing.pop(row, None)
        if self.user_suspended:
            self.user_suspended.discard(row)
        if self.backoff:
            self.backoff.pop(row, None)
        if exit_code is not None or message:
            self.ending[row] = (exit_code, message)
        self.state[row] = outcome
        self.changed_s[row] = at_s
        if self._stories is not None:
            self._tell(row, at_s, outcome.name.lower() + (f": {message}" if message else ""))

    def _pause_clock(self, row: int, at_s: float) -> None:
        since = self.since_s[row]
        if since >= 0:
            self._ran(row, at_s - since if at_s > since else 0.0)
            self.since_s[row] = -1.0
        elif self.state[row] == SUSPENDING:  # it went on until it reached its boundary, or ended
            self._ran(row, max(0.0, at_s - self.changed_s[row]))

    def _ran(self, row: int, seconds: float) -> None:
        self.service_s[row] += seconds
        if self.speed[row] != 1.0:
            self.lag_s[row] += seconds * (1.0 - self.speed[row])

    def _release(self, row: int) -> None:
        held = self.held[row]
        if held is not None:
            self.idle.give(held)
            self.held[row] = None
            if held.shared:
                self._leave_to_others()

    def _leave_to_others(self) -> None:
        """Jobs that are to have their GPUs for themselves, and shared them, may have them now."""
        for row in list(self.unsettled):
            self._share(row)
            if self.held[row] is self.target[row]:
                self._settle(row)

    def _untarget(self, row: int) -> None:
        old = self.target[row]
        if old is not None:
            self.assumed.give(old)
            self.target[row] = None
        self._settle(row)

    def _settle(self, row: int) -> None:
        """Keep ``unsettled`` to the rows for which a command is needed or on its way."""
        held, target = self.held[row], self.target[row]
        settled = held is target or (held is not None and held == target)
        if settled and self.outstanding[row] is None and self.state[row] != STOPPING:
            self.unsettled.pop(row, None)
        else:
            self.unsettled[row] = None

    def _leave_active(self, row: int) -> None:
        self._untarget(row)
        self.active.pop(row, None)
        self._changed(row)

    def _changed(self, row: int) -> None:
        self.changed.append(row)
        self.decision_needed = True

    def _tell(self, row: int, at_s: float, line: str) -> None:
        if self._stories is not None:
            self._stories[row].append((at_s, line))

    def _name(self, row: int) -> str:
        return self.spec[row].job_id if 0 <= row < len(self.spec) else f"of row {row}"

    def _refuse(self, row: int, verb: str) -> NoReturn:
        story = "; ".join(f"{at_s:.3f} s {line}" for at_s, line in self.story(row))
        command = type(self.outstanding[row]).__name__ if self.outstanding[row] else "none"
        raise TransitionError(
            f"job {self._name(row)} can't be {verb} while it is "
            f"{JobState(self.state[row]).name} (command on its way: {command}). Its story: {story}"
        )


def _overlap(one: Allocation | None, other: Allocation | None) -> bool:
    return one is not None and other is not None and one.overlaps(other)


def jobs_text(ids: Collection[str]) -> str:
    """``job 3``, or ``jobs 3, 4``; of many the first ones."""
    return f"{'job' if len(ids) == 1 else 'jobs'} {few(ids)}"


def few(words: Collection[str], separator: str = ", ") -> str:
    """Some words, such as the ids of jobs; of many the first ones, and how many more there are."""
    more = len(words) - MOST_NAMED
    named = separator.join(islice(words, MOST_NAMED))
    return f"{named} and {more:,} more" if more > 0 else named
