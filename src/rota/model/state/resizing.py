"""What running jobs go through without a suspension: other sizes, and other batches."""

from __future__ import annotations

from typing import NamedTuple

from rota.model.allocation import gpus_text
from rota.model.commands import Resize, Retune
from rota.model.events import BatchRefused, JobResized, JobRetuned
from rota.model.state.transitions import RUNNING, STARTING, Transitions


class Refusal(NamedTuple):
    """A batch that did not go: so many samples at once on a GPU, and why."""

    samples: int
    error: str


class Changes(Transitions):
    """How the columns change by a resize or a retune, and by what comes of it.

    ``refused`` has for rows, and types of GPUs, the fewest samples at once that a job has refused
    there: no larger batch is chosen on such GPUs.
    """

    def __init__(self, *, keep_stories: bool = True) -> None:
        super().__init__(keep_stories=keep_stories)
        self.refused: dict[int, dict[str, Refusal]] = {}

    def sizes(self, row: int) -> tuple[int, ...]:
        """How many GPUs the job can be given now, rising: one number for a gang of fixed size.

        A suspended job goes on with as many as it had, unless it changes its size by a restart. A
        running one can become larger or smaller if its program can, as far as its batches can be
        shared out, and no command is on its way; smaller also while it has yet to say whether.
        """
        elastic = self.spec[row].elastic
        if elastic is None:
            return (self.num_gpus[row],)
        if elastic.by_restart:
            return elastic.sizes
        held, home = self.held[row], self.home[row]
        if home is not None:
            return (home.num_gpus,)
        if held is None:
            return elastic.sizes
        target = self.target[row]
        if self.has_yet_to_say(row) and row not in self.backoff:
            smaller = tuple(size for size in elastic.sizes if size <= held.num_gpus)
            return smaller or (held.num_gpus,)
        if target is not None and (row in self.unsettled or row in self.backoff):
            return (target.num_gpus,)  # on its way there
        if not self.resizable[row] or self.since_s[row] < 0:
            return (held.num_gpus,)
        most = self.most_ranks[row]
        if 0 < most < elastic.sizes[-1]:
            return tuple(size for size in elastic.sizes if size <= most) or (held.num_gpus,)
        return elastic.sizes

    def has_yet_to_say(self, row: int) -> bool:
        """Whether nobody can know yet if a live job's program can become larger or smaller.

        It says so before it reports for the first time, if it can. A job with no range of GPUs has
        nothing to say.
        """
        spec, elastic = self.spec[row], self.spec[row].elastic
        if elastic is None or elastic.by_restart or spec.simulated or self.resizable[row]:
            return False
        return self.progress[row] is None and self.state[row] in (STARTING, RUNNING)

    def _send_change(self, row: int, command: Resize | Retune) -> None:
        held = self.held[row]
        if held is None or self.since_s[row] < 0:
            self._refuse(row, "retuned" if isinstance(command, Retune) else "resized")
        if isinstance(command, Retune):
            return
        more = command.allocation.without(held)
        if more is not None and not self.idle.take(more):
            self._refuse(row, "resized")
        self.resizing[row] = held
        self.held[row] = held.joined(command.allocation)

    def _job_resized(self, e: JobResized) -> None:
        row, held = e.row, self.held[e.row]
        if held is None or self.since_s[row] < 0:
            self._refuse(row, "resized")
        if isinstance(self.outstanding[row], Resize):
            self.outstanding[row] = None
        self.resizing.pop(row, None)
        left = held.without(e.allocation)
        if left is not None:
            self.idle.give(left)
        same = left is None and held.batch == e.allocation.batch
        self.held[row] = held if same else e.allocation
        self._pause_clock(row, e.at_s)
        self.since_s[row] = e.at_s
        self.lag_s[row] += e.paused_s
        self.restarts[row] += 1
        before = self.num_gpus[row]
        self._size(row, e.allocation.num_gpus)
        self.speed[row] = e.speed
        self._settle(row)
        self._tell(row, e.at_s, _resize_line(e, before))
        self._changed(row)

    def _job_retuned(self, e: JobRetuned) -> None:
        row, held = e.row, self.held[e.row]
        if held is None or self.since_s[row] < 0:
            self._refuse(row, "retuned")
        if isinstance(self.outstanding[row], Retune):
            self.outstanding[row] = None
        self._pause_clock(row, e.at_s)
        self.since_s[row] = e.at_s
        target = self.target[row]
        now = held.with_batch(e.batch)
        self.held[row] = target if target is not None and now == target else now
        self.speed[row] = e.speed
        self._settle(row)
        if self._stories is not None:
            self._tell(row, e.at_s, _retune_line(e))
        self.changed.append(row)

    def _fail_retune(self, row: int) -> None:
        """A target that is the same GPUs with another batch is given up."""
        held, target = self.held[row], self.target[row]
        if held is not None and target is not None and held.parts == target.parts:
            self.target[row] = target.with_batch(held.batch)

    def _fail_resize(self, row: int) -> None:
        """What was taken for the resize is given back; a larger target is given up."""
        before, held, target = self.resizing.pop(row), self.held[row], self.target[row]
        assert held is not None
        more = held.without(before)
        if more is not None:
            self.idle.give(more)
        self.held[row] = before
        if target is not None and before.without(target) is None:
            more = target.without(before)
            if more is not None:
                self.assumed.give(more)
            self.target[row] = before

    def _batch_refused(self, e: BatchRefused) -> None:
        row, held = e.row, self.held[e.row]
        if held is None:
            self._refuse(row, "told of a batch")
        gpu_type, samples = self.nodes[held.parts[0][0]].gpu_type, e.batch[0]
        if e.of_a_gpu:
            known = self.refused.setdefault(row, {}).get(gpu_type)
            if known is None or samples < known.samples:
                self.refused[row][gpu_type] = Refusal(samples, e.error)
        command, target = self.outstanding[row], self.target[row]
        if isinstance(command, Retune) and command.batch == e.batch:
            self.outstanding[row] = None
            self._fail_retune(row)
        elif held.batch == e.batch:  # it came with its GPUs, and what it has instead is not known
            self.held[row] = held.with_batch(None)
            if target is not None and target.batch == e.batch:
                self.target[row] = target.with_batch(None)
        self._settle(row)
        self._tell(row, e.at_s, f"{_batch_text(e.batch)} refused: {e.error}")
        self._changed(row)


def _retune_line(e: JobRetuned) -> str:
    if e.batch is None:
        return "retuned to its own batch"
    return f"retuned to {_batch_text(e.batch)}"


def _batch_text(batch: tuple[int, int]) -> str:
    size, accumulations = batch
    return f"{size} samples a GPU" + f", {accumulations + 1} times" * (accumulations > 0)


def _resize_line(e: JobResized, before: int) -> str:
    after = e.allocation.num_gpus
    if not e.cause:
        return f"resized to {gpus_text(after)}"
    return e.cause if after == before else f"{e.cause}; the others go on with {gpus_text(after)}"
