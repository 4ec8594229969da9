"""Gauges of a cluster at one moment: free and stranded GPUs, shares of queues and users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rota.model.allocation import Allocation
from rota.model.cluster import Node
from rota.model.job import JobSpec
from rota.model.state.state import ClusterState

NOBODY = "(none)"  # the user or queue of jobs that have none


class FreeByNode:
    """The free GPUs of each node, and those of them that are stranded.

    A free GPU is stranded while waiting jobs would fit by number, but none of them on its node: a
    job needs all its GPUs on one node, and one larger than a node needs whole nodes. This is the
    measure of Weng and others, *Beware of Fragmentation* (USENIX ATC 2023), with the waiting jobs
    as the workload. Nodes are known by their index, in the order in which their names joined. A GPU
    that several jobs share is free once all of them have given it up.
    """

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.all_gpus = 0
        self.count = 0
        self._size: list[int] = []
        self._busy: list[int] = []  # mask of a node's GPUs
        self._free: list[int] = []
        self._others: Counter[tuple[int, int]] = Counter()  # (node, GPU bit) -> jobs but the first
        self._kinds: Counter[tuple[int, int]] = Counter()  # (GPUs, free GPUs) -> nodes

    def join(self, name: str, num_gpus: int) -> None:
        """Add a node, all of whose GPUs are free."""
        node = self.index.setdefault(name, len(self._size))
        if node == len(self._size):
            self._size.append(num_gpus)
            self._busy.append(0)
            self._free.append(0)
        self._size[node] = num_gpus
        self.all_gpus += num_gpus
        self._set(node, 0, num_gpus)

    def lose(self, node: int) -> None:
        """Remove a node, from which jobs have been taken."""
        self.all_gpus -= self._size[node]
        self._set(node, 0, 0)

    def take(self, allocation: Allocation) -> None:
        """Let a job hold GPUs."""
        for node, mask in allocation.parts:
            for bit in _bits(self._busy[node] & mask):
                self._others[node, bit] += 1
            self._mark(node, self._busy[node] | mask)

    def give(self, allocation: Allocation) -> None:
        """Take GPUs from a job that holds them."""
        for node, mask in allocation.parts:
            kept = 0
            for bit in _bits(mask) if self._others else ():
                if (node, bit) in self._others:
                    kept |= bit
                    self._others[node, bit] -= 1
                    if not self._others[node, bit]:
                        del self._others[node, bit]
            self._mark(node, self._busy[node] & ~mask | kept)

    def stranded(self, least: int) -> int:
        """The stranded GPUs, if the smallest waiting job needs ``least``; 0: no job waits."""
        if not 1 < least <= self.count:
            return 0
        kinds = self._kinds.items()
        return sum(free * nodes for (size, free), nodes in kinds if free < min(least, size))

    def _mark(self, node: int, busy: int) -> None:
        self._set(node, busy, self._size[node] - busy.bit_count())

    def _set(self, node: int, busy: int, free: int) -> None:
        size, old = self._size[node], self._free[node]
        self._busy[node], self._free[node] = busy, free
        self.count += free - old
        if old:
            self._kinds[size, old] -= 1
        if free:
            self._kinds[size, free] += 1


class Standing(NamedTuple):
    """What gauges come from, copied from a state, so that they can be made beside its loop."""

    nodes: list[Node]
    rows: tuple[int, ...]  # that may hold GPUs, or want some
    active: frozenset[int]
    held: list[Allocation | None]
    target: list[Allocation | None]
    spec: list[JobSpec]
    num_gpus: Sequence[int]
    preemptions: Sequence[int]


def standing(state: ClusterState) -> Standing:
    """How the cluster stands now; takes about a millisecond with 100,000 jobs."""
    return Standing(
        list(state.nodes),
        (*state.active, *(state.staying.keys() | state.unsettled.keys()) - state.active.keys()),
        frozenset(state.active),
        state.held[:],
        state.target[:],
        state.spec,  # only ever appended to
        state.num_gpus[:],
        state.preemptions[:],
    )


def queue_rows(now: Standing) -> dict[str, int]:
    """A row of each queue whose jobs want or hold GPUs, by name: for the policy's quota."""
    return {now.spec[row].vc or NOBODY: row for row in now.active}


