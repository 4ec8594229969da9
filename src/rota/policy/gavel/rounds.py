"""Turns shares of time into rounds, in which the jobs that are furthest behind run.

The mechanism is Gavel's (OSDI 2020, section 5, algorithm 1). Time received on a GPU type is not
counted: a job's record says on which type it has run since which attained service, and changes
only when the type does or when new shares are found.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rota.model.allocation import Allocation
from rota.model.cluster import FreeGpus, Node
from rota.model.reason import Reason
from rota.model.view import View, WhatIf
from rota.policy.placement.consolidate import consolidate

TypeOfRow = dict[int, str]  # row -> the GPU type on which it runs


class GpuTypes:
    """The GPU types of the present nodes, in order of their first node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.of_node = [node.gpu_type for node in nodes]
        self.gpus: dict[str, int] = {}
        for node in nodes:
            if node.alive:
                self.gpus[node.gpu_type] = self.gpus.get(node.gpu_type, 0) + node.num_gpus

    def able(self, speeds: Mapping[str, float], num_gpus: int) -> frozenset[str]:
        """The types with enough GPUs for a gang of these speeds; a type not named has speed 1."""
        return frozenset(
            kind
            for kind, count in self.gpus.items()
            if num_gpus <= count and speeds.get(kind, 1.0) > 0
        )

    def of(self, allocation: Allocation | None) -> str | None:
        """The type of all its GPUs; None for no GPUs, or GPUs of several types."""
        kinds = self.all_of(allocation)
        return next(iter(kinds)) if len(kinds) == 1 else None

    def all_of(self, allocation: Allocation | None) -> frozenset[str]:
        """The types of its GPUs."""
        parts = allocation.parts if allocation is not None else ()
        return frozenset(self.of_node[node] for node, _ in parts)

    def count(self, masks: Iterable[tuple[int, int]]) -> dict[str, int]:
        """GPUs by type of these ``(node, mask)`` pairs."""
        counts = dict.fromkeys(self.gpus, 0)
        for node, mask in masks:
            kind = self.of_node[node]
            counts[kind] = counts.get(kind, 0) + mask.bit_count()
        return counts


class Record:
    """Time that a job should have had and time that it got, since shares were last found.

    ``share`` and ``got_s`` (seconds) are by GPU type, as is ``owed_s``: the seconds by which it had
    fallen behind its earlier shares. The job runs on type ``on`` since its attained service was
    ``at_s``. ``more`` is what the policy itself keeps. All of it is plain data, the job's mark.
    """

    __slots__ = ("at_s", "got_s", "more", "on", "owed_s", "share", "solved_s")

    def __init__(self, mark: Mapping[str, Any] | None) -> None:
        mark = mark or {}
        self.share: dict[str, float] = dict(mark.get("share", {}))
        self.got_s: dict[str, float] = dict(mark.get("got_s", {}))
        self.owed_s: dict[str, float] = dict(mark.get("owed_s", {}))
        self.on: str = mark.get("on", "")
        self.at_s: float = mark.get("at_s", 0.0)
        self.solved_s: float = mark.get("solved_s", -1.0)
        self.more: dict[str, float] = dict(mark.get("more", {}))

    def mark(self) -> dict[str, Any]:
        """The record as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}

    def received_s(self, gpu_type: str, attained_s: float) -> float:
        """Seconds run on the type since shares were found."""
        running = attained_s - self.at_s if gpu_type == self.on else 0.0
        return self.got_s.get(gpu_type, 0.0) + running

    def run_on(self, gpu_type: str, attained_s: float) -> None:
        """Count the job's seconds for this type from now on."""
        self.got_s[self.on] = self.received_s(self.on, attained_s)
        self.on, self.at_s = gpu_type, attained_s

    def renew(
        self, share: dict[str, float], now_s: float, attained_s: float, since_s: float
    ) -> None:
        """Start afresh under a new share; what the share since ``since_s`` left open is owed."""
        self.run_on(self.on, attained_s)
        passed_s = now_s - since_s if self.solved_s == since_s else 0.0
        for kind in sorted({*self.share, *self.got_s} - {""}):
            due_s = self.share.get(kind, 0.0) * passed_s - self.got_s.get(kind, 0.0)
            self.owed_s[kind] = self.owed_s.get(kind, 0.0) + due_s
        self.share, self.got_s, self.solved_s = share, {}, now_s

    def turn(self, gpu_type: str, attained_s: float, round_s: float) -> tuple[float, float, float]:
        """A key that sorts the job that is furthest behind on a type first.

        It is share over time received (which starts at half a round, so that the first round goes
        by the shares), then what is owed, then the share.
        """
        share = self.share.get(gpu_type, 0.0)
        due = share / (round_s / 2 + self.received_s(gpu_type, attained_s))
        return -due, -self.owed_s.get(gpu_type, 0.0), -share


