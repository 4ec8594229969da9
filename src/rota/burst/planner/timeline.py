"""The course of one step of a plan: each layer, transfer and reduction on each GPU.

A layer runs on all GPUs of its group at once, when its inputs are there. A transfer occupies those
that send and those that take, half of its time in the forward pass and half in the backward pass.
The reduction of a layer's gradients begins after its backward pass: on the links, beside what the
GPUs compute, where reductions *overlap*; else on the GPUs, before they go on. Reductions wait for
each other and for transfers, which go first.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from rota.burst.planner.costs import Costs
from rota.burst.planner.plan import Group, Plan

FORWARD, BACKWARD, TRANSFER, REDUCTION = "forward", "backward", "transfer", "reduction"


class Span(NamedTuple):
    """One layer's work of one ``kind`` on some groups of GPUs; a transfer is its source's."""

    kind: str
    layer: int
    groups: tuple[Group, ...]
    start_s: float
    end_s: float

    def on(self, gpu: int) -> bool:
        """True if it occupies the GPU."""
        return any(group.first <= gpu < group.end for group in self.groups)


class Timeline(NamedTuple):
    """The spans of a step on ``gpus`` GPUs, which ends after ``step_s``."""

    spans: tuple[Span, ...]
    gpus: int
    step_s: float

    def gaps(self, gpu: int) -> list[tuple[float, float]]:
        """Intervals in which a GPU neither computes nor sends, takes or reduces, in order."""
        busy = sorted((span.start_s, span.end_s) for span in self.spans if span.on(gpu))
        return list(_between(busy, self.step_s))

    @property
    def gpu_time_s(self) -> float:
        """GPU-seconds that are no gaps."""
        cuts = sorted({0, self.gpus, *(at for span in self.spans for at in _ends(span.groups))})
        return sum(
            (high - low) * (self.step_s - sum(end - begin for begin, end in self.gaps(low)))
            for low, high in pairwise(cuts)
        )


def timeline(costs: Costs, plan: Plan, *, overlap: bool = True) -> Timeline:
    """The course of a step; ``overlap`` says if reductions run beside the backward pass."""
    return _Step(costs, plan.groups, overlap).run()


def _ends(groups: Iterable[Group]) -> Iterator[int]:
    for group in groups:
        yield group.first
        yield group.end


def _between(busy: Sequence[tuple[float, float]], until_s: float) -> Iterator[tuple[float, float]]:
    at = 0.0
    for start, end in [*busy, (until_s, until_s)]:
        if start - at > 1e-12 * until_s:
            yield at, start
        at = max(at, end)


class _Step:
    """GPUs that no group divides are one *row*: the same happens on all of them."""

    def __init__(self, costs: Costs, groups: Sequence[Group], overlap: bool) -> None:
        self._costs, self._groups, self._overlap = costs, groups, overlap
        cuts = sorted({0, costs.gpus, *_ends(groups)})
        self._rows = {
            group: [row for row, at in enumerate(cuts[:-1]) if group.first <= at < group.end]
            for group in set(groups)
        }
        self._free = [0.0] * (len(cuts) - 1)
        self._spans: list[Span] = []
        self._ready: list[tuple[float, int, int]] = []

    def run(self) -> Timeline:
        """Start what can start soonest, again and again."""
        tasks, waiting, after = self._tasks()
        begun = [0.0] * len(tasks)
        for at, number in enumerate(waiting):
            if not number:
                heappush(self._ready, (0.0, at, at))
        while self._ready:
            known_s, _, at = heappop(self._ready)
            kind, layer, groups, seconds = tasks[at]
            rows = [row for group in groups for row in self._rows[group]]
            start_s = max([begun[at], *(self._free[row] for row in rows)])
            if start_s > known_s:
                heappush(self._ready, (start_s, at, at))
                continue
            end_s = start_s + seconds
            for row in rows:
                self._free[row] = end_s
            self._spans.append(Span(kind, layer, groups, start_s, end_s))
            for following in after[at]:
                begun[following] = max(begun[following], end_s)
                waiting[following] -= 1
                if not waiting[following]:
                    heappush(self._ready, (begun[following], following, following))
        if self._overlap:
            self._spans += self._reductions()
        step_s = max(span.end_s for span in self._spans)
        return Timeline(tuple(self._spans), self._costs.gpus, step_s)

    def _tasks(
        self,
    ) -> tuple[list[tuple[str, int, tuple[Group, ...], float]], list[int], list[list[int]]]:
        """The tasks of a step; by task how many others it waits for, and those that wait for it."""
        costs, groups = self._costs, self._groups
        tasks: list[tuple[str, int, tuple[Group, ...], float]] = []
        before: list[list[int]] = []

        def add(kind: str, layer: int, on: tuple[Group, ...], s: float, of: list[int]) -> int:
            tasks.append((kind, layer, on, s))
            before.append(of)
            return len(tasks) - 1

        moves = {edge: self._transfer(*edge) for edge in costs.graph.edges}
        into: dict[int, list[int]] = {}
        forward: list[int] = []
        leaving: dict[int, list[int]] = {}
        for source, taker in costs.graph.edges:
            leaving.setdefault(source, []).append(taker)
        for layer, group in enumerate(groups):
            seconds, _ = costs.compute_s(layer, group.size)
            done = add(FORWARD, layer, (group,), seconds, into.get(layer, []))
            forward.append(done)
            for taker in leaving.get(layer, ()):
                on, seconds = moves[layer, taker]
                last = add(TRANSFER, layer, on, seconds, [done]) if on else done
                into.setdefault(taker, []).append(last)
        ends = [forward[layer] for layer in range(len(groups)) if layer not in leaving]
        back: dict[int, list[int]] = {}
        for layer in reversed(range(len(groups))):
            group = groups[layer]
            _, seconds = costs.compute_s(layer, group.size)
            done = add(BACKWARD, layer, (group,), seconds, back.get(layer, ends))
            reduce_s = costs.reduce_s(layer, group.size)
            if reduce_s and not self._overlap:
                done = add(REDUCTION, layer, (group,), reduce_s, [done])
            for name in costs.graph.layers[layer].inputs:
                source = costs.graph.index[name]
                on, seconds = moves[source, layer]
                last = add(TRANSFER, source, on, seconds, [done]) if on else done
                back.setdefault(source, []).append(last)
        after: list[list[int]] = [[] for _ in tasks]
        for at, needed in enumerate(before):
            for each in needed:
                after[each].append(at)
        return tasks, [len(needed) for needed in before], after

    def _transfer(self, source: int, taker: int) -> tuple[tuple[Group, ...], float]:
        """The groups that a transfer occupies, none if nothing moves; and seconds of one pass."""
        sending, taking = self._groups[source], self._groups[taker]
        moved = sending.first != taking.first
        seconds = self._costs.transfer_s(source, sending.size, taking.size, moved)
        if not seconds:
            return (), 0.0
        return (sending,) if sending == taking else (sending, taking), seconds / 2.0

    def _reductions(self) -> Iterator[Span]:
        """Reductions on the links, in the order in which gradients are ready."""
        taken: list[list[tuple[float, float]]] = [[] for _ in self._free]  # by row, in order
        for span in self._spans:
            if span.kind == TRANSFER:
                for row in {row for group in span.groups for row in self._rows[group]}:
                    insort(taken[row], (span.start_s, span.end_s))
        free = [0.0] * len(self._free)
        done = [span for span in self._spans if span.kind == BACKWARD]
        for span in sorted(done, key=lambda span: span.end_s):
            [group] = span.groups
            seconds = self._costs.reduce_s(span.layer, group.size)
            if not seconds:
                continue
            rows = self._rows[group]
            start_s = max([span.end_s, *(free[row] for row in rows)])
            end_s = start_s
            blocked = sorted({each for row in rows for each in taken[row] if each[1] > start_s})
            for begin, end in blocked:
                if begin - end_s >= seconds:
                    break
                seconds -= max(0.0, begin - end_s)
                end_s = max(end_s, end)
            end_s += seconds
            for row in rows:
                free[row] = end_s
            yield Span(REDUCTION, span.layer, (group,), start_s, end_s)
