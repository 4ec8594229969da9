"""Programs: calls and transfers as they were traced, and the steps that workers take for them.

A program knows slices and shards, not devices. It is lowered to the steps of each worker once, and
again only if a slice lies on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.flow import wire
from rota.flow.functions import Spec
from rota.flow.layout import Layout, Piece, Replicated, pieces, whole_shape


class Lies(NamedTuple):
    """Where and how an array lies: the workers of its shards (by index), layout, shards' specs."""

    slice: int
    workers: tuple[int, ...]
    layout: Layout
    specs: tuple[Spec, ...]
    known: bool = True  # otherwise the specs are of what it may take, and it is to be computed

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical array's."""
        return whole_shape([tuple(each.shape) for each in self.specs], self.layout)


class Call(NamedTuple):
    """One gang operation: values in, values out; ``label`` names it to people."""

    function: int
    label: str
    workers: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    extra_bytes: int  # that it needs of a device besides inputs and outputs
    when: tuple[tuple[int, bool], ...] = ()  # predicates, and as which of them it runs


class Transfer(NamedTuple):
    """A value becomes another one, elsewhere or otherwise laid out."""

    source: int
    target: int


class Choose(NamedTuple):
    """A value is one of two others, by a predicate that all of its workers have."""

    predicate: int
    yes: int
    no: int
    target: int


class Trace:
    """Values in the order in which they come to be, the inputs first, and what makes them."""

    def __init__(self, inputs: Sequence[Lies]) -> None:
        self.values: list[Lies] = list(inputs)
        self.inputs = len(inputs)
        self.nodes: list[Call | Transfer | Choose] = []
        self.when: tuple[tuple[int, bool], ...] = ()  # the branches that are being traced
        self.outputs: tuple[int, ...] = ()
        self.name = ""  # the program's, before the names of its operations
        self.closed = False  # it is traced, and nothing can be added

    def add(self, value: Lies) -> int:
        """One more value."""
        self.values.append(value)
        return len(self.values) - 1

    def structure(self) -> Any:
        """Equal for programs that do the same to such inputs; hashable."""
        return tuple(self.values), tuple(self.nodes), self.outputs

    def transfer(self, source: int, lies: Lies) -> int:
        """The value in another place or layout."""
        target = self.add(lies)
        self.nodes.append(Transfer(source, target))
        return target

    def bring(self, predicate: int, holds: int, at: int, results: Sequence[int]) -> None:
        """Have a predicate, as the value ``holds``, where nodes from ``at`` on and results are.

        All have it from one shard, so that they agree whatever the others are.
        """
        lies = self.values[predicate]
        spec = Spec(lies.shape, lies.specs[0].dtype)
        workers = {worker for each in results for worker in self.values[each].workers}
        for node in self.nodes[at:]:
            workers |= set(node.workers if isinstance(node, Call) else ())
        where = tuple(sorted(workers))
        self.values[holds] = Lies(0, where, Replicated(), (spec,) * len(where))
        first = self.add(Lies(0, lies.workers[:1], Replicated(), (spec,)))
        self.nodes[at:at] = [Transfer(predicate, first), Transfer(first, holds)]

    def calls(self) -> list[Call]:
        """The gang operations, in order."""
        return [each for each in self.nodes if isinstance(each, Call)]


class Lowered(NamedTuple):
    """What one worker does."""

    steps: list[wire.Step]
    registers: int
    inputs: list[int]  # of the program's inputs, those of which it has a shard, by register
    outputs: list[int]  # registers; of those outputs of which it has a shard
    kept: list[int]  # their places among the program's outputs


def lowered(trace: Trace, worker: int, slots: Sequence[int]) -> Lowered:
    """The steps of a worker; ``slots`` are those of all workers."""
    return _Lowering(trace, worker, slots).result()