def choose(
    view: View,
    types: GpuTypes,
    records: Mapping[int, Record],
    able: Mapping[int, frozenset[str]],
    left: dict[str, int],
    order: Iterable[str],
    round_s: float,
) -> TypeOfRow:
    """Choose the GPU type of each job: by type, those furthest behind first, while gangs fit.

    ``able`` gives the types on which each row can run, ``left`` the free GPUs of each type. Ties
    are broken by arrival, then id.
    """
    chosen: TypeOfRow = {}
    for kind in order:
        waiting = [row for row, kinds in able.items() if kind in kinds and row not in chosen]
        keys = {
            row: (*records[row].turn(kind, view.attained_s(row), round_s), row) for row in waiting
        }
        for row in sorted(waiting, key=keys.__getitem__):
            gpus = {kind: view.num_gpus[row]}
            home = view.home[row]
            if home is not None and view.must_stay(row):
                gpus = types.count(home.parts)
            if all(count <= left[each] for each, count in gpus.items()):
                chosen[row] = kind
                for each, count in gpus.items():
                    left[each] -= count
    return chosen


def place_all(what_if: WhatIf, types: GpuTypes, chosen: TypeOfRow) -> list[int]:
    """Give each chosen row, which has no GPUs, GPUs of its type. Returns rows that found none.

    Jobs that can continue only where they were come first, then larger gangs, then by row.
    """
    view, free = what_if.view, _FreeByType(what_if, types)
    order = sorted(chosen, key=lambda row: (not view.must_stay(row), -view.num_gpus[row], row))
    return [row for row in order if not free.place(row, chosen[row])]


class _FreeByType:
    """The free GPUs of a what-if, separately by type."""

    def __init__(self, what_if: WhatIf, types: GpuTypes) -> None:
        self._what_if = what_if
        self._types = types
        self._free: dict[str, FreeGpus] = {}

    def place(self, row: int, kind: str) -> bool:
        """Give the row GPUs of this type: those it had, else on the fewest nodes."""
        what_if, view = self._what_if, self._what_if.view
        if view.must_stay(row):
            home = view.home[row]
            if home is None or not what_if.free.fits(home):
                what_if.wait(row, Reason.WAIT_TOPOLOGY)
                return False
            what_if.give(row, home)
            self._free.clear()  # the home may span types: an older policy chose it
            return True
        free = self._of(kind)
        before = (view.target[row], view.home[row])
        allocation = next((known for known in before if known and free.fits(known)), None)
        allocation = allocation or consolidate(free, view.num_gpus[row])
        if allocation is None:
            what_if.wait(row, Reason.WAIT_RESOURCES)
            return False
        free.take(allocation)
        what_if.give(row, allocation)
        return True

    def _of(self, kind: str) -> FreeGpus:
        if kind not in self._free:
            mine = self._free[kind] = FreeGpus()
            for node, mask in enumerate(self._what_if.free.masks):
                mine.set_mask(node, mask if self._types.of_node[node] == kind else 0)
        return self._free[kind]
