"""DeepPool's own planner: the fastest plan whose layers each waste little, by a greedy rule.

DeepPool (MLSys 2022), ``searchBestSplitsV3`` of the authors' planner: sizes are powers of two, and
for each layer and size the best size of the layer before is kept. A size of the layer before
counts only if that layer's *amplification* there, its GPU time over that on one GPU, is below the
limit, or the least seen. This limit is soft, and looks at one layer at a time. Costs are the
corrected ones of :mod:`~rota.burst.planner.costs`.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from rota.burst.planner.costs import Costs
from rota.burst.planner.plan import Group, Plan
from rota.burst.planner.timeline import timeline
from rota.errors import InputError

SMALL_S = 300e-6  # layers that take less on one GPU may waste as they like


class _State(NamedTuple):
    """The best way to a layer at one size; ``sizes`` has all layers so far."""

    step_s: float
    amplification: float
    sizes: dict[int, int]


def published_plan(costs: Costs, limit: float) -> Plan:
    """The plan that DeepPool's planner finds with this amplification limit.

    Of several branches the longest runs on the GPUs of fork and join. The others get GPUs of their
    own where there are enough, reuse those of another branch that is done in time, or else run
    after the longest. Raises InputError for a limit below 1, a graph without one first and one last
    layer or without nested branches, tied layers, or no size that is a power of two.
    """
    if not limit >= 1.0:
        raise InputError(f"the amplification limit is {limit:g}; it is 1 or more")
    return _Published(costs, limit).plan()


class _Published:
    def __init__(self, costs: Costs, limit: float) -> None:
        self._costs, self._limit = costs, limit
        self._sizes = [size for size in costs.sizes if size & (size - 1) == 0]
        number = len(costs.graph.layers)
        self._after: list[list[int]] = [[] for _ in range(number)]
        self._before: list[list[int]] = [[] for _ in range(number)]
        for source, taker in costs.graph.edges:
            self._after[source].append(taker)
            self._before[taker].append(source)
        firsts = [i for i in range(number) if not self._before[i]]
        lasts = [i for i in range(number) if not self._after[i]]
        if not self._sizes or len(firsts) != 1 or len(lasts) != 1:
            raise InputError(
                f"{costs.graph.name}: the published planner needs a size that is a power of two, "
                f"and one first and one last layer; there are {len(self._sizes)}, {len(firsts)} "
                f"and {len(lasts)}"
            )
        tied = [layer.name for layer in costs.graph.layers if layer.tied_to is not None]
        if tied:
            raise InputError(
                f"{costs.graph.name}: layer {tied[0]} has another layer's parameters; the "
                "published planner knows no tied layers"
            )

    def plan(self) -> Plan:
        """Search forward, then place the branches."""
        begin = {size: _State(self._alone_s(0, size), 1.0, {0: size}) for size in self._sizes}
        for size, state in begin.items():
            begin[size] = state._replace(amplification=self._amplification(0, size, state.step_s))
        states = self._along(0, begin, None)
        best = min(states.values(), key=lambda state: state.step_s)
        sizes = [best.sizes[i] for i in range(len(self._after))]
        groups = [Group(0, size) for size in sizes]
        self._place(0, None, groups)
        draft = Plan(tuple(groups), 0.0, 0.0, 0.0)
        return self._costed(draft)

    def _costed(self, plan: Plan) -> Plan:
        costs, groups = self._costs, plan.groups
        gpu_time_s = 0.0
        for layer, group in enumerate(groups):
            gpu_time_s += costs.alone_s(layer, group.size) * group.size
        for source, taker in costs.graph.edges:
            moved = groups[source].first != groups[taker].first
            size = groups[taker].size
            gpu_time_s += costs.transfer_s(source, groups[source].size, size, moved) * size
        held = [0.0] * costs.gpus
        for layer, group in enumerate(groups):
            for gpu in range(group.first, group.end):
                held[gpu] += costs.held_bytes(layer, group.size)
        step_s = timeline(costs, plan, overlap=False).step_s
        return Plan(groups, step_s, gpu_time_s, max(held))

    def _along(self, layer: int, states: dict[int, _State], until: int | None) -> dict[int, _State]:
        """From the states of ``layer`` to those of the last layer before ``until``."""
        while self._after[layer] and self._after[layer] != [until]:
            following = self._after[layer]
            if len(following) > 1:
                join = self._join(layer)
                if join == until:
                    raise self._not_nested(layer)
                states = self._branched(layer, join, states)
                layer = join
                continue
            layer = following[0]
            states = self._next(layer, states)
        return states

    def _next(self, layer: int, states: dict[int, _State]) -> dict[int, _State]:
        """States of a layer after those of its only input."""
        if len(self._before[layer]) > 1:
            raise self._not_nested(layer)
        source = self._before[layer][0]
        made: dict[int, _State] = {}
        for size in self._sizes:
            least = inf
            for before in self._allowed(layer, size, states):
                state = states[before]
                alone_s = self._alone_s(layer, size)
                lasting_s = self._costs.transfer_s(source, before, size, False) + alone_s
                step_s = state.step_s + lasting_s
                soft = state.amplification < self._limit or state.amplification < least
                least = min(least, state.amplification)
                if soft and (size not in made or step_s < made[size].step_s):
                    amplification = self._amplification(layer, size, lasting_s)
                    made[size] = _State(step_s, amplification, state.sizes | {layer: size})
        return made

    def _branched(self, fork: int, join: int, states: dict[int, _State]) -> dict[int, _State]:
        """States of a join: as late as the longest branch, from the best size of the fork."""
        made: dict[int, _State] = {}
        for begin, state in states.items():
            branches = [self._branch(fork, first, join, begin) for first in self._after[fork]]
            for size in self._sizes:
                chosen = [min(ends[size], key=lambda end: end.step_s) for ends in branches]
                alone_s = self._alone_s(join, size)
                step_s = state.step_s + max(end.step_s for end in chosen) + alone_s
                if size not in made or step_s < made[size].step_s:
                    sizes = dict(state.sizes)
                    for end in chosen:
                        sizes |= end.sizes
                    amplification = self._amplification(join, size, alone_s)
                    made[size] = _State(step_s, amplification, sizes | {join: size})
        return made

    def _branch(self, fork: int, first: int, join: int, begin: int) -> dict[int, list[_State]]:
        """For each size of the join, the ways of one branch from the fork at size ``begin``."""
        start = {begin: _State(0.0, 1.0, {fork: begin})}
        ends, last = start, fork
        if first != join:
            ends, last = self._along(first, self._next(first, start), join), first
        while last != fork and self._after[last] != [join]:
            last = self._join(last) if len(self._after[last]) > 1 else self._after[last][0]
        return {
            size: [
                end._replace(step_s=end.step_s + self._costs.transfer_s(last, before, size, False))
                for before, end in ends.items()
            ]
            for size in self._sizes
        }

    def _join(self, fork: int) -> int:
        """The first layer that all ways from the fork go through."""
        reach: list[set[int]] = []
        for first in self._after[fork]:
            seen, stack = {first}, [first]
            while stack:
                for following in self._after[stack.pop()]:
                    if following not in seen:
                        seen.add(following)
                        stack.append(following)
            reach.append(seen)
        return min(set.intersection(*reach))

    def _place(self, layer: int, until: int | None, groups: list[Group]) -> None:
        """Give side branches GPUs, from ``layer`` on; groups begin at the first GPU before that."""
        while self._after[layer] and layer != until:
            if len(self._after[layer]) == 1:
                layer = self._after[layer][0]
                continue
            join = self._join(layer)
            branches = [self._inside(first, join) for first in self._after[layer] if first != join]
            for inside in branches:
                self._place(inside[0], join, groups)
            branches.sort(key=lambda inside: -self._lasting_s(inside, groups))
            self._beside(branches, groups)
            layer = join

    def _beside(self, branches: Sequence[list[int]], groups: list[Group]) -> None:
        if not branches:
            return
        longest_s = self._lasting_s(branches[0], groups)
        taken = max(groups[i].end for i in branches[0])
        lanes: list[tuple[int, int, float]] = []  # first GPU, GPUs, busy until
        for inside in branches[1:]:
            wide, lasting_s = max(groups[i].end for i in inside), self._lasting_s(inside, groups)
            extra_s = self._extra_s(inside, groups)
            if extra_s >= longest_s or extra_s + lasting_s > self._limit * lasting_s:
                continue
            for at, (first, gpus, until_s) in enumerate(lanes):
                if wide <= gpus and until_s + lasting_s <= longest_s:
                    lanes[at] = (first, gpus, until_s + lasting_s)
                    break
            else:
                first = taken
                if first + wide > self._costs.gpus:
                    continue
                taken += wide
                lanes.append((first, wide, lasting_s))
            for i in inside:
                groups[i] = Group(groups[i].first + first, groups[i].size)

    def _inside(self, first: int, join: int) -> list[int]:
        """The layers from ``first`` to before the join."""
        seen, stack = {first}, [first]
        while stack:
            for following in self._after[stack.pop()]:
                if following != join and following not in seen:
                    seen.add(following)
                    stack.append(following)
        return sorted(seen)

    def _lasting_s(self, inside: Sequence[int], groups: Sequence[Group]) -> float:
        return sum(self._costs.alone_s(i, groups[i].size) for i in inside)

    def _extra_s(self, inside: Sequence[int], groups: Sequence[Group]) -> float:
        """Seconds that the branch's transfers take longer because it is on GPUs of its own."""
        costs, within = self._costs, set(inside)
        return sum(
            costs.transfer_s(source, groups[source].size, groups[taker].size, True)
            - costs.transfer_s(source, groups[source].size, groups[taker].size, False)
            for source, taker in costs.graph.edges
            if (source in within) != (taker in within)
        )

    def _allowed(self, layer: int, size: int, states: dict[int, _State]) -> list[int]:
        """Sizes of the layer before; the same if the layer keeps its input's."""
        keeps = self._costs.graph.layers[layer].keeps_size
        return [before for before in states if not keeps or before == size]

    def _not_nested(self, layer: int) -> InputError:
        return InputError(
            f"{self._costs.graph.name}: the branches at layer "
            f"{self._costs.graph.layers[layer].name} are not nested, each fork with a join of its "
            "own; the published planner needs that"
        )

    def _alone_s(self, layer: int, size: int) -> float:
        return self._costs.alone_s(layer, size)

    def _amplification(self, layer: int, size: int, lasting_s: float) -> float:
        fewest = self._sizes[0]
        base_s = self._costs.alone_s(layer, fewest) * fewest
        return 1.0 if base_s < SMALL_S else lasting_s * size / base_s