def extra_bytes(trace: Trace, worker: int) -> int:
    """What a program needs of a worker's device at most, besides its inputs and outputs."""
    last = _last_uses(trace)
    sizes = {
        value: lies.specs[lies.workers.index(worker)].nbytes
        for value, lies in enumerate(trace.values)
        if worker in lies.workers and value >= trace.inputs
    }
    live_bytes, most_bytes = 0, 0
    for number, node in enumerate(trace.nodes):
        if isinstance(node, Call):
            made, own_bytes = node.outputs, node.extra_bytes * (worker in node.workers)
        else:
            made, own_bytes = (node.target,), 0
        live_bytes += sum(sizes.get(each, 0) for each in made)
        most_bytes = max(most_bytes, live_bytes + own_bytes)
        live_bytes -= sum(sizes.get(each, 0) for each in last.get(number, ()))
    return max(0, most_bytes - sum(sizes.get(each, 0) for each in set(trace.outputs)))


def _last_uses(trace: Trace) -> dict[int, list[int]]:
    """The values that nobody uses after a node, by node."""
    last: dict[int, int] = {}
    for number, node in enumerate(trace.nodes):
        used: tuple[int, ...] = node if not isinstance(node, Call) else ()
        if isinstance(node, Call):
            used = (*node.inputs, *node.outputs, *(value for value, _ in node.when))
        last |= dict.fromkeys(used, number)
    found: dict[int, list[int]] = {}
    for value, number in last.items():
        if value not in trace.outputs:
            found.setdefault(number, []).append(value)
    return found


class _Lowering:
    def __init__(self, trace: Trace, worker: int, slots: Sequence[int]) -> None:
        self._trace, self._worker, self._slots = trace, worker, slots
        self._registers: dict[int, int] = {}  # by value
        self._steps: list[wire.Step] = []
        self._inputs = [v for v in range(trace.inputs) if self._has(v)]
        for value in self._inputs:
            self._register(value)

    def result(self) -> Lowered:
        trace = self._trace
        kept = [i for i, value in enumerate(trace.outputs) if self._has(value)]
        last = _last_uses(trace)
        offset = 0
        for number, node in enumerate(trace.nodes):
            if isinstance(node, Call):
                if self._worker in node.workers:
                    self._call(node, offset)
                offset += 1
            elif isinstance(node, Transfer):
                self._transfer(node)
            elif self._has(node.target):
                own = [self._registers[each] for each in node[:3]]
                self._steps.append(wire.Choose(self._register(node.target), *own))
            over = [self._registers[v] for v in last.get(number, ()) if v in self._registers]
            if over:
                self._steps.append(wire.Discard(over))
        outputs = [self._registers[trace.outputs[i]] for i in kept]
        return Lowered(self._steps, len(self._registers), self._inputs, outputs, kept)

    def _has(self, value: int) -> bool:
        return self._worker in self._trace.values[value].workers

    def _register(self, value: int) -> int:
        return self._registers.setdefault(value, len(self._registers))

    def _call(self, node: Call, offset: int) -> None:
        inputs = [self._registers[each] for each in node.inputs]
        outputs = [self._register(each) for each in node.outputs]
        when = [(self._registers[value], wanted) for value, wanted in node.when]
        made = [self._trace.values[each] for each in node.outputs]
        specs = [each.specs[each.workers.index(self._worker)] for each in made if each.known]
        self._steps.append(wire.Compute(node.function, offset, inputs, outputs, when, specs))

    def _transfer(self, node: Transfer) -> None:
        source, target = (self._trace.values[each] for each in node)
        for index, to in enumerate(target.workers):
            made = pieces(
                source.shape,
                source.layout,
                len(source.workers),
                target.layout,
                len(target.workers),
                index,
            )
            parts: list[str | wire.Region] = []
            for piece in made:
                holder = source.workers[piece.shard]
                name = f"{node.target}.{index}.{piece.shard}"
                if holder == self._worker:
                    region = _region(self._registers[node.source], piece)
                    if to == holder:
                        parts.append(region)
                    else:
                        self._steps.append(wire.Send(region, name, self._slots[to]))
                else:
                    parts.append(name)
            if to == self._worker:
                dim = made[0].place.dim if made and made[0].place is not None else 0
                empty = None if made else target.specs[index]
                register = self._register(node.target)
                slots = [self._slots[source.workers[piece.shard]] for piece in made]
                self._steps.append(wire.Receive(register, parts, slots, dim, empty))


def _region(register: int, piece: Piece) -> wire.Region:
    if piece.region is None:
        return wire.Region(register)
    return wire.Region(register, *piece.region)
