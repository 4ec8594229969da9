"""Gaps: the part of each GPU that the foreground jobs on it leave, as far as that can be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rota.model.allocation import Allocation, indices
from rota.model.view import View
from rota.policy.cpus.stage import Residents

PRIOR = 0.5  # of a GPU: what a foreground job of which nothing is known is taken to leave
DIGITS = 2  # of predicted shares: smaller differences between GPUs tell nothing


Gpu = tuple[int, int]  # of a node


class Gap(NamedTuple):
    """GPUs of a node, the rows of the foreground jobs on them, rising, and the part they leave.

    ``share`` is that of the GPU of which least is left, 1 if all are idle; ``is_known`` is False if
    it is only assumed of one of them.
    """

    node: int
    gpus: tuple[int, ...]
    beside: tuple[int, ...] = ()
    share: float = 1.0
    is_known: bool = True


class Gaps:
    """The gaps of all GPUs on nodes that take jobs, once a policy's plan is carried out."""

    def __init__(self, view: View, residents: Residents) -> None:
        self._view = view
        self._residents = residents
        self._used: dict[int, float | None] = {}  # by row
        self._planned: dict[int, dict[Gpu, float] | None] = {}  # by row
        self._left: dict[tuple[int, ...], tuple[float, bool]] = {}  # by rows

    def at(self, node: int, gpu: int) -> Gap:
        """The gap of one GPU."""
        on_it = (row for row, mask in self._residents.masks(node) if mask >> gpu & 1)
        return self._gap(node, gpu, tuple(on_it))

    def on(self, node: int, gpus: Sequence[int]) -> Gap:
        """The gap of these GPUs, at least one, for a job that has all of them."""
        return joined([self.at(node, gpu) for gpu in gpus])

    def each(self, gap: Gap) -> list[Gap]:
        """The gaps of its GPUs one by one."""
        return [gap] if len(gap.gpus) == 1 else [self.at(gap.node, gpu) for gpu in gap.gpus]

    def all(self) -> list[Gap]:
        """The gaps of all GPUs, the largest first, then by node and GPU."""
        found = []
        for index, node in enumerate(self._view.nodes):
            if not node.alive:
                continue
            beside: dict[int, list[int]] = {}
            for row, mask in self._residents.masks(index):
                for gpu in indices(mask):
                    beside.setdefault(gpu, []).append(row)
            for gpu in range(node.num_gpus):
                found.append(self._gap(index, gpu, tuple(beside.get(gpu, ()))))
        return sorted(found, key=lambda gap: (-gap.share, gap.node, gap.gpus))

    def _spans(self, rows: Iterable[int]) -> bool:
        """True if one of the jobs is on several live nodes, whose agent sees the steps of one."""
        places = self._residents.place
        return self._view.is_live and any(len(places[row].parts) > 1 for row in rows)

    def _gap(self, node: int, gpu: int, beside: tuple[int, ...]) -> Gap:
        if not beside:
            return Gap(node, (gpu,))
        if self._spans(beside):
            return Gap(node, (gpu,), beside, 0.0, True)
        planned = {row: uses[node, gpu] for row in beside if (uses := self._plan(row))}
        if planned:
            used = [planned[row] if row in planned else self._use(row) for row in beside]
            return Gap(node, (gpu,), beside, *share_left(used))
        if beside not in self._left:
            self._left[beside] = share_left([self._use(row) for row in beside])
        share, is_known = self._left[beside]
        return Gap(node, (gpu,), beside, share, is_known)

    def _plan(self, row: int) -> dict[Gpu, float] | None:
        if row not in self._planned:
            self._planned[row] = planned_use(self._view, row, self._residents.place.get(row))
        return self._planned[row]

    def _use(self, row: int) -> float | None:
        if row not in self._used:
            self._used[row] = use_of(self._view, row, self._residents)
        return self._used[row]


def joined(gaps: Sequence[Gap]) -> Gap:
    """These gaps of GPUs of one node, at least one, as a gang has them: as fast as its slowest."""
    if len(gaps) == 1:
        return gaps[0]
    return Gap(
        gaps[0].node,
        tuple(sorted(gpu for gap in gaps for gpu in gap.gpus)),
        tuple(sorted({row for gap in gaps for row in gap.beside})),
        min(gap.share for gap in gaps),
        all(gap.is_known for gap in gaps),
    )


def share_left(used: Sequence[float | None]) -> tuple[float, bool]:
    """The part that jobs leave which use these parts of a GPU, and whether it is known of all.

    A job of which nothing is known leaves PRIOR at most.
    """
    known = [use for use in used if use is not None]
    left = min(1.0, max(0.0, 1.0 - sum(known)))
    if len(known) < len(used):
        return round(min(PRIOR, left), DIGITS), False
    return round(left, DIGITS), True


def planned_use(view: View, row: int, place: Allocation | None) -> dict[Gpu, float] | None:
    """The part of each of its GPUs that a job uses by the plan that its program has told.

    None without a plan for as many GPUs as the job has. Where there is one, it comes before what
    was measured: that is one figure for all of the job's GPUs, in which ranks that wait for others
    in a collective operation of a device count as busy.
    """
    planned = view.burst_planned(row)
    if planned is None or place is None or len(planned.idle) != place.num_gpus:
        return None
    gpus = [(node, gpu) for node, mask in place.parts for gpu in indices(mask)]
    return {at: 1.0 - idle for at, idle in zip(gpus, planned.idle, strict=True)}


def use_of(view: View, row: int, residents: Residents) -> float | None:
    """The part of each of its GPUs that a job uses while it has them to itself; None: unknown.

    It is what was measured of the job's device, or of its kind's. Of a job on slots that stand for
    CPU cores, of which no device tells, it is the CPU time that it takes for each slot.
    """
    usage = view.usage(row)
    if usage.gpu_util is not None:
        return usage.gpu_util
    place = residents.place.get(row)
    if usage.cpu_cores is None or place is None:
        return None
    slots = all(view.nodes[node].kind == "cpu" for node in place.nodes())
    return usage.cpu_cores / place.num_gpus if slots else None