def gauges(now: Standing, quotas: Mapping[str, int | None] = {}) -> dict[str, Any]:
    """How the cluster stands, by name and JSON-able; background jobs do not count.

    ``gpus`` are those that are there, ``held_gpus`` those that jobs hold, ``free_gpus`` the others
    and ``stranded_gpus`` those of them that no waiting job can use (:class:`FreeByNode`);
    ``fragmentation`` is their part of the free ones, None where none is free or no job waits.
    ``waiting_jobs`` want GPUs and hold none. ``preemptions`` counts those of all jobs so far.
    ``queues`` and ``users`` are the present shares of those whose jobs want or hold GPUs:
    ``held_gpus``, their part ``share`` of the cluster's, ``waiting_jobs``, and of a queue
    ``quota_gpus`` and ``quota``, the part that the policy holds it to; None: no share is enforced.
    ``quotas`` are the GPUs of queues' quotas, by name. A GPU that jobs share counts for each of
    them in shares, and once in ``held_gpus``.
    """
    free = FreeByNode()
    for node in now.nodes:
        free.join(node.name, node.num_gpus if node.alive else 0)
    sizes: list[int] = []
    held_gpus: dict[tuple[str, str], int] = {}  # by queue and user
    waiting: dict[tuple[str, str], int] = {}
    for row in now.rows:
        held, spec = now.held[row], now.spec[row]
        if spec.is_background:
            continue
        if held is not None:
            free.take(held)
            whose = spec.vc, spec.user
            held_gpus[whose] = held_gpus.get(whose, 0) + held.num_gpus
        elif now.target[row] is None and row in now.active:
            sizes.append(now.num_gpus[row])
            whose = spec.vc, spec.user
            waiting[whose] = waiting.get(whose, 0) + 1
    groups: dict[str, dict[str, dict[str, Any]]] = {"queues": {}, "users": {}}
    for whose in held_gpus.keys() | waiting.keys():
        for group, name in zip(groups, whose, strict=True):
            told = groups[group].setdefault(name or NOBODY, {"held_gpus": 0, "waiting_jobs": 0})
            told["held_gpus"] += held_gpus.get(whose, 0)
            told["waiting_jobs"] += waiting.get(whose, 0)
    for name, told in groups["queues"].items():
        told["quota_gpus"] = quotas.get(name)
    stranded = free.stranded(min(sizes, default=0))
    return {
        "gpus": free.all_gpus,
        "held_gpus": free.all_gpus - free.count,
        "free_gpus": free.count,
        "stranded_gpus": stranded,
        "fragmentation": stranded / free.count if free.count and sizes else None,
        "waiting_jobs": len(sizes),
        "preemptions": sum(now.preemptions),
        **{group: _shares(found, free.all_gpus) for group, found in groups.items()},
    }


def _shares(groups: Mapping[str, dict[str, Any]], gpus: int) -> dict[str, dict[str, Any]]:
    for told in groups.values():
        told["share"] = told["held_gpus"] / gpus if gpus else None
        if "quota_gpus" in told:
            quota = told["quota_gpus"]
            told["quota"] = quota / gpus if gpus and quota is not None else None
    most_first = sorted(groups.items(), key=lambda item: (-item[1]["held_gpus"], item[0]))
    return dict(most_first)


def gpu_seconds(state: ClusterState, rows: Iterable[int], now_s: float) -> float:
    """GPU time for which jobs have run: service times GPUs, summed over ``rows``."""
    return sum(
        state.service(row, now_s) * state.num_gpus[row] + state.extra_gpu_s[row] for row in rows
    )


def grouped(
    state: ClusterState, rows: Iterable[int], of: Callable[[JobSpec], str]
) -> dict[str, list[int]]:
    """The rows of each user or queue, by name."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(of(state.spec[row]) or NOBODY, []).append(row)
    return groups


def gpu_shares(
    state: ClusterState, now_s: float, of: Callable[[JobSpec], str], rows: Sequence[int] = ()
) -> dict[str, float | None]:
    """The part of all jobs' GPU time that each user or queue has had, largest first.

    None where no job has run.
    """
    groups = grouped(state, rows or range(len(state.spec)), of)
    used = {name: gpu_seconds(state, members, now_s) for name, members in groups.items()}
    total = sum(used.values())
    most_first = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    return {name: gpu_s / total if total else None for name, gpu_s in most_first}


def _bits(mask: int) -> Iterable[int]:
    while mask:
        yield mask & -mask
        mask &= mask - 1
